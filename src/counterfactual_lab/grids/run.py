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

from counterfactual_lab.grids.grid import Grid, Point, runs_of
from counterfactual_lab.grids.grid_run import GridRun
from counterfactual_lab.grids.job import Job, JobResult, run_job
from counterfactual_lab.grids.measure import GridData
from counterfactual_lab.grids.notes import note_grid, seconds_spent, shared_vae
from counterfactual_lab.grids.plan import plan, run_seconds
from counterfactual_lab.grids.progress import Running, RunProgress
from counterfactual_lab.grids.results import Leaders
from counterfactual_lab.runs.outcome import Outcome, check_versions
from counterfactual_lab.runs.store import Store
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
# For runs of a data set that cannot be loaded: they are only listed as failures.
_NO_SETTINGS = PaperSettings(1, 0.5, 0.1, 1, 0)


@dataclass(frozen=True, eq=False)
class GridSummary:
    """What a run did.

    Attributes:
        runs: of the grid, conventional ones included; ``before`` of them were done when it began.
        failures: by label of the job, why it failed. The same command tries again.
    """

    runs: int
    before: int
    seconds: float
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class GridWork:
    """Grids with their data sets: what is to be trained.

    Attributes:
        unavailable: by name, why a data set could not be loaded; its runs fail.
    """

    grids: Sequence[Grid]
    data: Mapping[str, Dataset]
    points: Sequence[Point]
    runs: Sequence[GridRun]
    unavailable: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_grids(cls, *grids: Grid, strict: bool = True) -> GridWork:
        """Load the data and make all points; check :attr:`Grid.num_points` first, many take long.

        Args:
            strict: raise if a data set cannot be loaded; otherwise only its own runs fail.
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
        paper = {name: dataset.settings for name, dataset in data.items()} | dict.fromkeys(
            unavailable, _NO_SETTINGS
        )
        points = [point for grid in grids for point in grid.points(paper)]
        return cls(grids, data, points, runs_of(points), unavailable)

    @cached_property
    def costs(self) -> dict[GridRun, float]:
        """Expected seconds of each run whose data set could be loaded."""
        return {
            run: run_seconds(run, self.data[run.data])
            for run in self.runs
            if run.data in self.data
        }

    @property
    def failures(self) -> dict[str, str]:
        """By label, why runs cannot be made: their data set could not be loaded."""
        return {
            run.label: self.unavailable[run.data]
            for run in self.runs
            if run.data in self.unavailable
        }

    def expected_seconds(self, done: set[str], workers: int) -> float:
        """Of everything that is not done."""
        seconds_to_do = sum(
            seconds for run, seconds in self.costs.items() if run.id not in done
        )
        if seconds_to_do:
            return seconds_to_do / workers + _START_SECONDS
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
                * run_seconds(grid.point(name, 0, data.settings, chosen).run, data)
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
) -> GridSummary:
    """Train and measure every run that is not done yet.

    Args:
        root: folder of finished runs, see :class:`Store`; grids share it, and share runs.
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
        spent = {grid: seconds_spent(store, grid) for grid in work.grids}

        def record(more: float) -> None:
            for grid, seconds in spent.items():
                note_grid(store, grid, command, seconds + more or None, **notes)

        # Before any training, so that `ct grid status` knows a run that is killed at once.
        record(0.0)
        done = store.done()
        finished = [run for run in work.runs if run.id in done]
        check_versions([store.load(run) for run in finished if run.alone], current=True)
        jobs = _jobs(work, store, done, engine, workers)
        store.clear_heartbeats()
        expected = {job: sum(work.costs[run] for run in job.runs) for job in jobs}
        total = len(work.runs)
        remaining_cost = sum(expected.values())
        board = RunProgress(
            total,
            len(finished),
            remaining_cost,
            stream or sys.stderr,
            lambda: _running(expected),
        )
        leaders = Leaders(work.points, store, done)
        with board:
            for label, why in failures.items():
                board.failed(label, 0.0, why)
            for job, result in launch(
                run_job, jobs, _sources(work, jobs, store), engine=engine
            ):
                if isinstance(result, Failed):
                    why = _explained(result, store)
                    failures[job.label] = why
                    board.failed(job.label, expected[job], why)
                else:
                    leaders.add(_saved(store, job, result, command))
                    for note in result.notes:
                        board.say(f"{job.label}: {note}")
                    best = leaders.best(job.runs[0].data)
                    board.finished(
                        job.label, len(job.runs), expected[job], result.seconds, best
                    )
                # Noted after every job, so that the time of a killed run counts too.
                record(time.monotonic() - started)
    return GridSummary(total, len(finished), time.monotonic() - started, failures)


def _jobs(
    work: GridWork, store: Store, done: set[str], engine: Engine, workers: int
) -> list[Job]:
    """Split the same way whatever is done already, so that a killed job finds its checkpoint."""
    out = []
    for job in plan(work.costs, work.data, workers):
        unfinished = Job(tuple(run for run in job.runs if run.id not in done))
        if engine.name == "processes":  # a cluster's workers see no local disk
            unfinished = replace(
                unfinished,
                checkpoint=str(store.checkpoint(unfinished.id)),
                heartbeat=str(store.heartbeat(unfinished.id)),
            )
        if unfinished.runs:
            out.append(unfinished)
    return out


def _sources(work: GridWork, jobs: Sequence[Job], store: Store) -> dict[str, GridData]:
    """The data that these jobs need, with a VAE where one of them searches by REVISE."""
    latent = {run.data: run for job in jobs for run in job.runs if run.generator == "revise"}
    out = {}
    for name in dict.fromkeys(run.data for job in jobs for run in job.runs):
        # Tables in the user's units are not needed.
        source = GridData(replace(work.data[name], _frames=None))
        if name in latent:
            source = replace(
                source, vae=shared_vae(store, source.rows(latent[name])["train"][0])
            )
        out[name] = source
    return out


def _explained(failed: Failed, store: Store) -> str:
    """Why an item failed; the store's message if the worker met a full disk."""
    if failed.errno in (errno.ENOSPC, errno.EDQUOT):
        return store.no_space()
    return failed.reason


def _saved(
    store: Store, job: Job, result: JobResult, command: str
) -> dict[str, Outcome[GridRun]]:
    """The job's outcomes by identity, with how they were made."""
    origin = {
        "command": command,
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    outcomes = {}
    for run, outcome in zip(job.runs, result.outcomes, strict=True):
        outcomes[run.id] = replace(outcome, origin=origin)
    store.save(job.id, outcomes)
    store.clear(job.id)  # only now: until results are on disk, only the checkpoint has them
    return outcomes


def _running(expected: Mapping[Job, float]) -> list[Running]:
    """The progress that workers write."""
    out = []
    for job, seconds in expected.items():
        with contextlib.suppress(OSError, ValueError, TypeError):
            epoch, epochs = map(int, Path(job.heartbeat or "").read_text().split())
            out.append(Running(job.label, len(job.runs), epoch / epochs, seconds))
    return out
