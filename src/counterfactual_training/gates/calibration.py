"""Gates that let a known share of real rows pass: a score of each class, and the line that makes it a gate."""

from __future__ import annotations

from math import log
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from counterfactual_training.gates.gated import Gate

# A class with fewer rows is not judged: its gate stands open.
FEWEST_ROWS = 20
_SPREAD = 0.2
_TOP = log(0.98 / 0.02)


class Line(NamedTuple):
    """``g = slope · (score − origin)``, both ``(k,)``; slope 0 and origin 0 where a class cannot be judged."""

    slope: Tensor
    origin: Tensor


class Calibrated(Gate):
    """A gate that is a line on a score.

    Attributes:
        slope, origin: ``(k,)`` β and θ; a class that cannot be judged has slope 0, and every row passes.
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
        return torch.where(self.judged, functional.logsigmoid(self.slope * (scores - self.origin)), 0.0)


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
