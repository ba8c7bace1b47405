"""A classifier of two features as a picture needs it, in human units: people, decisions everywhere, counterfactuals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.data.dataset import Dataset
from counterfactual_training.evaluation.performance import predict_logits
from counterfactual_training.experiments.trained import encoder_of
from counterfactual_training.search import Generator, search

TARGET = 1  # the class that people of class 0 want to get into
_NUM_STARS, _GRID, _MARGIN = 60, 161, 0.1


@dataclass(frozen=True, eq=False)
class Panel:
    """One picture: a classifier of two features, in the user's units.

    Attributes:
        data, title: which data set, and what the panel shows.
        axes: names of the two features with their units.
        classes: names of the two classes.
        points: ``(n, 2)`` training rows; labels: ``(n,)`` their classes.
        grid_x, grid_y: ``(g,)``; probability: ``(g, g)`` of class 1, one row per ``grid_y``.
        factuals, counterfactuals: ``(m, 2)``, valid counterfactuals only.
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


def make_panel(data: Dataset, model: nn.Module, generator: Generator, constraints: Constraints, title: str) -> Panel:
    """Search counterfactuals of test rows of class 0 and look at the model all around."""
    rows = (data.y_test != TARGET).nonzero().flatten()[:_NUM_STARS]
    target = torch.full((len(rows),), TARGET)
    found = search(model, data.x_test[rows], target, generator, constraints, diagnose=False)
    valid = predict_logits(model, found.x_cf).argmax(-1) == target
    grid_x, grid_y, probability = _surface(data, model)
    first, second = (f"{feature.name} ({feature.unit})" if feature.unit else feature.name for feature in data.schema)
    return Panel(
        data=data.name,
        title=title,
        axes=(first, second),
        classes=(data.class_names[0], data.class_names[1]),
        points=_in_units(data, data.x_train),
        labels=data.y_train.numpy(),
        grid_x=grid_x,
        grid_y=grid_y,
        probability=probability,
        factuals=_in_units(data, data.x_test[rows][valid]),
        counterfactuals=_in_units(data, found.x_cf[valid]),
    )


def _surface(data: Dataset, model: nn.Module) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The probability of class 1 on a grid a little larger than the data."""
    low, high = data.x_train.amin(0), data.x_train.amax(0)
    margin = _MARGIN * (high - low)
    sides = [torch.linspace(float(a), float(b), _GRID) for a, b in zip(low - margin, high + margin, strict=True)]
    mesh = torch.stack(torch.meshgrid(*sides, indexing="xy"), -1)  # (g, g, 2)
    probability = predict_logits(model, mesh.flatten(0, 1)).softmax(-1)[:, TARGET].reshape(_GRID, _GRID)
    along = _in_units(data, torch.stack(sides, -1))
    return along[:, 0], along[:, 1], probability.numpy()


def _in_units(data: Dataset, x: Tensor) -> np.ndarray:
    """Points of model space ``(n, 2)`` in the user's units, not rounded."""
    columns = encoder_of(data).columns_
    return x.double().numpy() * [column.scale for column in columns] + [column.center for column in columns]
