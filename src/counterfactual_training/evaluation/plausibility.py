"""Do counterfactuals look like the target class: to the data (plausibility), and to the model (faithfulness)?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Domain
from counterfactual_training.core.distances import L1Reference, mean_l1
from counterfactual_training.core.energy import energy
from counterfactual_training.core.kernels import mmd
from counterfactual_training.evaluation.performance import predict_logits
from counterfactual_training.search import evaluating
from counterfactual_training.threads import sensible_threads


def implausibility(x_cf: Tensor, x_target: Tensor) -> Tensor:
    """Implausibility, IP (Eq. 5): mean L1 distance of counterfactuals ``(..., n, d)`` to samples ``(..., m, d)``.

    All of one target class. Smaller is more plausible; ``(..., n)``, NaN if there is no sample. The authors drew up to
    1,000 samples per counterfactual, which estimates the mean over all samples that is computed here.
    """
    return mean_l1(x_cf, x_target)


def implausibility_by_class(x_cf: Tensor, y_target: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """:func:`implausibility` ``(..., n)`` where every row has its own target class; NaN if no sample has it.

    Args:
        x_cf: ``(..., n, d)``; y_target: ``(..., n)``.
        x: ``(m, d)`` samples of all classes; y: ``(m,)`` their labels.
    """
    out = x_cf.new_full(y_target.shape, torch.nan)
    for target in y_target.unique().tolist():
        rows = y_target == target
        out[rows] = L1Reference.prepare(x[y == target]).mean_distance(x_cf[rows])
    return out


def implausibility_mmd(x_cf: Tensor, x_target: Tensor, length_scale: float = 5.0, clamp: bool = False) -> Tensor:
    """IP* (Eq. 6): unbiased squared MMD between counterfactuals ``(..., n, d)`` and samples ``(..., m, d)``: ``(...)``.

    NaN with fewer than two of either. ``clamp`` raises negative estimates to zero, as the published aggregation did;
    that makes means over many groups too large.
    """
    value = mmd(x_cf, x_target, length_scale)
    return value.clamp_min(0.0) if clamp else value


def energy_differential(logits_cf: Tensor, y_target: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """``E(x′, y⁺) − mean_{x: y = y⁺} E(x, y⁺)``: below zero, the model likes x′ better than real samples of the class.

    From logits ``(..., n, k)`` at the counterfactuals, with y_target ``(..., n)``, and ``(..., m, k)`` at samples of
    all classes, with labels y ``(m,)``: ``(..., n)``, NaN for targets that no sample has.
    """
    k = logits.shape[-1]
    total = logits.new_zeros(*logits.shape[:-2], k).index_add_(-1, y, energy(logits, y.expand(logits.shape[:-1])))
    mean_energy = total / torch.bincount(y, minlength=k)  # (..., k), 0/0 = NaN for absent classes
    return energy(logits_cf, y_target) - mean_energy.expand(*y_target.shape[:-1], k).gather(-1, y_target)


def class_samples(
    model: nn.Module,
    y_target: Tensor,
    domain: Domain,
    rng: torch.Generator,
    steps: int = 500,
    feature_shape: Sequence[int] | None = None,
    *,
    step_size: float = 0.1,
    noise: float = 0.01,
    num_chains: int = 50,
    num_lowest: int | None = 25,
) -> Tensor:
    """What the model has learned of classes: samples ``(..., c, s, d)`` of ``p(x | y⁺)`` by Langevin dynamics:

        x ← project(x − α/2 · ∇ₓE(x, y⁺) + σ·r),    r ~ N(0, I)

    With σ = √α this is the proper Langevin step at temperature one; a smaller σ, usual with energy models, samples
    colder and settles faster.

    Args:
        model: maps ``(..., n, *features)`` to logits.
        y_target: ``(..., c)`` classes y⁺; the members of a fleet, in front, all get the same starts and noise.
        domain: a finite box ``(..., d)``, for example ``Domain.infer(x)``.
        steps: updates of each chain.
        feature_shape: of an input of the model, where that is not ``(d,)``.
        step_size, noise: α and σ.
        num_chains: each gives one sample, of which the ``num_lowest`` of lowest energy are kept.
    """
    # Logits grow without bound: only inside a box is p(x | y⁺) ∝ exp(−E(x, y⁺)) a distribution.
    lower, upper = domain.lower[..., None, None, :], domain.upper[..., None, None, :]
    num_features = lower.shape[-1]
    features = tuple(feature_shape) if feature_shape is not None else (num_features,)
    y = y_target.unsqueeze(-1).expand(*y_target.shape, num_chains).flatten(-2)  # (..., c · chains)

    def rows(x: Tensor) -> Tensor:
        return x.reshape(*y.shape, *features)

    # Drawn where the generator lives, so that a CPU generator gives the same chains on every device.
    random = torch.empty(y_target.shape[-1], num_chains, num_features, device=rng.device, dtype=lower.dtype)
    x = lower + (upper - lower) * random.uniform_(generator=rng).to(lower.device)
    x = x.expand(*y_target.shape, *x.shape[-2:])
    with evaluating(model), sensible_threads(model, rows(x)):
        for _ in range(steps):
            leaf = x.detach().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(energy(model(rows(leaf)), y).sum(), leaf)
            x = x - 0.5 * step_size * gradient + noise * random.normal_(generator=rng).to(x.device)
            x = torch.clamp(x, lower, upper)  # one ``random`` for all members: they get the same noise
    if num_lowest is None:
        return x
    final = energy(predict_logits(model, rows(x), row_dim=y.dim() - 1), y).reshape(x.shape[:-1])
    lowest = final.argsort(-1)[..., :num_lowest]
    return x.gather(-2, lowest.unsqueeze(-1).expand(*lowest.shape, num_features))


def unfaithfulness(x_cf: Tensor, y_target: Tensor, samples: Tensor) -> Tensor:
    """``mean ‖x′ − x̂‖₁`` to samples x̂ that the model itself generates for the target class (Altmeyer et al. 2024).

    Smaller means that x′ ``(..., n, d)`` agrees better with what the model has learned: samples ``(..., k, s, d)`` of
    all classes, from :func:`class_samples`.
    """
    flat, targets = x_cf.reshape(-1, *x_cf.shape[-2:]), y_target.reshape(-1, y_target.shape[-1])
    out = x_cf.new_empty(targets.shape)
    for member, of_classes in enumerate(samples.reshape(-1, *samples.shape[-3:])):
        for target, own in enumerate(of_classes):
            mine = targets[member] == target
            out[member, mine] = mean_l1(flat[member, mine], own)
    return out.reshape(y_target.shape)
