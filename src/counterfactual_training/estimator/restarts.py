"""The best of several trainings that differ in their seed only."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

from torch import nn

from counterfactual_training.errors import InputError
from counterfactual_training.estimator.preparing import Prepared, validation_split
from counterfactual_training.training import Fleet, History, Member
from counterfactual_training.tuning import Measure

# Of the rows, held out of training to choose on.
VALIDATION_SHARE = 0.2


def checked_restarts(value: Any) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InputError(f"n_restarts must be a whole number of at least 1, got {value!r}.")
    return int(value)


def best_restart(prepared: Prepared, num: int, progress: bool | None) -> tuple[nn.Module, History]:
    """Train as a fleet from ``num`` seeds on four fifths of the rows; keep one by the others.

    Chosen is the most plausible among those whose validation accuracy is within one standard error of the best.
    """
    x, y, setting = prepared.x, prepared.y, prepared.setting
    train, held_out = (rows.to(x.device) for rows in validation_split(y, VALIDATION_SHARE, setting.config.seed))
    seeds = range(setting.config.seed, setting.config.seed + num)
    members = [Member(prepared.make_model(seed), setting.seeded(seed)) for seed in seeds]
    validation = (x[held_out], y[held_out])
    results = Fleet(members).train(
        x[train], y[train], validation=validation, class_weight=prepared.class_weight,
        callbacks=prepared.listeners(), progress=progress,
    )  # fmt: skip
    measured = Measure(*validation, prepared.finder.constraints)([[result.model] for result in results])
    accuracy = [metrics["accuracy"] for metrics in measured]
    error = math.sqrt(max(accuracy) * (1 - max(accuracy)) / len(held_out))
    good = [i for i in range(num) if accuracy[i] >= max(accuracy) - error]
    best = min(good, key=lambda i: (_or_worst(measured[i]["implausibility"]), -accuracy[i], i))
    return results[best].model, results[best].history


def _or_worst(value: float) -> float:
    return value if math.isfinite(value) else math.inf
