"""Counterfactuals that change one column: every column on its own, along the whole interval it may move in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from counterfactual_training.constraints import OneHotGroup
from counterfactual_training.estimator.points import Factuals
from counterfactual_training.search import evaluating

if TYPE_CHECKING:
    from counterfactual_training.estimator.find import Finder

# Points on either side of a number.
_POINTS = 8
_HALVINGS = 5
# Columns tried per row: those in which the model promises most.
_MOST = 32
# Points looked at together; bounds memory.
_TOGETHER = 65_536


class Singles(NamedTuple):
    """What one column can do for n rows with m features.

    Attributes:
        row, feature: ``(a,)`` the pairs of row and feature that reach the floor.
        point: ``(a, d)`` the nearest point found that does, as printed.
        cost: ``(a,)`` of that change.
        best: ``(n, m)`` the highest probability of the target (without a gate) that was seen; −1 where none was tried.
    """

    row: Tensor
    feature: Tensor
    point: Tensor
    cost: Tensor
    best: Tensor


def single_changes(finder: Finder, factuals: Factuals, y: Tensor, floor: Tensor) -> Singles:
    """Try every feature of every row on its own, up to 32 per row.

    Args:
        y: ``(n,)`` target classes.
        floor: ``(n,)`` confidence to reach.
    """
    x = factuals.x
    rules = finder.constraints.to(x)
    lower, upper = rules.interval(x, factuals.held)
    if rules.relations is not None:
        lower, upper = rules.relations.narrow(x, lower, upper)
    owner, difficulty = finder.owner.to(x.device), finder.difficulty.to(x)
    num_features = len(finder.encoder.columns_)
    tried = _promising(finder, x, y, lower, upper, owner, num_features)
    best = torch.full((len(x), num_features), -1.0, dtype=x.dtype, device=x.device)
    found: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    group_of = {column: group for group in rules.groups for column in group.columns}
    for feature, column in enumerate(finder.encoder.columns_):
        every = tried[:, feature].nonzero().squeeze(-1)
        start = finder.encoder.slices_[column.feature.name].start
        for rows in every.split(max(1, _TOGETHER // (2 * _POINTS))):
            part = factuals.take(rows)
            group = group_of.get(start)
            if group is None:
                points, allowed = _numbers(part.x, start, lower[rows, start], upper[rows, start])
            else:
                points, allowed = _categories(part.x, group, rules.categories(group, part.x) & ~group.own(part.x))
            near, reached, probability = _first(finder, part, y[rows], floor[rows], points, allowed)
            best[rows, feature] = probability
            at = reached.nonzero().squeeze(-1)
            if len(at) == 0:
                continue
            point = near[at]
            if group is None:
                point = _closer(finder, part.take(at), y[rows[at]], floor[rows[at]], point)
            cost = ((point - x[rows[at]]).abs() * difficulty[owner]).sum(-1)
            found.append((rows[at], torch.full_like(at, feature), point, cost))
    if not found:
        none = torch.zeros(0, dtype=torch.long, device=x.device)
        return Singles(none, none, x[:0], x.new_zeros(0), best)
    row, changed, point, cost = (torch.cat(parts) for parts in zip(*found, strict=True))
    return Singles(row, changed, point, cost, best)


def _promising(
    finder: Finder, x: Tensor, y: Tensor, lower: Tensor, upper: Tensor, owner: Tensor, num_features: int
) -> Tensor:
    """Mask ``(n, m)`` of the features to try: those that may move; of many, those with the steepest way to go."""
    free = x.new_zeros(len(x), num_features).index_add_(1, owner, (upper - lower).expand_as(x))
    if num_features <= _MOST:
        return free > 0
    with evaluating(finder.model), torch.enable_grad():
        leaf = x.detach().requires_grad_()
        of_target = finder.model(leaf).log_softmax(-1).gather(-1, y.unsqueeze(-1)).sum()
        slope = torch.autograd.grad(of_target, leaf)[0]
    way = torch.where(slope > 0, upper - x, x - lower) * slope.abs()
    promise = x.new_zeros(len(x), num_features).index_add_(1, owner, way).masked_fill(free <= 0, -1.0)
    mask = torch.zeros_like(promise, dtype=torch.bool).scatter_(-1, promise.topk(_MOST, -1).indices, True)
    return mask & (free > 0)


def _numbers(x: Tensor, column: int, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Points ``(a, 2·8, d)`` along the interval of one number, the nearest first on either side; and which are new."""
    shares = torch.arange(1, _POINTS + 1, dtype=x.dtype, device=x.device) / _POINTS
    own = x[:, column].unsqueeze(-1)
    # Interleaved: the first points of both sides come first.
    values = torch.stack([own + (end.unsqueeze(-1) - own) * shares for end in (lower, upper)], -1).flatten(1)
    points = x.unsqueeze(1).repeat(1, values.shape[1], 1)
    points[..., column] = values
    return points, values != own


def _categories(x: Tensor, group: OneHotGroup, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Points ``(a, k, d)`` in every category of a group, and which of them are allowed."""
    points = x.unsqueeze(1).repeat(1, allowed.shape[-1], 1)
    for category in range(allowed.shape[-1]):
        code = group.encode(torch.tensor(category, device=x.device), x.dtype)
        points[:, category, group.index] = code
    return points, allowed


def _first(
    finder: Finder, factuals: Factuals, y: Tensor, floor: Tensor, points: Tensor, allowed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of points ``(a, g, d)``: the nearest that reaches the floor ``(a, d)``, whether there is one, the best chance."""
    n, g, d = points.shape
    rows = torch.arange(n, device=points.device).repeat_interleave(g)
    flat = finder.printed(points.reshape(n * g, d), factuals.take(rows))
    goal, bar = y[rows], floor[rows]
    chance = finder.probability(flat, goal)
    fine = allowed.flatten() & (chance >= bar)
    where = fine.nonzero().squeeze(-1)
    fine[where] = finder.reaches(flat[where], goal[where], bar[where])
    if finder.related is not None:  # they may ask for a second column, which is then not a single one
        where = fine.nonzero().squeeze(-1)
        own = factuals.take(rows[where])
        fine[where] = finder.keeps(flat[where], own) & (finder.num_changes(flat[where], own.x) == 1)
    distance = (flat - factuals.x[rows]).abs().sum(-1).masked_fill(~fine, torch.inf).view(n, g)
    place = distance.argmin(-1)
    near = flat.view(n, g, d)[torch.arange(n, device=points.device), place]
    seen = chance.view(n, g).masked_fill(~allowed, -1.0).amax(-1)
    return near, fine.view(n, g).any(-1), seen


def _closer(finder: Finder, factuals: Factuals, y: Tensor, floor: Tensor, points: Tensor) -> Tensor:
    """Points ``(a, d)`` moved back towards their factuals as far as the floor allows, by bisection."""
    delta, best = points - factuals.x, points
    share = torch.zeros(len(points), 1, dtype=points.dtype, device=points.device)
    for halving in range(1, _HALVINGS + 1):
        trial = finder.printed(points - (share + 0.5**halving) * delta, factuals)
        fine = finder.reaches(trial, y, floor).unsqueeze(-1)
        if finder.related is not None:
            fine = fine & finder.keeps(trial, factuals).unsqueeze(-1)
        share, best = torch.where(fine, share + 0.5**halving, share), torch.where(fine, trial, best)
    return best
