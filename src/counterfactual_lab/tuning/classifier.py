"""Better settings for a classifier of a table: what ``CounterfactualClassifier.tune`` does."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from sklearn.base import clone

from counterfactual_lab.tuning.batch import Task
from counterfactual_lab.tuning.goal import Goal
from counterfactual_lab.tuning.result import Tuning
from counterfactual_lab.tuning.space import GATE, check_tunable
from counterfactual_lab.tuning.tuner import StudyStatus, TuningPlan, tune
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.fit import (
    PreparedFit,
    prepare,
    stopping_rows,
    validation_split,
)
from counterfactual_training.tables.estimators.inputs import frame_and_labels
from counterfactual_training.tables.estimators.validation import ValidationRows
from counterfactual_training.training.callbacks import PrintLoss
from counterfactual_training.training.registry import make_method

C = TypeVar("C", bound=CounterfactualClassifier)


@dataclass(frozen=True)
class Trainings:
    """How every trial is trained and measured.

    Attributes:
        seed: of the trainings and of the rows held out.
        num_seeds: trainings per trial, averaged.
        validation_share: share of the rows to measure on.
    """

    seed: int
    num_seeds: int
    validation_share: float


def tune_classifier(
    classifier: C,
    rows: tuple[Any, Any],
    goal: Goal,
    plan: TuningPlan,
    trainings: Trainings,
    space: Mapping[str, Any] | str | Path | None,
) -> C:
    """A new classifier, fitted to all rows with the best settings found on a part of them.

    Args:
        rows: and their classes, as in ``fit``.
    """
    # This classifier stays as it is, fitted or not.
    best = clone(classifier)
    params = best.get_params(deep=False)
    prepared = prepare(params, *frame_and_labels(best, *rows), trainings.seed)
    tuning = tune_settings(prepared, params, goal, plan, trainings, space)
    best.set_params(**tuned(params, tuning.best.settings)).fit(*rows)
    best.tuning_ = tuning.table()
    return best


def tune_settings(
    prepared: PreparedFit,
    params: Mapping[str, Any],
    goal: Goal,
    plan: TuningPlan,
    trainings: Trainings,
    space: Mapping[str, Any] | str | Path | None,
) -> Tuning:
    """Study the settings of a prepared classifier, on rows held out of its training rows."""
    # Before the rows are split.
    check_tunable(prepared.method)
    task = tuning_task(prepared, trainings.validation_share, trainings.num_seeds)
    # A log file has no use for a line that is rewritten.
    if params["progress"] is None:
        shown = sys.stderr.isatty()
    else:
        shown = params["progress"]
    return tune(task, goal, plan, space, StudyStatus() if shown else None)


def tuned(params: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a classifier with the values that were found: its method, and its gate."""
    numbers = {path: value for path, value in values.items() if path != GATE}
    changed: dict[str, Any] = {"method": make_method(params["method"]).replace(numbers)}
    if GATE in values:
        changed["gate"] = values[GATE]
    # A parameter of this name would count instead of the method's.
    rate = values.get("training.learning_rate")
    if rate is not None and params["learning_rate"] is not None:
        changed["learning_rate"] = rate
    return changed


def tuning_task(prepared: PreparedFit, validation_share: float, num_seeds: int) -> Task:
    """What is tuned: trained on a part of the rows, as ``fit`` would, and measured on the rest."""
    seed = prepared.method.training.seed
    rows, measured = validation_split(prepared.y, validation_share, seed)
    measure = ValidationRows(prepared.x[measured], prepared.y[measured], prepared.constraints)
    x = prepared.x[rows]
    y = prepared.y[rows]
    # Other rows than those that trials are compared by, as fit holds out rows of its own.
    held = stopping_rows(y, prepared.stopping_share, seed).to(y.device)
    if len(held):
        stopping = (x[held], y[held])
    else:
        stopping = None
    kept = torch.ones(len(y), dtype=torch.bool, device=y.device).index_fill(0, held, False)
    # The study has its own status line; losses of every trial would bury it.
    heard = tuple(
        callback for callback in prepared.listeners if not isinstance(callback, PrintLoss)
    )
    alike = replace(
        prepared, listeners=heard, patience=prepared.patience if len(held) else None
    )
    return Task(
        prepared.make_model,
        x[kept],
        y[kept],
        measure,
        prepared.method,
        num_seeds,
        prepared.gate,
        prepared.class_weight,
        stopping,
        alike.callbacks,
    )
