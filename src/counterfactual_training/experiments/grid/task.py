"""One task of a grid: train a fleet, or a model alone, and measure it. Runs in a worker, maybe on
another machine.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from counterfactual_training.experiments.grid.cell import Cell, digest
from counterfactual_training.experiments.grid.measure import GridData, Rows, measure
from counterfactual_training.experiments.grid.outcome import CellOutcome
from counterfactual_training.experiments.grid.settings import setting_of
from counterfactual_training.experiments.grid.store import is_full
from counterfactual_training.experiments.trained import with_weights
from counterfactual_training.gates import fit_gate
from counterfactual_training.models import counternet, mlp
from counterfactual_training.training import Callback, Fleet, Member, Run, TrainResult

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
        kinds = sorted({cell.generator or "baseline" for cell in self.cells})
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
    # The outcome of a member that stopped says so itself.
    notes = [str(one.message) for one in said if issubclass(one.category, UserWarning)]
    notes = [text for text in dict.fromkeys(notes) if not text.startswith("Member ")]
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
    members = {
        cell: place
        for place, cell in enumerate(dict.fromkeys(cell.ungated for cell in task.cells))
    }
    if len(rows["validation"][1]):
        validation = rows["validation"]
    else:
        validation = None
    found = Fleet([_member(cell, source, rows) for cell in members]).train(
        *rows["train"],
        validation=validation,
        checkpoint=checkpoint,
        callbacks=[_Heartbeat(task.heartbeat)],
        progress=False,
    )
    return [found[members[cell.ungated]] for cell in task.cells]


def _member(cell: Cell, source: GridData, rows: Rows) -> Member:
    size = source.data.num_features, source.data.num_classes
    layers = cell.values["model.hidden"], cell.values["model.activation"]
    model = with_weights(
        cell.seed, lambda: counternet(*size) if cell.own_network else mlp(*size, *layers)
    )
    rules = source.data.training_constraints
    if cell.protected:
        rules = source.data.protect(rules)
    return Member(
        model,
        setting_of(
            cell.values, cell.seed, rules, rows["train"][0], source.vae, rows["train"][1]
        ),
    )


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
