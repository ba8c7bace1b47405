"""What stands in a row's way: the changes that would help most, and the rules that forbid them."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from counterfactual_training.estimator.finding import Finder, Found
from counterfactual_training.search import evaluating

# Changes that would help less than this share of the most helpful one are not worth telling …
_WORTH_TELLING = 0.05
# … and, if less than this, not worth counting as a way out.
_WORTH_TRYING = 1e-3
# Lengths of steps, in standard deviations, that tell whether numbers have anything left to give.
_STEPS = (0.01, 0.03, 0.1, 0.3, 1.0)


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

    wish: Tensor  # ∂ log p(target) / ∂x′; of a category, what log p(target) gains by becoming it
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
        places = found.x[rows], found.x_cf[rows], torch.as_tensor(y_target[rows])
        gain, kind = _gains(finder, *places)
        most = gain.amax(-1, keepdim=True)
        way_out = (kind == int(Obstacle.NONE)) & (gain > _WORTH_TRYING * most)
        if finder.gate is not None:
            # Near a most plausible point what a slope promises ends soon.
            hindered = ((kind > 0) & (gain > _WORTH_TELLING * most)).any(-1)
            nothing = _in_reach(finder, *places) < _WORTH_TELLING
            way_out &= ~(_numbers(finder) & (hindered & nothing).unsqueeze(-1))
        stuck[rows] = ~way_out.any(-1).numpy()
        told = (kind > 0) & (gain > _WORTH_TELLING * most) | (kind == int(Obstacle.FIXED)).all(-1, keepdim=True)
        for i, row in enumerate(rows):
            order = gain[i].argsort(descending=True).tolist()
            obstacles[row] = [(j, Obstacle(int(kind[i, j]))) for j in order if told[i, j] and stuck[row]]
    return Hindered(stuck, obstacles)


def _gains(finder: Finder, x: Tensor, x_cf: Tensor, y_target: Tensor) -> tuple[Tensor, Tensor]:
    """How much each feature would help ``(n, m)``, and what forbids it: values of :class:`Obstacle` ``(n, m)``."""
    wish = _wish(finder, x_cf, y_target)
    gained = _by_category(finder, x_cf, y_target)
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
            wish=gained.get(part.start, wish[:, part]),
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
    with evaluating(finder.searched), torch.enable_grad():
        leaf = x_cf.to(finder.like).detach().requires_grad_()
        gain = _log_probability(finder, leaf, y_target).sum()
        return torch.autograd.grad(gain, leaf)[0].cpu()


def _by_category(finder: Finder, x_cf: Tensor, y_target: Tensor) -> dict[int, Tensor]:
    """For each one-hot group, by its first column, what log p(target) gains by each category: ``(n, width)``.

    There are few categories, and a slope says little of what is at the other end of a jump. Of a group of one column,
    0 or 1, it is what the jump gains, with the sign of its direction, or 0.
    """
    gained = {}
    with evaluating(finder.searched), torch.no_grad():
        now = _log_probability(finder, x_cf, y_target)
        for group in finder.constraints.groups:
            then = []
            for category in range(group.num_categories):
                point = x_cf.clone()
                point[:, list(group.columns)] = group.encode(torch.tensor(category), x_cf.dtype)
                then.append(_log_probability(finder, point, y_target) - now)
            gain = torch.stack(then, -1).cpu()
            if len(group.columns) == 1:
                gain = torch.where(gain[:, 1:] > gain[:, :1], gain[:, 1:].clamp_min(0), -gain[:, :1].clamp_min(0))
            gained[group.columns[0]] = gain
    return gained


def _in_reach(finder: Finder, x: Tensor, x_cf: Tensor, y_target: Tensor) -> Tensor:
    """By how much ``(n,)`` of what is missing to log p(target) = 0 the best of some steps of the numbers helps."""
    rules, wish = finder.constraints.to(x), _wish(finder, x_cf, y_target)
    for group in rules.groups:
        wish[:, list(group.columns)] = 0.0
    direction = functional.normalize(rules.mask_step(wish), dim=-1)
    bounds = rules.bounds(x)
    with evaluating(finder.searched), torch.no_grad():
        points = [x_cf, *((x_cf + step * direction).clamp(bounds.lower, bounds.upper) for step in _STEPS)]
        now, *then = (_log_probability(finder, point, y_target).cpu() for point in points)
    return (torch.stack(then).amax(0) - now) / -now.clamp_max(-1e-6)


def _log_probability(finder: Finder, x: Tensor, y_target: Tensor) -> Tensor:
    """``(n,)``, gated where there is a gate."""
    logits = finder.searched(x.to(finder.like))
    return logits.log_softmax(-1).gather(-1, y_target.to(logits.device).unsqueeze(-1)).squeeze(-1)


def _numbers(finder: Finder) -> Tensor:
    """Mask ``(m,)`` of the features that are no categories."""
    return torch.tensor([not feature.is_category for feature in finder.encoder.schema_])


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
    best = cells.wish.amax(-1).clamp_min(0.0)
    if not bool((cells.may_increase | cells.may_decrease).any()):
        return best, torch.full(best.shape, int(Obstacle.FIXED))
    open_best = cells.wish.masked_fill(cells.upper < 0.5, 0.0).amax(-1).clamp_min(0.0)
    forbidden = (best > 0) & (open_best <= 0)
    kind = torch.where(forbidden, int(Obstacle.CATEGORY), int(Obstacle.NONE))
    return torch.where(forbidden, best, open_best), kind
