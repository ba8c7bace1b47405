"""What tuning is after: which measures count, and what may not be lost for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from counterfactual_training.errors import InputError, unknown

Metrics = Mapping[str, float]


class Target(NamedTuple):
    """A measure to improve: its name in tables of :func:`evaluate`, and which way is better."""

    metric: str
    sign: int  # +1 to minimise, −1 to maximise
    meaning: str


OBJECTIVES: Mapping[str, Target] = {
    "ip": Target("implausibility", 1, "implausibility of counterfactuals (IP)"),
    "cost": Target("cost", 1, "cost of recourse"),
    "accuracy": Target("accuracy", -1, "accuracy"),
    "robustness": Target("robust_accuracy", -1, "accuracy under attack"),
}
Reference = Literal["conventional", "published"]

# A few implausible counterfactuals that fail would improve the mean of the others: validity is held.
VALIDITY_LOSS = 2.0
# Beyond what may be lost at the end, so much more may be missing while a model still trains.
PATIENCE = 5.0
# Several objectives have no floor of accuracy; a model this far below the conventional one is of no use to anybody.
COLLAPSE = 20.0


@dataclass(frozen=True)
class Goal:
    """Several objectives, or one with a limit on the accuracy that it may cost.

    Attributes:
        objectives: names from :data:`OBJECTIVES`.
        at_most_lost: points of accuracy (hundredths) that a trial may lie below the reference.
        against: the reference: the conventionally trained model, or the setting that is to be improved.
    """

    objectives: tuple[str, ...] = ("ip",)
    at_most_lost: float | None = None
    against: Reference = "conventional"

    def __post_init__(self) -> None:
        names = tuple(dict.fromkeys(self.objectives))
        if not names or len(names) < len(self.objectives):
            raise InputError(f"objectives are one or more different names, got {list(self.objectives)}.")
        for name in names:
            if name not in OBJECTIVES:
                raise InputError(unknown("objective", name, OBJECTIVES))
        if self.at_most_lost is not None and not 0 <= self.at_most_lost <= 100:
            raise InputError(f"at_most_lost is in points of accuracy, from 0 to 100, got {self.at_most_lost}.")
        if self.against not in ("conventional", "published"):
            raise InputError(unknown("reference", self.against, ["conventional", "published"]))

    @property
    def targets(self) -> tuple[Target, ...]:
        return tuple(OBJECTIVES[name] for name in self.objectives)

    def values(self, metrics: Metrics) -> list[float]:
        """The objectives, each to be minimised; a measure that could not be taken is infinitely bad."""
        values = [target.sign * metrics[target.metric] for target in self.targets]
        return [value if math.isfinite(value) else math.inf for value in values]

    def limits(self, conventional: Metrics, published: Metrics) -> Limits:
        """The floors that follow from the two reference models."""
        reference = conventional if self.against == "conventional" else published
        lost = self.at_most_lost
        return Limits(
            accuracy=-math.inf if lost is None else reference["accuracy"] - lost / 100,
            # Against what is to be improved, which itself is therefore always allowed.
            validity=published["validity"] - VALIDITY_LOSS / 100,
            patience=(COLLAPSE if lost is None else lost + PATIENCE) / 100,
        )

    def describe(self) -> str:
        """``IP, with at most 1 point of accuracy lost against the conventionally trained model``."""
        what = ", ".join(target.meaning for target in self.targets)
        if self.at_most_lost is None:
            return what
        than = "the conventionally trained model" if self.against == "conventional" else "the published settings"
        unit = "point" if self.at_most_lost == 1 else "points"
        return f"{what}, with at most {self.at_most_lost:g} {unit} of accuracy lost against {than}"

    def to_dict(self) -> dict[str, Any]:
        return {"objectives": list(self.objectives), "at_most_lost": self.at_most_lost, "against": self.against}


class Limits(NamedTuple):
    """Lower bounds on measures.

    Attributes:
        accuracy, validity: a trial below is no solution.
        patience: how far a trial's accuracy may lie behind the reference models' of the same epoch.
    """

    accuracy: float
    validity: float
    patience: float

    def violations(self, metrics: Metrics) -> dict[str, float]:
        """By how much each bound is missed; 0 or less where it is kept."""
        found = {"validity": self.validity - metrics["validity"]}
        if self.accuracy > -math.inf:
            found["accuracy"] = self.accuracy - metrics["accuracy"]
        # Floors and measures are means of counts: a rounding error is no violation.
        return {name: float(value) if abs(value) > 1e-7 else 0.0 for name, value in found.items()}


def excess(violations: Mapping[str, float]) -> float:
    """How far from allowed, all bounds together; 0 is allowed."""
    return sum(max(0.0, value) for value in violations.values())


def front(values: Sequence[Sequence[float]]) -> list[int]:
    """Which of these, all to be minimised, no other is at least as good as in everything and better in something."""
    return [
        i
        for i, own in enumerate(values)
        if not any(
            all(b <= a for a, b in zip(own, other, strict=True)) and tuple(other) != tuple(own) for other in values
        )
    ]
