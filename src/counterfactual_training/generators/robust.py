"""Answers that hold for other models than the one that is searched: in the worst case (ROAR), or
for a share of them (BetaRCE, whose steps are in :mod:`spheres`).

Both say when a row has enough. A part of a generator with a method ``suffices(state)`` keeps rows
in the search that are at τ and are not under its mask ``(..., n)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from counterfactual_training.core.broadcast import Number, per_member
from counterfactual_training.core.guarantee import models_needed
from counterfactual_training.core.losses import log_odds, softmax
from counterfactual_training.errors import InputError, check_name
from counterfactual_training.generators.penalties import SearchState
from counterfactual_training.torch_modes import evaluating

Ball = Literal["l1", "l2", "linf"]
_BALLS = ("l1", "l2", "linf")


@dataclass(frozen=True, eq=False)
class WorstCase:
    """``max_δ CE(M_δ(x′), y⁺) − CE(M(x′), y⁺)`` over ‖δ‖_p ≤ δ_max: the worst linear model near M
    in the place of M (ROAR, Upadhyay, Joshi and Lakkaraju 2021).

    At x′ the target's log-odds g are approximated by the linear ``z ↦ w·z + b`` with ``w = ∇g(x′)``
    and ``b = g(x′) − w·x′``, and δ is added to (w, b). The loss falls in the log-odds, which the
    worst δ lowers by

        ``r(x′) = δ_max · ‖(x′, 1)‖_q``,  1/p + 1/q = 1,

    so the maximum is ``softplus(r − g)``. Its slope is that at the worst δ, whatever w is: no
    second derivative is needed.
    """

    number: ClassVar = "delta_max"
    weight: Number  #: δ_max
    ball: Ball = "linf"  #: p

    def __post_init__(self) -> None:
        check_name("ball", self.ball, _BALLS)

    def __call__(self, state: SearchState) -> Tensor:
        odds = log_odds(state.logits, state.y_target)
        return softplus(self.loss_of_odds(state.x_cf) - odds) - softplus(-odds)

    def loss_of_odds(self, x_cf: Tensor) -> Tensor:
        """r ``(..., n)``: how far the worst model of the ball lowers the log-odds at x′ ``(..., n,
        d)``.
        """
        size = x_cf.abs()
        if self.ball == "linf":
            dual = size.sum(-1) + 1
        elif self.ball == "l2":
            dual = (size.square().sum(-1) + 1).sqrt()
        else:
            dual = size.amax(-1).clamp_min(1)
        return per_member(self.weight, 1) * dual

    def suffices(self, state: SearchState) -> Tensor:
        """Whether also the worst model gives the target τ."""
        target = state.y_target.unsqueeze(-1)
        lowered = state.logits.gather(-1, target) - self.loss_of_odds(state.x_cf).unsqueeze(-1)
        # The same function as of the search itself: with δ_max = 0, the same bits.
        worst = softmax(state.logits.scatter(-1, target, lowered.to(state.logits)))
        return worst.gather(-1, target).squeeze(-1) >= per_member(state.threshold, 1)

    def add_logit_gradient(self, state: SearchState, grad: Tensor) -> None:
        odds = log_odds(state.logits, state.y_target)
        more = (self.loss_of_odds(state.x_cf) - odds).sigmoid() - (-odds).sigmoid()
        target = state.y_target.unsqueeze(-1)
        # −∂g/∂logits
        slope = softmax(state.logits.scatter(-1, target, -torch.inf)).scatter(-1, target, -1)
        grad.add_(slope * more.unsqueeze(-1))

    def add_gradient(self, state: SearchState, grad: Tensor) -> None:
        odds = log_odds(state.logits, state.y_target)
        pull = (self.loss_of_odds(state.x_cf) - odds).sigmoid().unsqueeze(-1)
        slope = self._slope(state.x_cf) * per_member(self.weight, 2)
        grad.add_((slope * pull).to(grad))

    def _slope(self, x_cf: Tensor) -> Tensor:
        """∂‖(x′, 1)‖_q/∂x′ ``(..., n, d)``, 0 where a coordinate is."""
        if self.ball == "linf":
            return x_cf.sign()
        if self.ball == "l2":
            return x_cf / (x_cf.square().sum(-1, keepdim=True) + 1).sqrt()
        size = x_cf.abs()
        largest, place = size.max(-1, keepdim=True)
        sign = x_cf.gather(-1, place).sign() * (largest > 1)
        return torch.zeros_like(x_cf).scatter(-1, place, sign)


@dataclass(frozen=True, eq=False)
class Guarantee:
    """So many other models accept x′ that, with confidence α, a share δ of all models of their kind
    does (BetaRCE, Stępka, Lango and Stefanowski 2025).

    As a penalty it is 0: it only keeps rows in the search. Models are asked one after the other,
    and about no point that too many have refused.
    """

    models: tuple[nn.Module, ...]
    share: float = 0.8  #: δ
    confidence: float = 0.9  #: α

    def __post_init__(self) -> None:
        for model in self.models:
            if not isinstance(model, nn.Module):
                raise InputError(
                    "models of a guarantee are torch modules from rows (n, d) to logits (n, k), "
                    f"got {type(model).__name__}."
                )
        if not self.models:
            raise InputError(
                "A guarantee asks other models, got none; pass some trained on bootstrap samples, "
                "such as the members of a bag."
            )
        # Raises if they are too few.
        models_needed(self.share, len(self.models), self.confidence)

    @property
    def needed(self) -> int:
        """How many of the models must accept."""
        return models_needed(self.share, len(self.models), self.confidence)

    def __call__(self, state: SearchState) -> Tensor:
        # Of the logits, so that autograd finds the derivative, which is 0.
        return 0 * state.logits.sum(-1)

    def add_logit_gradient(self, state: SearchState, grad: Tensor) -> None:
        return None

    def suffices(self, state: SearchState) -> Tensor:
        """Whether enough models accept."""
        points = state.x_cf.reshape(-1, state.x_cf.shape[-1])
        return self.holds(points, state.y_target.flatten()).view_as(state.y_target)

    def holds(self, points: Tensor, y_target: Tensor) -> Tensor:
        """Mask ``(m,)`` of points ``(m, d)`` that enough models put into the classes y_target
        ``(m,)``.
        """
        most = len(self.models) - self.needed
        refused = torch.zeros_like(y_target)
        remaining = torch.arange(len(points), device=points.device)
        for model in self.models:
            if not len(remaining):
                break
            accepts = verdicts(model, points[remaining]) == y_target[remaining]
            refused[remaining] += (~accepts).long()
            remaining = remaining[refused[remaining] <= most]
        return refused <= most

    def accepting(self, points: Tensor, y_target: Tensor) -> Tensor:
        """How many of the models put points ``(m, d)`` into the classes y_target: ``(m,)``."""
        accepts = [verdicts(model, points) == y_target for model in self.models]
        return torch.stack(accepts).sum(0)


def verdicts(model: nn.Module, points: Tensor) -> Tensor:
    """The classes ``(m,)`` of points ``(m, d)`` by a model, in its own precision."""
    parameter = next((p for p in model.parameters() if p.is_floating_point()), points)
    with torch.no_grad(), evaluating(model):
        return model(points.to(parameter.device, parameter.dtype)).argmax(-1).to(points.device)
