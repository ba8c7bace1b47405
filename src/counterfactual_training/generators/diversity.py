"""Several answers to one row, found together: what keeps them apart (DiCE, Mothilal, Sharma and Tan
2020).

A generator with ``num_answers`` k > 1 searches k consecutive rows for each factual. They are
ordinary rows of the search, but they leave it together: once all are at τ and half of the steps are
made, in which they spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from counterfactual_training.core.broadcast import Number, per_member
from counterfactual_training.core.losses import softmax
from counterfactual_training.errors import InputError
from counterfactual_training.generators.data_penalties import check_scale, units
from counterfactual_training.generators.penalties import SearchState
from counterfactual_training.generators.steps import Adam, StepInput

if TYPE_CHECKING:
    from counterfactual_training.generators.live_rows import LiveRows

_NEVER = 1e-6  # τ = 1 has no log-odds
_DIAGONAL = 1e-4  # the authors', against singular matrices


@dataclass(frozen=True, eq=False)
class Hinge:
    """``max(0, 1 + logit τ − g) − CE``, g the target's log-odds: a hinge in the place of the
    cross-entropy.

    Unlike cross-entropy it leaves answers alone that are well past τ. The authors' τ is ½.
    """

    def __call__(self, state: SearchState) -> Tensor:
        log_p = (
            state.logits.log_softmax(-1).gather(-1, state.y_target.unsqueeze(-1)).squeeze(-1)
        )
        return self._missing(state).clamp_min(0) + log_p

    def add_logit_gradient(self, state: SearchState, grad: Tensor) -> None:
        target = state.y_target.unsqueeze(-1)
        # −∂g/∂logits
        slope = softmax(state.logits.scatter(-1, target, -torch.inf)).scatter(-1, target, -1)
        slope = slope * (self._missing(state) > 0).unsqueeze(-1)
        grad.add_(slope - softmax(state.logits)).scatter_add_(
            -1, target, torch.ones_like(grad[..., :1])
        )

    @staticmethod
    def _missing(state: SearchState) -> Tensor:
        target = state.y_target.unsqueeze(-1)
        others = state.logits.scatter(-1, target, -torch.inf).logsumexp(-1)
        odds = state.logits.gather(-1, target).squeeze(-1) - others
        bar = torch.as_tensor(per_member(state.threshold, 1)).to(odds)
        return 1 + bar.logit(_NEVER) - odds


HINGE = Hinge()  # one for all, so that members of a fleet share it


@dataclass(frozen=True, eq=False)
class Diversity:
    """``−λ_diversity · det K`` for each of the k answers to a row, ``K_ij = 1/(1 + Σ_d |x′_id −
    x′_jd| / scale_d)``.

    K has 1 + 10⁻⁴ on its diagonal. det K is near 0 if two answers are alike, and near 1 if all are
    far apart. The authors average the other terms over the answers and count det K once, which is
    the same up to a factor of k.
    """

    number: ClassVar = "lambda_diversity"
    weight: Number
    scale: Tensor | None  #: as of :func:`units`

    def __post_init__(self) -> None:
        check_scale(self.scale)

    def __call__(self, state: SearchState) -> Tensor:
        answers = state.x_cf.unflatten(-2, (-1, state.num_answers))
        kernel = similarity(answers, self.scale)
        return -per_member(self.weight, 1) * torch.linalg.det(kernel).repeat_interleave(
            state.num_answers, -1
        )

    def add_gradient(self, state: SearchState, grad: Tensor) -> None:
        if state.num_answers == 1 or state.x_cf.numel() == 0:
            return  # nothing to differ from
        # In double precision: with four equal answers K is singular up to 10⁻⁴, and single
        # precision knows no more.
        answers = state.x_cf.unflatten(-2, (-1, state.num_answers)).double()
        kernel = similarity(answers, self.scale)
        # ∂ det K/∂K, as K = Kᵀ
        cofactors = torch.linalg.det(kernel)[..., None, None] * torch.linalg.inv(kernel)
        # ∂K_ij/∂x′_i = −K_ij² sign(x′_i − x′_j)/scale; each pair stands twice in K, and det K
        # counts k times.
        pull = 2 * state.num_answers * cofactors * kernel.square()
        # Per answer: sums over the others, without the (k, k, d) signs of all groups at once.
        slopes = [
            (pull[..., i, :, None] * (answers[..., i, None, :] - answers).sign()).sum(-2)
            for i in _each(answers)
        ]
        slope = torch.stack(slopes, -2).flatten(-3, -2) / units(self.scale, answers)
        grad.add_(slope.mul_(per_member(self.weight, 2)).to(grad))


def similarity(answers: Tensor, scale: Tensor | None) -> Tensor:
    """K ``(..., k, k)`` of answers ``(..., k, d)``: 1 + 10⁻⁴ on the diagonal, less the further two
    are apart.
    """
    points = answers / units(scale, answers)
    distance = torch.stack(
        [(points[..., i, None, :] - points).abs().sum(-1) for i in _each(points)], -2
    )
    return 1 / (1 + distance) + _DIAGONAL * torch.eye(
        points.shape[-2], dtype=points.dtype, device=points.device
    )


def _each(answers: Tensor) -> range:
    return range(answers.shape[-2])


@dataclass(frozen=True)
class Scatter(Adam):
    """Adam; with its first step the answers to a row part, by ``spread``·η·N(0, 1) per feature, the
    first excepted.

    They start from the same point, where nothing would ever drive them apart. All rows share the
    draws, which are always the same.
    """

    spread: float = 5.0

    def __post_init__(self) -> None:
        if not self.spread >= 0:
            raise InputError(f"spread must be at least 0, got {self.spread}.")

    def change(self, work: LiveRows, step_input: StepInput) -> Tensor:
        step = super().change(work, step_input)
        if step_input.step or work.num_answers == 1:
            return step
        rng = torch.Generator().manual_seed(0)
        draws = torch.randn(
            work.num_answers, step.shape[-1], generator=rng, dtype=torch.float64
        )
        draws[0] = 0  # one answer goes the plain way
        kick = draws.to(step).repeat(step.shape[-2] // work.num_answers, 1)
        return step.add_(kick * step_input.learning_rate * self.spread)
