"""Do counterfactuals look like the target class: to the data (plausibility), and to the model
(faithfulness)?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Domain
from counterfactual_training.core.distances import L1Reference, mean_l1
from counterfactual_training.core.energy import energy
from counterfactual_training.core.kernels import mmd
from counterfactual_training.core.precision import accumulating, at_least_single, full_precision
from counterfactual_training.evaluation.performance import predict_logits
from counterfactual_training.evaluation.protocol import EvaluationProtocol
from counterfactual_training.generators import evaluating
from counterfactual_training.threads import sensible_threads

# Values of all the groups that are stacked for one call.
_STACK_VALUES = 2**24

# Of a group: its rows, those of them that IP* sees, and the samples it compares them with.
Part = tuple[Tensor, Tensor, Tensor]


def implausibility(x_cf: Tensor, x_target: Tensor) -> Tensor:
    """Implausibility, IP (Eq. 5): mean L1 distance of counterfactuals ``(..., n, d)`` to samples
    ``(..., m, d)``.

    All of one target class. Smaller is more plausible; ``(..., n)``, NaN if there is no sample. The
    authors drew up to 1,000 samples per counterfactual, which estimates the mean over all samples
    that is computed here.

    Args:
        x_cf: ``(..., n, d)`` counterfactuals.
        x_target: ``(..., m, d)`` samples of their target class.

    Examples:
        >>> import torch
        >>> import counterfactual_training as ct
        >>> x_target = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
        >>> x_cf = torch.tensor([[0.5, 0.5], [5.0, 5.0]])  # among the samples, and far away
        >>> ct.implausibility(x_cf, x_target)
        tensor([1., 9.])
    """
    return mean_l1(x_cf, x_target)


def implausibility_by_class(x_cf: Tensor, y_target: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """:func:`implausibility` ``(..., n)`` where every row has its own target class; NaN if no
    sample has it.

    Args:
        x_cf: ``(..., n, d)``; y_target: ``(..., n)``.
        x: ``(m, d)`` samples of all classes; y: ``(m,)`` their labels.
    """
    # Class by class, because the samples of a class are sorted once for all its counterfactuals.
    out = x_cf.new_full(y_target.shape, torch.nan)
    for target in y_target.unique().tolist():
        rows = y_target == target
        out[rows] = L1Reference.prepare(x[y == target]).mean_distance(x_cf[rows])
    return out


def implausibility_mmd(
    x_cf: Tensor, x_target: Tensor, length_scale: float = 5.0, clamp: bool = False
) -> Tensor:
    """IP* (Eq. 6): unbiased squared MMD between counterfactuals ``(..., n, d)`` and samples ``(...,
    m, d)``: ``(...)``.

    NaN with fewer than two of either. ``clamp`` raises negative estimates to zero, as the published
    aggregation did; that makes means over many groups too large.
    """
    value = mmd(x_cf, x_target, length_scale)
    if clamp:
        return value.clamp_min(0.0)
    return value


def energy_differential(
    logits_cf: Tensor, y_target: Tensor, logits: Tensor, y: Tensor
) -> Tensor:
    """``E(x′, y⁺) − mean_{x: y = y⁺} E(x, y⁺)``: below zero, the model likes x′ better than real
    samples of the class.

    From logits ``(..., n, k)`` at the counterfactuals, with y_target ``(..., n)``, and ``(..., m,
    k)`` at samples of all classes, with labels y ``(m,)``: ``(..., n)``, NaN for targets that no
    sample has.
    """
    k = logits.shape[-1]
    total = logits.new_zeros(*logits.shape[:-2], k).index_add_(
        -1, y, energy(logits, y.expand(logits.shape[:-1]))
    )
    # (..., k), 0/0 = NaN for absent classes
    mean_energy = total / torch.bincount(y, minlength=k)
    return energy(logits_cf, y_target) - mean_energy.expand(*y_target.shape[:-1], k).gather(
        -1, y_target
    )


@dataclass(frozen=True)
class Langevin:
    """How classes are sampled.

    Attributes:
        steps: updates of each chain.
        step_size, noise: α and σ.
        num_chains: each gives one sample, of which the ``num_lowest`` of lowest energy are kept.
    """

    steps: int = 500
    step_size: float = 0.1
    noise: float = 0.01
    num_chains: int = 50
    num_lowest: int = 25


_LANGEVIN = Langevin()


def class_samples(
    model: nn.Module,
    y_target: Tensor,
    domain: Domain,
    rng: torch.Generator,
    chains: Langevin = _LANGEVIN,
    feature_shape: Sequence[int] | None = None,
) -> Tensor:
    """What the model has learned of classes: samples ``(..., c, s, d)`` of ``p(x | y⁺)`` by
    Langevin dynamics:

        x ← project(x − α/2 · ∇ₓE(x, y⁺) + σ·r),    r ~ N(0, I)

    With σ = √α this is the proper Langevin step at temperature one; a smaller σ, usual with energy
    models, samples colder and settles faster.

    Args:
        model: maps ``(..., n, *features)`` to logits.
        y_target: ``(..., c)`` classes y⁺; the members of a fleet, in front, all get the same starts
            and noise.
        domain: a finite box ``(..., d)``, for example ``Domain.infer(x)``.
        chains: how many, and how they move.
        feature_shape: of an input of the model, where that is not ``(d,)``.
    """
    # Logits grow without bound: only inside a box is p(x | y⁺) ∝ exp(−E(x, y⁺)) a distribution.
    lower = domain.lower[..., None, None, :]
    upper = domain.upper[..., None, None, :]
    num_features = lower.shape[-1]
    if feature_shape is not None:
        features = tuple(feature_shape)
    else:
        features = (num_features,)
    # (..., c · chains)
    y = y_target.unsqueeze(-1).expand(*y_target.shape, chains.num_chains).flatten(-2)

    def rows(x: Tensor) -> Tensor:
        return x.reshape(*y.shape, *features)

    # Drawn where the generator lives, so that a CPU generator gives the same chains on every
    # device.
    shape = (y_target.shape[-1], chains.num_chains, num_features)
    random = torch.empty(shape, device=rng.device, dtype=lower.dtype)
    x = lower + (upper - lower) * random.uniform_(generator=rng).to(lower.device)
    x = x.expand(*y_target.shape, *x.shape[-2:])
    with evaluating(model), sensible_threads(model, rows(x)):
        for _ in range(chains.steps):
            # Detached at every step, or the graph would grow with the chain.
            leaf = x.detach().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(energy(model(rows(leaf)), y).sum(), leaf)
            x = (
                x
                - 0.5 * chains.step_size * gradient
                + chains.noise * random.normal_(generator=rng).to(x.device)
            )
            # One ``random`` for all members: they get the same noise.
            x = torch.clamp(x, lower, upper)
    final = energy(predict_logits(model, rows(x), row_dim=y.dim() - 1), y).reshape(x.shape[:-1])
    # Chains that got stuck in a bad mode say little about the class.
    lowest = final.argsort(-1)[..., : chains.num_lowest]
    return x.gather(-2, lowest.unsqueeze(-1).expand(*lowest.shape, num_features))


def unfaithfulness(x_cf: Tensor, y_target: Tensor, samples: Tensor) -> Tensor:
    """``mean ‖x′ − x̂‖₁`` to samples x̂ that the model itself generates for the target class
    (Altmeyer et al. 2024).

    Smaller means that x′ ``(..., n, d)`` agrees better with what the model has learned: samples
    ``(..., k, s, d)`` of all classes, from :func:`class_samples`.
    """
    flat = x_cf.reshape(-1, *x_cf.shape[-2:])
    targets = y_target.reshape(-1, y_target.shape[-1])
    out = x_cf.new_empty(targets.shape)
    for member, of_classes in enumerate(samples.reshape(-1, *samples.shape[-3:])):
        for target, class_samples in enumerate(of_classes):
            mine = targets[member] == target
            out[member, mine] = mean_l1(flat[member, mine], class_samples)
    return out.reshape(y_target.shape)


# ---- IP* of many groups of counterfactuals (by run, predicted class and target), and of each row i


def group_mmd(
    x_cf: Tensor,
    group: Tensor,
    y_target: Tensor,
    x: Tensor,
    y: Tensor,
    protocol: EvaluationProtocol,
) -> Tensor:
    """IP* for every row: its own contribution or its group's value, as the protocol says; NaN for
    those left out.

    Args:
        x_cf: ``(..., n, d)`` counterfactuals; y_target: ``(..., n)``, the same within a group.
        group: ``(..., n)`` a number per row, negative for rows that do not count; groups do not
            reach beyond the last dimension.
        x: ``(m, d)`` samples of all classes; y: ``(m,)`` their labels.
    """
    flat = x_cf.reshape(-1, x_cf.shape[-1])
    targets = y_target.reshape(-1)
    samples = {int(k): (y == k).nonzero().flatten() for k in targets.unique()}
    parts: list[Part] = []
    for member, groups in enumerate(torch.atleast_2d(group.cpu()).numpy()):
        # Seeded per member, so that each draws the subsamples of a lone evaluation.
        rng = torch.Generator().manual_seed(protocol.seed + 2025)
        # Sorted by group, so that groups are cut where the number changes.
        order = np.argsort(groups, kind="stable")
        order = order[groups[order] >= 0]
        for row_numbers in (
            np.split(order, np.flatnonzero(np.diff(groups[order])) + 1) if len(order) else ()
        ):
            rows = torch.from_numpy(row_numbers) + member * len(groups)
            reference = samples[int(targets[rows[0]])]
            parts.append(
                (
                    rows,
                    _at_most(rows, protocol.mmd_size, rng),
                    _at_most(reference, protocol.mmd_size, rng),
                )
            )
    if protocol.mmd_per_row:
        values = _contributions
    else:
        values = _group_values
    return values(parts, flat, targets, x, samples, protocol.length_scale).reshape(
        y_target.shape
    )


def _contributions(
    parts: list[Part],
    x_cf: Tensor,
    y_target: Tensor,
    x: Tensor,
    samples: dict[int, Tensor],
    length_scale: float,
) -> Tensor:
    """What each row adds to the IP* of its group."""
    out = x_cf.new_full((len(x_cf),), torch.nan)
    likeness: dict[
        int, Tensor
    ] = {}  # of classes compared with all their samples: computed once
    for _, chosen, reference in parts:
        target = int(y_target[chosen[0]])
        # A subsample differs from group to group, so its own likeness cannot be reused.
        if len(reference) == len(samples[target]) and target not in likeness:
            likeness[target] = self_likeness(x[reference], length_scale)
        out[chosen] = mmd_contributions(
            x_cf[chosen], x[reference], length_scale, likeness=likeness.get(target)
        )
    return out


def _group_values(
    parts: list[Part],
    x_cf: Tensor,
    y_target: Tensor,
    x: Tensor,
    samples: dict[int, Tensor],
    length_scale: float,
) -> Tensor:
    """The IP* of each row's group, raised to 0."""
    out = x_cf.new_full((len(x_cf),), torch.nan)
    buckets: dict[
        tuple[int, int], list[Part]
    ] = {}  # groups of equal sizes are stacked: one by one would be slow
    for part in parts:
        # One counterfactual has no pairs and stays NaN.
        if len(part[1]) > 1:
            buckets.setdefault((len(part[1]), len(part[2])), []).append(part)
    steps = {sizes: max(1, _STACK_VALUES // (sum(sizes) * x_cf.shape[1])) for sizes in buckets}
    stacks = [
        bucket[i : i + steps[k]]
        for k, bucket in buckets.items()
        for i in range(0, len(bucket), steps[k])
    ]
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
    x: Tensor,
    reference: Tensor,
    length_scale: float = 5.0,
    chunk: int = 1024,
    likeness: Tensor | None = None,
) -> Tensor:
    """Values v ``(n,)`` whose mean is the unbiased squared MMD of x ``(n, d)`` and the reference
    ``(m, d)``:

        a_i = mean_{j≠i} k(x_i, x_j)    b_i = mean_r k(x_i, r)    c = mean_{r≠s} k(r, s)
        v_i = (2 a_i − 2 b_i) + (c − mean a)

    Up to a constant, v_i is twice the witness function at x_i: the influence of row i on the
    estimate. Resampling the v_i therefore gives, to first order, the spread of recomputed MMDs, at
    the price of a mean. Kernel values are in double precision where the device has it, at most
    chunk × max(n, m) at once. NaN with fewer than two points on either side. To compare many groups
    with one reference, compute c once with :func:`self_likeness` and pass it as ``likeness``.
    """
    if min(len(x), len(reference)) < 2:
        return x.new_full((len(x),), torch.nan)
    x = at_least_single(x)
    reference = at_least_single(reference)
    # Distances are taken from inner products, which cancel for points far from zero: centre first.
    centre = accumulating(reference).mean(0)
    points, others = ((accumulating(rows) - centre) / length_scale for rows in (x, reference))
    with full_precision(x.device):
        within = _row_means(points, points, chunk, same=True)
        cross = _row_means(points, others, chunk, same=False)
    if likeness is None:
        likeness = self_likeness(reference, length_scale, chunk)
    return (2 * within - 2 * cross + likeness - within.mean()).to(x.dtype)


@torch.no_grad()
def self_likeness(reference: Tensor, length_scale: float = 5.0, chunk: int = 1024) -> Tensor:
    """``c = mean_{r≠s} k(r, s)`` of points ``(m, d)``: ``()``."""
    points = (accumulating(reference) - accumulating(reference).mean(0)) / length_scale
    with full_precision(reference.device):
        return _row_means(points, points, chunk, same=True).mean()


def _row_means(points: Tensor, others: Tensor, chunk: int, same: bool) -> Tensor:
    """``mean_j exp(−‖l_i − r_j‖²/2)`` for every i, without j = i where both are the ``same``
    points.
    """
    # −‖l − r‖²/2 = l·r − ‖l‖²/2 − ‖r‖²/2: one matrix product per chunk.
    half = 0.5 * others.square().sum(-1)
    parts = []
    for rows in points.split(chunk):
        exponent = torch.addmm(-half, rows, others.T).sub_(
            0.5 * rows.square().sum(-1, keepdim=True)
        )
        parts.append(exponent.clamp_(max=0.0).exp_().sum(-1))
    total = torch.cat(parts)
    # Of a point with itself, k is 1.
    if same:
        return (total - 1) / (len(others) - 1)
    return total / len(others)
