"""IP* of many groups of counterfactuals: by run, predicted class and target."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.core.kernels import mmd
from counterfactual_training.evaluation.contributions import mmd_contributions, self_likeness
from counterfactual_training.evaluation.protocol import Protocol

# Values of all the groups that are stacked for one call.
_STACK_VALUES = 2**24


def group_mmd(x_cf: Tensor, group: np.ndarray, y_target: Tensor, x: Tensor, y: Tensor, protocol: Protocol) -> Tensor:
    """IP* for every row: its own contribution or its group's value, as the protocol says; NaN for those left out.

    Args:
        x_cf: ``(n, d)`` counterfactuals; group: ``(n,)`` a number per row, negative for rows that do not count;
            y_target: ``(n,)``, the same within a group.
        x: ``(m, d)`` samples of all classes; y: ``(m,)`` their labels.
    """
    rng = torch.Generator().manual_seed(protocol.seed + 2025)
    out = x_cf.new_full((len(x_cf),), torch.nan)
    samples = {int(k): (y == k).nonzero().flatten() for k in y_target.unique()}
    parts = []
    for rows in _members(group):
        reference = samples[int(y_target[rows[0]])]
        parts.append((rows, _at_most(rows, protocol.mmd_size, rng), _at_most(reference, protocol.mmd_size, rng)))
    if protocol.mmd_per_row:
        likeness: dict[int, Tensor] = {}
        for _, chosen, reference in parts:
            target = int(y_target[chosen[0]])
            whole = len(reference) == len(samples[target])
            if whole and target not in likeness:
                likeness[target] = self_likeness(x[reference], protocol.length_scale)
            out[chosen] = mmd_contributions(
                x_cf[chosen], x[reference], protocol.length_scale, likeness=likeness.get(target) if whole else None
            )
        return out
    for same in _alike(parts, x_cf.shape[1]):
        chosen, reference = (torch.stack([part[place] for part in same]) for place in (1, 2))
        values = mmd(x_cf[chosen], x[reference], protocol.length_scale).clamp_min(0.0)  # NaN stays
        for (rows, _, _), value in zip(same, values, strict=True):
            out[rows] = value
    return out


def _members(group: np.ndarray) -> list[Tensor]:
    """Row numbers of each group, groups ascending."""
    order = np.argsort(group, kind="stable")
    order = order[group[order] >= 0]
    starts = np.flatnonzero(np.diff(group[order])) + 1
    return [torch.from_numpy(rows) for rows in np.split(order, starts) if len(rows)]


Part = tuple[Tensor, Tensor, Tensor]


def _alike(parts: list[Part], num_features: int) -> list[list[Part]]:
    """Groups of equal sizes together, as many as fit a stack: small groups are quick only in numbers."""
    buckets: dict[tuple[int, int], list[Part]] = {}
    for part in parts:
        if len(part[1]) > 1:
            buckets.setdefault((len(part[1]), len(part[2])), []).append(part)
    stacks = []
    for (size, reference_size), bucket in buckets.items():
        step = max(1, _STACK_VALUES // ((size + reference_size) * num_features))
        stacks += [bucket[i : i + step] for i in range(0, len(bucket), step)]
    return stacks


def _at_most(rows: Tensor, size: int | None, rng: torch.Generator) -> Tensor:
    if size is None or len(rows) <= size:
        return rows
    return rows[torch.randperm(len(rows), generator=rng)[:size].to(rows.device)]
