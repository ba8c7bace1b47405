"""IP* of many groups of counterfactuals (by run, predicted class and target), and of each row in its group."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.core.kernels import mmd
from counterfactual_training.core.precision import accumulating, at_least_single, full_precision
from counterfactual_training.evaluation.protocol import EvaluationProtocol

# Values of all the groups that are stacked for one call.
_STACK_VALUES = 2**24

# Of a group: its rows, those of them that IP* sees, and the samples it compares them with.
Part = tuple[Tensor, Tensor, Tensor]


def group_mmd(
    x_cf: Tensor, group: Tensor, y_target: Tensor, x: Tensor, y: Tensor, protocol: EvaluationProtocol
) -> Tensor:
    """IP* for every row: its own contribution or its group's value, as the protocol says; NaN for those left out.

    Args:
        x_cf: ``(..., n, d)`` counterfactuals; y_target: ``(..., n)``, the same within a group.
        group: ``(..., n)`` a number per row, negative for rows that do not count; groups do not reach beyond the last
            dimension.
        x: ``(m, d)`` samples of all classes; y: ``(m,)`` their labels.
    """
    flat, targets = x_cf.reshape(-1, x_cf.shape[-1]), y_target.reshape(-1)
    samples = {int(k): (y == k).nonzero().flatten() for k in targets.unique()}
    parts: list[Part] = []
    for member, groups in enumerate(torch.atleast_2d(group.cpu()).numpy()):
        # Seeded per member, so that each draws the subsamples of a lone evaluation.
        rng = torch.Generator().manual_seed(protocol.seed + 2025)
        order = np.argsort(groups, kind="stable")
        order = order[groups[order] >= 0]
        for own in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1) if len(order) else ():
            rows = torch.from_numpy(own) + member * len(groups)
            reference = samples[int(targets[rows[0]])]
            parts.append((rows, _at_most(rows, protocol.mmd_size, rng), _at_most(reference, protocol.mmd_size, rng)))
    values = _contributions if protocol.mmd_per_row else _group_values
    return values(parts, flat, targets, x, samples, protocol.length_scale).reshape(y_target.shape)


def _contributions(
    parts: list[Part], x_cf: Tensor, y_target: Tensor, x: Tensor, samples: dict[int, Tensor], length_scale: float
) -> Tensor:
    """What each row adds to the IP* of its group."""
    out = x_cf.new_full((len(x_cf),), torch.nan)
    likeness: dict[int, Tensor] = {}  # of classes compared with all their samples: computed once
    for _, chosen, reference in parts:
        target = int(y_target[chosen[0]])
        if len(reference) == len(samples[target]) and target not in likeness:
            likeness[target] = self_likeness(x[reference], length_scale)
        out[chosen] = mmd_contributions(x_cf[chosen], x[reference], length_scale, likeness=likeness.get(target))
    return out


def _group_values(
    parts: list[Part], x_cf: Tensor, y_target: Tensor, x: Tensor, samples: dict[int, Tensor], length_scale: float
) -> Tensor:
    """The IP* of each row's group, raised to 0."""
    out = x_cf.new_full((len(x_cf),), torch.nan)
    buckets: dict[tuple[int, int], list[Part]] = {}  # groups of equal sizes are stacked: one by one would be slow
    for part in parts:
        if len(part[1]) > 1:
            buckets.setdefault((len(part[1]), len(part[2])), []).append(part)
    steps = {sizes: max(1, _STACK_VALUES // (sum(sizes) * x_cf.shape[1])) for sizes in buckets}
    stacks = [own[i : i + steps[k]] for k, own in buckets.items() for i in range(0, len(own), steps[k])]
    for same in stacks:
        chosen, reference = (torch.stack([part[place] for part in same]) for place in (1, 2))
        values = mmd(x_cf[chosen], x[reference], length_scale).clamp_min(0.0)  # NaN stays
        sizes = torch.tensor([len(part[0]) for part in same], device=out.device)
        out[torch.cat([part[0] for part in same])] = values.repeat_interleave(sizes)
    return out


def _at_most(rows: Tensor, size: int | None, rng: torch.Generator) -> Tensor:
    if size is None or len(rows) <= size:
        return rows
    return rows[torch.randperm(len(rows), generator=rng)[:size].to(rows.device)]


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
    if min(len(x), len(reference)) < 2:
        return x.new_full((len(x),), torch.nan)
    x, reference = at_least_single(x), at_least_single(reference)
    # Distances are taken from inner products, which cancel for points far from zero: centre first.
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
