"""Step rules: how the gradient at x′ becomes the next x′, where that is not plain descent.

A rule is data, a part of the recipe: ``Generator(step_rule=Greedy())``, or ``"normalised"``,
``"signed"`` and ``"adam"`` by name. It is called once per step with the rows that are still
searching. Rows must not depend on each other; what a rule remembers per row and feature lies in
``work.memory``, which shrinks with the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from counterfactual_training.core.broadcast import Number
from counterfactual_training.errors import InputError, check_count

if TYPE_CHECKING:
    from counterfactual_training.generators.chain import Differentiable
    from counterfactual_training.generators.live_rows import LiveRows


class StepInput(NamedTuple):
    """What a step rule receives beside the rows.

    Attributes:
        grad: ``(..., n, d)`` ∇ₓ′ of Eq. 1, which may be overwritten; empty for rules without
            gradients.
        learning_rate: η, broadcastable to ``(..., n, d)``.
        step: updates made so far.
        confidence: ``(..., n)`` the target's probability at x′.
        noise: this step's random draw of the generator's space.
        network: the model.
    """

    grad: Tensor
    learning_rate: Number
    step: int
    confidence: Tensor
    noise: Tensor
    network: Differentiable


class Stepper(Protocol):
    """Moves the live rows, by its ``advance``, ``jump`` or ``place``, which keep the
    constraints.

    A rule may have two more attributes: ``gradient_free``, if it needs no gradient, and
    ``cannot_train``, the reason why its counterfactuals cannot serve training.
    """

    def __call__(self, work: LiveRows, step_input: StepInput, /) -> None: ...


@dataclass(frozen=True)
class Normalised:
    """``Δ = −η ∇/‖∇‖₂`` over the features that can move: all steps are η long, however steep the
    model is.
    """

    def __call__(self, work: LiveRows, step_input: StepInput) -> None:
        work.advance(unit(work.free(step_input.grad.neg_())).mul_(step_input.learning_rate))


@dataclass(frozen=True)
class Signed:
    """``Δ = −η sign ∇`` over the features that can move: after T steps, none is more than ηT away.

    The steps of the attacks FGSM and PGD, towards the target.
    """

    def __call__(self, work: LiveRows, step_input: StepInput) -> None:
        work.advance(work.free(step_input.grad.neg_()).sign_().mul_(step_input.learning_rate))


@dataclass(frozen=True)
class Adam:
    """``Δ = −η m̂/(√v̂ + ε)`` with each row's own averages m of ∇ and v of ∇² (Kingma and Ba
    2015).
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __call__(self, work: LiveRows, step_input: StepInput) -> None:
        work.advance(self.change(work, step_input))

    def change(self, work: LiveRows, step_input: StepInput) -> Tensor:
        """Δ ``(..., n, d)`` before the constraints."""
        grad = step_input.grad
        time = step_input.step + 1
        mean = work.remembered("mean").mul_(self.beta1).add_(grad, alpha=1 - self.beta1)
        square = (
            work.remembered("square")
            .mul_(self.beta2)
            .addcmul_(grad, grad, value=1 - self.beta2)
        )
        # Both start at zero; dividing by what is missing of their weights makes up for it.
        scale = (square / (1 - self.beta2**time)).sqrt_().add_(self.epsilon)
        return (mean / (1 - self.beta1**time)).div_(scale).mul_(step_input.learning_rate).neg_()


@dataclass(frozen=True)
class Greedy:
    """``Δ_d = −η sign ∇_d`` for the one d with the largest ``|∇_d|``, each at most ``most`` times
    (Schut et al. 2021).

    Without ``most`` it is 1/η. The choice is among features that can move. Categories that are
    projected after every step are not chosen, because one step of η would be undone.
    """

    most: int | None = None

    def __post_init__(self) -> None:
        if self.most is not None:
            check_count("most", self.most)

    def __call__(self, work: LiveRows, step_input: StepInput) -> None:
        used = work.remembered("used")
        change = work.free(step_input.grad.neg_())
        if work.constraints.category_projection == "step":
            for group in work.constraints.groups:
                change[..., group.index] = 0
        most = (
            (1 / torch.as_tensor(step_input.learning_rate)).round().clamp_min(1)
            if self.most is None
            else self.most
        )
        size, best = change.abs().masked_fill_(used >= most, 0).max(-1, keepdim=True)
        chosen = torch.zeros_like(change).scatter_(-1, best, (size > 0).to(change))
        used.add_(chosen)
        work.advance(change.sign_().mul_(chosen).mul_(step_input.learning_rate))


@dataclass(frozen=True)
class Shrink:
    """A plain step, then ``Δ_d ← sign(Δ_d)·max(|Δ_d| − ηλ, 0)`` for the whole change Δ = x′ − x:
    few features change.

    This is the proximal step of ``λ‖Δ‖₁``, which sets small changes to exactly zero; a group of
    one-hot columns shrinks by its length, ``Δ_g ← Δ_g·max(1 − ηλ/‖Δ_g‖₂, 0)``. With ``most``, all
    but the largest ``most`` changes are then taken back; a group counts once, and features that
    were rounded to valid values count first. Features whose factual lies outside the domain change
    nevertheless.
    """

    weight: float = 0.0
    most: int | None = None

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise InputError(
                f"The weight of a shrinking step must be at least 0, got {self.weight}."
            )
        if self.most is not None:
            check_count("most", self.most)

    def __call__(self, work: LiveRows, step_input: StepInput) -> None:
        groups = [list(group.columns) for group in work.constraints.groups]
        total = work.inside(
            step_input.grad.mul_(step_input.learning_rate).neg_().add_(work.delta)
        )
        size = total.abs()
        for columns in groups:
            size[..., columns] = size[..., columns].norm(dim=-1, keepdim=True)
        tiny = torch.finfo(size.dtype).tiny
        total.mul_(
            (1 - self.weight * step_input.learning_rate / size.clamp_min(tiny)).clamp_min(0)
        )
        if self.most is not None:
            total.masked_fill_(~self._largest(size, groups, work.fixed), 0)
        work.jump(total)

    def _largest(self, size: Tensor, groups: list[list[int]], fixed: Tensor | None) -> Tensor:
        """Mask ``(..., n, d)`` of the largest changes, given their sizes ``(..., n, d)``."""
        most = min(self.most or 0, size.shape[-1])
        if fixed is None:
            rank = size
        else:
            rank = torch.where(fixed & (size > 0), torch.inf, size)
        rank = rank.clone()
        for columns in groups:
            largest = rank[..., columns].amax(-1)
            rank[..., columns] = -1  # one column stands for its group
            rank[..., columns[0]] = largest
        largest_mask = torch.zeros_like(size, dtype=torch.bool).scatter_(
            -1, rank.topk(most).indices, True
        )
        for columns in groups:
            largest_mask[..., columns] = largest_mask[..., columns[:1]]
        return largest_mask


# Rules that a recipe or a user may name.
STEP_RULES: dict[str, Stepper] = {
    "normalised": Normalised(),
    "signed": Signed(),
    "adam": Adam(),
}


def unit(vectors: Tensor) -> Tensor:
    """Vectors ``(..., d)`` scaled to length 1; zero vectors stay zero."""
    # Dividing first keeps squares of small numbers from underflowing.
    largest = vectors.abs().amax(-1, keepdim=True)
    # tiny, not 0: a zero vector must not become NaN.
    vectors = vectors / largest.clamp_min(torch.finfo(vectors.dtype).tiny)
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp_min(1)
