"""Run grids: train and measure what is missing, wherever the engine says; results are saved as they
arrive.
"""

from __future__ import annotations

import contextlib
import errno
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from counterfactual_lab.grids.cell import Cell
from counterfactual_lab.grids.grid import Grid, Point, cells_of
from counterfactual_lab.grids.measure import GridData
from counterfactual_lab.grids.outcome import CellOutcome, check_versions
from counterfactual_lab.grids.plan import cell_seconds, plan
from counterfactual_lab.grids.progress import CellProgress, Running
from counterfactual_lab.grids.results import Leaders
from counterfactual_lab.grids.store import Store
from counterfactual_lab.grids.task import GridTask, TaskResult, run_task
from counterfactual_training.datasets.catalog import load_dataset
from counterfactual_training.datasets.dataset import Dataset, PaperSettings
from counterfactual_training.engine.launch import (
    Engine,
    Failed,
    capacity,
    launch,
    reason,
)
from counterfactual_training.errors import CounterfactualTrainingError
from counterfactual_training.versions import versions

_START_SECONDS = 8.0  # of workers and a VAE
_SAMPLES = 100
# For cells of a data set that cannot be loaded: they are only listed as failures.
_NO_SETTINGS = PaperSettings(1, 0.5, 0.1, 1, 0)


@dataclass(frozen=True, eq=False)
class GridRun:
    """What a run did.

    Attributes:
        cells: of the grid, conventional ones included; ``before`` of them were done when it began.
        failures: by label of the task, why it failed. The same command tries again.
    """

    cells: int
    before: int
    seconds: float
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class GridWork:
    """Grids with their data sets: what is to be trained.

    Attributes:
        unavailable: by name, why a data set could not be loaded; its cells fail.
    """

    grids: Sequence[Grid]
    data: Mapping[str, Dataset]
    points: Sequence[Point]
    cells: Sequence[Cell]
    unavailable: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_grids(cls, *grids: Grid, strict: bool = True) -> GridWork:
        """Load the data and make all points; check :attr:`Grid.num_points` first, many take long.

        Args:
            strict: raise if a data set cannot be loaded; otherwise only its own cells fail.
        """
        data: dict[str, Dataset] = {}
        unavailable: dict[str, str] = {}
        for name in dict.fromkeys(name for grid in grids for name in grid.data):
            try:
                data[name] = load_data(name)
            except CounterfactualTrainingError as error:
                if strict:
                    raise
                unavailable[name] = reason(error)
        paper = {name: found.settings for name, found in data.items()} | dict.fromkeys(
            unavailable, _NO_SETTINGS
        )
        points = [point for grid in grids for point in grid.points(paper)]
        return cls(grids, data, points, cells_of(points), unavailable)

    @cached_property
    def costs(self) -> dict[Cell, float]:
        """Expected seconds of each cell whose data set could be loaded."""
        return {
            cell: cell_seconds(cell, self.data[cell.data])
            for cell in self.cells
            if cell.data in self.data
        }

    @property
    def failures(self) -> dict[str, str]:
        """By label, why cells cannot run: their data set could not be loaded."""
        return {
            cell.label: self.unavailable[cell.data]
            for cell in self.cells
            if cell.data in self.unavailable
        }

    def expected_seconds(self, done: set[str], workers: int) -> float:
        """Of everything that is not done."""
        left = sum(seconds for cell, seconds in self.costs.items() if cell.id not in done)
        if left:
            return left / workers + _START_SECONDS
        return 0.0


@cache
def load_data(name: str) -> Dataset:
    """The data set with the quirks that moved the published numbers."""
    return load_dataset(name, "as_run")


def expected_seconds(grid: Grid, workers: int) -> float:
    """An estimate without making all points, from a random sample of them."""
    rng = np.random.default_rng(0)
    total = 0.0
    for name in grid.data:
        data = load_data(name)
        for _ in range(_SAMPLES):
            chosen = {key: values[rng.integers(len(values))] for key, values in grid.values}
            total += (
                len(grid.seeds_of(name))
                * cell_seconds(grid.point(name, 0, data.settings, chosen).cell, data)
                / _SAMPLES
            )
    return total * grid.num_settings / workers + _START_SECONDS


def run_grid(
    work: GridWork,
    root: str | Path,
    engine: Engine | None = None,
    command: str = "",
    stream: TextIO | None = None,
    **notes: Any,
) -> GridRun:
    """Train and measure every cell that is not done yet.

    Args:
        root: folder of finished cells, see :class:`Store`; grids share it, and share cells.
        engine: where the work runs; two processes of this machine if not given.
        notes: to remember beside the grids.
    """
    engine = engine or Engine()
    started = time.monotonic()
    store = Store(root)
    # A cluster that does not answer raises before anything is written.
    workers = capacity(engine)
    failures = work.failures
    with store.writing():
        spent = {grid: store.spent(grid) for grid in work.grids}

        def record(more: float) -> None:
            for grid, seconds in spent.items():
                store.record(grid, command, seconds + more or None, **notes)

        # Before any training, so that `ct grid status` knows a run that is killed at once.
        record(0.0)
        done = store.done()
        finished = [cell for cell in work.cells if cell.id in done]
        check_versions([store.load(cell) for cell in finished if cell.alone], current=True)
        tasks = _tasks(work, store, done, engine, workers)
        store.clear_heartbeats()
        expected = {task: sum(work.costs[cell] for cell in task.cells) for task in tasks}
        total = len(work.cells)
        cost_left = sum(expected.values())
        board = CellProgress(
            total, len(finished), cost_left, stream or sys.stderr, lambda: _running(expected)
        )
        leaders = Leaders(work.points, store, done)
        with board:
            for label, why in failures.items():
                board.failed(label, 0.0, why)
            for task, result in launch(
                run_task, tasks, _sources(work, tasks, store), engine=engine
            ):
                if isinstance(result, Failed):
                    why = _explained(result, store)
                    failures[task.label] = why
                    board.failed(task.label, expected[task], why)
                else:
                    leaders.add(_saved(store, task, result, command))
                    for note in result.notes:
                        board.say(f"{task.label}: {note}")
                    best = leaders.best(task.cells[0].data)
                    board.finished(
                        task.label, len(task.cells), expected[task], result.seconds, best
                    )
                # Noted after every task, so that the time of a killed run counts too.
                record(time.monotonic() - started)
    return GridRun(total, len(finished), time.monotonic() - started, failures)


def _tasks(
    work: GridWork, store: Store, done: set[str], engine: Engine, workers: int
) -> list[GridTask]:
    """The same split whatever is done already, so that a killed task finds its checkpoint."""
    out = []
    for task in plan(work.costs, work.data, workers):
        left = GridTask(tuple(cell for cell in task.cells if cell.id not in done))
        if engine.name == "processes":  # a cluster's workers see no disk of ours
            left = replace(
                left,
                checkpoint=str(store.checkpoint(left.id)),
                heartbeat=str(store.heartbeat(left.id)),
            )
        if left.cells:
            out.append(left)
    return out


def _sources(work: GridWork, tasks: Sequence[GridTask], store: Store) -> dict[str, GridData]:
    """The data that these tasks need, with a VAE where one of them searches by REVISE."""
    latent = {
        cell.data: cell for task in tasks for cell in task.cells if cell.generator == "revise"
    }
    out = {}
    for name in dict.fromkeys(cell.data for task in tasks for cell in task.cells):
        # Tables in the user's units are not needed.
        source = GridData(replace(work.data[name], _frames=None))
        if name in latent:
            source = replace(source, vae=store.vae(source.rows(latent[name])["train"][0]))
        out[name] = source
    return out


def _explained(failed: Failed, store: Store) -> str:
    """Why an item failed; the store's message if the worker met a full disk."""
    if failed.errno in (errno.ENOSPC, errno.EDQUOT):
        return store.no_space()
    return failed.reason


def _saved(
    store: Store, task: GridTask, result: TaskResult, command: str
) -> dict[str, CellOutcome]:
    """The task's outcomes by identity, with how they were made."""
    made = {
        "command": command,
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    outcomes = {}
    for cell, outcome in zip(task.cells, result.outcomes, strict=True):
        outcomes[cell.id] = replace(outcome, made=made)
    store.save(task.id, outcomes)
    store.clear(task.id)  # only now: until results are on disk, the checkpoint is all there is
    return outcomes


def _running(expected: Mapping[GridTask, float]) -> list[Running]:
    """What the workers write about themselves."""
    out = []
    for task, seconds in expected.items():
        with contextlib.suppress(OSError, ValueError, TypeError):
            epoch, epochs = map(int, Path(task.heartbeat or "").read_text().split())
            out.append(Running(task.label, len(task.cells), epoch / epochs, seconds))
    return out
