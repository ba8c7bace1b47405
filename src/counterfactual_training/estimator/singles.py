"""Counterfactuals that change one column, along the whole interval it may move in; and one column after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.constraints import OneHotGroup
from counterfactual_training.estimator.points import Factuals
from counterfactual_training.search import evaluating

if TYPE_CHECKING:
    from counterfactual_training.estimator.find import Finder

# Points on either side of a number.
_POINTS = 16
_HALVINGS = 8
# Columns tried per row: all of so many, or a few of more, those in which the model promises most, at fewer points.
MOST, _FEW, _FEW_POINTS = 32, 8, 8
# Columns changed one after the other, at most; and points of either kind compared each time.
_COLUMNS, _JUDGED = 10, 6
_TINY = 1e-6
# Values of all columns of points looked at together; bounds memory.
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
    owner, difficulty = finder.owner.to(x.device), finder.difficulty.to(x)
    wide = len(difficulty) > MOST
    tried = promising(finder, factuals, y, _FEW if wide else MOST)
    best = torch.full((len(x), len(difficulty)), -1.0, dtype=x.dtype, device=x.device)
    none = torch.zeros(0, dtype=torch.long, device=x.device)
    found = [(none, none, x[:0], none)]
    for tries in _tries(finder, factuals, x, tried, _FEW_POINTS if wide else _POINTS):
        part = factuals.take(tries.row)
        near, reached, probability = _first(finder, part, y[tries.row], floor[tries.row], tries.point, tries.allowed)
        best[tries.row, tries.feature] = probability
        at = reached.nonzero().squeeze(-1)
        found.append((tries.row[at], tries.feature[at], near[at], torch.full_like(at, tries.numbers)))
    row, changed, point, number = (torch.cat(parts) for parts in zip(*found, strict=True))
    # All columns together: asking a model about a few points takes as long as about many.
    for at in number.nonzero().squeeze(-1).split(max(1, _VALUES // x.shape[-1])):
        point[at] = _closer(finder, factuals.take(row[at]), y[row[at]], floor[row[at]], point[at])
    cost = ((point - x[row]).abs() * difficulty[owner]).sum(-1)
    return Singles(row, changed, point, cost, best)


# ---- one after the other ---------------------------------------------------------------------------------------------


def one_by_one(finder: Finder, factuals: Factuals, y: Tensor, bar: float, start: Tensor | None = None) -> Tensor:
    """Points ``(n, d)``: from ``start``, one column after the other is changed, up to ten.

    Each time the cheapest change that arrives; if none does, the one that gains most for what it costs.

    Args:
        y: ``(n,)`` target classes.
        bar: the confidence to reach; rows that do are left alone.
        start: ``(n, d)`` points as printed; by default the factuals.
    """
    current = (factuals.x if start is None else start).clone()
    confidence = finder.confidence(current, y)
    most = max(1, _VALUES // (2 * min(len(finder.difficulty), MOST) * current.shape[-1]))
    below = (confidence < bar).nonzero().squeeze(-1)
    for rows in below.split(most) if len(below) else ():
        current[rows] = _walk(finder, factuals.take(rows), y[rows], bar, current[rows], confidence[rows])
    return current


def _walk(finder: Finder, factuals: Factuals, y: Tensor, bar: float, current: Tensor, confidence: Tensor) -> Tensor:
    rows = torch.arange(len(y), device=y.device)
    for _ in range(_COLUMNS):
        part, goal = factuals.take(rows), y[rows]
        points, gained = _steps(finder, part, goal, bar, current[rows])
        n, c, d = points.shape
        if c == 0:
            break
        cost = finder.cost(points.view(n * c, d), part.x.repeat_interleave(c, 0)).view(n, c)
        now, spent = confidence[rows].unsqueeze(-1), finder.cost(current[rows], part.x).unsqueeze(-1)
        gain = (gained.logit(_TINY) - now.logit(_TINY)) / (cost - spent).clamp_min(_TINY)
        # In double precision, or costs would drown in the large number.
        rank = torch.where(gained >= bar, 1e9 - cost.double(), torch.where(gained > now, gain, -torch.inf))
        place = rank.argmax(-1)
        everyone = torch.arange(n, device=rows.device)
        helps = rank[everyone, place] > -torch.inf
        current[rows[helps]] = points[everyone, place][helps]
        confidence[rows[helps]] = gained[everyone, place][helps]
        rows = rows[helps & (confidence[rows] < bar)]
        if len(rows) == 0:
            break
    return current


def _steps(finder: Finder, factuals: Factuals, y: Tensor, bar: float, current: Tensor) -> tuple[Tensor, Tensor]:
    """What one more column can do: points ``(n, c, d)``, and their confidence ``(n, c)``; −1 where none was tried.

    Of each column tried, the most probable point and the cheapest that arrives; of these, the best six of either kind.
    """
    tried = promising(finder, factuals, y, MOST)
    slot, half = tried.cumsum(-1) - 1, int(tried.sum(-1).max())
    points = current.unsqueeze(1).repeat(1, 2 * half, 1)
    found = torch.full(points.shape[:2], -1.0, dtype=current.dtype, device=current.device)
    cost = torch.full_like(found, torch.inf)
    for tries in _tries(finder, factuals, current, tried, _FEW_POINTS):
        row, (p, g, d) = tries.row, tries.point.shape
        flat, rows = tries.point.view(p * g, d), row.repeat_interleave(g)
        likely = finder.probability(flat, y[rows]).view(p, g).masked_fill(~tries.allowed, -1.0)
        spent = finder.cost(flat, factuals.x[rows]).view(p, g)
        pair, place = torch.arange(p, device=row.device), slot[row, tries.feature]
        most, near = likely.argmax(-1), spent.masked_fill(likely < bar, torch.inf).argmin(-1)
        for at, chosen in ((place, most), (place + half, near)):
            points[row, at], found[row, at] = tries.point[pair, chosen], likely[pair, chosen]
            cost[row, at] = spent[pair, chosen]
    arrives = cost[:, half:].masked_fill(found[:, half:] < bar, torch.inf)
    asked = min(_JUDGED, half)
    at = torch.cat([found[:, :half].topk(asked, -1).indices, arrives.topk(asked, -1, largest=False).indices + half], -1)
    points = points.gather(1, at.unsqueeze(-1).expand(-1, -1, points.shape[-1]))
    judged = likely = found.gather(1, at)
    if finder.gate is not None:
        judged = finder.confidence(points.flatten(0, 1), y.repeat_interleave(at.shape[1])).view(at.shape)
    return points, judged.masked_fill(likely < 0, -1.0)


# ---- points to try ---------------------------------------------------------------------------------------------------


class Tries(NamedTuple):
    """Points that differ from where rows stand in one feature each.

    Attributes:
        row, feature: ``(p,)`` pairs.
        point: ``(p, g, d)``, as printed.
        allowed: ``(p, g)`` which of them are new and keep the rules.
        numbers: whether the features are numbers; otherwise all pairs have the same feature.
    """

    row: Tensor
    feature: Tensor
    point: Tensor
    allowed: Tensor
    numbers: bool


def _tries(finder: Finder, factuals: Factuals, current: Tensor, tried: Tensor, num_points: int) -> Iterator[Tries]:
    """What to try from ``current`` ``(n, d)``: the features of the mask ``tried`` ``(n, m)``, all numbers together."""
    x, rules = factuals.x, finder.constraints.to(factuals.x)
    lower, upper = rules.interval(x, factuals.held)
    if rules.relations is not None:
        lower, upper = rules.relations.narrow(current, lower, upper)
    starts = torch.tensor([finder.encoder.slices_[c.feature.name].start for c in finder.encoder.columns_]).to(x.device)
    grouped = {column: group for group in rules.groups for column in group.columns}
    groups = [grouped.get(start) for start in starts.tolist()]
    is_number = torch.tensor([group is None for group in groups], device=x.device)
    together = max(1, _VALUES // (2 * num_points * x.shape[-1]))
    for pairs in (tried & is_number).nonzero().split(together):
        row, feature = pairs.unbind(-1)
        column = starts[feature]
        ends = lower[row, column], upper[row, column], rules.domain.lower[column], rules.domain.upper[column]
        point, new = _numbers(current[row], column, *ends, num_points)
        yield _printed(finder, factuals, row, feature, point, new, True)
    for number, group in enumerate(groups):
        rows = tried[:, number].nonzero().squeeze(-1)
        if group is None or len(rows) == 0:
            continue
        for row in rows.split(together):
            point, new = _categories(current[row], group, rules.categories(group, x[row]) & ~group.own(current[row]))
            yield _printed(finder, factuals, row, torch.full_like(row, number), point, new, False)


def _printed(
    finder: Finder, factuals: Factuals, row: Tensor, feature: Tensor, point: Tensor, new: Tensor, numbers: bool
) -> Tries:
    p, g, d = point.shape
    own = factuals.take(row.repeat_interleave(g))
    flat = finder.printed(point.view(p * g, d), own, numbers)
    allowed = new if finder.related is None else new & finder.keeps(flat, own).view(p, g)
    return Tries(row, feature, flat.view(p, g, d), allowed, numbers)


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


def _numbers(
    x: Tensor, column: Tensor, lower: Tensor, upper: Tensor, first: Tensor, last: Tensor, num_points: int
) -> tuple[Tensor, Tensor]:
    """Points ``(p, 2·num_points, d)`` along the interval of one number each, on either side; and which differ from x.

    An outlier starts at the edge of its domain, from ``first`` to ``last``: nothing is known of what lies between.

    Args:
        x: ``(p, d)``.
        column, lower, upper, first, last: ``(p,)``.
    """
    shares = torch.arange(1, num_points + 1, dtype=x.dtype, device=x.device) / num_points
    own = x.gather(1, column.unsqueeze(-1))
    edge = torch.maximum(torch.minimum(own.squeeze(-1), last), first).clamp(lower, upper)
    ends = torch.maximum(lower, torch.minimum(first, edge)), torch.minimum(upper, torch.maximum(last, edge))
    values = torch.cat([edge.unsqueeze(-1) + (end - edge).unsqueeze(-1) * shares for end in ends], -1)
    points = x.unsqueeze(1).repeat(1, values.shape[1], 1)
    places = column.view(-1, 1, 1).expand(-1, values.shape[1], 1)
    return points.scatter(-1, places, values.unsqueeze(-1)), values != own


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
    """Of points ``(a, g, d)`` as printed: the nearest that reaches the floor ``(a, d)``, whether there is one, the best
    chance."""
    n, g, d = points.shape
    rows = torch.arange(n, device=points.device).repeat_interleave(g)
    flat = points.reshape(n * g, d)
    goal, bar = y[rows], floor[rows]
    chance = finder.probability(flat, goal)
    fine = allowed.flatten() & (chance >= bar)
    if finder.gate is not None:
        where = fine.nonzero().squeeze(-1)
        fine[where] = finder.reaches(flat[where], goal[where], bar[where])
    if finder.related is not None:  # other columns may have been asked for, too
        where = fine.nonzero().squeeze(-1)
        fine[where] = finder.num_changes(flat[where], factuals.x[rows[where]]) == 1
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
