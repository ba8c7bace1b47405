"""What tuning optimises, and what it may cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from counterfactual_training.defaults import GOALS, REFERENCE, Reference
from counterfactual_training.errors import InputError, check_name

Metrics = Mapping[str, float]


class Target(NamedTuple):
    """A measure to improve: its name in tables of :func:`evaluate`, and which way is better."""

    metric: str
    sign: int  # +1 to minimise, −1 to maximise
    meaning: str


_TARGETS = (
    Target("implausibility", 1, "implausibility of counterfactuals (IP)"),
    Target("cost", 1, "cost of recourse"),
    Target("accuracy", -1, "accuracy"),
    Target("robust_accuracy", -1, "accuracy under attack"),
)
OBJECTIVES: Mapping[str, Target] = dict(zip(GOALS, _TARGETS, strict=True))

# IP is a mean over valid counterfactuals: if hard ones failed, it would improve. So validity must
# hold, in points.
VALIDITY_LOSS = 2.0
# While a model still trains, its accuracy may lie so many points further below the reference.
PATIENCE = 5.0
# So many points below the conventional model, a model is useless, unless the goal sets a limit.
COLLAPSE = 20.0


@dataclass(frozen=True)
class Goal:
    """Several objectives, or one with a limit on the accuracy that it may cost.

    Attributes:
        objectives: names from :data:`OBJECTIVES`.
        at_most_lost: points of accuracy (hundredths) that a trial may lie below the reference.
        against: the reference: the conventionally trained model, or the published setting, where
            tuning starts.
    """

    objectives: tuple[str, ...] = ("ip",)
    at_most_lost: float | None = None
    against: Reference = REFERENCE

    def __post_init__(self) -> None:
        names = tuple(dict.fromkeys(self.objectives))
        if not names or len(names) < len(self.objectives):
            raise InputError(
                f"objectives are one or more different names, got {list(self.objectives)}."
            )
        for name in names:
            check_name("objective", name, OBJECTIVES)
        if self.at_most_lost is not None and not 0 <= self.at_most_lost <= 100:
            raise InputError(
                f"at_most_lost is in points of accuracy, from 0 to 100, got {self.at_most_lost}."
            )
        check_name("reference", self.against, get_args(Reference))

    @property
    def targets(self) -> tuple[Target, ...]:
        return tuple(OBJECTIVES[name] for name in self.objectives)

    def values(self, metrics: Metrics) -> list[float]:
        """The objectives, each to be minimised; infinite where a measure is missing."""
        values = [target.sign * metrics[target.metric] for target in self.targets]
        return [value if math.isfinite(value) else math.inf for value in values]

    def limits(self, conventional: Metrics, published: Metrics) -> TrialLimits:
        """The bounds that follow from the two reference models."""
        if self.against == "conventional":
            reference = conventional
        else:
            reference = published
        lost = self.at_most_lost
        return TrialLimits(
            accuracy=-math.inf if lost is None else reference["accuracy"] - lost / 100,
            # Relative to the starting point, so that it is always allowed itself.
            validity=published["validity"] - VALIDITY_LOSS / 100,
            patience=(COLLAPSE if lost is None else lost + PATIENCE) / 100,
        )

    def describe(self) -> str:
        """``IP, with at most 1 point of accuracy lost against the conventionally trained
        model``.
        """
        what = ", ".join(target.meaning for target in self.targets)
        if self.at_most_lost is None:
            return what
        if self.against == "conventional":
            than = "the conventionally trained model"
        else:
            than = "the published settings"
        if self.at_most_lost == 1:
            unit = "point"
        else:
            unit = "points"
        return (
            f"{what}, with at most {self.at_most_lost:g} {unit} of accuracy lost against {than}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "objectives": list(self.objectives),
            "at_most_lost": self.at_most_lost,
            "against": self.against,
        }


class TrialLimits(NamedTuple):
    """Lower bounds on measures.

    Attributes:
        accuracy, validity: a trial below is not allowed.
        patience: how far a trial's accuracy may lie below that of the reference models in the same
            epoch.
    """

    accuracy: float
    validity: float
    patience: float

    def violations(self, metrics: Metrics) -> dict[str, float]:
        """By how much each bound is violated; 0 or less where it holds."""
        excess = {"validity": self.validity - metrics["validity"]}
        if self.accuracy > -math.inf:
            excess["accuracy"] = self.accuracy - metrics["accuracy"]
        # Bounds and measures are means of counts: differences this small are rounding errors.
        return {
            name: float(value) if abs(value) > 1e-7 else 0.0 for name, value in excess.items()
        }


def excess(violations: Mapping[str, float]) -> float:
    """The sum of all violations; 0 is allowed."""
    return sum(max(0.0, value) for value in violations.values())


def front(values: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the Pareto front, where all values are minimised."""

    def dominates(other: Sequence[float], candidate: Sequence[float]) -> bool:
        return tuple(other) != tuple(candidate) and all(
            b <= a for a, b in zip(candidate, other, strict=True)
        )

    return [
        i
        for i, candidate in enumerate(values)
        if not any(dominates(other, candidate) for other in values)
    ]
