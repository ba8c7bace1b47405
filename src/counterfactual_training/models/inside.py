"""A regression as a classifier: is the output inside an interval?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Log-odds per unit of f, which is in standard deviations of y. Only their sign is a claim.
_SLOPE = 5.0
# … and of a closed interval at least such that its middle has half as much.
_ACROSS = 10.0


class Inside(nn.Module):
    """Logits ``(..., n, 2)`` of "outside" and "inside" an interval [l, u], from outputs f ``(...,
    n, 1)`` of a model.

    The log-odds of "inside" are ``a d`` inside and ``−log(1 − a d)`` outside, with ``d = min(f − l,
    u − f)``: positive if and only if f is inside. The logarithm keeps probabilities far outside
    above zero, so that a search still sees which of two points is closer.

    Args:
        model: has one output.
        low, high: the interval, infinite where open.
    """

    low: Tensor
    high: Tensor

    def __init__(self, model: nn.Module, low: float, high: float) -> None:
        super().__init__()
        self.model = model
        self.slope = max(_SLOPE, _ACROSS / (high - low))
        like = next(model.parameters())
        self.register_buffer("low", like.new_tensor(low).detach())
        self.register_buffer("high", like.new_tensor(high).detach())

    def forward(self, x: Tensor) -> Tensor:
        output = self.model(x)
        inward = self.slope * torch.minimum(output - self.low, self.high - output)
        # Clamped, because log1p of the other branch's values would be NaN, and so would its
        # gradient.
        odds = torch.where(inward >= 0, inward, -torch.log1p(-inward.clamp_max(0.0)))
        return torch.cat([torch.zeros_like(odds), odds], -1)
