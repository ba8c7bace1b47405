"""Material of the paper's figures: Figure 1, two blobs of loan applicants; and what models of MNIST
show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.datasets.catalog import load_dataset
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.evaluation.attribution import (
    ATTRIBUTION_STEPS,
    integrated_gradients,
    standardise,
)
from counterfactual_training.evaluation.performance import predict_logits
from counterfactual_training.evaluation.plausibility import implausibility
from counterfactual_training.evaluation.protocol import PUBLISHED
from counterfactual_training.experiments.demo import DemoPlan, DemoTrial, run_trials
from counterfactual_training.experiments.panels import DecisionPanel, make_panel
from counterfactual_training.generators import ecco, generic, search
from counterfactual_training.models import linear
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.columns.schema import Schema
from counterfactual_training.training import Objective, Setting, TrainConfig

# The authors' proof of concept; its settings differ from those of the tables. Their learning rate
# and epochs are not on record. The protection of Prop. 3.1 takes hold once counterfactuals stop
# short of the target's mean, which those of an untrained or hardly trained linear classifier do
# not.
_SETTING = Setting(
    generator=generic(),
    objective=Objective(lambda_div=0.5, lambda_reg=0.01, lambda_adv=0.1),
    config=TrainConfig(epochs=40, batch_size=50, burn_in=0.25, learning_rate=0.1, seed=42),
)
# The gradient of a linear classifier fades on the way; the threshold, not the step count, ends
# these searches.
_MAX_STEPS = 500
GRANTED = 0  # class index of "loan granted", the blob of higher age and lower debt
_CLASSES = ("loan granted", "loan withheld")
NUM_FACTUALS = 50
_SCHEMA = Schema(
    tuple(Feature(name, "numeric", unit="standardised") for name in ("age", "debt"))
)


def figure1(epochs: int | None = None) -> tuple[list[DecisionPanel], pd.DataFrame]:
    """Panels (a) to (d), and what they show in numbers: the boundary's slope, and where
    counterfactuals end.

    Conventional and CT, everything mutable; both again with *age* immutable. Columns ``panel,
    share_age, implausibility, cost, validity``; ``share_age`` is what *age* contributes to the
    slope, ``|θ_age| / (|θ_age| + |θ_debt|)``.

    Args:
        epochs: at most this many.
    """
    names: dict[str, Any] = {
        "feature_names": _SCHEMA.names,
        "schema": _SCHEMA,
        "class_names": _CLASSES,
    }
    data = replace(load_dataset("LS", "as_run"), **names)
    config = replace(
        _SETTING.config, epochs=min(_SETTING.config.epochs, epochs or _SETTING.config.epochs)
    )
    trials = run_trials(DemoPlan(data, linear, replace(_SETTING, config=config)))
    found = [_panel(trial, letter) for trial, letter in zip(trials, "abcd", strict=True)]
    return [panel for panel, _ in found], pd.DataFrame([row for _, row in found])


def _panel(trial: DemoTrial, letter: str) -> tuple[DecisionPanel, dict[str, Any]]:
    data = trial.data
    generator = generic(max_steps=_MAX_STEPS)
    panel = make_panel(
        data,
        trial.model,
        generator,
        trial.constraints,
        trial.title(letter),
        GRANTED,
        NUM_FACTUALS,
    )
    weight = next(trial.model.parameters()).detach()
    age, debt = (weight[GRANTED] - weight[1 - GRANTED]).abs().tolist()
    granted = data.x_test[data.y_test == GRANTED].double()
    row = {
        "panel": panel.title,
        "share_age": age / (age + debt),
        "implausibility": float(
            implausibility(torch.from_numpy(panel.counterfactuals), granted).mean()
        ),
        "cost": float(np.abs(panel.counterfactuals - panel.factuals).sum(1).mean()),
        "validity": panel.validity,
    }
    return panel, row


# ---- digits: counterfactual images, and which pixels models look at ------------------------------

_LAMBDA_ENERGY = 5.0


@dataclass(frozen=True, eq=False)
class Digits:
    """Images ``(…, 28, 28)`` of one model.

    Attributes:
        grid: ``(10, 10, 28, 28)``; row i holds the counterfactuals of a factual of class i, column
            j the target. The factual itself is on the diagonal.
        attributions: ``(10, 28, 28)`` class-conditional integrated gradients, standardised as in
            the table: 0 … 1.
    """

    title: str
    grid: Tensor
    attributions: Tensor


def pick_factuals(models: list[nn.Module], data: Dataset, seed: int = 0) -> Tensor:
    """Row numbers ``(k,)``: of each class one test image, at random among those that all the models
    get right.
    """
    right = torch.ones_like(data.y_test, dtype=torch.bool)
    for model in models:
        right &= predict_logits(model, data.x_test).argmax(-1) == data.y_test
    rng = torch.Generator().manual_seed(seed)
    pools = [((data.y_test == k) & right).nonzero().flatten() for k in range(data.num_classes)]
    return torch.stack([pool[torch.randint(len(pool), (), generator=rng)] for pool in pools])


def digits(
    title: str, explained: nn.Module, attributed: nn.Module, data: Dataset, factuals: Tensor
) -> Digits:
    """Counterfactuals of one model and attributions of another (the one trained with protected
    pixels).
    """
    k = data.num_classes
    x = data.x_test[factuals].repeat_interleave(k, 0)  # (k·k, 784)
    y_target = torch.arange(k).repeat(k)
    generator = ecco(
        PUBLISHED.lambda_cost,
        _LAMBDA_ENERGY,
        max_steps=PUBLISHED.max_steps,
        decision_threshold=PUBLISHED.decision_threshold,
    )
    # A factual already is of its own class, so the search leaves the diagonal alone.
    grid = search(explained, x, y_target, generator, data.constraints, diagnose=False).x_cf
    side = round(data.num_features**0.5)
    attributions = torch.stack([_attribution(attributed, data, label) for label in range(k)])
    return Digits(title, grid.reshape(k, k, side, side), attributions.reshape(k, side, side))


def _attribution(model: nn.Module, data: Dataset, label: int) -> Tensor:
    """Mean integrated gradients of a class, each test image from a random image of its own:
    ``(784,)`` in [0, 1].
    """
    rng = torch.Generator().manual_seed(2025)
    x = data.x_test[data.y_test == label]
    baseline = 2 * torch.rand(x.shape, generator=rng, dtype=torch.float32) - 1
    target = torch.full((len(x),), label)
    return standardise(
        integrated_gradients(model, x, target, baseline, ATTRIBUTION_STEPS).mean(0), "range"
    )
