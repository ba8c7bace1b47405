"""IP* of many groups of counterfactuals: by run, predicted class and target."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.core.kernels import mmd
from counterfactual_training.evaluation.contributions import mmd_contributions, self_likeness
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
    parts = []
    for member, groups in enumerate(torch.atleast_2d(group.cpu()).numpy()):
        # Seeded per member, so that each draws the subsamples of a lone evaluation.
        rng = torch.Generator().manual_seed(protocol.seed + 2025)
        for rows in _members(groups):
            rows = rows + member * len(groups)
            reference = samples[int(targets[rows[0]])]
            parts.append((rows, _at_most(rows, protocol.mmd_size, rng), _at_most(reference, protocol.mmd_size, rng)))
    values = _contributions if protocol.mmd_per_row else _group_values
    return values(parts, flat, targets, x, samples, protocol.length_scale).reshape(y_target.shape)


def _contributions(
    parts: list[Part], x_cf: Tensor, y_target: Tensor, x: Tensor, samples: dict[int, Tensor], length_scale: float
) -> Tensor:
    """What each row adds to the IP* of its group."""
    out = x_cf.new_full((len(x_cf),), torch.nan)
    likeness: dict[int, Tensor] = {}
    for _, chosen, reference in parts:
        target = int(y_target[chosen[0]])
        whole = len(reference) == len(samples[target])
        if whole and target not in likeness:
            likeness[target] = self_likeness(x[reference], length_scale)
        known = likeness[target] if whole else None
        out[chosen] = mmd_contributions(x_cf[chosen], x[reference], length_scale, likeness=known)
    return out


def _group_values(
    parts: list[Part], x_cf: Tensor, y_target: Tensor, x: Tensor, samples: dict[int, Tensor], length_scale: float
) -> Tensor:
    """The IP* of each row's group, raised to 0."""
    out = x_cf.new_full((len(x_cf),), torch.nan)
    for same in _alike(parts, x_cf.shape[1]):
        chosen, reference = (torch.stack([part[place] for part in same]) for place in (1, 2))
        values = mmd(x_cf[chosen], x[reference], length_scale).clamp_min(0.0)  # NaN stays
        sizes = torch.tensor([len(part[0]) for part in same], device=out.device)
        out[torch.cat([part[0] for part in same])] = values.repeat_interleave(sizes)
    return out


def _members(group: np.ndarray) -> list[Tensor]:
    """Row numbers of each group, groups ascending."""
    order = np.argsort(group, kind="stable")
    order = order[group[order] >= 0]
    starts = np.flatnonzero(np.diff(group[order])) + 1
    return [torch.from_numpy(rows) for rows in np.split(order, starts) if len(rows)]


def _alike(parts: list[Part], num_features: int) -> list[list[Part]]:
    """Groups of equal sizes, stacked: one by one, small groups would be slow."""
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
