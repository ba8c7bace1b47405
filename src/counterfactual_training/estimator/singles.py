"""Counterfactuals that change one column: every column on its own, along the whole interval it may move in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints, OneHotGroup
from counterfactual_training.estimator.points import Factuals
from counterfactual_training.search import evaluating

if TYPE_CHECKING:
    from counterfactual_training.estimator.find import Finder

# Points on either side of a number.
_POINTS = 8
_HALVINGS = 5
# Columns tried per row: those in which the model promises most.
MOST = 32
# Points looked at together; bounds memory.
_TOGETHER = 65_536
# … and values of all columns of the points.
_VALUES = 2**24


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
    owner, difficulty = finder.owner.to(x.device), finder.difficulty.to(x)
    num_features = len(finder.encoder.columns_)
    tried = _promising(finder, x, y, lower, upper, owner, num_features)
    best = torch.full((len(x), num_features), -1.0, dtype=x.dtype, device=x.device)
    found: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for feature, (start, group) in enumerate(_places(finder, rules)):
        every = tried[:, feature].nonzero().squeeze(-1)
        for rows in () if len(every) == 0 else every.split(max(1, _TOGETHER // (2 * _POINTS))):
            part = factuals.take(rows)
            if group is None:
                points, allowed = _numbers(part.x, start, lower[rows, start], upper[rows, start])
            else:
                points, allowed = _categories(part.x, group, rules.categories(group, part.x) & ~group.own(part.x))
            near, reached, probability = _first(finder, part, y[rows], floor[rows], points, allowed)
            best[rows, feature] = probability
            at = reached.nonzero().squeeze(-1)
            found.append((rows[at], torch.full_like(at, feature), near[at], torch.full_like(at, group is None)))
    if not found:
        none = torch.zeros(0, dtype=torch.long, device=x.device)
        return Singles(none, none, x[:0], x.new_zeros(0), best)
    row, changed, point, number = (torch.cat(parts) for parts in zip(*found, strict=True))
    # All columns together: asking a model about a few points takes as long as about many.
    for at in number.nonzero().squeeze(-1).split(max(1, _VALUES // x.shape[-1])):
        point[at] = _closer(finder, factuals.take(row[at]), y[row[at]], floor[row[at]], point[at])
    cost = ((point - x[row]).abs() * difficulty[owner]).sum(-1)
    return Singles(row, changed, point, cost, best)


def sweep(finder: Finder, factuals: Factuals, current: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """For each feature worth a try: points ``(n, g, d)``, as printed, that differ from ``current`` ``(n, d)`` in it
    alone, and which of them ``(n, g)`` are new and allowed."""
    x, rules = factuals.x, finder.constraints.to(factuals.x)
    lower, upper = rules.interval(x, factuals.held)
    tried = _promising(finder, x, y, lower, upper, finder.owner.to(x.device), len(finder.encoder.columns_))
    for feature, (start, group) in enumerate(_places(finder, rules)):
        if not bool(tried[:, feature].any()):
            continue
        if group is None:
            points, allowed = _numbers(current, start, lower[:, start], upper[:, start])
        else:
            points, allowed = _categories(current, group, rules.categories(group, x) & ~group.own(current))
        n, g, d = points.shape
        rows = torch.arange(n, device=x.device).repeat_interleave(g)
        printed = finder.printed(points.reshape(n * g, d), factuals.take(rows)).view(n, g, d)
        yield printed, allowed & tried[:, feature].unsqueeze(-1)


def _places(finder: Finder, rules: Constraints) -> list[tuple[int, OneHotGroup | None]]:
    """For each feature, its first encoded column, and its group if it has categories."""
    group_of = {column: group for group in rules.groups for column in group.columns}
    starts = [finder.encoder.slices_[column.feature.name].start for column in finder.encoder.columns_]
    return [(start, group_of.get(start)) for start in starts]


def _promising(
    finder: Finder, x: Tensor, y: Tensor, lower: Tensor, upper: Tensor, owner: Tensor, num_features: int
) -> Tensor:
    """Mask ``(n, m)`` of the features to try: those that may move; of many, those with the steepest way to go."""
    free = x.new_zeros(len(x), num_features).index_add_(1, owner, (upper - lower).expand_as(x))
    if num_features <= MOST:
        return free > 0
    if finder.background is not None:
        promise = finder.background.sensitivity.to(x)[:, y].mT.masked_fill(free <= 0, -1.0)
        return _most(promise) & (free > 0)
    with evaluating(finder.model), torch.enable_grad():
        leaf = x.detach().requires_grad_()
        of_target = finder.model(leaf).log_softmax(-1).gather(-1, y.unsqueeze(-1)).sum()
        slope = torch.autograd.grad(of_target, leaf)[0]
    way = torch.where(slope > 0, upper - x, x - lower) * slope.abs()
    promise = x.new_zeros(len(x), num_features).index_add_(1, owner, way).masked_fill(free <= 0, -1.0)
    return _most(promise) & (free > 0)


def _most(promise: Tensor) -> Tensor:
    return torch.zeros_like(promise, dtype=torch.bool).scatter_(-1, promise.topk(MOST, -1).indices, True)


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
    if finder.gate is not None:
        where = fine.nonzero().squeeze(-1)
        fine[where] = finder.reaches(flat[where], goal[where], bar[where])
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
        share, best = torch.where(fine, share + 0.5**halving, share), torch.where(fine, trial, best)
    return best
