"""Best efforts that come as close as one column takes them: of a number, people see how far it is from the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from counterfactual_training.advice.points import DIGITS, Counterfactuals, Factuals, floor_of
from counterfactual_training.advice.tries import MOST, VALUES, make_tries, promising
from counterfactual_training.search import Status

if TYPE_CHECKING:
    from counterfactual_training.advice.find import Finder

# Points of each column that the gate, which is slow, is asked about.
_JUDGED = 4
# Looks around a point, points on either side each time, and how much closer the next look is.
_LOOKS, _SIDE, _CLOSER = 4, 16, 12.0


def come_closer(
    finder: Finder, factuals: Factuals, y: Tensor, found: Counterfactuals, threshold: float, sparsify: bool
) -> None:
    """Replace best efforts by closer ones: by one column of the factual, or another value of a column they change.

    Those that arrive by this are converged. No row changes more columns than before, or one.
    """
    missed = (found.status == int(Status.EXHAUSTED)).nonzero().squeeze(-1)
    # Rows are independent, so cutting them bounds memory without changing answers.
    for rows in missed.split(max(1, VALUES // (2 * finder.num_points * factuals.x.shape[-1]))) if len(missed) else ():
        part, goal, x_cf = factuals.take(rows), y[rows], found.x_cf[rows].clone()
        confidence = finder.confidence(x_cf, goal)
        tried = promising(finder, part, goal, MOST)
        _try_columns(finder, part, goal, part.x, tried, x_cf, confidence)
        _try_columns(finder, part, goal, x_cf.clone(), tried & finder.differs(x_cf, part.x), x_cf, confidence)
        _look_around(finder, part, goal, x_cf, confidence)
        # Above the threshold by what another batch may differ.
        arrives = (confidence >= threshold + DIGITS).nonzero().squeeze(-1)
        if sparsify and len(arrives):
            floor = floor_of(confidence[arrives], threshold)
            x_cf[arrives] = finder.undo(x_cf[arrives], part.take(arrives), goal[arrives], floor)
        found.x_cf[rows] = x_cf
        found.status[rows[arrives]] = int(Status.CONVERGED)


def _try_columns(
    finder: Finder, factuals: Factuals, y: Tensor, start: Tensor, tried: Tensor, x_cf: Tensor, confidence: Tensor
) -> None:
    """Put the best change of one column from ``start`` ``(n, d)`` into x_cf, where it is better than that."""
    for tries in make_tries(finder, factuals, start, tried, finder.num_points):
        (p, g, d), row = tries.point.shape, tries.row
        likely = finder.probability(tries.point.view(p * g, d), y[row].repeat_interleave(g)).view(p, g)
        most = likely.masked_fill(~tries.allowed, -1.0).topk(min(g, _JUDGED), -1)
        points = tries.point.gather(1, most.indices.unsqueeze(-1).expand(-1, -1, d))
        _keep_best(finder, y, row, points, most.values >= 0, x_cf, confidence)


def _look_around(finder: Finder, factuals: Factuals, y: Tensor, x_cf: Tensor, confidence: Tensor) -> None:
    """Move each number that x_cf ``(n, d)`` changes to better values around it, closer and closer."""
    x = factuals.x
    lower, upper = (edge.expand_as(x) for edge in finder.constraints.to(x).interval(x, factuals.held))
    changed = finder.differs(x_cf, x) & finder.numbers.to(x.device) & ~finder.pixels.to(x.device)
    changed[:, finder.following] = False
    shares = torch.arange(-_SIDE, _SIDE + 1, dtype=x.dtype, device=x.device) / _SIDE
    for j in changed.any(0).nonzero().squeeze(-1).tolist():
        column = finder.encoder.slices_[finder.encoder.columns_[j].feature.name].start
        rows = changed[:, j].nonzero().squeeze(-1)
        low, high = lower[rows, column, None], upper[rows, column, None]
        # An open side leaves no length: as far as the change goes.
        width = (x_cf - x)[rows, column].abs().unsqueeze(-1).minimum((high - low) / finder.num_points)
        own = factuals.take(rows.repeat_interleave(len(shares)))
        for _ in range(_LOOKS):
            points = x_cf[rows].unsqueeze(1).repeat(1, len(shares), 1)
            points[..., column] = (points[..., column] + width * shares).clamp(low, high)
            flat = finder.printed(points.flatten(0, 1), own, numbers=True)
            _keep_best(
                finder, y, rows, flat.view_as(points), finder.keeps(flat, own).view(len(rows), -1), x_cf, confidence
            )
            width = width / _CLOSER


def _keep_best(
    finder: Finder, y: Tensor, row: Tensor, points: Tensor, allowed: Tensor, x_cf: Tensor, confidence: Tensor
) -> None:
    """Put the best of points ``(p, g, d)`` of some rows ``(p,)``, which may repeat, where it beats x_cf ``(n, d)``."""
    p, g, d = points.shape
    gained = finder.confidence(points.reshape(p * g, d), y[row].repeat_interleave(g)).view(p, g)
    best, place = gained.masked_fill(~allowed, -1.0).max(-1)
    # In order of what they gain, so that of several columns of a row the best one is written last.
    for i in best.argsort().tolist():
        if best[i] > confidence[row[i]]:
            confidence[row[i]], x_cf[row[i]] = best[i], points[i, place[i]]
