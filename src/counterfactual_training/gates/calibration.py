"""Gates that let a known share of real rows pass."""

from __future__ import annotations

from math import log
from typing import NamedTuple

import torch
from torch import Tensor

# A class with fewer rows is not judged: its gate stands open.
FEWEST_ROWS = 20
_SPREAD = 0.2
_TOP = log(0.98 / 0.02)


class Line(NamedTuple):
    """``g = slope · (score − origin)``, both ``(k,)``; slope 0 and origin 0 where a class cannot be judged."""

    slope: Tensor
    origin: Tensor


def calibrate(scores: Tensor, y: Tensor, num_classes: int, quantile: float) -> Line:
    """The line through two quantiles of each class's own rows: σ(g) = ½ at ``quantile``, .98 at ``quantile + .2``.

    Args:
        scores: ``(n, k)``, higher is more like the class; of rows the scores were not fitted to.
        y: ``(n,)`` their classes.
        quantile: share of the real rows of a class that end up below ½.
    """
    slope, origin = torch.zeros(2, num_classes, dtype=scores.dtype, device=scores.device)
    for label in range(num_classes):
        own = scores[y == label, label]
        own = own[torch.isfinite(own)]
        if len(own) >= FEWEST_ROWS:
            low, high = torch.quantile(own[:100_000], own.new_tensor([quantile, quantile + _SPREAD]))
            origin[label] = low
            slope[label] = _TOP / (high - low).clamp_min(1e-3 * (1 + low.abs()))
    return Line(slope, origin)
