"""Which features drive the model: integrated gradients, and how sensitive it is to protected
features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import InputError, check_name
from counterfactual_training.evaluation.findings import Finding, check_completeness, warn
from counterfactual_training.evaluation.performance import predict_logits
from counterfactual_training.generators import evaluating
from counterfactual_training.generators.model_checks import (
    check_broadcast,
    check_inputs,
    check_logits,
)
from counterfactual_training.threads import sensible_threads

Quadrature = Literal["gauss_legendre", "midpoint"]
Output = Literal["logit", "probability"]
Standardisation = Literal["range", "magnitude", "share"]
Rule = tuple[list[float], list[float]]

# Gauss-Legendre nodes on the path; more do not change the reported digits.
ATTRIBUTION_STEPS = 20
# The path of rows that miss the tolerance is cut into at most so many pieces.
_MOST_PIECES = 64
# Rows whose attributions are averaged in one round of the sensitivity to protected features, as
# published.
NUM_SAMPLES = 2500


def integrated_gradients(
    model: nn.Module,
    x: Tensor,
    target: Tensor,
    baseline: Tensor | float = 0.0,
    steps: int = 50,
    quadrature: Quadrature = "gauss_legendre",
    output: Output = "logit",
    tolerance: float | None = None,
) -> Tensor:
    """Integrated gradients (Sundararajan et al. 2017) of the target class:

        IG_d(x) = (x_d − b_d) ∫₀¹ ∂F(b + α(x − b))/∂x_d dα,    Σ_d IG_d(x) = F(x) − F(b)

    Args:
        model: returns logits.
        x: ``(..., n, *features)``.
        target: ``(..., n)`` classes.
        baseline: b, a number or a tensor that broadcasts to x.
        steps: points on the path, to begin with.
        quadrature: rule of the integral.
        output: F, the target's logit or its probability.
        tolerance: rows that miss ``F(x) − F(b)`` by more than this share of ``1 + |F(x) − F(b)|``
            get more points, up to 64 times as many; beyond that a :class:`MeasurementWarning` is
            given. Networks with kinks, such as ReLU, need it (1e-3, say). ``None`` keeps to
            ``steps`` and may leave gaps (:func:`completeness_gap`).

    Returns:
        Attributions, like x.
    """
    check_inputs(model, x, target)
    check_name("output", output, get_args(Output))
    rule = _quadrature(quadrature, steps)
    x = x.detach()
    start = torch.as_tensor(baseline, dtype=x.dtype, device=x.device)
    check_broadcast("baseline", start, x)
    integrate = partial(_integrate, model, output=output, rule=rule)
    with evaluating(model), sensible_threads(model, x):
        attributions = integrate(x, start, target)
        if tolerance is not None:
            change = _change(model, x, target, start, output)
            _refine(attributions, integrate, (x, start.expand_as(x), target), change, tolerance)
    return attributions


def completeness_gap(
    model: nn.Module,
    x: Tensor,
    target: Tensor,
    attributions: Tensor,
    baseline: Tensor | float = 0.0,
    output: Output = "logit",
) -> Tensor:
    """``|Σ_d IG_d(x) − (F(x) − F(b))|`` ``(..., n)``, which is zero for an exact integral;
    arguments as above.
    """
    return (
        attributions.flatten(target.dim()).sum(-1) - _change(model, x, target, baseline, output)
    ).abs()


def _change(
    model: nn.Module, x: Tensor, target: Tensor, baseline: Tensor | float, output: Output
) -> Tensor:
    """``F(x) − F(b)`` ``(..., n)``."""
    start = torch.as_tensor(baseline, dtype=x.dtype, device=x.device).expand_as(x)
    at_x, at_start = (
        predict_logits(model, points, row_dim=target.dim() - 1) for points in (x, start)
    )
    return _score(at_x, target, output) - _score(at_start, target, output)


def _score(logits: Tensor, target: Tensor, output: Output) -> Tensor:
    """F ``(..., n)``, from logits ``(..., n, k)``."""
    if output == "probability":
        scores = logits.softmax(-1)
    else:
        scores = logits
    return scores.gather(-1, target.unsqueeze(-1)).squeeze(-1)


def _integrate(
    model: nn.Module,
    x: Tensor,
    start: Tensor,
    target: Tensor,
    output: Output,
    rule: Rule,
    pieces: int = 1,
) -> Tensor:
    """The attributions, with the rule applied to each of so many equal pieces of the path."""
    path = x - start
    total = torch.zeros_like(at_least_single(x))
    for piece, (node, weight) in product(range(pieces), zip(*rule, strict=True)):
        # Nodes of the rule, moved into this piece of [0, 1].
        leaf = (start + (piece + node) / pieces * path).requires_grad_()
        with torch.enable_grad():
            logits = model(leaf)
            check_logits(logits, target)
            (gradient,) = torch.autograd.grad(_score(logits, target, output).sum(), leaf)
        total += weight / pieces * gradient
    return path * total


def _refine(
    attributions: Tensor,
    integrate: Callable[..., Tensor],
    points: tuple[Tensor, ...],
    change: Tensor,
    tolerance: float,
) -> None:
    """Integrate rows that miss F(x) − F(b) again, in place, over 2, 4, … pieces; ``points`` are x,
    b and target.
    """
    # Not below the rounding errors of the model.
    allowed = max(tolerance, 16 * torch.finfo(points[0].dtype).eps) * (1 + change.abs())
    pieces = 1
    # Only rows that miss are integrated again: most paths cross few kinks of the network.
    while True:
        gap = (attributions.flatten(change.dim()).sum(-1) - change).abs()
        missed = gap > allowed
        if pieces == _MOST_PIECES or not bool(missed.any()):
            break
        pieces *= 2
        if change.dim() == 1:
            attributions[missed] = integrate(*(part[missed] for part in points), pieces=pieces)
        else:  # a fleet evaluates all its members together
            attributions[missed] = integrate(*points, pieces=pieces)[missed]
    if bool(missed.any()):
        sentence = (
            f"Integrated gradients of {int(missed.sum())} rows miss F(x) − F(baseline), by up to "
            f"{gap.max():.1e}"
        )
        warn([Finding("incomplete_attributions", f"{sentence}: take more steps.")])


def _quadrature(rule: Quadrature, steps: int) -> Rule:
    """Nodes in (0, 1) and weights that add up to one."""
    if steps < 1:
        raise InputError(f"steps must be positive, got {steps}.")
    check_name("quadrature", rule, get_args(Quadrature))
    if rule == "midpoint":
        return [(i + 0.5) / steps for i in range(steps)], [1 / steps] * steps
    # From [−1, 1] to [0, 1].
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()


def standardise(attributions: Tensor, rule: Standardisation | None = None) -> Tensor:
    """Mean attributions g ``(..., d)`` made comparable between models; NaN where all of g is equal.

    ``"range"``      ``(g − min g) / (max g − min g)``, in [0, 1]; the published rule for more than
    two features ``"magnitude"``  ``|g| / (max g − min g)``, without upper bound; the published rule
    for two features ``"share"``      ``|g| / Σ |g|``, in [0, 1] and stable for any number of
    features
    """
    # With two features, "range" could only give 0 and 1.
    if rule is None:
        if attributions.shape[-1] == 2:
            rule = "magnitude"
        else:
            rule = "range"
    check_name("standardisation", rule, get_args(Standardisation))
    low = attributions.amin(-1, keepdim=True)
    high = attributions.amax(-1, keepdim=True)
    if rule == "share":
        return attributions.abs() / attributions.abs().sum(-1, keepdim=True)
    return (attributions - low if rule == "range" else attributions.abs()) / (high - low)


@dataclass(frozen=True)
class AttributionRounds:
    """How sensitivity to protected features is measured.

    Attributes:
        rounds: each gives one number.
        num_samples: rows per round.
        steps: of the integral, the same for all rows.
        rule: see :func:`standardise`; by default the published one.
        baseline_range: from which baselines are drawn.
    """

    rounds: int = 100
    num_samples: int = NUM_SAMPLES
    steps: int = ATTRIBUTION_STEPS
    rule: Standardisation | None = None
    baseline_range: tuple[float, float] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.num_samples < 1:
            raise InputError(
                f"rounds and num_samples must be positive, got {self.rounds} and "
                f"{self.num_samples}."
            )


_ROUNDS = AttributionRounds()


def protected_sensitivity(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    protected: Sequence[int],
    rng: torch.Generator,
    how: AttributionRounds = _ROUNDS,
) -> Tensor:
    """How strongly the model leans on protected features, once per round: ``(rounds,)``.

    Each round draws ``num_samples`` rows with replacement and a baseline for each, uniform in
    ``baseline_range``; averages the signed integrated gradients of the rows' labels; standardises
    across features; and averages over the protected ones. One baseline per sample fits the
    published intervals of MNIST: with one per round, rounds would differ ten times more. All rows
    get the same ``steps``, as published: errors at kinks average out. Report the median and
    quantiles over rounds; compare models with generators of equal seed.

    Args:
        x: ``(n, *features)``; y: ``(n,)``.
        protected: indices of the protected features, in flattened x.
        how: rounds, and what each of them draws.
    """
    check_inputs(model, x, y)
    if len(x):
        num_features = x.shape[1:].numel()
    else:
        num_features = 0
    columns = list(protected)
    if not columns or any(not 0 <= column < num_features for column in columns):
        raise InputError(
            f"protected must name features in 0..{num_features - 1}, got {columns}."
        )
    num_samples = how.num_samples
    low, high = how.baseline_range
    scores = []
    for turn in range(how.rounds):
        # Drawn where the generator lives, so that a CPU generator gives the same rows on every
        # device.
        rows = torch.randint(len(x), (num_samples,), generator=rng, device=rng.device).to(
            x.device
        )
        draw = torch.rand(
            (num_samples, *x.shape[1:]), generator=rng, device=rng.device, dtype=x.dtype
        ).to(x.device)
        baseline = low + (high - low) * draw
        attributions = integrated_gradients(
            model, x[rows], y[rows], baseline, how.steps
        ).reshape(num_samples, -1)
        if turn == 0:  # the others are no different
            warn(
                check_completeness(
                    attributions, _change(model, x[rows], y[rows], baseline, "logit")
                )
            )
        scores.append(standardise(attributions.mean(0), how.rule)[columns].mean())
    return torch.stack(scores)
