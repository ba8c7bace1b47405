"""Less to do for the same decision: changes taken back, whole or in part, while the target's probability allows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints

_HALVINGS = 5


@dataclass(frozen=True, eq=False)
class Shortener:
    """What is needed to take changes back.

    Attributes:
        confidence: probability ``(n,)`` of the targets ``(n,)`` at rows ``(n, d)``.
        owner: ``(d,)`` the feature that each encoded column belongs to.
        pixels: ``(m,)`` features to leave alone: a picture is not read cell by cell.
        constraints: rounding to valid values.
    """

    confidence: Callable[[Tensor, Tensor], Tensor]
    owner: Tensor
    pixels: Tensor
    constraints: Constraints

    def __call__(self, x_cf: Tensor, x: Tensor, y_target: Tensor, floor: Tensor) -> Tensor:
        """Counterfactuals ``(n, d)`` at most as far from x, whose confidence is still at least ``floor`` ``(n,)``."""
        return self._ease(self._undo(x_cf.clone(), x, y_target, floor), x, y_target, floor)

    def _undo(self, x_cf: Tensor, x: Tensor, y_target: Tensor, floor: Tensor) -> Tensor:
        """Take back whole features, the smallest change first; to stay as one is, is always allowed."""
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
        """Move the numbers back towards x, all by the same share, as far as it goes: bisection on that share."""
        rounding = replace(self.constraints, groups=()).to(x)
        numbers = ~self.pixels[self.owner] & ~_in_groups(self.constraints, x)
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


def _in_groups(constraints: Constraints, x: Tensor) -> Tensor:
    """Mask ``(d,)`` of the columns that encode categories."""
    mask = torch.zeros(x.shape[-1], dtype=torch.bool, device=x.device)
    for group in constraints.groups:
        mask[list(group.columns)] = True
    return mask
