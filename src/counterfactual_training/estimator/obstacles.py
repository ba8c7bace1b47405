"""What stands in a row's way: the changes that would help most, and the rules that forbid them."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.estimator.finding import Finder, Found
from counterfactual_training.search import evaluating

# Changes that would help less than this share of the most helpful one are not worth telling …
_WORTH_TELLING = 0.05
# … and, if less than this, not worth counting as a way out.
_WORTH_TRYING = 1e-3


class Obstacle(IntEnum):
    """Why a feature cannot move the way that would help."""

    NONE = 0
    FIXED = 1  #: may not change at all
    ONLY_RISES = 2
    ONLY_FALLS = 3
    LIMIT = 4  #: at the end of its domain
    CATEGORY = 5  #: may not become the category that would help


Obstacles = list[tuple[int, Obstacle]]


class Hindered(NamedTuple):
    """Rows that did not arrive: whether they are stuck ``(n,)``, and what is in the way of those that are."""

    stuck: np.ndarray
    obstacles: list[Obstacles]


class Cells(NamedTuple):
    """The encoded columns of one feature: all ``(n, width)``, the masks ``(width,)``."""

    wish: Tensor  # ∂ log p(target) / ∂x′
    x_cf: Tensor
    furthest: Tensor  # valid value furthest in the direction of the wish
    upper: Tensor
    may_increase: Tensor
    may_decrease: Tensor


def find_obstacles(finder: Finder, found: Found, y_target: np.ndarray, missed: np.ndarray) -> Hindered:
    """Look at the best effort of the rows under the mask ``missed`` ``(n,)``, which did not arrive.

    To first order, each feature would help by moving one way, and a rule may forbid it. A row is stuck if all that
    would help is forbidden: a statement about this point and this model, not a proof that there is no way anywhere.
    """
    stuck = np.zeros(len(found.status), dtype=bool)
    obstacles: list[Obstacles] = [[] for _ in stuck]
    rows = np.flatnonzero(missed)
    if len(rows):
        gain, kind = _gains(finder, found.x[rows], found.x_cf[rows], torch.as_tensor(y_target[rows]))
        most = gain.amax(-1, keepdim=True)
        stuck[rows] = ~((kind == int(Obstacle.NONE)) & (gain > _WORTH_TRYING * most)).any(-1).numpy()
        told = (kind > 0) & (gain > _WORTH_TELLING * most) | (kind == int(Obstacle.FIXED)).all(-1, keepdim=True)
        for i, row in enumerate(rows):
            order = gain[i].argsort(descending=True).tolist()
            obstacles[row] = [(j, Obstacle(int(kind[i, j]))) for j in order if told[i, j] and stuck[row]]
    return Hindered(stuck, obstacles)


def _gains(finder: Finder, x: Tensor, x_cf: Tensor, y_target: Tensor) -> tuple[Tensor, Tensor]:
    """How much each feature would help ``(n, m)``, and what forbids it: values of :class:`Obstacle` ``(n, m)``."""
    wish = _wish(finder, x_cf, y_target)
    constraints = finder.constraints.to(x)
    bounds = constraints.bounds(x)
    lower, upper = bounds.lower.expand_as(x), bounds.upper.expand_as(x)
    end = torch.where(wish > 0, upper, lower)
    # A column without a bound has no furthest value; one standard deviation more is as good as any.
    furthest = constraints.snap(torch.where(end.isfinite(), end, x_cf + wish.sign()), x)
    gains, kinds = [], []
    for feature in finder.encoder.schema_:
        part = finder.encoder.slices_[feature.name]
        cells = Cells(
            wish=wish[:, part],
            x_cf=x_cf[:, part],
            furthest=furthest[:, part],
            upper=upper[:, part],
            may_increase=constraints.may_increase[part],
            may_decrease=constraints.may_decrease[part],
        )
        gain, kind = _category(cells) if cells.wish.shape[1] > 1 else _number(cells)
        if feature.kind == "binary":  # being the better of two categories already is no limit, there just is no gain
            done = kind == int(Obstacle.LIMIT)
            gain, kind = gain.masked_fill(done, 0.0), torch.where(done, int(Obstacle.NONE), kind)
        gains.append(gain)
        kinds.append(kind)
    return torch.stack(gains, -1), torch.stack(kinds, -1)


def _wish(finder: Finder, x_cf: Tensor, y_target: Tensor) -> Tensor:
    """``∂ log p(target) / ∂x′`` ``(n, d)``: which way each column would help."""
    device = next((p.device for p in finder.model.parameters()), x_cf.device)
    with evaluating(finder.model), torch.enable_grad():
        leaf = x_cf.to(device).detach().requires_grad_()
        gain = finder.model(leaf).log_softmax(-1).gather(-1, y_target.to(device).unsqueeze(-1)).sum()
        return torch.autograd.grad(gain, leaf)[0].cpu()


def _number(cells: Cells) -> tuple[Tensor, Tensor]:
    """Gain per unit of model space ``(n,)``, and what forbids it."""
    wish, x_cf, furthest = (values[:, 0] for values in (cells.wish, cells.x_cf, cells.furthest))
    rises, falls = bool(cells.may_increase[0]), bool(cells.may_decrease[0])
    if not rises and not falls:
        return wish.abs(), torch.full(wish.shape, int(Obstacle.FIXED))
    at_end = (furthest - x_cf).abs() <= 1e-4 * (1 + x_cf.abs())
    kind = torch.where(at_end, int(Obstacle.LIMIT), int(Obstacle.NONE))
    if not falls:
        kind = torch.where(wish > 0, kind, int(Obstacle.ONLY_RISES))
    if not rises:
        kind = torch.where(wish > 0, int(Obstacle.ONLY_FALLS), kind)
    return wish.abs(), kind


def _category(cells: Cells) -> tuple[Tensor, Tensor]:
    """The same for a one-hot group: the gain of the best other category that may be had, or else of any."""
    # Nothing is given up for the new category by a row that has none.
    swap = cells.wish - (cells.wish * cells.x_cf).sum(-1, keepdim=True)
    best = swap.amax(-1).clamp_min(0.0)
    if not bool((cells.may_increase | cells.may_decrease).any()):
        return best, torch.full(best.shape, int(Obstacle.FIXED))
    open_best = swap.masked_fill(cells.upper < 0.5, 0.0).amax(-1).clamp_min(0.0)
    forbidden = (best > 0) & (open_best <= 0)
    kind = torch.where(forbidden, int(Obstacle.CATEGORY), int(Obstacle.NONE))
    return torch.where(forbidden, best, open_best), kind
