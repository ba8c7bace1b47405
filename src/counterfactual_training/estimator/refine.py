"""Better counterfactuals from those a search found: other categories to reach τ, then smaller changes that keep it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints

# Probability (n,) of the targets (n,) at rows (n, d).
Confidence = Callable[[Tensor, Tensor], Tensor]

_HALVINGS = 5


def swap_categories(
    x_cf: Tensor, x: Tensor, y_target: Tensor, constraints: Constraints, confidence: Confidence, threshold: float
) -> tuple[Tensor, Tensor]:
    """Greedily swap the one category that helps most, until a row reaches the threshold or nothing helps.

    A relaxed search raises the column of a better category without lowering the row's own, so the nearest category may
    still be the old one when the search arrives. Where that takes a row back below τ, real categories are tried.

    Args:
        x_cf, x: ``(n, d)`` points with valid categories, and their factuals.
        y_target: ``(n,)``.

    Returns:
        The points and their confidence ``(n,)``.
    """
    x_cf, current = x_cf.clone(), confidence(x_cf, y_target)
    for _ in constraints.groups:
        rows = (current < threshold).nonzero().squeeze(-1)
        if len(rows) == 0:
            break
        best, point = current[rows], x_cf[rows]
        for group in constraints.groups:
            allowed = constraints.categories(group, x[rows]) & ~group.own(x_cf[rows])
            for category in range(allowed.shape[-1]):
                here = allowed[:, category].nonzero().squeeze(-1)
                if len(here) == 0:
                    continue
                trial = x_cf[rows[here]]
                trial[:, list(group.columns)] = group.encode(here.new_full((), category), trial.dtype)
                gained = confidence(trial, y_target[rows[here]])
                # The last digits of a probability depend on the batch: they are no reason to swap.
                better = gained > best[here] + 1e-6
                best[here[better]], point[here[better]] = gained[better], trial[better]
        if not bool((best > current[rows]).any()):
            break
        x_cf[rows], current[rows] = point, best
    return x_cf, current


@dataclass(frozen=True, eq=False)
class Shortener:
    """Takes changes back, whole or in part, as long as the confidence allows it.

    Attributes:
        confidence: of rows and targets.
        owner: ``(d,)`` the feature that each encoded column belongs to.
        pixels: ``(m,)`` pixel features, which are not shortened one by one.
        constraints: rounding to valid values.
    """

    confidence: Confidence
    owner: Tensor
    pixels: Tensor
    constraints: Constraints

    def __call__(self, x_cf: Tensor, x: Tensor, y_target: Tensor, floor: Tensor) -> Tensor:
        """Counterfactuals ``(n, d)`` no further from x, whose confidence is still at least ``floor`` ``(n,)``."""
        return self._ease(self._undo(x_cf.clone(), x, y_target, floor), x, y_target, floor)

    def _undo(self, x_cf: Tensor, x: Tensor, y_target: Tensor, floor: Tensor) -> Tensor:
        """Take back whole features, the smallest change first. Keeping the original value is always allowed."""
        size = self._by_feature((x_cf - x).abs())
        for feature in size.argsort(dim=-1).unbind(-1):
            rows = (size.gather(-1, feature.unsqueeze(-1)).squeeze(-1) > 0).nonzero().squeeze(-1)
            if len(rows) == 0:
                continue
            undone = torch.where(self.owner == feature[rows].unsqueeze(-1), x[rows], x_cf[rows])
            kept = self.confidence(undone, y_target[rows]) >= floor[rows]
            x_cf[rows[kept]] = undone[kept]
        return x_cf

    def _ease(self, x_cf: Tensor, x: Tensor, y_target: Tensor, floor: Tensor) -> Tensor:
        """Move the numbers back towards x, all by the same share, as far as possible: bisection on that share."""
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
            point = torch.where(delta != 0, rounding.snap(x + (1 - tried) * delta, x), x_cf[rows])
            kept = (self.confidence(point, y_target) >= floor).unsqueeze(-1)
            share, best = torch.where(kept, tried, share), torch.where(kept, point, best)
        x_cf[rows] = best
        return x_cf

    def _by_feature(self, values: Tensor) -> Tensor:
        sums = values.new_zeros(len(values), len(self.pixels)).index_add_(1, self.owner, values)
        return sums.masked_fill(self.pixels, 0.0)
