"""What is measured of each group, all made of sums over people, so that one bootstrap serves.

People are denied if they do not get the wanted class. Only some of the denied are explained, and
each explained person counts as many times as the denied people they stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

# What is summed over the people of a group, in the order of the columns of `ModelAdvice.terms`.
TERMS = (
    "one",
    "denied",
    "wanted",
    "fn",
    "asked",
    "stuck",
    "unlikely",
    "helped",
    "cost",
    "fn_asked",
    "fn_helped",
    "fn_cost",
    "both",
    "both_cost",
)
Sums = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Measure:
    """One measure of a group; lower is always better.

    Attributes:
        meaning: one sentence for people.
        unit: ``"share"`` (0 to 1), ``"cost"``, ``"cost in total"``, ``"cost per person"`` or
            ``"index"``.
        value: from the sums of the group, by name in :data:`TERMS`; ``m`` is the number of columns
            of the model.
        counted: whose number is the n of the measure: a mask of :class:`ModelAdvice`.
        labelled: whether it needs the true classes.
        compared: whether groups may be compared by it; sums over groups of different size may not.
    """

    id: str
    title: str
    meaning: str
    formula: str
    unit: str
    value: Callable[[Sums, int], np.ndarray]
    counted: str
    labelled: bool = False
    compared: bool = True


def _over(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # A resample may have a divisor of 0; NaN draws do not count.
    return np.divide(a, b, out=np.full(np.broadcast(a, b).shape, np.nan), where=b > 0)


def _mean_cost(s: Sums) -> np.ndarray:
    """Mean cost of the wrongly denied; 0 for those without recourse, who have none."""
    # Their number is known exactly, only their cost is estimated from the explained: less noise
    # than a weighted sum.
    return np.where(s["fn"] > 0, _over(s["fn_cost"], s["fn_asked"]), 0.0)


def _nawb(s: Sums, m: int) -> np.ndarray:
    ratio = _over(s["fn"], s["wanted"])
    # Nobody wrongly denied is no burden, although there is no mean cost either.
    return np.where(ratio == 0, 0.0, ratio * _over(s["fn_cost"], s["fn_helped"]) / m)


MEASURES = (
    Measure(
        "denied",
        "Denied",
        "Share of the group whose decision is not the wanted one.",
        "P(ŷ ≠ wanted | a)",
        "share",
        lambda s, m: _over(s["denied"], s["one"]),
        "everyone",
    ),
    Measure(
        "no_recourse",
        "Without recourse",
        "Share of the denied for whom no allowed change was found that gets the wanted decision.",
        "P(infeasible or exhausted | ŷ ≠ wanted, a)",
        "share",
        lambda s, m: _over(s["stuck"], s["asked"]),
        "explained",
    ),
    Measure(
        "implausible",
        "Only unlikely advice",
        "Share of the denied whose advice gets the wanted decision, but leads where few real "
        "rows are.",
        "P(implausible | ŷ ≠ wanted, a)",
        "share",
        lambda s, m: _over(s["unlikely"], s["asked"]),
        "explained",
    ),
    Measure(
        "burden",
        "Burden",
        "How far denied people have to go, on average: numbers count in standard deviations, a "
        "new category counts 2.",
        "E[cost | ŷ ≠ wanted, a], of those with recourse (Sharma et al.)",
        "cost",
        lambda s, m: _over(s["cost"], s["helped"]),
        "helped",
    ),
    Measure(
        "burden_same",
        "Burden of the same people",
        "The burden of people whom both models deny and to whom both give advice: the fair "
        "comparison of two models.",
        "E[cost | ŷ ≠ wanted for both, a]",
        "cost",
        lambda s, m: _over(s["both_cost"], s["both"]),
        "both",
    ),
    Measure(
        "false_negatives",
        "Wrongly denied",
        "Share of those whose true class is the wanted one, but who are denied.",
        "P(ŷ ≠ wanted | y = wanted, a)",
        "share",
        lambda s, m: _over(s["fn"], s["wanted"]),
        "deserving",
        labelled=True,
    ),
    Measure(
        "social_burden",
        "Social burden",
        "What the wrongly denied of the group have to do, added up; who has no recourse adds "
        "nothing, so read both.",
        "Σ cost · 1[ŷ ≠ wanted, y = wanted] (MISOB)",
        "cost in total",
        lambda s, m: s["fn"] * _mean_cost(s),
        "wrongly_helped",
        labelled=True,
        compared=False,
    ),
    Measure(
        "social_burden_per_person",
        "Social burden per person",
        "The social burden divided by the people of the group, so that groups of different size "
        "can be compared.",
        "Σ cost · 1[ŷ ≠ wanted, y = wanted] / people of the group",
        "cost per person",
        lambda s, m: _over(s["fn"], s["one"]) * _mean_cost(s),
        "wrongly_helped",
        labelled=True,
    ),
    Measure(
        "nawb",
        "NAWB",
        "How many are wrongly denied times how far these have to go per column: errors and their "
        "price in one number.",
        "P(ŷ ≠ wanted | y = wanted, a) · E[cost | ŷ ≠ wanted, y = wanted, a] / columns (Kuratomi "
        "et al.)",
        "index",
        _nawb,
        "wrongly_helped",
        labelled=True,
    ),
)
