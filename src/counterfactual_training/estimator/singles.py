"""Counterfactuals that change one column, along the whole interval it may move in; and one column after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints, OneHotGroup
from counterfactual_training.estimator.points import Factuals
from counterfactual_training.search import evaluating

if TYPE_CHECKING:
    from counterfactual_training.estimator.find import Finder

# Points on either side of a number.
_POINTS = 16
_HALVINGS = 8
# Columns tried per row: all of so many, or a few of more, those in which the model promises most, at fewer points.
MOST, _FEW, _FEW_POINTS = 32, 8, 8
# Columns changed one after the other, at most; and how many of the most probable points the gate is asked about.
_COLUMNS, _JUDGED = 5, 6
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

    def cheapest(self) -> Tensor:
        """Places ``(b,)`` of the cheapest change of each row that has one."""
        order = self.cost.argsort(stable=True)
        first = np.unique(self.row[order].cpu().numpy(), return_index=True)[1]
        return order[torch.as_tensor(first, device=order.device)]


def single_changes(finder: Finder, factuals: Factuals, y: Tensor, floor: Tensor) -> Singles:
    """Try every feature of every row on its own; of more than 32, the eight that promise most.

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
    num_features = len(difficulty)
    tried = promising(finder, factuals, y, MOST if num_features <= MOST else _FEW)
    num_points = _POINTS if num_features <= MOST else _FEW_POINTS
    best = torch.full((len(x), num_features), -1.0, dtype=x.dtype, device=x.device)
    found: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for feature, (start, group) in enumerate(_places(finder, rules)):
        every = tried[:, feature].nonzero().squeeze(-1)
        for rows in () if len(every) == 0 else every.split(max(1, _TOGETHER // (2 * _POINTS))):
            part = factuals.take(rows)
            ends = lower[rows, start], upper[rows, start]
            points, allowed = _candidates(part.x, part.x, rules, start, group, *ends, num_points)
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
    tried = promising(finder, factuals, y, MOST)
    for feature, (start, group) in enumerate(_places(finder, rules)):
        if not bool(tried[:, feature].any()):
            continue
        points, allowed = _candidates(current, x, rules, start, group, lower[:, start], upper[:, start], _POINTS)
        n, g, d = points.shape
        rows = torch.arange(n, device=x.device).repeat_interleave(g)
        printed = finder.printed(points.reshape(n * g, d), factuals.take(rows)).view(n, g, d)
        yield printed, allowed & tried[:, feature].unsqueeze(-1)


def one_by_one(finder: Finder, factuals: Factuals, y: Tensor, bar: float, start: Tensor | None = None) -> Tensor:
    """Points ``(n, d)``: from ``start``, one column after the other is changed as helps most, up to five.

    Args:
        y: ``(n,)`` target classes.
        bar: the confidence to reach; rows that do are left alone.
        start: ``(n, d)`` points as printed; by default the factuals.
    """
    start = factuals.x if start is None else start
    width = 2 * _POINTS * min(len(finder.difficulty), MOST) * start.shape[-1]
    parts = torch.arange(len(y), device=y.device).split(max(1, _VALUES // width))
    return torch.cat([_climb(finder, factuals.take(part), y[part], bar, start[part].clone()) for part in parts])


def _climb(finder: Finder, factuals: Factuals, y: Tensor, bar: float, current: Tensor) -> Tensor:
    confidence = finder.confidence(current, y)
    rows = torch.arange(len(y), device=y.device)
    for _ in range(_COLUMNS):
        if len(rows) == 0:
            break
        part, goal = factuals.take(rows), y[rows]
        tried = list(sweep(finder, part, current[rows], goal))
        if not tried:
            break
        points, allowed = (torch.cat(parts, 1) for parts in zip(*tried, strict=True))
        likely = finder.probability(points.flatten(0, 1), goal.repeat_interleave(points.shape[1]))
        likely = likely.view(allowed.shape).masked_fill(~allowed, -1.0)
        place = likely.topk(min(_JUDGED, likely.shape[1]), -1).indices
        points = points.gather(1, place.unsqueeze(-1).expand(-1, -1, points.shape[-1]))
        gained = finder.confidence(points.flatten(0, 1), goal.repeat_interleave(place.shape[1])).view(place.shape)
        gained = gained.masked_fill(likely.gather(1, place) < 0, -1.0)
        best = gained.argmax(-1)
        helps = gained.gather(1, best.unsqueeze(-1)).squeeze(-1) > confidence[rows]
        everyone = torch.arange(len(rows), device=rows.device)
        current[rows[helps]] = points[everyone, best][helps]
        confidence[rows[helps]] = gained[everyone, best][helps]
        rows = rows[helps & (confidence[rows] < bar)]
    return current


def _places(finder: Finder, rules: Constraints) -> list[tuple[int, OneHotGroup | None]]:
    """For each feature, its first encoded column, and its group if it has categories."""
    group_of = {column: group for group in rules.groups for column in group.columns}
    starts = [finder.encoder.slices_[column.feature.name].start for column in finder.encoder.columns_]
    return [(start, group_of.get(start)) for start in starts]


def promising(finder: Finder, factuals: Factuals, y: Tensor, most: int) -> Tensor:
    """Mask ``(n, m)`` of features that may move; if there are more than ``most``, those with the steepest way to go."""
    x = factuals.x
    lower, upper = finder.constraints.to(x).interval(x, factuals.held)
    owner, num_features = finder.owner.to(x.device), len(finder.encoder.columns_)
    free = x.new_zeros(len(x), num_features).index_add_(1, owner, (upper - lower).expand_as(x)) > 0
    if num_features <= most:
        return free
    if finder.background is not None:
        promise = finder.background.sensitivity.to(x)[:, y].mT.masked_fill(~free, -1.0)
        return torch.zeros_like(free).scatter_(-1, promise.topk(most, -1).indices, True) & free
    with evaluating(finder.model), torch.enable_grad():
        leaf = x.detach().requires_grad_()
        of_target = finder.model(leaf).log_softmax(-1).gather(-1, y.unsqueeze(-1)).sum()
        slope = torch.autograd.grad(of_target, leaf)[0]
    way = torch.where(slope > 0, upper - x, x - lower) * slope.abs() / finder.difficulty.to(x)[owner]
    promise = x.new_zeros(len(x), num_features).index_add_(1, owner, way).masked_fill(~free, -1.0)
    return torch.zeros_like(free).scatter_(-1, promise.topk(most, -1).indices, True) & free


def _candidates(
    current: Tensor,
    x: Tensor,
    rules: Constraints,
    start: int,
    group: OneHotGroup | None,
    lower: Tensor,
    upper: Tensor,
    num_points: int,
) -> tuple[Tensor, Tensor]:
    """Points ``(a, g, d)`` that differ from ``current`` ``(a, d)`` in one feature, and which are new and allowed."""
    if group is not None:
        return _categories(current, group, rules.categories(group, x) & ~group.own(current))
    ends = rules.domain.lower[start], rules.domain.upper[start]
    return _numbers(current, start, lower, upper, *ends, num_points)


def _numbers(
    x: Tensor, column: int, lower: Tensor, upper: Tensor, first: Tensor, last: Tensor, num_points: int
) -> tuple[Tensor, Tensor]:
    """Points ``(a, 2·num_points, d)`` along the interval of one number, on either side; and which differ from x.

    An outlier starts at the edge of its domain, from ``first`` to ``last``: nothing is known of what lies between.
    """
    shares = torch.arange(1, num_points + 1, dtype=x.dtype, device=x.device) / num_points
    own = x[:, column].unsqueeze(-1)
    edge = torch.maximum(torch.minimum(own, last), first).clamp(lower.unsqueeze(-1), upper.unsqueeze(-1))
    ends = (
        torch.maximum(lower, torch.minimum(first, edge[:, 0])),
        torch.minimum(upper, torch.maximum(last, edge[:, 0])),
    )
    values = torch.cat([edge + (end.unsqueeze(-1) - edge) * shares for end in ends], -1)
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
