"""L1 distances of points to each other and to a set of points."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from counterfactual_training.core.precision import accumulating, at_least_single
from counterfactual_training.errors import InputError

# Values processed at once; each takes about 40 bytes of temporary memory.
_BLOCK_VALUES = 2**21


def l1(delta: Tensor) -> Tensor:
    """``Σ_d |Δ_d|`` of differences ``(..., n, d)``: ``(..., n)``."""
    return delta.abs().sum(-1)


@dataclass(frozen=True, eq=False)
class L1Reference:
    """A set R of m points, prepared for exact and fast mean L1 distances.

    ``mean_r ‖x − r‖₁ = Σ_d mean_r |x_d − r_d|``, and with a column sorted

        Σ_r |v − r| = v (2k − m) + S_m − 2 S_k,    k = #{r ≤ v},    S_k = sum of the k smallest,

    so a value costs one binary search instead of m differences, and no tensor of size n × m × d is
    needed.

    Attributes:
        columns: ``(..., d, m)`` the centred values of each feature, ascending.
        sums: ``(..., d, m + 1)`` their running sums S_0 … S_m.
        centre: ``(..., d, 1)``, subtracted first so that the sums stay small and exact.
    """

    columns: Tensor
    sums: Tensor
    centre: Tensor

    @classmethod
    def prepare(cls, reference: Tensor) -> L1Reference:
        """From points ``(..., m, d)``; leading dimensions hold separate sets."""
        if reference.dim() < 2 or not reference.is_floating_point():
            raise InputError(
                f"Expected floating-point points (..., m, d), got {_describe(reference)}."
            )
        # In double precision: S_m − 2 S_k subtracts sums over all m points to get what may be a
        # small distance.
        columns = accumulating(reference.detach().transpose(-1, -2))
        centre = columns.mean(-1, keepdim=True)
        columns = (columns - centre).contiguous().sort(-1).values
        # S_0 = 0 in front, so that values below every point need no special case.
        sums = torch.nn.functional.pad(columns.cumsum(-1), (1, 0))
        return cls(columns, sums, centre)

    def mean_distance(self, x: Tensor) -> Tensor:
        """``mean_r ‖x_i − r‖₁`` for points x ``(..., n, d)``: ``(..., n)``; NaN where the set is
        empty.
        """
        lead = self.columns.shape[:-2]
        num_features = self.columns.shape[-2]
        if x.dim() < 1 or x.shape[-1] != num_features or x.device != self.columns.device:
            raise InputError(
                f"x is {_describe(x)}; the reference has {num_features} features on "
                f"{self.centre.device}."
            )
        shape = x.shape[:-1]
        # If all share one set, the leading dimensions of x are just more rows.
        if lead:
            rows = x.detach().expand(*lead, *x.shape[-2:])
        else:
            rows = x.detach().reshape(-1, num_features)
        block = max(1, _BLOCK_VALUES // max(1, prod(lead) * num_features))
        out = torch.cat([self._block(part) for part in rows.split(block, -2)], -1)
        # Back in the caller's precision, but no mean in half precision.
        return (out if lead else out.reshape(shape)).to(at_least_single(x.new_empty(0)).dtype)

    def _block(self, rows: Tensor) -> Tensor:
        # One sorted row per feature, as searchsorted wants it; a transposed view it would copy at
        # every call.
        values = (
            accumulating(rows.transpose(-1, -2)) - self.centre
        ).contiguous()  # (..., d, n)
        below = torch.searchsorted(self.columns, values, right=True)
        num_points = self.columns.shape[-1]
        total = (
            values * (2 * below - num_points)
            + self.sums[..., -1:]
            - 2 * self.sums.gather(-1, below)
        )
        return total.sum(-2) / num_points


def mean_l1(x: Tensor, reference: Tensor) -> Tensor:
    """``mean_r ‖x_i − r‖₁`` of points x ``(..., n, d)`` to the set of points reference ``(..., m,
    d)``: ``(..., n)``.

    For many calls with one set, keep an :class:`L1Reference`.
    """
    return L1Reference.prepare(reference).mean_distance(x)


def _describe(x: Tensor) -> str:
    return f"{x.dtype} {tuple(x.shape)} on {x.device}"
