"""The paper's Figure 1: what counterfactual training does to a linear classifier of two blobs of loan applicants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.data.catalog import load_dataset
from counterfactual_training.data.dataset import Dataset
from counterfactual_training.evaluation.performance import predict_logits
from counterfactual_training.evaluation.plausibility import implausibility
from counterfactual_training.experiments.cells import FULL, Effort
from counterfactual_training.models import linear
from counterfactual_training.search import generic, search
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
NUM_FACTUALS, _GRID = 50, 161


@dataclass(frozen=True, eq=False)
class Panel:
    """One panel: a linear classifier, people, and how they would get their loan.

    Attributes:
        axes, classes: names of the two features and of the two classes.
        points: ``(n, 2)`` applicants; labels: ``(n,)`` 1 where the loan is granted.
        grid_x, grid_y: ``(g,)``; probability: ``(g, g)`` that the loan is granted, one row per ``grid_y``.
        factuals, counterfactuals: ``(m, 2)`` of people whose loan is withheld; only valid ones.
        share_age: what *age* contributes to the slope, ``|θ_age| / (|θ_age| + |θ_debt|)``.
        validity: share of people for whom a counterfactual was found.
    """

    title: str
    axes: tuple[str, str]
    classes: tuple[str, str]
    points: np.ndarray
    labels: np.ndarray
    grid_x: np.ndarray
    grid_y: np.ndarray
    probability: np.ndarray
    factuals: np.ndarray
    counterfactuals: np.ndarray
    share_age: float
    validity: float


def figure1(effort: Effort = FULL) -> list[Panel]:
    """Panels (a) to (d): conventional and CT, everything mutable; both again with *age* immutable."""
    data = load_dataset("LS", "as_run")
    free, protected = data.constraints, data.protect(data.constraints)
    conventional = _trained(data, "vanilla", free, effort)
    return [
        _panel(data, "(a) conventional training, all mutable", conventional, free),
        _panel(data, "(b) counterfactual training, all mutable", _trained(data, "full", free, effort), free),
        # Conventional training knows nothing of constraints: the same model as in (a).
        _panel(data, "(c) conventional training, age immutable", conventional, protected),
        _panel(
            data, "(d) counterfactual training, age immutable", _trained(data, "full", protected, effort), protected
        ),
    ]


def figure1_table(panels: list[Panel]) -> pd.DataFrame:
    """What the panels show, in numbers: the boundary's slope, and where counterfactuals end."""
    rows = []
    for panel in panels:
        found, granted = (torch.from_numpy(rows) for rows in (panel.counterfactuals, panel.points[panel.labels == 1]))
        rows.append(
            {
                "panel": panel.title,
                "share_age": panel.share_age,
                "implausibility": float(implausibility(found, granted).mean()),
                "cost": float(np.abs(panel.counterfactuals - panel.factuals).sum(1).mean()),
                "validity": panel.validity,
            }
        )
    return pd.DataFrame(rows)


def _trained(data: Dataset, objective: str, constraints: Constraints, effort: Effort) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = linear(data.num_features, data.num_classes)
    result = train(
        model,
        data.x_train,
        data.y_train,
        generic(),
        constraints,
        make_objective(objective, **_OBJECTIVE),
        TrainConfig(epochs=min(_EPOCHS, effort.epochs), batch_size=_BATCH_SIZE, burn_in=_BURN_IN, seed=_SEED),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=_LEARNING_RATE, amsgrad=True),
        progress=False,
    )
    return result.model


def _panel(data: Dataset, title: str, model: nn.Module, constraints: Constraints) -> Panel:
    withheld = data.x_test[data.y_test != GRANTED][:NUM_FACTUALS]
    target = torch.full((len(withheld),), GRANTED)
    found = search(model, withheld, target, generic(max_steps=_MAX_STEPS), constraints, diagnose=False)
    valid = predict_logits(model, found.x_cf).argmax(-1) == target
    weight = next(model.parameters()).detach()
    age, debt = (weight[GRANTED] - weight[1 - GRANTED]).abs().tolist()
    low, high = data.x_test.amin(0) - 0.5, data.x_test.amax(0) + 0.5
    sides = [torch.linspace(float(a), float(b), _GRID) for a, b in zip(low, high, strict=True)]
    mesh = torch.stack(torch.meshgrid(*sides, indexing="xy"), -1).flatten(0, 1)
    probability = predict_logits(model, mesh).softmax(-1)[:, GRANTED].reshape(_GRID, _GRID)
    return Panel(
        title=title,
        axes=("age (standardised)", "debt (standardised)"),
        classes=("loan withheld", "loan granted"),
        points=data.x_test.numpy(),
        labels=(data.y_test == GRANTED).long().numpy(),
        grid_x=sides[0].numpy(),
        grid_y=sides[1].numpy(),
        probability=probability.numpy(),
        factuals=withheld[valid].numpy(),
        counterfactuals=found.x_cf[valid].numpy(),
        share_age=age / (age + debt),
        validity=float(valid.double().mean()),
    )
