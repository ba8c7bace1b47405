"""Counterfactuals that change one column after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from counterfactual_training.advice.points import Factuals
from counterfactual_training.advice.tries import FEW_POINTS, MOST, VALUES, make_tries, promising

if TYPE_CHECKING:
    from counterfactual_training.advice.find import Finder

# Columns changed one after the other, at most; and points of either kind compared each time.
_COLUMNS, _JUDGED = 10, 6
_TINY = 1e-6


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
    # Rows are independent, so cutting them bounds memory without changing answers.
    most = max(1, VALUES // (2 * min(len(finder.difficulty), MOST) * current.shape[-1]))
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
        # In log-odds, because a step from .01 to .1 is progress that probabilities hardly show.
        gain = (gained.logit(_TINY) - now.logit(_TINY)) / (cost - spent).clamp_min(_TINY)
        # In double precision, or costs would drown in the large number.
        # What arrives comes first, the cheapest of it at the top; then gain per cost; never what does not help.
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
    # Two places per tried column: its most probable point, and its cheapest that arrives.
    slot, half = tried.cumsum(-1) - 1, int(tried.sum(-1).max())
    points = current.unsqueeze(1).repeat(1, 2 * half, 1)
    found = torch.full(points.shape[:2], -1.0, dtype=current.dtype, device=current.device)
    cost = torch.full_like(found, torch.inf)
    for tries in make_tries(finder, factuals, current, tried, FEW_POINTS):
        row, (p, g, d) = tries.row, tries.point.shape
        flat, rows = tries.point.view(p * g, d), row.repeat_interleave(g)
        # By the model alone, which is fast; the gate is asked about a dozen points in the end.
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
    # Places that no try filled still hold the current point.
    return points, judged.masked_fill(likely < 0, -1.0)
