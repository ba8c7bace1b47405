"""Counterfactuals that change one column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.advice.points import Factuals
from counterfactual_training.advice.tries import FEW_POINTS, MOST, VALUES, make_tries, promising

if TYPE_CHECKING:
    from counterfactual_training.advice.find import Finder

# … and where the model agrees at one of them, but not the gate.
_CLOSE_POINTS = 128
_HALVINGS = 8
# Of wider rows, so many columns are tried: those in which the model promises most, at fewer points.
_FEW = 8


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
        # Sorted by cost, the first entry of each row is its cheapest.
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
    num_features = len(finder.difficulty)
    wide = num_features > MOST
    # Wide rows would need thousands of points each.
    tried = promising(finder, factuals, y, _FEW if wide else MOST)
    best = torch.full((len(x), num_features), -1.0, dtype=x.dtype, device=x.device)
    num_points = FEW_POINTS if wide else finder.num_points
    alone = finder if finder.gate is None else replace(finder, gate=None)
    row, changed, point = _nearest(alone, factuals, y, floor, tried, num_points, best)
    if finder.gate is not None:
        row, changed, point = _passing(finder, factuals, y, floor, row, changed, point, num_points, best)
    return Singles(row, changed, point, finder.cost(point, x[row]), best)


def _passing(
    finder: Finder,
    factuals: Factuals,
    y: Tensor,
    floor: Tensor,
    row: Tensor,
    changed: Tensor,
    point: Tensor,
    num_points: int,
    best: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Single changes that flip the decision of the model alone: as they are where the gate lets them pass, otherwise
    with other values of the same column."""
    passes = finder.reaches(point, y[row], floor[row])
    again = torch.zeros_like(best, dtype=torch.bool)
    again[row[~passes], changed[~passes]] = True
    others = _nearest(finder, factuals, y, floor, again, num_points, best)
    # What passes can be narrow, such as one usual gain among many zeros, and lie between two points. Looking closer
    # takes long, so only rows that nothing else answers do.
    again &= finder.numbers.to(y.device)
    again[torch.cat([row[passes], others[0]])] = False
    close = _nearest(finder, factuals, y, floor, again, _CLOSE_POINTS, best)
    row, changed, point = (
        torch.cat(parts) for parts in zip((row[passes], changed[passes], point[passes]), others, close, strict=True)
    )
    return row, changed, point


def _nearest(
    finder: Finder, factuals: Factuals, y: Tensor, floor: Tensor, tried: Tensor, num_points: int, best: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Row, feature and nearest point, of the pairs in ``tried`` ``(n, m)`` that reach the floor."""
    pairs = _reaching(finder, factuals, y, floor, tried, num_points, best)
    row, changed, point, number = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    # Points lie on a grid; numbers go back from there to where the floor is just reached. All columns together: asking
    # a model about a few points takes as long as about many.
    for at in number.nonzero().squeeze(-1).split(max(1, VALUES // point.shape[-1])):
        point[at] = _closer(finder, factuals.take(row[at]), y[row[at]], floor[row[at]], point[at])
    return row, changed, point


def _reaching(
    finder: Finder, factuals: Factuals, y: Tensor, floor: Tensor, tried: Tensor, num_points: int, best: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Of the pairs in ``tried`` ``(n, m)`` that reach the floor: row, feature, nearest point, whether it is a number.

    Puts the highest probability seen of each pair into ``best`` ``(n, m)``.
    """
    none = torch.zeros(0, dtype=torch.long, device=y.device)
    # So that callers can concatenate even if nothing is tried.
    yield none, none, factuals.x[:0], none
    for tries in make_tries(finder, factuals, factuals.x, tried, num_points):
        part = factuals.take(tries.row)
        near, reached, probability = _first(finder, part, y[tries.row], floor[tries.row], tries.point, tries.allowed)
        best[tries.row, tries.feature] = probability
        at = reached.nonzero().squeeze(-1)
        yield tries.row[at], tries.feature[at], near[at], torch.full_like(at, tries.numbers)


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
        # The gate only sees points that the model is convinced of: it is slow, and can only object.
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
    # A point found on a grid overshoots by up to one grid step.
    delta, best = points - factuals.x, points
    share = torch.zeros(len(points), 1, dtype=points.dtype, device=points.device)
    for halving in range(1, _HALVINGS + 1):
        trial = finder.printed(points - (share + 0.5**halving) * delta, factuals)
        fine = finder.reaches(trial, y, floor).unsqueeze(-1)
        if finder.related is not None:
            fine = fine & finder.keeps(trial, factuals).unsqueeze(-1)
        share, best = torch.where(fine, share + 0.5**halving, share), torch.where(fine, trial, best)
    return best
