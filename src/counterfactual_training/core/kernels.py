"""Maximum mean discrepancy: how much the distributions of two samples differ (Eq. 7)."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from counterfactual_training.core.precision import (
    accumulating,
    accumulation_dtype,
    at_least_single,
    full_precision,
)
from counterfactual_training.errors import InputError

# Largest rounding error of an exponent; beyond it the kernel is computed in double precision.
_EXPONENT_ERROR = 1e-4


@torch.no_grad()
def mmd(x: Tensor, y: Tensor, length_scale: float = 5.0, chunk: int = 1024) -> Tensor:
    """Unbiased estimate of the squared maximum mean discrepancy of two samples (Gretton et al.
    2012; Eq. 7).

        MMD = mean_{i≠j} k(x_i, x_j) + mean_{i≠j} k(y_i, y_j) − 2 mean_{i,j} k(x_i, y_j)
        k(a, b) = exp(−‖a − b‖² / 2ℓ²)

    Because it is unbiased, it is about as often negative as positive if both samples have the same
    distribution.

    Args:
        x: ``(..., n, d)``.
        y: ``(..., m, d)``; leading dimensions broadcast.
        length_scale: ℓ. The paper prints 0.5, its code ran with 5.
        chunk: computes at most chunk × chunk kernel values at once, which bounds memory; does not
            affect the result.

    Returns:
        ``(...)``; NaN where a sample has fewer than two points, because there are no pairs.
    """
    x = at_least_single(x)
    y = at_least_single(y)
    # Under autocast the matrix products would run in half precision, and an MMD is a small
    # difference of large sums.
    with full_precision(x.device):
        a, b, centre = _prepare(x, y, length_scale, chunk)
        n = a.shape[-2]
        m = b.shape[-2]
        within_a = _kernel_sum(a, a, centre, length_scale, chunk, same=True) / (n * (n - 1))
        within_b = _kernel_sum(b, b, centre, length_scale, chunk, same=True) / (m * (m - 1))
        between = _kernel_sum(a, b, centre, length_scale, chunk, same=False) / (n * m)
        return (within_a + within_b - 2 * between).to(x.dtype)


def _prepare(
    x: Tensor, y: Tensor, length_scale: float, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Checked samples in the precision they need, and the centre to subtract."""
    if min(x.dim(), y.dim()) < 2 or x.shape[-1] != y.shape[-1]:
        raise InputError(
            f"Expected samples (..., n, d) and (..., m, d), got {tuple(x.shape)} and "
            f"{tuple(y.shape)}."
        )
    if x.device != y.device or x.dtype != y.dtype or not x.is_floating_point():
        raise InputError(
            f"The samples must share a device and a floating-point dtype, got {x.dtype} on "
            f"{x.device} and "
            f"{y.dtype} on {y.device}; convert one with .to(other)."
        )
    if not length_scale > 0 or chunk < 1:
        raise InputError(
            f"length_scale and chunk must be positive, got {length_scale} and {chunk}."
        )
    both = [sample.reshape(-1, sample.shape[-1]) for sample in (x, y)]
    # Distances do not depend on the centre, so that of one sample will do; the mean of an empty one
    # would be NaN.
    centre = both[1 if len(both[1]) else 0].mean(0)
    # ‖a − b‖² is computed as ‖a‖² + ‖b‖² − 2ab, whose rounding error grows with the norms of the
    # centred points.
    norm = max(_largest_norm(sample, centre) for sample in both)
    if torch.finfo(x.dtype).eps * norm / length_scale**2 > _EXPONENT_ERROR:
        return accumulating(x), accumulating(y), accumulating(centre)
    return x, y, centre


def _largest_norm(rows: Tensor, centre: Tensor) -> float:
    """An upper bound of ``‖a − centre‖²``, without a copy of the rows ``(n, d)``."""
    if not rows.numel():
        return 0.0
    return float(torch.maximum(rows.amax(0) - centre, centre - rows.amin(0)).square().sum())


def _kernel_sum(
    x: Tensor, y: Tensor, centre: Tensor, length_scale: float, chunk: int, same: bool
) -> Tensor:
    """``Σ_{i,j} k(x_i, y_j)`` over the rows, without i = j when both are the ``same`` sample:
    ``(...)``.
    """
    lead = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    sets_x = _flatten(x, lead)
    sets_y = _flatten(y, lead)
    rows = min(chunk, x.shape[-2])
    columns = min(chunk, y.shape[-2])
    # As many sets at once as fill one tile.
    slab = max(1, chunk * chunk // max(1, rows * columns))
    num_sets = prod(lead)
    buffer = x.new_empty(min(slab, num_sets) * rows * columns)
    # A sum of up to n² values, compared with others nearly as large: single precision has too few
    # digits for that.
    total = torch.zeros(num_sets, dtype=accumulation_dtype(x.device), device=x.device)
    for first in range(0, num_sets, slab):
        # A set that all share is broadcast, not cut.
        part_x, part_y = (
            s if len(s) == 1 else s[first : first + slab] for s in (sets_x, sets_y)
        )
        for i in range(0, x.shape[-2], chunk):
            chunk_x, half_x = _halved(part_x[:, i : i + chunk], centre, length_scale)
            # Two more columns carry the norms, so that one matrix product yields whole exponents.
            chunk_x = torch.cat([chunk_x, half_x, torch.ones_like(half_x)], -1)
            for j in range(i if same else 0, y.shape[-2], chunk):
                chunk_y, half_y = _halved(part_y[:, j : j + chunk], centre, length_scale)
                tile = _tile(
                    chunk_x, torch.cat([chunk_y, torch.ones_like(half_y), half_y], -1), buffer
                )
                if same and i == j:
                    tile.diagonal(dim1=-2, dim2=-1).zero_()
                # Each unordered pair of chunks is visited once.
                weight = 2 if same and i != j else 1
                # Rows of a tile are short enough for single precision; only sums over many rows
                # need more.
                total[first : first + slab] += weight * tile.sum(-1).sum(-1, dtype=total.dtype)
    return total.reshape(lead)


def _flatten(x: Tensor, lead: torch.Size) -> Tensor:
    """Sets ``(L, n, d)``; a single shared set stays single."""
    if prod(x.shape[:-2]) == 1:
        return x.reshape(1, *x.shape[-2:])
    # −1 is ambiguous for empty sets
    return x.expand(*lead, *x.shape[-2:]).reshape(prod(lead), *x.shape[-2:])


def _halved(rows: Tensor, centre: Tensor, length_scale: float) -> tuple[Tensor, Tensor]:
    """a/ℓ and −‖a/ℓ‖²/2: the product of [a/ℓ, −‖a/ℓ‖²/2, 1] and [b/ℓ, 1, −‖b/ℓ‖²/2] is the exponent
    −‖a − b‖²/2ℓ².
    """
    scaled = (rows - centre) / length_scale
    return scaled, -0.5 * scaled.square().sum(-1, keepdim=True)


def _tile(rows_x: Tensor, rows_y: Tensor, buffer: Tensor) -> Tensor:
    """Kernel values ``(sets, rows, columns)``, written into the buffer because allocation costs
    more than the sums.
    """
    shape = (max(len(rows_x), len(rows_y)), rows_x.shape[-2], rows_y.shape[-2])
    tile = buffer[: prod(shape)].view(shape)
    torch.bmm(rows_x.expand(shape[0], -1, -1), rows_y.mT.expand(shape[0], -1, -1), out=tile)
    # Rounding can make the exponent of two equal points positive, but no kernel value exceeds 1.
    return tile.clamp_(max=0.0).exp_()
