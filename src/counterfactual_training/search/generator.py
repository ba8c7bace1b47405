"""A counterfactual generator is data: where to move, what to penalise, how long."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from counterfactual_training.core.broadcast import Number
from counterfactual_training.errors import InputError
from counterfactual_training.search.penalties import Penalty, PenaltyGradients
from counterfactual_training.search.spaces import FeatureSpace, Space


@dataclass(frozen=True, eq=False)
class Generator:
    """Settings of one search by Eq. 1; :mod:`recipes` fill it for the published methods.

    Attributes:
        name: for tables and messages.
        penalties: the terms added to the class loss, weights included.
        space: where the descent happens.
        learning_rate: η of the plain gradient descent (the paper prints 0.25; 0.1 is what ran).
        max_steps: T; like all numbers here one for all, or one per member of a fleet.
        decision_threshold: τ, the probability of the target class at which a row is done.
        epsilon: ε, the ∞-norm radius inside which an iterate still counts as nascent.
        strict_epsilon: nascent means ‖Δ‖∞ < ε as printed, instead of ≤ ε as run.
    """

    name: str
    penalties: tuple[Penalty, ...] = ()
    space: Space = field(default_factory=FeatureSpace)
    learning_rate: Number = 0.1
    max_steps: int | Tensor = 30
    decision_threshold: Number = 0.75
    epsilon: Number = 0.3
    strict_epsilon: bool = False

    def __post_init__(self) -> None:
        if not _all(self.max_steps, lambda v: v >= 0):
            raise InputError(f"max_steps must be 0 or more, got {self.max_steps}.")
        if not _all(self.decision_threshold, lambda v: 0 < v <= 1):
            raise InputError(f"decision_threshold is a probability in (0, 1], got {self.decision_threshold}.")
        if not _all(self.learning_rate, lambda v: v > 0) or not _all(self.epsilon, lambda v: v >= 0):
            raise InputError(
                f"learning_rate must be positive and epsilon not negative, got {self.learning_rate} and {self.epsilon}."
            )

    @cached_property
    def gradients(self) -> PenaltyGradients:
        return PenaltyGradients.of(self.penalties)

    def replace(self, **changes: Any) -> Generator:
        """A copy with some settings changed."""
        return replace(self, **changes)


def _all(value: Number, holds: Any) -> bool:
    values = value.flatten().tolist() if isinstance(value, Tensor) else [value]
    return all(holds(v) for v in values)
