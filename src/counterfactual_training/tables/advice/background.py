"""Real rows that a model without gradients is explained by, and how much its columns matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from counterfactual_training.tables.advice.black_box import Background
from counterfactual_training.tables.advice.points import in_blocks
from counterfactual_training.tables.advice.promise import WIDEST

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.find import Finder

# Real rows kept of each class.
_REAL = 1000
# Cells changed at once to see which columns matter, and rows they are changed in.
_CELLS = 20_000_000
_ROWS = 64


def make_background(finder: Finder, x: Tensor, y: Tensor, num_classes: int) -> Background:
    """At most a thousand rows x ``(n, d)`` of each class y ``(n,)``, always the same."""
    # A random sample, because rows may be sorted; seeded, so that explanations are repeatable.
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)
    kept = torch.cat([order[y[order] == label][:_REAL] for label in range(num_classes)])
    # Of few columns all are tried anyway.
    many = len(finder.encoder.columns_) > WIDEST
    if many:
        sensitivity = _sensitivity(finder, x[kept], num_classes)
    else:
        sensitivity = x.new_zeros(0, num_classes)
    return Background(x[kept], y[kept], sensitivity)


def _sensitivity(finder: Finder, x: Tensor, num_classes: int) -> Tensor:
    """``(m, k)`` how much the logarithm of each class's probability varies with each feature, in a
    sample of rows.

    Each feature takes the values of other rows, one feature at a time.
    """
    owner = finder.owner.to(x.device)
    num_features = int(owner.max()) + 1
    d = x.shape[-1]
    num_rows = min(len(x), max(2, min(_ROWS, _CELLS // (num_features * d))))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)
    # Rolled by one: each row is paired with another, never with itself.
    rows = x[order[:num_rows]]
    others = x[order.roll(1)[:num_rows]]
    now = in_blocks(finder.model, rows)
    parts = []
    for features in torch.arange(num_features, device=x.device).split(
        max(1, _CELLS // 5 // (num_rows * d))
    ):
        swapped = torch.where(owner == features.view(-1, 1, 1), others, rows)
        then = in_blocks(finder.model, swapped.flatten(0, 1)).view(
            len(features), num_rows, num_classes
        )
        parts.append((then - now).abs().mean(1))
    return torch.cat(parts)
