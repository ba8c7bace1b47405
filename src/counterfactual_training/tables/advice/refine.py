"""Better counterfactuals from those found: other categories, then fewer, smaller changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.tables.advice.points import columns_of, take_back

# Probability (n,) of the targets (n,) at rows (n, d).
Confidence = Callable[[Tensor, Tensor], Tensor]
# Whether rows (n, d) give their targets (n,) at least the floors (n,).
Reaches = Callable[[Tensor, Tensor, Tensor], Tensor]

_HALVINGS = 5
# Values of all points that are looked at together; bounds memory.
TOGETHER = 2**22
# Changes that are tried at a time: one after the other, as if none of those before could go, and as
# if all could.
_AHEAD = 16


def swap_categories(
    x_cf: Tensor,
    x: Tensor,
    y_target: Tensor,
    constraints: Constraints,
    confidence: Confidence,
    threshold: float,
    held: Tensor | None = None,
    keeps: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Swap the category that helps most, until a row reaches the threshold or none helps.

    A relaxed search raises the column of a better category without lowering the row's own, so the
    nearest category may still be the old one when the search arrives. Where that takes a row back
    below τ, real categories are tried.

    Args:
        x_cf, x: ``(n, d)`` points with valid categories, and their factuals.
        y_target: ``(n,)``.
        held: mask ``(n, d)`` of cells that keep their value.
        keeps: whether points ``(a, d)`` of the given rows ``(a,)`` keep relations between columns,
            if there are any.

    Returns:
        The points and their confidence ``(n,)``.
    """
    x_cf, current = x_cf.clone(), confidence(x_cf, y_target)
    # Each round swaps one category, so as many rounds as groups will do.
    for _ in constraints.groups:
        rows = (current < threshold).nonzero().squeeze(-1)
        if len(rows) == 0:
            break
        best = current[rows]
        point = x_cf[rows]
        for group in constraints.groups:
            allowed = constraints.categories(group, x[rows]) & ~group.own(x_cf[rows])
            if held is not None:
                # Cells are held feature by feature, so the first column speaks for the group.
                allowed &= ~held[rows][:, list(group.columns[:1])]
            for category in range(allowed.shape[-1]):
                here = allowed[:, category].nonzero().squeeze(-1)
                if len(here) == 0:
                    continue
                trial = x_cf[rows[here]]
                trial[:, list(group.columns)] = group.encode(
                    here.new_full((), category), trial.dtype
                )
                gained = confidence(trial, y_target[rows[here]])
                # The last digits of a probability depend on the batch: they are no reason to swap.
                better = gained > best[here] + 1e-6
                if keeps is not None:
                    better &= keeps(trial, rows[here])
                best[here[better]] = gained[better]
                point[here[better]] = trial[better]
        # Nothing helps any row: later rounds would try the same again.
        if not bool((best > current[rows]).any()):
            break
        x_cf[rows] = point
        current[rows] = best
    return x_cf, current


@dataclass(frozen=True, eq=False)
class Shortener:
    """Takes changes back, whole or in part, as long as the target is still reached.

    Attributes:
        reaches: whether rows reach their targets.
        printed: points ``(a, d)`` of the given rows ``(a,)`` as they are after rounding.
        owner: ``(d,)`` the feature that each encoded column belongs to.
        pixels: ``(m,)`` pixel features, which are not shortened one by one.
        constraints: rounding to valid values.
        difficulty: ``(m,)`` cost weight of each feature.
        related: points ``(a, d)`` of the given rows ``(a,)`` with what follows others computed
            again, and whether they keep the relations between columns; ``None`` if there are none.
    """

    reaches: Reaches
    printed: Callable[[Tensor, Tensor], Tensor]
    owner: Tensor
    pixels: Tensor
    constraints: Constraints
    difficulty: Tensor
    related: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None

    def __call__(self, x_cf: Tensor, x: Tensor, y_target: Tensor, floor: Tensor) -> Tensor:
        """Counterfactuals ``(n, d)`` no further from x, at least as sure as ``floor`` ``(n,)``.

        No feature of the result can be taken back alone with the floor still reached.
        """
        rows = torch.arange(len(x), device=x.device)
        # Many at once, then one by one: bisection assumes an order that single changes need not
        # follow.
        x_cf = self.undo(
            self._undo_many(x_cf, x, y_target, floor, rows), x, y_target, floor, rows
        )
        while len(rows):
            question = (x[rows], y_target[rows], floor[rows])
            # Smaller changes may make another one superfluous, so whole features are tried again
            # after easing.
            eased = self._ease(x_cf[rows], *question, rows)
            x_cf[rows] = self.undo(eased, *question, rows)
            # Each turn takes back a whole feature of the rows that stay, so this ends.
            rows = rows[(x_cf[rows] != eased).any(-1)]
        return x_cf

    def _tried(
        self, points: Tensor, y_target: Tensor, floor: Tensor, places: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The points ``(a, d)`` of the rows ``places`` ``(a,)`` as they would be, and whether they
        will do.
        """
        if self.related is None:
            return points, self.reaches(points, y_target, floor)
        points, kept = self.related(points, places)
        return points, kept & self.reaches(points, y_target, floor)

    def _undo_many(
        self, x_cf: Tensor, x: Tensor, y_target: Tensor, floor: Tensor, places: Tensor
    ) -> Tensor:
        """Take back as many small changes at once as a bisection finds: some have thousands."""
        # Small and difficult changes first: they are worth least to keep.
        size = self._by_feature((x_cf - x).abs()) / self.difficulty
        moved = (size > 0) & ~self.pixels
        # 0 for the smallest change
        rank = size.masked_fill(~moved, torch.inf).argsort(-1).argsort(-1)
        low = torch.zeros_like(floor, dtype=torch.long)
        high = moved.sum(-1)
        best = x_cf
        while bool((low < high).any()):
            # Rounded up, or low and high would never meet.
            middle = (low + high + 1) // 2
            back = (rank < middle.unsqueeze(-1)) & moved
            trial, fine = self._tried(
                torch.where(back[:, self.owner], x, x_cf), y_target, floor, places
            )
            fine = fine & (low < high)
            # The trial itself, because related columns may have been recomputed in it.
            best = torch.where(fine.unsqueeze(-1), trial, best)
            low = torch.where(fine, middle, low)
            high = torch.where(fine, high, torch.minimum(high, middle - 1))
        return best

    def undo(
        self, x_cf: Tensor, x: Tensor, y_target: Tensor, floor: Tensor, places: Tensor
    ) -> Tensor:
        """Take back whole features, the smallest change first; the original is allowed."""
        x_cf = x_cf.clone()
        open_rows = torch.arange(len(x), device=x.device)
        while len(open_rows):
            question = x_cf[open_rows], x[open_rows], y_target[open_rows], floor[open_rows]
            size = self._by_feature((question[0] - question[1]).abs()) / self.difficulty
            # Only those that can go alone are tried in turn; of wide rows that is a small part.
            size = size.masked_fill(
                ~self._superfluous(*question, places[open_rows], size > 0), torch.inf
            )
            gone = self._undo_in_turn(*question, places[open_rows], size)
            undone_any = (gone != question[0]).any(-1)
            x_cf[open_rows] = gone
            # Without one feature, another that was needed before may be superfluous.
            open_rows = open_rows[undone_any]
        return x_cf

    def _undo_in_turn(
        self,
        x_cf: Tensor,
        x: Tensor,
        y_target: Tensor,
        floor: Tensor,
        places: Tensor,
        size: Tensor,
    ) -> Tensor:
        """Try features in the order of their size ``(n, m)``, one after the other, each from where
        the last one led.

        Looks ahead instead of waiting for every single answer: mostly one run of features can go,
            then a run cannot.
        """
        x_cf = x_cf.clone()
        order = size.argsort(dim=-1)
        number = size.isfinite().sum(-1)
        turn = torch.zeros_like(number)
        while len(live := (turn < number).nonzero().squeeze(-1)):
            for rows in live.split(max(1, TOGETHER // (2 * _AHEAD * x.shape[-1]))):
                ahead = turn[rows].unsqueeze(-1) + torch.arange(_AHEAD, device=x.device)
                feature = order[rows].gather(-1, ahead.clamp_max(order.shape[-1] - 1))
                question = x_cf[rows], x[rows], y_target[rows], floor[rows], places[rows]
                together, alone, points = self._look_ahead(
                    *question, feature, ahead < number[rows].unsqueeze(-1)
                )
                # The first feature is the same in both, so that one of the runs is empty.
                can, cannot = (mask.long().cumprod(-1).sum(-1) for mask in (together, ~alone))
                turn[rows] = torch.minimum(turn[rows] + can + cannot, number[rows])
                some = (can > 0).nonzero().squeeze(-1)
                x_cf[rows[some]] = points[some, can[some] - 1]
        return x_cf

    def _look_ahead(
        self,
        x_cf: Tensor,
        x: Tensor,
        y_target: Tensor,
        floor: Tensor,
        places: Tensor,
        feature: Tensor,
        real: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """For features ``(n, a)``, where ``real``: whether each can go with all before it, whether
        it can go alone; and the points ``(n, a, d)`` without it and all before it."""
        (n, ahead), d = feature.shape, x.shape[-1]
        row = torch.arange(n, device=x.device).repeat_interleave(2 * ahead)
        # The first half of each row's points is without more and more features, the second half
        # without one each.
        steps = torch.arange(ahead, device=x.device)
        without = torch.cat([steps <= steps.unsqueeze(-1), steps == steps.unsqueeze(-1)])
        point, step = without.nonzero(as_tuple=True)
        place = (torch.arange(n, device=x.device).unsqueeze(-1) * 2 * ahead + point).flatten()
        points = take_back(x_cf[row], x[row], place, self._columns[feature[:, step].flatten()])
        tried = real.repeat(1, 2).flatten().nonzero().squeeze(-1)
        tried_rows = row[tried]
        points[tried], fine = self._tried(
            points[tried], y_target[tried_rows], floor[tried_rows], places[tried_rows]
        )
        reached = (
            torch.zeros_like(row, dtype=torch.bool).index_put((tried,), fine).view(n, 2, ahead)
        )
        return reached[:, 0], reached[:, 1], points.view(n, 2, ahead, d)[:, 0]

    def _superfluous(
        self,
        x_cf: Tensor,
        x: Tensor,
        y_target: Tensor,
        floor: Tensor,
        places: Tensor,
        moved: Tensor,
    ) -> Tensor:
        """Mask ``(n, m)`` of the changes that can be undone alone: all in few looks, because wide
        rows have many.
        """
        superfluous = torch.zeros_like(moved)
        for pairs in moved.nonzero().split(max(1, TOGETHER // x.shape[-1])):
            row, feature = pairs.unbind(-1)
            place = torch.arange(len(row), device=row.device)
            undone = take_back(x_cf[row], x[row], place, self._columns[feature])
            superfluous[row, feature] = self._tried(
                undone, y_target[row], floor[row], places[row]
            )[1]
        return superfluous

    def _ease(
        self, x_cf: Tensor, x: Tensor, y_target: Tensor, floor: Tensor, places: Tensor
    ) -> Tensor:
        """Move numbers back towards x, all by the same share, found by bisection."""
        # Categories stay, so only integers and listed values are rounded.
        rounding = replace(self.constraints, groups=()).to(x)
        numbers = ~self.pixels[self.owner]
        for group in self.constraints.groups:
            numbers[list(group.columns)] = False
        delta = torch.where(numbers, x_cf - x, 0.0)
        rows = (delta != 0).any(-1).nonzero().squeeze(-1)
        x = x[rows]
        delta = delta[rows]
        y_target = y_target[rows]
        floor = floor[rows]
        best = x_cf[rows]
        share = torch.zeros(len(rows), 1, dtype=x.dtype, device=x.device)
        for halving in range(1, _HALVINGS + 1 if len(rows) else 1):
            tried = share + 0.5**halving
            # Cells that did not change keep their bits, which decide what counts as changed.
            point = torch.where(
                delta != 0, rounding.snap(x + (1 - tried) * delta, x), x_cf[rows]
            )
            point, kept = self._tried(
                self.printed(point, places[rows]), y_target, floor, places[rows]
            )
            kept = kept.unsqueeze(-1)
            share = torch.where(kept, tried, share)
            best = torch.where(kept, point, best)
        x_cf = x_cf.clone()
        x_cf[rows] = best
        return x_cf

    @cached_property
    def _columns(self) -> Tensor:
        return columns_of(self.owner, len(self.pixels))

    def _by_feature(self, values: Tensor) -> Tensor:
        sums = values.new_zeros(len(values), len(self.pixels)).index_add_(1, self.owner, values)
        return sums.masked_fill(self.pixels, 0.0)
