"""Points that differ from where a row stands in one column: along the interval it may move in, or in all categories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from counterfactual_training.advice.points import Factuals
from counterfactual_training.constraints import OneHotGroup
from counterfactual_training.search import evaluating

if TYPE_CHECKING:
    from counterfactual_training.advice.find import Finder

# Columns tried per row, at most; and points on either side of a number where there are many questions.
MOST, FEW_POINTS = 32, 8
# Values of all columns of points looked at together; bounds memory, and larger pieces would take longer to move.
VALUES = 2**21


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


def make_tries(finder: Finder, factuals: Factuals, current: Tensor, tried: Tensor, num_points: int) -> Iterator[Tries]:
    """What to try from ``current`` ``(n, d)``: the features of the mask ``tried`` ``(n, m)``, all numbers together."""
    x, rules = factuals.x, finder.constraints.to(factuals.x)
    lower, upper = rules.interval(x, factuals.held)
    if rules.relations is not None:
        # One column alone, so relations leave an interval around the others as they stand.
        lower, upper = rules.relations.narrow(x, lower, upper, current)
    starts = torch.tensor([finder.encoder.slices_[c.feature.name].start for c in finder.encoder.columns_]).to(x.device)
    # On either side of a number, hence twice.
    together = max(1, VALUES // (2 * num_points * x.shape[-1]))
    # Numbers of all columns in one go: few large questions to the model instead of many small ones.
    for pairs in (tried & finder.numbers.to(x.device)).nonzero().split(together):
        row, feature = pairs.unbind(-1)
        column = starts[feature]
        ends = lower[row, column], upper[row, column], rules.domain.lower[column], rules.domain.upper[column]
        point, new = _numbers(current[row], column, *ends, num_points)
        yield _printed(finder, factuals, row, feature, point, new, True)
    for number, group in enumerate(finder.groups):
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
    # A feature may move if any of its encoded columns has room.
    free = x.new_zeros(len(x), num_features).index_add_(1, owner, (upper - lower).expand_as(x)) > 0
    if num_features <= most:
        return free
    if finder.background is not None:
        # Without a gradient: by how much the target's probability varies with each feature among real rows.
        promise = finder.background.sensitivity.to(x)[:, y].mT.masked_fill(~free, -1.0)
        return torch.zeros_like(free).scatter_(-1, promise.topk(most, -1).indices, True) & free
    with evaluating(finder.model), torch.enable_grad():
        leaf = x.detach().requires_grad_()
        of_target = finder.model(leaf).log_softmax(-1).gather(-1, y.unsqueeze(-1)).sum()
        slope = torch.autograd.grad(of_target, leaf)[0]
    # Slope times the room that is left that way: a steep column at its limit promises nothing.
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
    # Inside the domain this is the value itself.
    edge = torch.maximum(torch.minimum(own.squeeze(-1), last), first).clamp(lower, upper)
    ends = torch.maximum(lower, torch.minimum(first, edge)), torch.minimum(upper, torch.maximum(last, edge))
    values = torch.cat([edge.unsqueeze(-1) + (end - edge).unsqueeze(-1) * shares for end in ends], -1)
    points = x.unsqueeze(1).repeat(1, values.shape[1], 1)
    places = column.view(-1, 1, 1).expand(-1, values.shape[1], 1)
    return points.scatter_(-1, places, values.unsqueeze(-1)), values != own


def _categories(x: Tensor, group: OneHotGroup, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Points ``(a, k, d)`` in every category of a group, and which of them are allowed."""
    points = x.unsqueeze(1).repeat(1, allowed.shape[-1], 1)
    for category in range(allowed.shape[-1]):
        code = group.encode(torch.tensor(category, device=x.device), x.dtype)
        points[:, category, group.index] = code
    return points, allowed
