"""Calibration: turn a score per class into a gate that a known share of real rows pass."""

from __future__ import annotations

from math import log
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from counterfactual_training.gates.gated import Gate

# A class with fewer rows is not judged: every row passes.
FEWEST_ROWS = 20
_SPREAD = 0.2
_TOP = log(0.98 / 0.02)
# This share of rows with equal scores counts as a mass; scores are equal up to this relative
# difference.
_MASS = 0.02
_ROUNDING = 1e-4
# Least difference between the scores with σ(g) = ½ and .98, relative to their size.
_STEEPEST = 1e-3
# The largest one below a mass: a density e times lower, and a share of the way to the lowest score.
_BELOW_MASS = 1.0
_OF_THE_WAY = 0.1


class Line(NamedTuple):
    """``g = slope · (score − origin)``, both ``(k,)``; slope 0 and origin 0 where a class cannot be
    judged.
    """

    slope: Tensor
    origin: Tensor


class Calibrated(Gate):
    """A gate that is a linear function of a score.

    Attributes:
        slope, origin: ``(k,)`` β and θ; slope 0 if a class cannot be judged, and then every row
            passes.
    """

    slope: Tensor
    origin: Tensor

    def __init__(self, line: Line) -> None:
        super().__init__()
        for name, tensor in line._asdict().items():
            self.register_buffer(name, tensor)

    @property
    def judged(self) -> Tensor:
        return self.slope > 0

    def passes(self, scores: Tensor) -> Tensor:
        """``log σ(β (score − θ))`` of scores ``(..., n, k)``."""
        return torch.where(
            self.judged, functional.logsigmoid(self.slope * (scores - self.origin)), 0.0
        )


def calibrate(scores: Tensor, y: Tensor, num_classes: int, quantile: float) -> Line:
    """The line through two quantiles of each class's own rows: σ(g) = ½ at ``quantile``, .98 at
    ``quantile + .2``.

    If many rows of a class are alike, their scores are equal, and either all or none of them pass.
    If the lower quantile is such a score, they all pass: σ(g) = .98 there, and ½ at most midway to
    the next lower score.

    Args:
        scores: ``(n, k)``, higher is more like the class; of rows that the score was not fitted to.
        y: ``(n,)`` their classes.
        quantile: share of the real rows of a class with σ(g) below ½.
    """
    slope, origin = torch.zeros(2, num_classes, dtype=scores.dtype, device=scores.device)
    for label in range(num_classes):
        class_scores = scores[y == label, label]
        # An overflown score would make the quantiles NaN and the gate with them.
        class_scores = class_scores[torch.isfinite(class_scores)]
        if len(class_scores) >= FEWEST_ROWS:
            # torch.quantile refuses long tensors, and this many rows are more than enough.
            low, high = torch.quantile(
                class_scores[:100_000], class_scores.new_tensor([quantile, quantile + _SPREAD])
            )
            # Relative: a steeper line would judge the rounding errors of large scores.
            least = _STEEPEST * (1 + low.abs())
            width = high - low
            origin[label] = low
            # The score at the quantile or just above it: do many rows share it?
            above = class_scores[class_scores >= low].min()
            near = class_scores[(class_scores - above).abs() <= _ROUNDING * (1 + above.abs())]
            # A mass at the quantile: with the line through it, σ(g) = ½ for all of them, though
            # they are typical rows.
            if len(near) >= max(2, _MASS * len(class_scores)):
                tied = near.min()
                lower = class_scores[class_scores < tied - _ROUNDING * (1 + tied.abs())]
                width = (_OF_THE_WAY * (tied - scores[:, label].min())).clamp_max(_BELOW_MASS)
                # The next lower score must stay rejected.
                width = torch.minimum(
                    width, (tied - lower.max()) / 2 if len(lower) else width
                ).maximum(least)
                origin[label] = tied - width
            slope[label] = _TOP / width.clamp_min(least)
    return Line(slope, origin)
