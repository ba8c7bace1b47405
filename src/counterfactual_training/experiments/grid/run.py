"""Run a grid: what is missing of it, in fleets, wherever the engine says; a result is safe as soon as it is there."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

import numpy as np

from counterfactual_training.datasets.catalog import load_dataset
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.experiments.engine.launch import Engine, Failed, capacity, launch
from counterfactual_training.experiments.engine.progress import Progress, Running
from counterfactual_training.experiments.grid.grid import Grid, GridCell, Point, cells_of
from counterfactual_training.experiments.grid.leaders import Leaders
from counterfactual_training.experiments.grid.plan import Size, cost, plan
from counterfactual_training.experiments.grid.settings import published
from counterfactual_training.experiments.grid.store import GridStore
from counterfactual_training.experiments.grid.task import Bench, GridTask, TaskResult, run_task

# Asked about before it is begun.
MANY_CELLS = 5000
_START_SECONDS = 8.0  # of workers and a VAE
_SAMPLES = 100


@dataclass(frozen=True, eq=False)
class GridRun:
    """What a run did.

    Attributes:
        cells: of the grid, baselines included; ``before`` of them were done when it began.
        failures: by label of the task, why it failed. The same command tries again.
    """

    cells: int
    before: int
    seconds: float
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A grid with its data sets: what is to be trained."""

    grid: Grid
    data: Mapping[str, Dataset]
    points: Sequence[Point]
    cells: Sequence[GridCell]

    @classmethod
    def of(cls, grid: Grid) -> Prepared:
        """Load the data and make all points; many of them take long, see :attr:`Grid.num_points` before."""
        data = {name: load_dataset(name, "as_run") for name in grid.data}
        points = list(grid.points({name: found.settings for name, found in data.items()}))
        return cls(grid, data, points, cells_of(points))

    @property
    def sizes(self) -> dict[str, Size]:
        return {name: _size(found) for name, found in self.data.items()}

    def costs(self) -> dict[GridCell, float]:
        """Expected seconds of each cell."""
        sizes = self.sizes
        return {cell: cost(cell, sizes[cell.data]) for cell in self.cells}

    def expected_seconds(self, done: set[str], workers: int) -> float:
        """Of everything that is not done."""
        left = sum(seconds for cell, seconds in self.costs().items() if cell.id not in done)
        return left / workers + _START_SECONDS if left else 0.0


def _size(data: Dataset) -> Size:
    return Size(len(data.y_train) - data.settings.num_validation, data.num_features)


def expected_seconds(grid: Grid, workers: int) -> float:
    """A guess without making all points: a few of them, drawn at random, stand for the others."""
    rng = np.random.default_rng(0)
    total = 0.0
    for name in grid.data:
        data = load_dataset(name, "as_run")
        default, size = published(data.settings), _size(data)
        for _ in range(_SAMPLES):
            chosen = {key: values[rng.integers(len(values))] for key, values in grid.values}
            total += cost(grid.point(name, 0, default, chosen).cell, size) / _SAMPLES
    return total * grid.num_settings * len(grid.seeds) / workers + _START_SECONDS


def run_grid(
    prepared: Prepared,
    root: str | Path,
    engine: Engine | None = None,
    command: str = "",
    stream: TextIO | None = None,
) -> GridRun:
    """Train and measure every cell of the grid that is not done yet.

    Args:
        root: folder of finished cells, see :class:`GridStore`; grids share it, and share cells.
        engine: where the work happens; two processes of this machine if not given.
    """
    engine = engine or Engine()
    started = time.monotonic()
    store = GridStore(root)
    workers = capacity(engine)  # a cluster that does not answer is told before anything is written
    failures = {}
    with store.writing():
        spent = store.spent(prepared.grid)
        store.record(prepared.grid, command, spent or None)
        done = store.done()
        before = sum(cell.id in done for cell in prepared.cells)
        costs = prepared.costs()
        tasks = _tasks(prepared, store, done, engine, workers)
        store.clear_heartbeats()
        expected = {task: sum(costs[cell] for cell in task.cells) for task in tasks}
        benches = _benches(prepared, tasks, store)
        board = Progress(
            len(prepared.cells), before, sum(expected.values()), stream or sys.stderr, lambda: _running(expected)
        )
        leaders = Leaders(prepared.points, store, done)
        with board:
            for task, result in launch(run_task, tasks, benches, engine=engine):
                if isinstance(result, Failed):
                    reason = _explained(result.reason, store)
                    failures[task.label] = reason
                    board.failed(task.label, expected[task], reason)
                else:
                    _keep(store, task, result, board, leaders, expected[task])
                # Piece by piece, so that a run that is killed counts, too.
                store.record(prepared.grid, command, spent + time.monotonic() - started)
        seconds = time.monotonic() - started
    return GridRun(len(prepared.cells), before, seconds, failures)


def _tasks(prepared: Prepared, store: GridStore, done: set[str], engine: Engine, workers: int) -> list[GridTask]:
    """The same cut whatever is done already, so that a task that was killed finds its checkpoint."""
    out = []
    for task in plan(prepared.cells, prepared.sizes, workers):
        left = GridTask(tuple(cell for cell in task.cells if cell.id not in done))
        if left.cells and engine.name == "processes":
            left = replace(left, checkpoint=str(store.checkpoint(left.id)), heartbeat=str(store.heartbeat(left.id)))
        out += [left] * bool(left.cells)
    return out


def _benches(prepared: Prepared, tasks: Sequence[GridTask], store: GridStore) -> dict[str, Bench]:
    """The data that these tasks need, with a VAE where one of them searches by REVISE."""
    latent = {cell.data for task in tasks for cell in task.cells if cell.generator == "revise"}
    needed = {cell.data for task in tasks for cell in task.cells}
    benches = {name: Bench.of(data) for name, data in prepared.data.items() if name in needed}
    return {
        name: replace(bench, vae=store.vae(bench.rows["train"][0])) if name in latent else bench
        for name, bench in benches.items()
    }


def _explained(reason: str, store: GridStore) -> str:
    """Of a worker that met a full disk, what the store itself would say; torch's complaints of memory are others."""
    full = reason.startswith("OSError") and any(os.strerror(code) in reason for code in (errno.ENOSPC, errno.EDQUOT))
    return store.no_space() if full else reason


def _keep(
    store: GridStore, task: GridTask, result: TaskResult, board: Progress, leaders: Leaders, expected: float
) -> None:
    outcomes = {cell.id: outcome for cell, outcome in zip(task.cells, result.outcomes, strict=True)}
    store.save(task.id, outcomes)
    store.clear([task.id])
    for note in result.notes:
        board.say(f"{task.label}: {note}")
    stopped = [outcome.stopped for outcome in result.outcomes if outcome.stopped]
    if stopped:
        board.say(f"{task.label}: {len(stopped)} models ended early, the first because {stopped[0]}")
    leaders.add(outcomes)
    board.finished(task.label, len(task.cells), expected, result.seconds, leaders.best(task.cells[0].data))


def _running(expected: Mapping[GridTask, float]) -> list[Running]:
    """What the workers say of themselves."""
    out = []
    for task, seconds in expected.items():
        with contextlib.suppress(OSError, ValueError, TypeError):
            epoch, epochs = map(int, Path(task.heartbeat or "").read_text().split())
            out.append(Running(task.label, len(task.cells), epoch / epochs, seconds))
    return out
