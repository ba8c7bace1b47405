"""Intervals of numbers as targets, and answers about a regression in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from counterfactual_training.errors import InputError
from counterfactual_training.gates import Gate
from counterfactual_training.tables.advice.explanation import Explanation
from counterfactual_training.tables.advice.outcome import doubt, missed
from counterfactual_training.tables.advice.words import say_number

_EXAMPLES = (
    "(None, 200_000) for at most 200,000, (150_000, None) for at least 150,000, or (150_000, "
    "200_000)"
)
# Sides that are not stated.
_OPEN = (-math.inf, math.inf)
# Decimals beyond those of a typical value, to tell a value outside an interval from its edge.
_MORE_DECIMALS = 6
# A best effort that leaves more than this share of the way does not come near.
_FAR = 0.8


@dataclass(frozen=True)
class Interval:
    """Numbers from ``low`` to ``high``, both included; infinite where a side is open."""

    low: float
    high: float

    @classmethod
    def from_target(cls, target: Any) -> Interval:
        """The interval asked for: a pair ``(low, high)``, ``None`` where a side is open."""
        _check_pair(target)
        low, high = (
            side if edge is None else float(edge)
            for edge, side in zip(target, _OPEN, strict=True)
        )
        if low == -math.inf and high == math.inf:
            raise InputError(
                "An interval without any side holds every number. State one side at least: "
                f"{_EXAMPLES}."
            )
        if not low < high:
            swapped = ""
            if low > high:
                swapped = f" Did you mean ({target[1]}, {target[0]})?"
            raise InputError(
                f"The interval ({target[0]}, {target[1]}) is empty: low must be below "
                f"high.{swapped}"
            )
        return cls(low, high)

    def holds(self, values: np.ndarray) -> np.ndarray:
        """Mask, like values, of those inside."""
        return (values >= self.low) & (values <= self.high)

    @property
    def closed(self) -> bool:
        """Whether both sides are stated."""
        return not math.isinf(self.low) and not math.isinf(self.high)

    def say(self, decimals: int) -> str:
        """``at most 200,000``"""
        low, high = (
            say_number(edge, max(decimals, _needed(edge))) for edge in (self.low, self.high)
        )
        if self.low == -math.inf:
            return f"at most {high}"
        if self.high == math.inf:
            return f"at least {low}"
        return f"between {low} and {high}"


def _check_pair(target: Any) -> None:
    """Raise unless a target is a pair of numbers, or ``None`` in their place."""
    if (
        isinstance(target, str)
        or not isinstance(target, (tuple, list, np.ndarray))
        or len(target) != 2
    ):
        raise InputError(
            f"target is an interval of predicted values, got {target!r:.80}. Write {_EXAMPLES}."
        )
    for edge in target:
        if edge is not None and not _is_number(edge):
            raise InputError(
                "The sides of an interval are numbers, or None where it is open; got "
                f"{edge!r:.80}. One interval "
                f"holds for all rows: {_EXAMPLES}."
            )


def _is_number(edge: Any) -> bool:
    return (
        isinstance(edge, Real)
        and not isinstance(edge, (bool, np.bool_))
        and not math.isnan(edge)
    )


def _needed(edge: float) -> int:
    """Decimals that show an edge as it was stated."""
    if math.isinf(edge):
        return 0
    return len(f"{edge:.{_MORE_DECIMALS}f}".rstrip("0").partition(".")[2])


@dataclass(frozen=True)
class Values:
    """Predicted numbers, and whether they lie in the interval asked for.

    Attributes:
        name: of the number: "price".
        decimals: that numbers are written with.
    """

    interval: Interval
    name: str
    decimals: int

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    def summary(self, explanation: Explanation) -> dict[str, Any]:
        return {
            "before": explanation.decision,
            "target": explanation.target,
            "after": explanation.prediction,
        }

    def cells(self, explanation: Explanation, i: int) -> list[str]:
        before = self._say(explanation.decision[i])
        after = self._say(explanation.prediction[i])
        return [before if before == after else f"{before} → {after}"]

    def sentence(
        self,
        explanation: Explanation,
        i: int,
        moved: str,
        hurdles: str,
        plausibility: bool = True,
    ) -> str:
        wanted = self.interval.say(self.decimals)
        value = self._say(explanation.prediction[i])
        if explanation.status[i] == "already_there":
            return f"the {self.name} already is {value}, {wanted}; nothing needs to change."
        if explanation.answered[i]:
            doubts = doubt(explanation, i, plausibility=plausibility)
            return f"with {moved}, the {self.name} would be {value}, {wanted}{doubts}."
        head = missed(explanation, i, f"makes the {self.name} {wanted}", hurdles)
        if not moved:
            return f"{head} As it stands, it is {value}."
        # Explains why a change that comes closer is not named.
        if explanation.plausibility[i] >= 0.5:
            closest = "closest that looks like real cases"
        else:
            closest = "closest"
        far = _FAR * self._missing(explanation.decision[i])
        if self._missing(explanation.prediction[i]) > far:
            return f"{head} Nothing comes near: the {closest} makes it {value}."
        if explanation.plausibility[i] < 0.5:
            return (
                f"{head} The closest, with {moved}, makes it {value}; but few real cases look "
                "like this."
            )
        return f"{head} The {closest}, with {moved}, makes it {value}."

    def _missing(self, value: float) -> float:
        """How far a number lies outside the interval."""
        return max(self.interval.low - value, value - self.interval.high, 0.0)

    def _say(self, value: float) -> str:
        """With as many decimals as show on which side of an edge it lies."""
        inside = self.interval.holds(np.array(value))
        for decimals in range(self.decimals, self.decimals + _MORE_DECIMALS):
            if self.interval.holds(np.round(value, decimals)) == inside:
                break
        return say_number(value, decimals)


def of_values(
    explanation: Explanation,
    outcome: Values,
    before: np.ndarray,
    after: np.ndarray,
    gate: Gate | None,
) -> Explanation:
    """An explanation of "inside or outside" as one of numbers, given the predictions ``(n,)``
    before and after.
    """
    # Where a gate is open for lack of rows inside, it has judged nothing.
    judged = gate is not None and bool(gate.judged[1])
    return replace(
        explanation,
        outcome=outcome,
        decision=before,
        prediction=after,
        target=np.full(len(explanation), outcome.interval.say(outcome.decimals), dtype=object),
        confidence=np.full(len(explanation), np.nan),
        plausibility=explanation.plausibility if judged else np.full(len(explanation), np.nan),
        answered=outcome.interval.holds(after),
    )
