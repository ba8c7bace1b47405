"""Penalties: the terms of Eq. 1 that are added to the class loss.

A penalty is any callable ``penalty(state) -> (..., n)`` that returns one differentiable value per
row, weight included. Two optional methods replace autograd by a closed form: ``add_gradient(state,
grad)`` adds ∂/∂x′ to ``(..., n, d)``, ``add_logit_gradient(state, grad)`` adds ∂/∂logits to ``(...,
n, k)``. A dataclass with a ``weight`` may name it by the class attribute ``number``;
:meth:`Generator.numbers` then lists it, and it can be tuned by that name.

A penalty with a method ``suffices(state)`` also says which rows at τ have enough: those outside of
its mask ``(..., n)`` go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from counterfactual_training.core.broadcast import Number, per_member
from counterfactual_training.core.energy import energy

Decay = Literal["polynomial", "none"]


class SearchState(NamedTuple):
    """What a penalty of your own receives: the rows that are still searching, before an update.

    Rows leave the search as they finish, so n shrinks over time and rows must not depend on each
    other. Features are flattened to d columns. Use ``x_cf``, ``delta`` and ``logits`` as they are:
    they carry the graph that the penalty is differentiated by.

    Attributes:
        x: ``(..., n, d)`` factuals.
        x_cf: ``(..., n, d)`` current counterfactuals x′.
        delta: ``(..., n, d)`` x′ − x.
        logits: ``(..., n, k)`` the model's output at x′.
        y_target: ``(..., n)`` target classes.
        step: updates made so far.
        max_steps: T; in a fleet one per member, ``(members, 1)``.
        scratch: ``(..., n, d)`` memory that a closed form may overwrite, or ``None``.
        threshold: τ; in a fleet it may be one per member.
        num_answers: so many consecutive rows are answers to one factual, and stay together.

    Examples:
        >>> import torch
        >>> import counterfactual_training as ct
        >>> def far(state: ct.SearchState) -> torch.Tensor:  # a penalty: one value per row
        ...     return 0.1 * state.delta.square().sum(-1)
        >>> generator = ct.Generator("own", penalties=(far,))
        >>> result = ct.search(ct.mlp(2, 2), torch.rand(5, 2), torch.tensor([1] * 5), generator)
        >>> result.x_cf.shape
        torch.Size([5, 2])
    """

    x: Tensor
    x_cf: Tensor
    delta: Tensor
    logits: Tensor
    y_target: Tensor
    step: int | Tensor
    max_steps: int | Tensor
    scratch: Tensor | None = None
    threshold: Number = 0.5
    num_answers: int = 1


class Penalty(Protocol):
    """One differentiable value ``(..., n)`` per row."""

    def __call__(self, state: SearchState, /) -> Tensor: ...


# A penalty's own derivative, added to the second argument in place.
ClosedForm = Callable[[SearchState, Tensor], None]


class PenaltyGradients(NamedTuple):
    """A generator's penalties, grouped by how their gradient is computed."""

    by_logits: list[ClosedForm]
    by_features: list[ClosedForm]
    automatic: list[Penalty]

    @classmethod
    def from_penalties(cls, penalties: Iterable[Penalty]) -> PenaltyGradients:
        groups = cls([], [], [])
        for penalty in penalties:
            by_logits = _closed(penalty, "add_logit_gradient")
            by_features = _closed(penalty, "add_gradient")
            groups.by_logits.extend(by_logits)
            groups.by_features.extend(by_features)
            # One closed form is enough: a penalty has either or both, and autograd would add its
            # gradient again.
            groups.automatic.extend([] if by_logits or by_features else [penalty])
        return groups


def _closed(penalty: Penalty, method: str) -> list[ClosedForm]:
    """The closed form, if any. A subclass that overrides ``__call__`` alone inherits a wrong one,
    which is left out.
    """
    # Trust the derivative only if it is defined at least as far down the line of classes as the
    # value.
    kinds = type(penalty).__mro__
    value = next((i for i, kind in enumerate(kinds) if "__call__" in vars(kind)), len(kinds))
    derivative = next((i for i, kind in enumerate(kinds) if method in vars(kind)), 0)
    if hasattr(penalty, method) and derivative <= value:
        return [getattr(penalty, method)]
    return []


def is_ours(part: object) -> bool:
    """Whether a part of a generator is of this package.

    A user's own, also if it is a subclass of one of these, may hold anything and differentiate as
    it likes.
    """
    return type(part).__module__.startswith(__package__)


def is_weighted(penalty: Penalty) -> bool:
    """Whether its weight may differ between the members of a stack."""
    return is_ours(penalty) and hasattr(penalty, "weight")


@dataclass(frozen=True, eq=False)
class Distance:
    """``λ_cost · ‖x′ − x‖₁`` with sub-gradient 0 at 0 (Wachter et al. 2017)."""

    number: ClassVar = "lambda_cost"
    weight: Number

    def __call__(self, state: SearchState) -> Tensor:
        return per_member(self.weight, 1) * state.delta.abs().sum(-1)

    def add_gradient(self, state: SearchState, grad: Tensor) -> None:
        # Without a graph and into scratch memory, because this runs at every step.
        if isinstance(self.weight, Tensor):
            grad.add_(
                torch.sign(state.delta, out=state.scratch).mul_(per_member(self.weight, 2))
            )
        elif self.weight:
            grad.add_(torch.sign(state.delta, out=state.scratch), alpha=self.weight)


@dataclass(frozen=True, eq=False)
class Energy:
    """``λ_energy · ϕ_t · (E + ρ·E²)`` with ``E = −M(x′)[y⁺]`` (ECCCo's faithfulness, Altmeyer et
    al. 2024).

    The paper prints the bare energy, ``decay="none", ridge=0``. Its code decays the weight by ϕ_t
    (:func:`polynomial_decay`) and adds a small ridge ρ.
    """

    number: ClassVar = "lambda_energy"
    weight: Number
    decay: Decay = "polynomial"
    ridge: float = 1e-3

    def __call__(self, state: SearchState) -> Tensor:
        e = energy(state.logits, state.y_target)
        return self._weight(state) * (e + self.ridge * e.square())

    def add_logit_gradient(self, state: SearchState, grad: Tensor) -> None:
        target = state.y_target.unsqueeze(-1)
        weight = self._weight(state)
        # E = −M[y⁺], hence the minus before 2ρ; and ∂E/∂M[y⁺] = −1, hence the minus of the weight.
        slope = state.logits.gather(-1, target).mul_(-2 * self.ridge).add_(1)  # 1 + 2ρE
        slope.mul_(-weight.unsqueeze(-1) if isinstance(weight, Tensor) else -weight)
        grad.scatter_add_(-1, target, slope)

    def _weight(self, state: SearchState) -> Number:
        """One number, or one per member ``(members, 1)``."""
        # The authors count from 1, and their decay starts with the first update.
        if self.decay == "polynomial":
            phi = polynomial_decay(state.step + 1, state.max_steps)
        else:
            phi = 1.0
        weight = per_member(self.weight, 1) * phi
        if isinstance(weight, Tensor):
            return weight.to(state.logits)
        return weight


def polynomial_decay(t: int | Tensor, max_steps: int | Tensor) -> Number:
    """``ϕ_t = a·(b + t)^−0.9`` with ``b = round(T / 25)`` (half to even) and ``a = b / 10``.

    For T ≤ 12, b is 0 and the energy penalty vanishes altogether, as it did for the authors.
    """
    b = (
        torch.round(max_steps.double() / 25)
        if isinstance(max_steps, Tensor)
        else round(max_steps / 25)
    )
    return b / 10 * (b + t) ** -0.9
