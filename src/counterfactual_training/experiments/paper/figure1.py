"""The paper's Figure 1: what counterfactual training does to a linear classifier of two blobs of loan applicants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.catalog import load_dataset
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.evaluation.plausibility import implausibility
from counterfactual_training.experiments.fitting import with_weights
from counterfactual_training.experiments.panels import DecisionPanel, make_panel
from counterfactual_training.models import linear
from counterfactual_training.search import generic
from counterfactual_training.training import TrainConfig, make_objective, train

# The authors' proof of concept; its settings differ from those of the tables.
_OBJECTIVE = {"lambda_div": 0.5, "lambda_reg": 0.01, "lambda_adv": 0.1}
_BATCH_SIZE, _SEED = 50, 42
# Their learning rate and epochs are not on record. The protection of Prop. 3.1 takes hold once counterfactuals
# stop short of the target's mean, which those of an untrained or hardly trained linear classifier do not.
_LEARNING_RATE, _BURN_IN, _EPOCHS = 0.1, 0.25, 40
# The gradient of a linear classifier fades on the way; the threshold, not the step count, ends these searches.
_MAX_STEPS = 500
GRANTED = 0  # class index of "loan granted", the blob of higher age and lower debt
NUM_FACTUALS = 50
_AXES = ("age (standardised)", "debt (standardised)")
_CLASSES = ("loan withheld", "loan granted")


def figure1(epochs: int | None = None) -> tuple[list[DecisionPanel], pd.DataFrame]:
    """Panels (a) to (d), and what they show in numbers: the boundary's slope, and where counterfactuals end.

    Conventional and CT, everything mutable; both again with *age* immutable. Columns ``panel, share_age,
    implausibility, cost, validity``; ``share_age`` is what *age* contributes to the slope,
    ``|θ_age| / (|θ_age| + |θ_debt|)``.

    Args:
        epochs: at most this many.
    """
    data = load_dataset("LS", "as_run")
    free, protected = data.constraints, data.protect(data.constraints)
    # Conventional training knows nothing of constraints: (a) and (c) show the same model.
    conventional = _trained(data, "vanilla", free, epochs)
    found = []
    for letters, rules, mutable in (("ab", free, "all mutable"), ("cd", protected, "age immutable")):
        ours = _trained(data, "full", rules, epochs)
        found += [
            _panel(data, f"({letters[0]}) conventional training, {mutable}", conventional, rules),
            _panel(data, f"({letters[1]}) counterfactual training, {mutable}", ours, rules),
        ]
    return [panel for panel, _ in found], pd.DataFrame([row for _, row in found])


def _trained(data: Dataset, objective: str, constraints: Constraints, epochs: int | None) -> nn.Module:
    epochs = _EPOCHS if epochs is None else min(_EPOCHS, epochs)
    return train(
        with_weights(_SEED, lambda: linear(data.num_features, data.num_classes)),
        data.x_train,
        data.y_train,
        generic(),
        constraints,
        make_objective(objective, **_OBJECTIVE),
        TrainConfig(epochs=epochs, batch_size=_BATCH_SIZE, burn_in=_BURN_IN, seed=_SEED),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=_LEARNING_RATE, amsgrad=True),
        progress=False,
    ).model


def _panel(
    data: Dataset, title: str, model: nn.Module, constraints: Constraints
) -> tuple[DecisionPanel, dict[str, Any]]:
    panel = make_panel(data, model, generic(max_steps=_MAX_STEPS), constraints, title, GRANTED, NUM_FACTUALS)
    weight = next(model.parameters()).detach()
    age, debt = (weight[GRANTED] - weight[1 - GRANTED]).abs().tolist()
    granted = data.x_test[data.y_test == GRANTED].double()
    row = {
        "panel": title,
        "share_age": age / (age + debt),
        "implausibility": float(implausibility(torch.from_numpy(panel.counterfactuals), granted).mean()),
        "cost": float(np.abs(panel.counterfactuals - panel.factuals).sum(1).mean()),
        "validity": panel.validity,
    }
    return replace(panel, axes=_AXES, classes=_CLASSES), row
