"""Train and measure cells, several at a time; what is done is never done again."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from torch import nn

from counterfactual_training.datasets.catalog import load_dataset
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.experiments.engine.launch import Engine, Failed, capacity, launch
from counterfactual_training.experiments.engine.progress import Progress
from counterfactual_training.experiments.paper.cells import Cell
from counterfactual_training.experiments.paper.fitting import fit_model, untrained
from counterfactual_training.experiments.paper.measure import measure
from counterfactual_training.experiments.paper.store import Store, check_versions


@dataclass(frozen=True)
class Failure:
    """A cell that ended in an error; the others are not touched by it."""

    cell: Cell
    reason: str


def load_data(cell: Cell) -> Dataset:
    """The cell's data set with the quirks that moved the published numbers."""
    return load_dataset(cell.data, "as_run")


def trained(cell: Cell, store: Store, data: Dataset) -> nn.Module:
    """The cell's model: from the store, or trained from where a checkpoint left it."""
    model = untrained(data, cell.seed)
    if store.is_trained(cell):
        return store.load_model(cell, model)
    started = time.perf_counter()
    history = fit_model(model, data, cell.setting(data), store.checkpoint(cell), progress=False).to_frame()
    # A resumed run knows how long its earlier epochs took.
    seconds = max(time.perf_counter() - started, float(history["seconds"].sum()))
    store.save_model(cell, model, history, seconds)
    return model


def run_cell(cell: Cell, root: str | Path, command: str = "", data: Dataset | None = None) -> float:
    """Train and measure one cell, unless that is done; the seconds it took."""
    started = time.perf_counter()
    store = Store(root)
    if not store.is_done(cell):
        store.create()
        data = load_data(cell) if data is None else data
        model = trained(cell, store, data)
        began = time.perf_counter()
        tensors, numbers = measure(model, data, cell)
        store.save_result(cell, tensors, numbers, cell.setting(data).describe(), command, time.perf_counter() - began)
    return time.perf_counter() - started


def run_cells(
    cells: Sequence[Cell],
    root: str | Path,
    workers: int = 2,
    command: str = "",
    stream: TextIO | None = None,
    engine: Engine | None = None,
) -> list[Failure]:
    """All cells that are not done yet; the failures.

    Long cells start first, so that no worker is left alone with one at the end.

    Args:
        engine: where to run; by default that many ``workers`` here.
    """
    engine = Engine(workers=workers) if engine is None else engine
    store = Store(root)
    store.create()
    done = [cell for cell in cells if store.is_done(cell)]
    check_versions([store.load(cell) for cell in done], current=True)
    todo = sorted((cell for cell in cells if cell not in set(done)), key=lambda cell: -cell.expected_cost)
    if todo:
        capacity(engine)  # a cluster that does not answer is told before anything runs
    failures = []
    left = sum(cell.expected_cost for cell in todo)
    with Progress(len(cells), len(done), left, stream if stream is not None else sys.stderr) as progress:
        for cell, outcome in _outcomes(todo, store, command, engine):
            if isinstance(outcome, Failed):
                failures.append(Failure(cell, outcome.reason))
                progress.failed(cell.label, cell.expected_cost, outcome.reason)
            else:
                progress.finished(cell.label, 1, cell.expected_cost, outcome)
    return failures


def _outcomes(
    todo: Sequence[Cell], store: Store, command: str, engine: Engine
) -> Iterator[tuple[Cell, float | Failed]]:
    """Each cell as it ends, with its seconds or the reason why it failed."""
    if engine.name == "processes":
        yield from launch(_run_here, todo, (store.root, command), engine=engine)
        return
    # Nodes see neither our folder nor our data: both travel, and this process alone writes.
    names = {cell.data: cell for cell in todo}
    shared = (command, {name: load_data(cell) for name, cell in names.items()})
    items = [(cell, store.files(cell)) for cell in todo]
    for (cell, _), outcome in launch(_run_away, items, shared, engine=engine):
        if not isinstance(outcome, Failed):
            outcome, files = outcome
            store.add_files(cell, files)
        yield cell, outcome


def _run_here(shared: tuple[Path, str], cell: Cell) -> float:
    root, command = shared
    return run_cell(cell, root, command)


def _run_away(
    shared: tuple[str, dict[str, Dataset]], item: tuple[Cell, dict[str, bytes]]
) -> tuple[float, dict[str, bytes]]:
    """A cell on a machine of a cluster: from the files known so far to all of them."""
    (command, data), (cell, files) = shared, item
    with TemporaryDirectory() as root:
        store = Store(root)
        store.add_files(cell, files)
        seconds = run_cell(cell, root, command, data[cell.data])
        return seconds, store.files(cell)
