"""Data for a picture of a classifier of two features, in the user's units: rows, probabilities,
counterfactuals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from counterfactual_lab.networks import encoder_of
from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.evaluation.performance import predict_logits
from counterfactual_training.generators import Generator, search

TARGET = 1  # the class that people of class 0 want to get into
_GRID = 161
_MARGIN = 0.1


@dataclass(frozen=True, eq=False)
class DecisionPanel:
    """One picture: a classifier of two features, in the user's units.

    Attributes:
        data, title: which data set, and what the panel shows.
        axes: names of the two features with their units.
        classes: names of the two classes, the wanted one last.
        points: ``(n, 2)`` training rows; labels: ``(n,)`` 1 where they are of the wanted class.
        grid_x, grid_y: ``(g,)``; probability: ``(g, g)`` of the wanted class, one row per
            ``grid_y``.
        factuals, counterfactuals: ``(m, 2)``, valid counterfactuals only.
        validity: share of the searches that found one.
    """

    data: str
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
    validity: float


def make_panel(
    data: Dataset,
    model: nn.Module,
    generator: Generator,
    constraints: Constraints,
    title: str,
    target: int = TARGET,
    num_stars: int = 60,
) -> DecisionPanel:
    """Search counterfactuals of the first test rows of the other class and look at the model all
    around.
    """
    rows = (data.y_test != target).nonzero().flatten()[:num_stars]
    y_target = torch.full((len(rows),), target)
    result = search(model, data.x_test[rows], y_target, generator, constraints, diagnose=False)
    valid = predict_logits(model, result.x_cf).argmax(-1) == y_target
    grid_x, grid_y, probability = _surface(data, model, target)
    first, second = (
        f"{feature.name} ({feature.unit})" if feature.unit else feature.name
        for feature in data.schema
    )
    return DecisionPanel(
        data=data.name,
        title=title,
        axes=(first, second),
        classes=(data.class_names[1 - target], data.class_names[target]),
        points=_in_units(data, data.x_train),
        labels=(data.y_train == target).long().numpy(),
        grid_x=grid_x,
        grid_y=grid_y,
        probability=probability,
        factuals=_in_units(data, data.x_test[rows][valid]),
        counterfactuals=_in_units(data, result.x_cf[valid]),
        validity=float(valid.double().mean()),
    )


def _surface(
    data: Dataset, model: nn.Module, target: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The probability of the target on a grid a little larger than the data."""
    low = data.x_train.amin(0)
    high = data.x_train.amax(0)
    margin = _MARGIN * (high - low)
    sides = [
        torch.linspace(float(a), float(b), _GRID)
        for a, b in zip(low - margin, high + margin, strict=True)
    ]
    mesh = torch.stack(torch.meshgrid(*sides, indexing="xy"), -1)  # (g, g, 2)
    probability = (
        predict_logits(model, mesh.flatten(0, 1)).softmax(-1)[:, target].reshape(_GRID, _GRID)
    )
    along = _in_units(data, torch.stack(sides, -1))
    return along[:, 0], along[:, 1], probability.numpy()


def _in_units(data: Dataset, x: Tensor) -> np.ndarray:
    """Points of model space ``(n, 2)`` in the user's units, not rounded."""
    columns = encoder_of(data).columns_
    return x.double().numpy() * [column.scale for column in columns] + [
        column.center for column in columns
    ]
