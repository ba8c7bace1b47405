"""Numbers by their rank: quantiles of training rows, and a layer that makes any column nearly
normal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from counterfactual_training.errors import check_count


def knots(values: Tensor, num_bins: int) -> Tensor:
    """At most ``num_bins + 1`` different values ``(m,)``, ascending, with about as many of
    ``values`` ``(n,)`` between each two; the first and the last are the extremes, up to rounding.
    """
    # Every knot is a value that some row has; in double precision, because float32 cannot count
    # many rows.
    shares = torch.linspace(0, 1, num_bins + 1, dtype=torch.float64)
    places = (shares * (len(values) - 1)).round().long().to(values.device)
    edges = values.sort().values[places].unique()
    # Rows are scaled, so a smaller distance is a rounding error; its slope would be meaningless.
    apart = edges.diff() > 1e-6 * (1 + edges[1:].abs())
    return torch.cat([edges[:1], edges[1:][apart]])


class Quantiles(nn.Module):
    """Rank-Gauss: every column as the normal score of its rank in the training rows, ``(..., d)`` →
    ``(..., d)``.

    ``z = start + Σ_b rise_b · clamp((x − lower_b) / width_b, 0, 1) + asinh(x − top)₊ − asinh(bottom
    − x)₊``: between knots a straight line, beyond the training data a logarithm, so it never stops
    rising and :meth:`inverse` undoes it. At a knot, z is Φ⁻¹ of the share of rows below it, with
    half of those at it. Columns of one or two values stay as they are.

    It stands before a network, not in the encoder: there the space of search and constraints would
    be bent too, and neither steps, largest changes nor relations between columns would be what they
    are in the user's units.

    Attributes:
        lower, width, rise: ``(d, B)`` lower ends of the bins, their widths in x and in z; unused
            bins rise by 0.
        bottom, top, start: ``(d,)`` the extreme knots, and z at the lower one.
    """

    lower: Tensor
    width: Tensor
    rise: Tensor
    bottom: Tensor
    top: Tensor
    start: Tensor

    def __init__(self, num_features: int, num_bins: int = 32) -> None:
        super().__init__()
        check_count("num_features", num_features)
        self.num_bins = check_count("num_bins", num_bins)
        # Until rows are seen, one bin from −3 to 3 that changes nothing.
        for name, first in (("lower", -3.0), ("width", 6.0), ("rise", 6.0)):
            values = torch.full((num_features, num_bins), 1.0 if name == "width" else 0.0)
            values[:, 0] = first
            self.register_buffer(name, values)
        for name, value in (("bottom", -3.0), ("top", 3.0), ("start", -3.0)):
            self.register_buffer(name, torch.full((num_features,), value))

    def forward(self, x: Tensor) -> Tensor:
        gone = ((x.unsqueeze(-1) - self.lower) / self.width).clamp(0, 1)
        inside = self.start + (gone * self.rise).sum(-1)
        return inside + (x - self.top).relu().asinh() - (self.bottom - x).relu().asinh()

    def inverse(self, z: Tensor) -> Tensor:
        """The x ``(..., d)`` of scores z ``(..., d)``."""
        before = self.start.unsqueeze(-1) + self.rise.cumsum(-1) - self.rise
        # Unused bins have neither rise nor a part in x.
        gone = ((z.unsqueeze(-1) - before) / self.rise.where(self.rise > 0, 1)).clamp(0, 1)
        inside = self.bottom + (gone * self.width * (self.rise > 0)).sum(-1)
        end = self.start + self.rise.sum(-1)
        return inside + (z - end).relu().sinh() - (self.start - z).relu().sinh()

    @torch.no_grad()
    def fit(self, x: Tensor) -> Quantiles:
        """Take knots and scores from rows x ``(n, d)``."""
        for column in range(x.shape[1]):
            values = x[:, column].sort().values
            at = knots(values, self.num_bins)
            scores = at
            if len(at) > 2 or bool(((values > at[0]) & (values < at[-1])).any()):
                below, upto = (
                    torch.searchsorted(values, at, right=right).double()
                    for right in (False, True)
                )
                # Half of one row away from 0 and 1 at least, so finite.
                scores = torch.special.ndtri((below + upto) / (2 * len(values))).to(x.dtype)
            many = len(at) - 1
            self.lower[column] = at[-1]
            self.width[column] = 1.0
            self.rise[column] = 0.0
            self.lower[column, :many] = at[:-1]
            self.width[column, :many] = at.diff()
            self.rise[column, :many] = scores.diff()
            self.bottom[column] = at[0]
            self.top[column] = at[-1]
            self.start[column] = scores[0]
        return self

    def extra_repr(self) -> str:
        return f"num_bins={self.num_bins}"


def behind_quantiles(network: nn.Module, quantiles: Quantiles) -> nn.Sequential:
    """The network on scores instead of numbers."""
    if isinstance(network, nn.Sequential):
        layers: list[Any] = list(network)
    else:
        layers = [network]
    return nn.Sequential(quantiles, *layers)
