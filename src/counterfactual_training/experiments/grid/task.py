"""One task of a grid: train a fleet, measure it. Runs in a worker, which shares no disk with whoever asks, perhaps."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.evaluation.counterfactuals import aggregate, counterfactual_tables
from counterfactual_training.evaluation.evaluate import attack_curves, performance
from counterfactual_training.evaluation.performance import decider, predict_logits
from counterfactual_training.evaluation.protocol import EvaluationProtocol
from counterfactual_training.experiments.grid.grid import GridCell, Measurement, digest
from counterfactual_training.experiments.grid.settings import model_of, setting_of
from counterfactual_training.experiments.grid.store import Outcome, is_full
from counterfactual_training.gates import fit_gate, search_gated
from counterfactual_training.models.vae import VAE
from counterfactual_training.training import Callback, Fleet, History, Member, Run, TrainResult

Rows = tuple[Tensor, Tensor]

# Of a training history; the rest is of no use for a table of hundreds of models.
_KEPT = ("loss", "accuracy", "validation_accuracy", "share_mature", "mean_steps")
_SPLIT_SEED = 0


@dataclass(frozen=True, eq=False)
class Bench:
    """A data set as tasks need it; travels once to each worker. All cells train on the same rows.

    Attributes:
        rows: ``train``, ``validation`` and ``test``.
        training_constraints, constraints: of training and of evaluation, each ``(free, protected)``.
        vae: of REVISE, fitted once; ``None`` where no cell needs it.
    """

    rows: Mapping[str, Rows]
    num_classes: int
    training_constraints: tuple[Constraints, Constraints]
    constraints: tuple[Constraints, Constraints]
    vae: VAE | None = None

    @classmethod
    def of(cls, data: Dataset) -> Bench:
        kept, held_out = data.validation_split(torch.Generator().manual_seed(_SPLIT_SEED))
        rows = {
            "train": (data.x_train[kept], data.y_train[kept]),
            "validation": (data.x_train[held_out], data.y_train[held_out]),
            "test": (data.x_test, data.y_test),
        }
        return cls(
            rows,
            data.num_classes,
            (data.training_constraints, data.protect(data.training_constraints)),
            (data.constraints, data.protect(data.constraints)),
        )


@dataclass(frozen=True)
class GridTask:
    """Cells of one shape that train together.

    Attributes:
        checkpoint, heartbeat: files on a disk that the worker shares with whoever asks, or nothing.
    """

    cells: tuple[GridCell, ...]
    checkpoint: str | None = None
    heartbeat: str | None = None

    @property
    def id(self) -> str:
        return digest({"cells": [cell.id for cell in self.cells]})[:20]

    @property
    def label(self) -> str:
        """``Moon, 45 × ecco``."""
        kinds = sorted({cell.generator or "baseline" for cell in self.cells})
        return f"{self.cells[0].data}, {len(self.cells)} × {'/'.join(kinds)}"


@dataclass(frozen=True, eq=False)
class TaskResult:
    """What a task gave: outcomes in the order of its cells, and what is worth saying."""

    outcomes: list[Outcome]
    notes: tuple[str, ...]
    seconds: float


def run_task(benches: Mapping[str, Bench], task: GridTask) -> TaskResult:
    """Train the fleet, then measure it."""
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        outcomes = _run(benches[task.cells[0].data], task, started)
    # A member that stopped says so in its outcome.
    notes = [str(one.message) for one in said if issubclass(one.category, UserWarning)]
    notes = [text for text in dict.fromkeys(notes) if not text.startswith("Member ")]
    return TaskResult(outcomes, tuple(notes), time.perf_counter() - started)


def _run(bench: Bench, task: GridTask, started: float) -> list[Outcome]:
    found = _train(bench, task)
    trained = time.perf_counter()
    pairs = zip(task.cells, found, strict=True)
    measured = measure([_gated(cell, result.model, bench) for cell, result in pairs], bench, task.cells[0].measurement)
    count = len(found)
    seconds = {"train": (trained - started) / count, "evaluate": (time.perf_counter() - trained) / count}
    return [
        Outcome(cell.content(), metrics, numbers, _history(result.history), result.history.stopped, seconds)
        for cell, (metrics, numbers), result in zip(task.cells, measured, found, strict=True)
    ]


def _gated(cell: GridCell, model: nn.Module, bench: Bench) -> nn.Module:
    """The trained model with the cell's gate, fitted to the rows it was trained on under the rules of evaluation."""
    if cell.gate == "none":
        return model
    rules = bench.constraints[cell.measurement.protected]
    return fit_gate(model, *bench.rows["train"], cell.gate, constraints=rules, seed=cell.seed)


def _train(bench: Bench, task: GridTask) -> list[TrainResult]:
    """A result for each cell, from the fleet; on a disk too full for its checkpoint, once more without one."""
    try:
        return _fleet(bench, task, task.checkpoint)
    except OSError as error:
        if task.checkpoint is None or not is_full(error):
            raise
        warnings.warn(
            f"no checkpoint could be written ({error.strerror}), so it began anew without one: killed now, it would "
            "begin anew again",
            stacklevel=2,
        )
    return _fleet(bench, task, None)


def _fleet(bench: Bench, task: GridTask, checkpoint: str | None) -> list[TrainResult]:
    # Cells that differ by their gate alone are one model.
    members = {cell: place for place, cell in enumerate(dict.fromkeys(cell.ungated for cell in task.cells))}
    found = Fleet([_member(cell, bench) for cell in members]).train(
        *bench.rows["train"],
        validation=bench.rows["validation"],
        checkpoint=checkpoint,
        callbacks=[_Heartbeat(task.heartbeat)],
        progress=False,
    )
    return [found[members[cell.ungated]] for cell in task.cells]


def measure(
    models: Sequence[nn.Module], bench: Bench, measurement: Measurement
) -> list[tuple[dict[str, np.ndarray], dict[str, float]]]:
    """Of each model: metrics ``(λ, runs)`` of its counterfactuals, and single numbers of its predictions.

    Of a gated one, counterfactuals are those of the gated model, predictions those of its classifier.
    """
    protocol, rules = measurement.protocol, bench.constraints[measurement.protected]
    tables = counterfactual_tables(models, bench.rows[measurement.on], protocol, rules, search_gated)
    means = aggregate(pd.concat([table.assign(member=i) for i, table in enumerate(tables)], ignore_index=True))
    of_member = dict(tuple(means.groupby("member")))
    empty = means.iloc[:0]
    x, y = bench.rows["test"]
    out = []
    for i, model in enumerate(decider(model, x) for model in models):
        numbers = performance(predict_logits(model, x), y)
        for attack, curve in attack_curves(model, x, y, protocol, rules).items():
            pairs = zip(protocol.epsilons, curve.tolist(), strict=True)
            numbers |= {f"robust_accuracy_{attack}@{epsilon:g}": value for epsilon, value in pairs}
        out.append((_arrays(of_member.get(i, empty), protocol), numbers))
    return out


def _arrays(means: pd.DataFrame, protocol: EvaluationProtocol) -> dict[str, np.ndarray]:
    """By metric ``(λ, runs)``; NaN where a run has nothing to average."""
    out = {}
    for metric, part in means.groupby("metric"):
        table = part.pivot(index="lambda_energy", columns="run", values="value")
        table = table.reindex(index=list(protocol.lambda_energy), columns=range(protocol.num_runs))
        out[str(metric)] = table.to_numpy(dtype=float)
    return out


def _member(cell: GridCell, bench: Bench) -> Member:
    x, _ = bench.rows["train"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cell.seed)
        model = model_of(cell.values, x.shape[1], bench.num_classes)
    rules = bench.training_constraints[bool(cell.values["protected"])]
    return Member(model, setting_of(cell.values, cell.seed, rules, x, bench.vae))


def _history(history: History) -> dict[str, np.ndarray]:
    table = history.to_frame()
    return {name: table[name].to_numpy(dtype=float) for name in _KEPT if name in table}


class _Heartbeat(Callback):
    """Says after every epoch how far the fleet is, for whoever watches."""

    def __init__(self, path: str | None) -> None:
        self.path = None if path is None else Path(path)

    def on_epoch_end(self, run: Run) -> None:
        if self.path is not None:
            # Nobody depends on it: a full disk is for those to report who do.
            with contextlib.suppress(OSError):
                self.path.write_text(f"{run.epoch} {run.epochs}\n")
