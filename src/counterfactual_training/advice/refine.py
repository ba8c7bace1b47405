"""Better counterfactuals from those a search found: other categories to reach τ, then fewer and smaller changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints

# Probability (n,) of the targets (n,) at rows (n, d).
Confidence = Callable[[Tensor, Tensor], Tensor]
# Whether rows (n, d) give their targets (n,) at least the floors (n,).
Reaches = Callable[[Tensor, Tensor, Tensor], Tensor]

_HALVINGS = 5
# Values of all points that are looked at together; bounds memory.
_TOGETHER = 2**22


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
    """Greedily swap the one category that helps most, until a row reaches the threshold or nothing helps.

    A relaxed search raises the column of a better category without lowering the row's own, so the nearest category may
    still be the old one when the search arrives. Where that takes a row back below τ, real categories are tried.

    Args:
        x_cf, x: ``(n, d)`` points with valid categories, and their factuals.
        y_target: ``(n,)``.
        held: mask ``(n, d)`` of cells that keep their value.
        keeps: whether points ``(a, d)`` of the given rows ``(a,)`` keep relations between columns, if there are any.

    Returns:
        The points and their confidence ``(n,)``.
    """
    x_cf, current = x_cf.clone(), confidence(x_cf, y_target)
    # Each round swaps one category, so as many rounds as groups will do.
    for _ in constraints.groups:
        rows = (current < threshold).nonzero().squeeze(-1)
        if len(rows) == 0:
            break
        best, point = current[rows], x_cf[rows]
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
                trial[:, list(group.columns)] = group.encode(here.new_full((), category), trial.dtype)
                gained = confidence(trial, y_target[rows[here]])
                # The last digits of a probability depend on the batch: they are no reason to swap.
                better = gained > best[here] + 1e-6
                if keeps is not None:
                    better &= keeps(trial, rows[here])
                best[here[better]], point[here[better]] = gained[better], trial[better]
        # Nothing helps any row: later rounds would try the same again.
        if not bool((best > current[rows]).any()):
            break
        x_cf[rows], current[rows] = point, best
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
        difficulty: ``(m,)`` how dear a change of each feature is.
        related: points ``(a, d)`` of the given rows ``(a,)`` with what follows others computed anew, and whether they
            keep the relations between columns; ``None`` if there are none.
    """

    reaches: Reaches
    printed: Callable[[Tensor, Tensor], Tensor]
    owner: Tensor
    pixels: Tensor
    constraints: Constraints
    difficulty: Tensor
    related: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None

    def __call__(self, x_cf: Tensor, x: Tensor, y_target: Tensor, floor: Tensor) -> Tensor:
        """Counterfactuals ``(n, d)`` no further from x, with at least the confidence ``floor`` ``(n,)``.

        No feature of the result can be taken back alone with the floor still reached.
        """
        rows = torch.arange(len(x), device=x.device)
        # Many at once, then one by one: bisection assumes an order that single changes need not follow.
        x_cf = self._undo(self._undo_many(x_cf, x, y_target, floor, rows), x, y_target, floor, rows)
        while len(rows):
            own = (x[rows], y_target[rows], floor[rows])
            # Smaller changes may make another one superfluous, so whole features are tried again after easing.
            eased = self._ease(x_cf[rows], *own, rows)
            x_cf[rows] = self._undo(eased, *own, rows)
            # Each turn takes back a whole feature of the rows that stay, so this ends.
            rows = rows[(x_cf[rows] != eased).any(-1)]
        return x_cf

    def _tried(self, points: Tensor, y_target: Tensor, floor: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """The points ``(a, d)`` of the rows ``places`` ``(a,)`` as they would be, and whether they will do."""
        if self.related is None:
            return points, self.reaches(points, y_target, floor)
        points, kept = self.related(points, places)
        return points, kept & self.reaches(points, y_target, floor)

    def _undo_many(self, x_cf: Tensor, x: Tensor, y_target: Tensor, floor: Tensor, places: Tensor) -> Tensor:
        """Take back as many of the smallest changes at once as a bisection finds: wide rows have thousands."""
        # Small and difficult changes first: they are worth least to keep.
        size = self._by_feature((x_cf - x).abs()) / self.difficulty
        moved = (size > 0) & ~self.pixels
        rank = size.masked_fill(~moved, torch.inf).argsort(-1).argsort(-1)  # 0 for the smallest change
        low, high = torch.zeros_like(floor, dtype=torch.long), moved.sum(-1)
        best = x_cf
        while bool((low < high).any()):
            # Rounded up, or low and high would never meet.
            middle = (low + high + 1) // 2
            back = (rank < middle.unsqueeze(-1)) & moved
            trial, fine = self._tried(torch.where(back[:, self.owner], x, x_cf), y_target, floor, places)
            fine = fine & (low < high)
            # The trial itself, because related columns may have been computed anew in it.
            best = torch.where(fine.unsqueeze(-1), trial, best)
            low, high = torch.where(fine, middle, low), torch.where(fine, high, torch.minimum(high, middle - 1))
        return best

    def _undo(self, x_cf: Tensor, x: Tensor, y_target: Tensor, floor: Tensor, places: Tensor) -> Tensor:
        """Take back whole features, the smallest change first, until none can be. The original is always allowed."""
        x_cf = x_cf.clone()
        open_rows = torch.arange(len(x), device=x.device)
        while len(open_rows):
            own = x_cf[open_rows], x[open_rows], y_target[open_rows], floor[open_rows]
            size = self._by_feature((own[0] - own[1]).abs()) / self.difficulty
            # Only those that can go alone are tried in turn; of wide rows that is a small part.
            size = size.masked_fill(~self._superfluous(*own, places[open_rows], size > 0), torch.inf)
            undone_any = torch.zeros_like(open_rows, dtype=torch.bool)
            most = int(size.isfinite().sum(-1).max())
            for feature in size.argsort(dim=-1)[:, :most].unbind(-1):
                here = size.gather(-1, feature.unsqueeze(-1)).squeeze(-1).isfinite().nonzero().squeeze(-1)
                rows = open_rows[here]
                undone = torch.where(self.owner == feature[here].unsqueeze(-1), x[rows], x_cf[rows])
                # Asked again: another change may have been taken back since.
                undone, kept = self._tried(undone, y_target[rows], floor[rows], places[rows])
                x_cf[rows[kept]] = undone[kept]
                undone_any[here[kept]] = True
            # Without one feature, another that was needed before may be superfluous.
            open_rows = open_rows[undone_any]
        return x_cf

    def _superfluous(
        self, x_cf: Tensor, x: Tensor, y_target: Tensor, floor: Tensor, places: Tensor, moved: Tensor
    ) -> Tensor:
        """Mask ``(n, m)`` of the changes that can be undone alone: all in few looks, because wide rows have many."""
        found = torch.zeros_like(moved)
        for pairs in moved.nonzero().split(max(1, _TOGETHER // x.shape[-1])):
            row, feature = pairs.unbind(-1)
            undone = torch.where(self.owner == feature.unsqueeze(-1), x[row], x_cf[row])
            found[row, feature] = self._tried(undone, y_target[row], floor[row], places[row])[1]
        return found

    def _ease(self, x_cf: Tensor, x: Tensor, y_target: Tensor, floor: Tensor, places: Tensor) -> Tensor:
        """Move the numbers back towards x, all by the same share, as far as possible: bisection on that share."""
        # Categories stay, so only integers and listed values are rounded.
        rounding = replace(self.constraints, groups=()).to(x)
        numbers = ~self.pixels[self.owner]
        for group in self.constraints.groups:
            numbers[list(group.columns)] = False
        delta = torch.where(numbers, x_cf - x, 0.0)
        rows = (delta != 0).any(-1).nonzero().squeeze(-1)
        x, delta, y_target, floor = x[rows], delta[rows], y_target[rows], floor[rows]
        best = x_cf[rows]
        share = torch.zeros(len(rows), 1, dtype=x.dtype, device=x.device)
        for halving in range(1, _HALVINGS + 1 if len(rows) else 1):
            tried = share + 0.5**halving
            # Cells that did not change keep their bits, which decide what counts as changed.
            point = torch.where(delta != 0, rounding.snap(x + (1 - tried) * delta, x), x_cf[rows])
            point, kept = self._tried(self.printed(point, places[rows]), y_target, floor, places[rows])
            kept = kept.unsqueeze(-1)
            share, best = torch.where(kept, tried, share), torch.where(kept, point, best)
        x_cf = x_cf.clone()
        x_cf[rows] = best
        return x_cf

    def _by_feature(self, values: Tensor) -> Tensor:
        sums = values.new_zeros(len(values), len(self.pixels)).index_add_(1, self.owner, values)
        return sums.masked_fill(self.pixels, 0.0)
