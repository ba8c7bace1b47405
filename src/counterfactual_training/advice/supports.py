"""Which columns an answer can hardly do without; and answers that do without the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from counterfactual_training.advice.points import Factuals, columns_of, floor_of, take_back
from counterfactual_training.advice.refine import TOGETHER
from counterfactual_training.search import Generator

if TYPE_CHECKING:
    from counterfactual_training.advice.find import Finder

# Answers of more columns than this are searched again in some of them; single columns were tried before.
FEW = 2
# Shares of the columns, one round each: halves as long as that works, then a last look at more.
_HALVES, _LAST = (0.5, 0.5, 0.5), 0.75
# An answer of fewer columns may cost this much of the other.
_DEARER = 1.1


def in_fewer_columns(
    finder: Finder, factuals: Factuals, y: Tensor, x_cf: Tensor, confidence: Tensor, generator: Generator
) -> None:
    """Replace answers x_cf ``(n, d)``, and their confidence ``(n,)``, by others that change fewer columns.

    A search stops in the first place that suffices, which may need many columns a little. Held to the half that matters
    most, it often ends elsewhere, and costs no more.
    """
    bar = float(generator.decision_threshold)

    def answers(more_than: int) -> Tensor:
        """Rows with an answer of more columns."""
        many = finder.num_changes(x_cf, factuals.x) > more_than
        return (many & (confidence >= bar)).nonzero().squeeze(-1)

    rows = answers(FEW)
    for share in (*_HALVES, _LAST):
        # Three quarters of three columns are the half that failed.
        rows = answers(FEW + 1) if share == _LAST else rows
        before = finder.num_changes(x_cf[rows], factuals.x[rows])
        most = (share * before).long().clamp_min(FEW)
        supports = vital_columns(finder, factuals.take(rows), y[rows], x_cf[rows], most)
        # The second choice of columns is another one in some rows only.
        for support, other in zip(supports, (None, supports[0]), strict=True):
            new = torch.ones_like(rows).bool() if other is None else (support != other).any(-1)
            _try(finder, factuals, y, x_cf, confidence, generator, rows[new], support[new])
        after = finder.num_changes(x_cf[rows], factuals.x[rows])
        rows = rows[(after < before) & (after > FEW)]


def _try(
    finder: Finder,
    factuals: Factuals,
    y: Tensor,
    x_cf: Tensor,
    confidence: Tensor,
    generator: Generator,
    rows: Tensor,
    support: Tensor,
) -> None:
    """Search some rows in the features of their support ``(r, m)`` only, and keep what needs fewer or costs less."""
    part, goal = factuals.take(rows), y[rows]
    held = part.holding(~support[:, finder.owner.to(y.device)])
    points, _, gained = finder.descend(held, goal, generator, fall_back=False)
    # Only answers are shortened: a best effort replaces none.
    bar = float(generator.decision_threshold)
    arrived = (gained >= bar).nonzero().squeeze(-1)
    rows, part, goal, points = rows[arrived], held.take(arrived), goal[arrived], points[arrived]
    points = finder.shorten(points, part, goal, floor_of(gained[arrived], bar))
    gained = finder.confidence(points, goal)
    cost, now = finder.cost(points, part.x), finder.cost(x_cf[rows], part.x)
    fewer = finder.num_changes(points, part.x) < finder.num_changes(x_cf[rows], part.x)
    better = torch.where(fewer, cost <= _DEARER * now, cost < now) & (gained >= bar)
    x_cf[rows[better]], confidence[rows[better]] = points[better], gained[better]


def vital_columns(finder: Finder, factuals: Factuals, y: Tensor, x_cf: Tensor, most: Tensor) -> list[Tensor]:
    """Masks ``(n, m)`` of at most ``most`` ``(n,)`` features of answers x_cf ``(n, d)``.

    Two choices: the largest changes, and those without which the target's probability falls most.
    """
    moved = finder.distance(x_cf, factuals.x)
    return [top(score, most) for score in (moved, _lost_without(finder, factuals, y, x_cf, moved))]


def _lost_without(finder: Finder, factuals: Factuals, y: Tensor, x_cf: Tensor, moved: Tensor) -> Tensor:
    """How much probability ``(n, m)`` each change of x_cf contributes: what is lost if it alone is taken back."""
    now = finder.probability(x_cf, y)
    # Below every real value, so that unchanged features come last.
    lost = torch.full_like(moved, -1.0)
    # Of all columns in few looks, because wide rows have many.
    columns = columns_of(finder.owner.to(x_cf.device), len(finder.difficulty))
    for pairs in (moved > 0).nonzero().split(max(1, TOGETHER // x_cf.shape[-1])):
        row, feature = pairs.unbind(-1)
        place = torch.arange(len(row), device=row.device)
        without = take_back(x_cf[row], factuals.x[row], place, columns[feature])
        lost[row, feature] = now[row] - finder.probability(without, y[row])
    return lost


def top(score: Tensor, most: Tensor) -> Tensor:
    """Mask ``(n, m)`` of the ``most`` ``(n,)`` features of each row with the highest scores."""
    rank = score.argsort(stable=True, dim=-1, descending=True).argsort(dim=-1)
    return rank < most.unsqueeze(-1)
