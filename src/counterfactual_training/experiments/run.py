"""Train and measure cells, several at a time; what is done is never done again."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch
from torch import nn

from counterfactual_training.data.catalog import load_dataset
from counterfactual_training.data.dataset import Dataset
from counterfactual_training.errors import CounterfactualTrainingError, InputError
from counterfactual_training.experiments.cells import Cell
from counterfactual_training.experiments.measure import measure
from counterfactual_training.experiments.store import Store, check_versions
from counterfactual_training.models import mlp
from counterfactual_training.training import train


@dataclass(frozen=True)
class Failure:
    """A cell that ended in an error; the others are not touched by it."""

    cell: Cell
    reason: str


def load_data(cell: Cell) -> Dataset:
    """The cell's data set with the quirks that moved the published numbers."""
    return load_dataset(cell.data, "as_run")


def untrained(data: Dataset, seed: int) -> nn.Module:
    """The paper's classifier with weights drawn by the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return mlp(data.num_features, data.num_classes)


def trained(cell: Cell, store: Store, data: Dataset) -> nn.Module:
    """The cell's model: from the store, or trained from where a checkpoint left it."""
    model = untrained(data, cell.seed)
    if store.is_trained(cell):
        return store.load_model(cell, model)
    started = time.perf_counter()
    rows, held_out = data.validation_split(torch.Generator().manual_seed(cell.seed))
    setup = cell.setup(data)
    result = train(
        model,
        data.x_train[rows],
        data.y_train[rows],
        setup.generator,
        setup.constraints,
        setup.objective,
        setup.config,
        validation=(data.x_train[held_out], data.y_train[held_out]),
        checkpoint=store.checkpoint(cell),
        progress=False,
    )
    history = result.history.to_frame()
    # A resumed run knows how long its earlier epochs took.
    seconds = max(time.perf_counter() - started, float(history["seconds"].sum()))
    store.save_model(cell, model, history, seconds)
    return model


def run_cell(cell: Cell, root: str | Path, command: str = "") -> float:
    """Train and measure one cell, unless that is done; the seconds it took."""
    started = time.perf_counter()
    store = Store(root)
    if not store.is_done(cell):
        store.create()
        data = load_data(cell)
        model = trained(cell, store, data)
        began = time.perf_counter()
        tensors, numbers = measure(model, data, cell)
        settings = cell.setup(data).describe()
        store.save_result(cell, tensors, numbers, settings, command, time.perf_counter() - began)
    return time.perf_counter() - started


def run_cells(
    cells: Sequence[Cell], root: str | Path, workers: int = 2, command: str = "", stream: TextIO | None = None
) -> list[Failure]:
    """All cells that are not done yet, in worker processes of one thread each; the failures.

    Long cells start first, so that no worker is left alone with one at the end. With one worker everything happens in
    this process.
    """
    if workers < 1:
        raise InputError(f"workers must be 1 or more, got {workers}.")
    store = Store(root)
    store.create()
    done = [cell for cell in cells if store.is_done(cell)]
    check_versions([store.load(cell) for cell in done], current=True)
    todo = sorted((cell for cell in cells if cell not in set(done)), key=lambda cell: -cell.expected_cost)
    progress = Progress(len(cells), done, todo, workers, stream if stream is not None else sys.stderr)
    failures = []
    for cell, outcome in _outcomes(todo, root, workers, command):
        if isinstance(outcome, float):
            progress.finished(cell, outcome)
        else:
            failures.append(Failure(cell, outcome))
            progress.failed(cell, outcome)
    return failures


def _outcomes(todo: Sequence[Cell], root: str | Path, workers: int, command: str) -> Iterator[tuple[Cell, float | str]]:
    """Each cell as it ends, with its seconds or the reason why it failed."""
    if workers == 1 or len(todo) < 2:
        for cell in todo:
            try:
                yield cell, run_cell(cell, root, command)
            except Exception as error:
                yield cell, _reason(error)
        return
    # Forked children of a process that has used torch's threads may hang: start afresh.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(todo)), context, initializer=torch.set_num_threads, initargs=(1,))
    try:
        futures: dict[Future[float], Cell] = {pool.submit(run_cell, cell, root, command): cell for cell in todo}
        for future in as_completed(futures):
            problem = future.exception()
            yield futures[future], future.result() if problem is None else _reason(problem)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, CounterfactualTrainingError) else f"{type(error).__name__}: {text}"


class Progress:
    """Lines that say how many cells are done and how long the rest may take; on a terminal they replace each other."""

    def __init__(self, total: int, done: Sequence[Cell], todo: Sequence[Cell], workers: int, stream: TextIO) -> None:
        self.total, self.count, self.workers, self.stream = total, len(done), workers, stream
        self.left = sum(cell.expected_cost for cell in todo)
        self.spent = self.expected = 0.0
        if done and todo:
            self._say(f"{len(done)} of {total} cells were done before")

    def finished(self, cell: Cell, seconds: float) -> None:
        self.count += 1
        self.left -= cell.expected_cost
        self.expected += cell.expected_cost
        self.spent += seconds
        left = self.left * self.spent / self.expected / self.workers
        then = f", about {duration(left)} left" if self.count < self.total else ""
        self._say(f"[{self.count}/{self.total}] {cell.label}: {duration(seconds)}{then}")

    def failed(self, cell: Cell, reason: str) -> None:
        self.left -= cell.expected_cost
        self._say(f"[{self.count}/{self.total}] {cell.label} failed: {reason}", keep=True)

    def _say(self, text: str, keep: bool = False) -> None:
        if self.stream.isatty() and not keep:
            ending = "\n" if self.count == self.total else ""
            print(f"\r\033[K{text}", end=ending, file=self.stream, flush=True)
        else:
            print(text, file=self.stream, flush=True)


def duration(seconds: float) -> str:
    """``12 s``, ``3 min``, ``1 h 05 min``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
