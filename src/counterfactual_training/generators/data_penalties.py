"""Penalties of the published methods that know more than x′: other units, training rows, calibrated
scores.

Tensors in their fields other than weights come from data. A recipe takes them by the same names, so
that they can be stored with a model (:func:`learned`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from counterfactual_training.core.broadcast import Number, per_member
from counterfactual_training.core.losses import softmax
from counterfactual_training.errors import InputError
from counterfactual_training.generators.penalties import SearchState, is_ours

_BLOCK_VALUES = 2**22  # distances computed at once


@dataclass(frozen=True, eq=False)
class ScaledDistance:
    """``λ_cost · Σ_d |x′_d − x_d| / scale_d`` with sub-gradient 0 at 0; Wachter et al. (2017)
    divide by the MAD.
    """

    number: ClassVar = "lambda_cost"
    weight: Number
    scale: Tensor | None  #: as of :func:`units`

    def __post_init__(self) -> None:
        check_scale(self.scale)

    def __call__(self, state: SearchState) -> Tensor:
        return per_member(self.weight, 1) * (
            state.delta / units(self.scale, state.delta)
        ).abs().sum(-1)

    def add_gradient(self, state: SearchState, grad: Tensor) -> None:
        slope = torch.sign(state.delta, out=state.scratch).div_(units(self.scale, state.delta))
        grad.add_(slope.mul_(per_member(self.weight, 2)))


@dataclass(frozen=True, eq=False)
class TargetLoss:
    """``λ_loss · CE(M(x′), y⁺)``, the loss that x′ adds if the model is trained on it (Altmeyer et
    al. 2023).
    """

    number: ClassVar = "lambda_loss"
    weight: Number

    def __call__(self, state: SearchState) -> Tensor:
        log_p = (
            state.logits.log_softmax(-1).gather(-1, state.y_target.unsqueeze(-1)).squeeze(-1)
        )
        return -per_member(self.weight, 1) * log_p

    def add_logit_gradient(self, state: SearchState, grad: Tensor) -> None:
        target = one_hot(state.y_target, state.logits.shape[-1])
        grad.add_((softmax(state.logits) - target).mul_(per_member(self.weight, 2)))


@dataclass(frozen=True, eq=False)
class Gravity:
    """``λ_gravity · mean_r ‖x′ − r‖₂`` over the K rows r of the target class that are nearest to
    x′.
    """

    number: ClassVar = "lambda_gravity"
    weight: Number
    rows: Tensor  #: ``(m, d)``
    labels: Tensor  #: ``(m,)`` their classes
    nearest: int = 50  #: K, or all rows of a smaller class

    def __call__(self, state: SearchState) -> Tensor:
        mean = torch.zeros_like(state.x_cf[..., 0])
        for places, near in self._near(state):
            mean[places] = (state.x_cf[places].unsqueeze(-2) - near).norm(dim=-1).mean(-1)
        return per_member(self.weight, 1) * mean

    def add_gradient(self, state: SearchState, grad: Tensor) -> None:
        slope = torch.zeros_like(state.x_cf)
        for places, near in self._near(state):
            away = state.x_cf[places].unsqueeze(-2) - near
            # On a row itself the distance has no slope, and 0/tiny is one that does not move.
            tiny = torch.finfo(away.dtype).tiny
            slope[places] = away.div_(away.norm(dim=-1, keepdim=True).clamp_min(tiny)).mean(-2)
        grad.add_(slope.mul_(per_member(self.weight, 2)))

    def _near(self, state: SearchState) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        """Places of rows ``(a,)``, a few at a time, and their nearest rows of the target ``(a, K,
        d)``.
        """
        rows = self.rows.to(state.x_cf)
        labels = self.labels.to(state.y_target)
        for target in state.y_target.unique().tolist():
            pool = rows[labels == target]
            if len(pool) == 0:
                raise InputError(
                    f"No row of class {target} pulls towards it; y_train holds "
                    f"{labels.unique().tolist()}."
                )
            count = min(self.nearest, len(pool))
            # Bounds memory: each row has K neighbours of d features, and a distance to every row of
            # the pool.
            width = max(1, _BLOCK_VALUES // max(len(pool), count * pool.shape[1]))
            for part in (state.y_target == target).nonzero().split(width):
                places = part.unbind(-1)
                # Matrix products would round differently for other batches.
                gaps = torch.cdist(
                    state.x_cf[places].detach(),
                    pool,
                    compute_mode="donot_use_mm_for_euclid_dist",
                )
                yield places, pool[gaps.topk(count, largest=False).indices]


@dataclass(frozen=True, eq=False)
class SetSize:
    """``λ_conformal · Ω``: how many classes conformal prediction cannot exclude at x′, made smooth
    (ECCCo, 2024).

    ``Ω = max(0, Σ_k σ((q̂ − s_k)/T) − κ)`` where ``p[y⁺] ≥ ½``, else 0, with scores ``s_k = 1 −
    p_k`` and q̂ the finite-sample quantile of the true classes' scores on calibration rows
    (:func:`conformal_quantile`). The quantile belongs to a model, so every search calibrates again.
    """

    number: ClassVar = "lambda_conformal"
    weight: Number
    x_calibration: Tensor  #: ``(m, d)``
    y_calibration: Tensor  #: ``(m,)``
    coverage: float = 0.95
    size: float = 1.0  #: κ
    temperature: float = 0.1  #: T
    quantile: Tensor | None = None  #: q̂, one per member of a fleet

    def __post_init__(self) -> None:
        least_rows(self.coverage, len(self.y_calibration))
        if not self.temperature > 0:
            raise InputError(f"temperature must be positive, got {self.temperature}.")

    def prepare(self, ask: Callable[[Tensor], Tensor]) -> SetSize:
        """The penalty with the quantile of the model that ``ask`` asks."""
        probability = softmax(ask(self.x_calibration))
        if (
            not 0
            <= int(self.y_calibration.min())
            <= int(self.y_calibration.max())
            < probability.shape[-1]
        ):
            classes = self.y_calibration.unique().tolist()
            raise InputError(
                f"Calibration rows are of classes {classes}; the model has "
                f"0..{probability.shape[-1] - 1}."
            )
        labels = (
            self.y_calibration.to(probability.device)
            .expand(probability.shape[:-1])
            .unsqueeze(-1)
        )
        scores = 1 - probability.gather(-1, labels).squeeze(-1)
        return replace(self, quantile=conformal_quantile(scores, self.coverage))

    def __call__(self, state: SearchState) -> Tensor:
        probability = state.logits.softmax(-1)
        excess = self._inside(probability).sum(-1) - self.size
        return per_member(self.weight, 1) * torch.where(
            self._counts(state, probability), excess.clamp_min(0), 0
        )

    def add_logit_gradient(self, state: SearchState, grad: Tensor) -> None:
        probability = softmax(state.logits)
        inside = self._inside(probability)
        active = self._counts(state, probability) & (inside.sum(-1) > self.size)
        slope = inside * (1 - inside) / self.temperature  # ∂/∂p
        # The softmax's derivative: ∂/∂logits = p·(slope − Σ p·slope).
        slope = probability * (slope - (probability * slope).sum(-1, keepdim=True))
        grad.add_((slope * active.unsqueeze(-1)).mul_(per_member(self.weight, 2)))

    def _inside(self, probability: Tensor) -> Tensor:
        """How far each class is inside the set, between 0 and 1: ``(..., n, k)``."""
        if self.quantile is None:
            raise InputError(
                "The set of classes has no quantile yet: pass the generator to search, which "
                "calibrates."
            )
        bar = per_member(self.quantile.to(probability), 2)
        return ((bar - 1 + probability) / self.temperature).sigmoid()

    @staticmethod
    def _counts(state: SearchState, probability: Tensor) -> Tensor:
        return probability.gather(-1, state.y_target.unsqueeze(-1)).squeeze(-1) >= 0.5


@dataclass(frozen=True, eq=False)
class Invalidation:
    """``λ_invalidation · max(0, Φ(−g/(σ‖∇g‖₂)) − r)``, how likely a small error undoes x′ (PROBE,
    Pawelczyk 2023).

    g is the log-odds of the target, and Φ(…) approximates the chance that x′ plus normal noise of
    deviation σ is not of the target class. Its slope needs second derivatives, so it always uses
    autograd.
    """

    number: ClassVar = "lambda_invalidation"
    weight: Number
    sigma: float = 0.1
    rate: float = 0.45  #: r

    def __post_init__(self) -> None:
        if not 0 < self.sigma < torch.inf:
            raise InputError(
                f"sigma, the deviation of the noise, must be positive and finite, got {self.sigma}."
            )
        if not 0 <= self.rate <= 1:
            raise InputError(f"rate is a probability in [0, 1], got {self.rate}.")

    def __call__(self, state: SearchState) -> Tensor:
        if not state.logits.requires_grad:
            raise InputError(
                "PROBE differentiates the model twice, which a line search cannot; use another "
                "step_rule."
            )
        target = one_hot(state.y_target, state.logits.shape[-1]).bool()
        others = state.logits.masked_fill(target, -torch.inf).logsumexp(-1)
        odds = state.logits.gather(-1, state.y_target.unsqueeze(-1)).squeeze(-1) - others
        (slope,) = torch.autograd.grad(odds.sum(), state.x_cf, create_graph=True)
        # Where the model is flat noise changes nothing; tiny keeps the ratio and its derivative
        # finite.
        spread = (
            self.sigma * (slope.square().sum(-1) + torch.finfo(slope.dtype).tiny ** 0.5).sqrt()
        )
        return per_member(self.weight, 1) * (
            torch.special.ndtr(-odds / spread) - self.rate
        ).clamp_min(0)


# What parts learned that has one column per feature.
PER_FEATURE = ("scale", "rows", "x_calibration")


def learned(parts: tuple[Any, ...]) -> dict[str, Tensor]:
    """Tensors that penalties or a step rule took from data, by the names under which their recipes
    take them.
    """
    # A user's own parts may hold tensors of any kind, which the user's recipe makes again.
    ours = [part for part in parts if is_dataclass(part) and is_ours(part)]
    values = {field.name: getattr(part, field.name) for part in ours for field in fields(part)}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, Tensor) and name != "weight"
    }


def units(scale: Tensor | None, points: Tensor) -> Tensor | float:
    """What differences of points ``(..., d)`` are divided by: a scale ``(d,)``; ``None`` is d, for
    a plain mean.
    """
    if scale is None:
        return float(points.shape[-1])
    return scale.to(points)


def check_scale(scale: Tensor | None) -> None:
    if scale is not None and not bool((scale.isfinite() & (scale > 0)).all()):
        raise InputError(
            "A scale of distances must be positive and finite in every feature, got "
            f"{scale.tolist()}."
        )


def median_deviation(x: Tensor) -> Tensor:
    """The median absolute deviation of each column ``(d,)`` of rows x ``(n, d)``.

    Where more than half of the rows agree it is 0; there it is the mean absolute deviation, and 1
    for constants.
    """
    away = (x - _median(x)).abs()
    spread = _median(away)
    spread = torch.where(spread > 0, spread, away.mean(0))
    return torch.where(spread > 0, spread, 1.0)


def _median(x: Tensor) -> Tensor:
    # torch.median takes the lower of two middle values.
    ordered = x.sort(0).values
    return (ordered[(len(x) - 1) // 2] + ordered[len(x) // 2]) / 2


def conformal_quantile(scores: Tensor, coverage: float) -> Tensor:
    """q̂ ``(...)``: the ⌈(m + 1)·coverage⌉-th smallest of m scores ``(..., m)``."""
    place = least_rows(coverage, scores.shape[-1])
    return scores.sort(-1).values[..., place - 1]


def least_rows(coverage: float, num_rows: int) -> int:
    """⌈(m + 1)·coverage⌉; raises if it exceeds m, because then no quantile of m scores has that
    coverage.
    """
    if not 0 < coverage < 1:
        raise InputError(f"coverage is a probability between 0 and 1, got {coverage}.")
    # A little less, or rounding takes 0.95·20 for more than 19.
    place = math.ceil((num_rows + 1) * coverage - 1e-9)
    if place > num_rows:
        needed = math.ceil(coverage / (1 - coverage) - 1e-9)
        raise InputError(
            f"{num_rows} calibration rows are too few for a coverage of {coverage:g}: it needs "
            f"at least {needed}. "
            "Pass more rows, or a lower coverage."
        )
    return place
