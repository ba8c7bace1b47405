"""What a counterfactual is penalised for, beside not being of the target class (Eq. 1).

A penalty is any callable ``penalty(state) -> (..., n)`` that returns one differentiable value per row, weight included.
Two optional methods spare it the automatic derivative: ``add_gradient(state, grad)`` adds ∂/∂x′ to ``(..., n, d)``,
``add_logit_gradient(state, grad)`` adds ∂/∂logits to ``(..., n, k)``; a test holds them to what autograd says. A
dataclass with a ``weight`` may name it by the class attribute ``number``; then :meth:`Generator.numbers` tells it, and
it can be tuned by that name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from counterfactual_training.core.broadcast import Number, per_member
from counterfactual_training.core.energy import energy

Decay = Literal["polynomial", "none"]


class SearchState(NamedTuple):
    """What a penalty may look at: the rows still searching, after ``step`` updates."""

    x: Tensor  # (..., n, d) factuals
    x_cf: Tensor  # (..., n, d) counterfactuals so far
    delta: Tensor  # (..., n, d) x_cf − x
    logits: Tensor  # (..., n, k) at x_cf
    y_target: Tensor  # (..., n)
    step: int | Tensor
    max_steps: int | Tensor  # T, or one per member (members, 1)
    scratch: Tensor | None = None  # (..., n, d) memory that a closed form may overwrite


class Penalty(Protocol):
    def __call__(self, state: SearchState, /) -> Tensor: ...


# A penalty's own derivative, added to the second argument in place.
ClosedForm = Callable[[SearchState, Tensor], None]


class PenaltyGradients(NamedTuple):
    """A generator's penalties, sorted by how their gradient is had."""

    by_logits: tuple[ClosedForm, ...]
    by_features: tuple[ClosedForm, ...]
    automatic: tuple[Penalty, ...]

    @classmethod
    def of(cls, penalties: tuple[Penalty, ...]) -> PenaltyGradients:
        by_logits = tuple(p.add_logit_gradient for p in penalties if _is_closed(p, "add_logit_gradient"))  # type: ignore[attr-defined]
        by_features = tuple(p.add_gradient for p in penalties if _is_closed(p, "add_gradient"))  # type: ignore[attr-defined]
        closed = ("add_logit_gradient", "add_gradient")
        automatic = tuple(p for p in penalties if not any(_is_closed(p, name) for name in closed))
        return cls(by_logits, by_features, automatic)


def _is_closed(penalty: Penalty, method: str) -> bool:
    """Whether the derivative belongs to the value: a subclass with a value of its own inherits one that does not."""
    kinds = type(penalty).__mro__
    value = next((i for i, kind in enumerate(kinds) if "__call__" in vars(kind)), len(kinds))
    derivative = next((i for i, kind in enumerate(kinds) if method in vars(kind)), 0)
    return hasattr(penalty, method) and derivative <= value


@dataclass(frozen=True, eq=False)
class Distance:
    """``λ_cost · ‖x′ − x‖₁``, sub-gradient 0 at 0 (Wachter et al. 2017)."""

    number: ClassVar = "lambda_cost"
    weight: Number

    def __call__(self, state: SearchState) -> Tensor:
        return per_member(self.weight, 1) * state.delta.abs().sum(-1)

    def add_gradient(self, state: SearchState, grad: Tensor) -> None:
        if isinstance(self.weight, Tensor):
            grad.add_(torch.sign(state.delta, out=state.scratch).mul_(per_member(self.weight, 2)))
        elif self.weight:
            grad.add_(torch.sign(state.delta, out=state.scratch), alpha=self.weight)


@dataclass(frozen=True, eq=False)
class Energy:
    """``λ_energy · ϕ_t · (E + ρ·E²)`` with ``E = −M(x′)[y⁺]`` (ECCCo's faithfulness, Altmeyer et al. 2024).

    The paper prints the bare energy; its code also lets the weight decay by ϕ_t (:func:`polynomial_decay`) and adds
    the small ridge ρ. ``decay="none", ridge=0`` is the printed one.
    """

    number: ClassVar = "lambda_energy"
    weight: Number
    decay: Decay = "polynomial"
    ridge: float = 1e-3

    def __call__(self, state: SearchState) -> Tensor:
        e = energy(state.logits, state.y_target)
        return self._weight(state) * (e + self.ridge * e.square())

    def add_logit_gradient(self, state: SearchState, grad: Tensor) -> None:
        target, weight = state.y_target.unsqueeze(-1), self._weight(state)
        slope = state.logits.gather(-1, target).mul_(-2 * self.ridge).add_(1)  # 1 + 2ρE
        slope.mul_(-weight.unsqueeze(-1) if isinstance(weight, Tensor) else -weight)
        grad.scatter_add_(-1, target, slope)

    def _weight(self, state: SearchState) -> Number:
        """One number, or one per member ``(members, 1)``."""
        phi = polynomial_decay(state.step + 1, state.max_steps) if self.decay == "polynomial" else 1.0
        weight = per_member(self.weight, 1) * phi
        return weight.to(state.logits) if isinstance(weight, Tensor) else weight


def polynomial_decay(t: int | Tensor, max_steps: int | Tensor) -> Number:
    """``ϕ_t = a·(b + t)^−0.9`` with ``b = round(T / 25)`` (half to even) and ``a = b / 10``.

    For T ≤ 12, b is 0 and the energy penalty vanishes altogether, as it did for the authors.
    """
    b = torch.round(max_steps.double() / 25) if isinstance(max_steps, Tensor) else round(max_steps / 25)
    return b / 10 * (b + t) ** -0.9
