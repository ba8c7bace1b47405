"""One task of a grid: train a fleet, or a model alone, and measure it. Runs in a worker, maybe on
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

from counterfactual_lab.grids.cell import Cell, digest
from counterfactual_lab.grids.measure import GridData, Rows, measure
from counterfactual_lab.grids.outcome import CellOutcome
from counterfactual_lab.grids.store import is_full
from counterfactual_lab.networks import with_weights
from counterfactual_training.errors import StoppedWarning
from counterfactual_training.models.classifiers import mlp
from counterfactual_training.models.counternet import counternet
from counterfactual_training.models.ensemble import Ensemble
from counterfactual_training.training.callbacks import Callback
from counterfactual_training.training.fleet import Fleet, Member
from counterfactual_training.training.run import Run, TrainResult

# Columns of the training history that are kept for members of a fleet; a table of hundreds of
# models needs no others.
_KEPT = ("loss", "accuracy", "validation_accuracy", "share_mature", "mean_steps")


@dataclass(frozen=True)
class GridTask:
    """Cells of one shape that train together.

    Attributes:
        checkpoint, heartbeat: files on a disk shared with the worker, or nothing.
    """

    cells: tuple[Cell, ...]
    checkpoint: str | None = None
    heartbeat: str | None = None

    @property
    def id(self) -> str:
        return digest({"cells": [cell.id for cell in self.cells]})[:20]

    @property
    def label(self) -> str:
        """``Moon, 45 × ecco``; of a cell that trains alone, its own."""
        if self.cells[0].alone:
            return self.cells[0].label
        kinds = sorted({cell.generator or cell.name for cell in self.cells})
        return f"{self.cells[0].data}, {len(self.cells)} × {'/'.join(kinds)}"


@dataclass(frozen=True, eq=False)
class TaskResult:
    """Outcomes in the order of the task's cells, and warnings worth showing."""

    outcomes: list[CellOutcome]
    notes: tuple[str, ...]
    seconds: float


def run_task(sources: Mapping[str, GridData], task: GridTask) -> TaskResult:
    """Train, then measure."""
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        outcomes = _run(sources[task.cells[0].data], task, started)
    # The outcome of a model that stopped says so itself.
    told = [one for one in said if not issubclass(one.category, StoppedWarning)]
    notes = [str(one.message) for one in told if issubclass(one.category, UserWarning)]
    notes = list(dict.fromkeys(notes))
    stopped = [outcome.stopped for outcome in outcomes if outcome.stopped]
    if stopped:
        notes.append(f"{len(stopped)} models ended early, the first because {stopped[0]}")
    return TaskResult(outcomes, tuple(notes), time.perf_counter() - started)


def _run(source: GridData, task: GridTask, started: float) -> list[CellOutcome]:
    rows = source.rows(task.cells[0])
    found = _train(source, rows, task)
    trained = time.perf_counter()
    models = [
        _gated(cell, result.model, source, rows)
        for cell, result in zip(task.cells, found, strict=True)
    ]
    measured = measure(models, task.cells, source)
    count = len(found)
    seconds = {
        "train": (trained - started) / count,
        "evaluate": (time.perf_counter() - trained) / count,
    }
    outcomes = []
    for cell, numbers, result in zip(task.cells, measured, found, strict=True):
        history = result.history.to_frame()
        names = history.columns if cell.alone else [name for name in _KEPT if name in history]
        kept = {str(name): history[name].to_numpy(dtype=float) for name in names}
        # A model alone is kept: figures and other experiments use it again.
        if cell.alone:
            state = result.model.state_dict()
        else:
            state = {}
        weights = {name: tensor.clone() for name, tensor in state.items()}
        outcomes.append(
            CellOutcome(cell, *numbers, kept, result.history.stopped, seconds, weights=weights)
        )
    return outcomes


def _gated(cell: Cell, model: nn.Module, source: GridData, rows: Rows) -> nn.Module:
    """The trained model with the cell's gate, fitted to the rows it was trained on under the rules
    of evaluation.
    """
    if cell.gate == "none":
        return model
    # Here, because few cells have a gate.
    from counterfactual_training.gates import fit_gate

    rules = source.rules(cell.constraint_kinds[0])
    return fit_gate(model, *rows["train"], cell.gate, constraints=rules, seed=cell.seed)


def _train(source: GridData, rows: Rows, task: GridTask) -> list[TrainResult]:
    """A result for each cell, from the fleet; on a disk too full for its checkpoint, once more
    without one.
    """
    try:
        return _fleet(source, rows, task, task.checkpoint)
    except OSError as error:
        if task.checkpoint is None or not is_full(error):
            raise
        warnings.warn(
            f"no checkpoint could be written ({error.strerror}), so training started again "
            "without one: if it is "
            "killed now, it starts from the beginning",
            stacklevel=2,
        )
    return _fleet(source, rows, task, None)


def _fleet(
    source: GridData, rows: Rows, task: GridTask, checkpoint: str | None
) -> list[TrainResult]:
    # Cells that differ in their gate only are one model. A fleet of one is trained exactly as a
    # model alone.
    trained = list(dict.fromkeys(cell.ungated for cell in task.cells))
    members = [member for cell in trained for member in _members(cell, source, rows)]
    if len(rows["validation"][1]):
        validation = rows["validation"]
    else:
        validation = None
    found = iter(
        Fleet(members).train(
            *rows["train"],
            validation=validation,
            checkpoint=checkpoint,
            callbacks=[_Heartbeat(task.heartbeat)],
            progress=False,
        )
    )
    results = {cell: _joined(list(islice(found, cell.method.members))) for cell in trained}
    return [results[cell.ungated] for cell in task.cells]


def _joined(members: list[TrainResult]) -> TrainResult:
    """The result of a cell; of an ensemble, with the history of its first network."""
    if len(members) == 1:
        return members[0]
    return replace(members[0], model=Ensemble([one.model for one in members]))


def _members(cell: Cell, source: GridData, rows: Rows) -> list[Member]:
    """One, or the networks of an ensemble, each from a seed of its own."""
    method = cell.method
    count = method.members
    if count == 1:
        seeds = [cell.seed]
    else:
        # Members of one ensemble share no seed with those of another.
        seeds = [count * cell.seed + place for place in range(count)]
    if method.project_categories:
        rules = source.data.constraints
    else:
        rules = source.data.training_constraints
    if cell.protected:
        rules = source.data.protect(rules)
    learned: dict[str, Any] = {}
    if cell.generator == "revise" and source.vae is not None:
        learned["vae"] = source.vae
    method = replace(method, members=1, constraints=rules)
    method = method.with_rows(*rows["train"], **learned)
    return [Member(_network(cell, source, seed), method.seeded(seed)) for seed in seeds]


def _network(cell: Cell, source: GridData, seed: int) -> nn.Module:
    size = source.data.num_features, source.data.num_classes
    layers = cell.values["model.hidden"], cell.values["model.activation"]
    if cell.own_network:
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
            # Nothing depends on this file, so a full disk is left for others to report.
            with contextlib.suppress(OSError):
                self.path.write_text(f"{run.epoch} {run.epochs}\n")
