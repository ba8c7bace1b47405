"""One job of a grid: train a fleet, or a model alone, and measure it. Runs in a worker, maybe on
another machine.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from counterfactual_lab.grids.grid_run import GridRun
from counterfactual_lab.grids.measure import GridData, Rows, measure
from counterfactual_lab.networks import with_weights
from counterfactual_lab.runs.outcome import Outcome
from counterfactual_lab.runs.run import digest
from counterfactual_lab.runs.store import is_full
from counterfactual_training.errors import StoppedWarning
from counterfactual_training.models.classifiers import mlp
from counterfactual_training.models.counternet import counternet
from counterfactual_training.models.ensemble import Ensemble
from counterfactual_training.training.callbacks import Callback
from counterfactual_training.training.fleet import Fleet, Member, member_of
from counterfactual_training.training.run import Run, TrainResult

# Columns of the training history that are kept for members of a fleet: tables of hundreds of models
# need no others.
_KEPT = ("loss", "accuracy", "validation_accuracy", "share_mature", "mean_steps")


@dataclass(frozen=True)
class Job:
    """Runs of one shape that train together.

    Attributes:
        checkpoint, heartbeat: files on a disk shared with the worker, or nothing.
    """

    runs: tuple[GridRun, ...]
    checkpoint: str | None = None
    heartbeat: str | None = None

    @property
    def id(self) -> str:
        return digest({"runs": [run.id for run in self.runs]})[:20]

    @property
    def label(self) -> str:
        """``Moon, 45 × ecco``; of a run that trains alone, its own."""
        if self.runs[0].alone:
            return self.runs[0].label
        kinds = sorted({run.generator or run.name for run in self.runs})
        return f"{self.runs[0].data}, {len(self.runs)} × {'/'.join(kinds)}"


@dataclass(frozen=True, eq=False)
class JobResult:
    """Outcomes in the order of the job's runs, and warnings worth showing."""

    outcomes: list[Outcome[GridRun]]
    notes: tuple[str, ...]
    seconds: float


def run_job(sources: Mapping[str, GridData], job: Job) -> JobResult:
    """Train, then measure."""
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        outcomes = _run(sources[job.runs[0].data], job, started)
    # Outcomes say themselves which models stopped.
    others = [one for one in caught if not issubclass(one.category, StoppedWarning)]
    notes = [str(one.message) for one in others if issubclass(one.category, UserWarning)]
    notes = list(dict.fromkeys(notes))
    stopped = [outcome.stopped for outcome in outcomes if outcome.stopped]
    if stopped:
        notes.append(f"{len(stopped)} models ended early, the first because {stopped[0]}")
    return JobResult(outcomes, tuple(notes), time.perf_counter() - started)


def _run(source: GridData, job: Job, started: float) -> list[Outcome[GridRun]]:
    rows = source.rows(job.runs[0])
    results = _train(source, rows, job)
    trained = time.perf_counter()
    models = [
        _gated(run, result.model, source, rows)
        for run, result in zip(job.runs, results, strict=True)
    ]
    measured = measure(models, job.runs, source)
    count = len(results)
    seconds = {
        "train": (trained - started) / count,
        "evaluate": (time.perf_counter() - trained) / count,
    }
    outcomes = []
    for run, numbers, result in zip(job.runs, measured, results, strict=True):
        history = result.history.to_frame()
        names = history.columns if run.alone else [name for name in _KEPT if name in history]
        kept = {str(name): history[name].to_numpy(dtype=float) for name in names}
        # A model alone is kept: figures and other experiments use it again.
        if run.alone:
            state = result.model.state_dict()
        else:
            state = {}
        weights = {name: tensor.clone() for name, tensor in state.items()}
        outcomes.append(
            Outcome(run, *numbers, kept, result.history.stopped, seconds, weights=weights)
        )
    return outcomes


def _gated(run: GridRun, model: nn.Module, source: GridData, rows: Rows) -> nn.Module:
    """The trained model with the run's gate, fitted to the rows it was trained on under the rules
    of evaluation.
    """
    if run.gate == "none":
        return model
    # Here, because few runs have a gate.
    from counterfactual_training.gates import fit_gate

    rules = source.rules(run.constraint_kinds[0])
    return fit_gate(model, *rows["train"], run.gate, constraints=rules, seed=run.seed)


def _train(source: GridData, rows: Rows, job: Job) -> list[TrainResult]:
    """A result for each run, from the fleet; on a disk too full for its checkpoint, once more
    without one.
    """
    try:
        return _fleet(source, rows, job, job.checkpoint)
    except OSError as error:
        if job.checkpoint is None or not is_full(error):
            raise
        warnings.warn(
            f"no checkpoint could be written ({error.strerror}), so training started again "
            "without one: if it is "
            "killed now, it starts from the beginning",
            stacklevel=2,
        )
    return _fleet(source, rows, job, None)


def _fleet(source: GridData, rows: Rows, job: Job, checkpoint: str | None) -> list[TrainResult]:
    # Runs that differ in their gate only are one model. A fleet of one is trained exactly as a
    # model alone.
    trained = list(dict.fromkeys(run.ungated for run in job.runs))
    members = [member for run in trained for member in _members(run, source, rows)]
    if len(rows["validation"][1]):
        validation = rows["validation"]
    else:
        validation = None
    trained_members = iter(
        Fleet(members).train(
            *rows["train"],
            validation=validation,
            checkpoint=checkpoint,
            callbacks=[_Heartbeat(job.heartbeat)],
            progress=False,
        )
    )
    results = {
        run: _joined(list(islice(trained_members, run.method.members))) for run in trained
    }
    return [results[run.ungated] for run in job.runs]


def _joined(members: list[TrainResult]) -> TrainResult:
    """The result of a run; of an ensemble, with the history of its first network."""
    if len(members) == 1:
        return members[0]
    return replace(members[0], model=Ensemble([one.model for one in members]))


def _members(run: GridRun, source: GridData, rows: Rows) -> list[Member]:
    """One, or the networks of an ensemble, each from a seed of its own."""
    method = run.method
    count = method.members
    if count == 1:
        seeds = [run.seed]
    else:
        # Members of one ensemble share no seed with those of another.
        seeds = [count * run.seed + place for place in range(count)]
    if method.project_categories:
        rules = source.data.constraints
    else:
        rules = source.data.training_constraints
    if run.protected:
        rules = source.data.protect(rules)
    learned: dict[str, Any] = {}
    if run.generator == "revise" and source.vae is not None:
        learned["vae"] = source.vae
    method = replace(method, constraints=rules).with_rows(*rows["train"], **learned)
    y = rows["train"][1]
    return [member_of(_network(run, source, seed), method.seeded(seed), y) for seed in seeds]


def _network(run: GridRun, source: GridData, seed: int) -> nn.Module:
    size = source.data.num_features, source.data.num_classes
    layers = run.values["model.hidden"], run.values["model.activation"]
    if run.brings_network:
        return with_weights(seed, lambda: counternet(*size))
    return with_weights(seed, lambda: mlp(*size, *layers))


class _Heartbeat(Callback):
    """Writes after every epoch how far the fleet is, for the progress line."""

    def __init__(self, path: str | None) -> None:
        if path is None:
            self.path = None
        else:
            self.path = Path(path)

    def on_epoch_end(self, run: Run) -> None:
        if self.path is not None:
            # Nothing depends on this file, so others report a full disk.
            with contextlib.suppress(OSError):
                self.path.write_text(f"{run.epoch} {run.epochs}\n")
