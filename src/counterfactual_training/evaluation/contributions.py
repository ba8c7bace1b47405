"""The contribution of each counterfactual to IP*, so that IP* can be resampled like a mean."""

from __future__ import annotations

import torch
from torch import Tensor

from counterfactual_training.core.precision import accumulating, at_least_single, full_precision
from counterfactual_training.errors import InputError


@torch.no_grad()
def mmd_contributions(
    x: Tensor, reference: Tensor, length_scale: float = 5.0, chunk: int = 1024, likeness: Tensor | None = None
) -> Tensor:
    """Values v ``(n,)`` whose mean is the unbiased squared MMD of x ``(n, d)`` and the reference ``(m, d)``:

        a_i = mean_{j≠i} k(x_i, x_j)    b_i = mean_r k(x_i, r)    c = mean_{r≠s} k(r, s)
        v_i = (2 a_i − 2 b_i) + (c − mean a)

    Up to a constant, v_i is twice the witness function at x_i: the influence of row i on the estimate. Resampling the
    v_i therefore gives, to first order, the spread of recomputed MMDs, at the price of a mean. Kernel values are in
    double precision where the device has it, at most chunk × max(n, m) at once. NaN with fewer than two points on
    either side. To compare many groups with one reference, compute c once with :func:`self_likeness` and pass it as
    ``likeness``.
    """
    if x.dim() != 2 or reference.dim() != 2 or x.shape[1] != reference.shape[1]:
        raise InputError(f"Expected points (n, d) and (m, d), got {tuple(x.shape)} and {tuple(reference.shape)}.")
    if not length_scale > 0 or chunk < 1:
        raise InputError(f"length_scale and chunk must be positive, got {length_scale} and {chunk}.")
    if min(len(x), len(reference)) < 2:
        return x.new_full((len(x),), torch.nan)
    x, reference = at_least_single(x), at_least_single(reference)
    centre = accumulating(reference).mean(0)
    points, others = ((accumulating(rows) - centre) / length_scale for rows in (x, reference))
    with full_precision(x.device):
        own = _row_means(points, points, chunk, same=True)
        cross = _row_means(points, others, chunk, same=False)
    if likeness is None:
        likeness = self_likeness(reference, length_scale, chunk)
    return (2 * own - 2 * cross + likeness - own.mean()).to(x.dtype)


@torch.no_grad()
def self_likeness(reference: Tensor, length_scale: float = 5.0, chunk: int = 1024) -> Tensor:
    """``c = mean_{r≠s} k(r, s)`` of points ``(m, d)``: ``()``."""
    points = (accumulating(reference) - accumulating(reference).mean(0)) / length_scale
    with full_precision(reference.device):
        return _row_means(points, points, chunk, same=True).mean()


def _row_means(left: Tensor, right: Tensor, chunk: int, same: bool) -> Tensor:
    """``mean_j exp(−‖l_i − r_j‖²/2)`` for every i, without j = i where both are the ``same`` points."""
    half = 0.5 * right.square().sum(-1)
    parts = []
    for rows in left.split(chunk):
        exponent = torch.addmm(-half, rows, right.T).sub_(0.5 * rows.square().sum(-1, keepdim=True))
        parts.append(exponent.clamp_(max=0.0).exp_().sum(-1))
    total = torch.cat(parts)
    return (total - 1) / (len(right) - 1) if same else total / len(right)
