"""The best of several trainings that differ in their seed only."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError
from counterfactual_training.training import Fleet, History, Member, Setting
from counterfactual_training.tuning import Measure

# Of the rows, held out of training to choose on.
VALIDATION_SHARE = 0.2


def checked_restarts(value: Any) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InputError(f"n_restarts must be a whole number of at least 1, got {value!r}.")
    return int(value)


def validation_split(y: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Row numbers ``(train, validation)``, that share of every class held out: at least one row, never all."""
    if not 0 < share < 1:
        raise InputError(f"The share of rows to validate on lies between 0 and 1, got {share}.")
    rng = torch.Generator().manual_seed(seed)
    held_out = torch.zeros(len(y), dtype=torch.bool)
    for label in y.unique():
        rows = (y == label).nonzero().flatten().cpu()
        if len(rows) < 2:
            raise InputError("Rows are held out to choose on: every class needs at least two, one of them to train on.")
        take = min(max(round(share * len(rows)), 1), len(rows) - 1)
        held_out[rows[torch.randperm(len(rows), generator=rng)[:take]]] = True
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()


def best_restart(
    make_model: Callable[[int], nn.Module],
    x: Tensor,
    y: Tensor,
    setting: Setting,
    constraints: Constraints,
    num: int,
    progress: bool | None,
) -> tuple[nn.Module, History]:
    """Train as a fleet from ``num`` seeds on four fifths of the rows; keep one by the others.

    Chosen is the most plausible among those whose validation accuracy is within one standard error of the best.
    """
    train, held_out = (rows.to(x.device) for rows in validation_split(y, VALIDATION_SHARE, setting.config.seed))
    seeds = range(setting.config.seed, setting.config.seed + num)
    members = [Member(make_model(seed), setting.seeded(seed)) for seed in seeds]
    validation = (x[held_out], y[held_out])
    results = Fleet(members).train(x[train], y[train], validation=validation, progress=progress)
    measured = Measure(*validation, constraints)([[result.model] for result in results])
    accuracy = [metrics["accuracy"] for metrics in measured]
    error = math.sqrt(max(accuracy) * (1 - max(accuracy)) / len(held_out))
    good = [i for i in range(num) if accuracy[i] >= max(accuracy) - error]
    best = min(good, key=lambda i: (_or_worst(measured[i]["implausibility"]), -accuracy[i], i))
    return results[best].model, results[best].history


def _or_worst(value: float) -> float:
    return value if math.isfinite(value) else math.inf
