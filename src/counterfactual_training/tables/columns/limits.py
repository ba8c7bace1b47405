"""Which changes of a number its rules forbid, in the user's units: exact up to the rounding of
arithmetic itself.

Everything takes arrays ``(n,)`` of numbers before and after; masks ``(n,)`` say where a rule is
broken.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.columns.rounding import narrow_type

# 0.7 − 0.5 is not 0.2 in binary, nor is 3 · 0.1 equal to 0.3: they are off by units in the last
# place.
_UNITS = 8.0


def precision_of(dtype: Any) -> float:
    """The relative precision of numbers in a column of this dtype."""
    return float(np.finfo(narrow_type(dtype) or np.float64).eps)


def against(feature: Feature, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Changes in a forbidden direction."""
    wrong = np.zeros(len(after), dtype=bool)
    if feature.mutability not in ("both", "increase"):
        wrong |= after > before
    if feature.mutability not in ("both", "decrease"):
        wrong |= after < before
    return wrong


def outside(low: float, high: float, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Numbers beyond an end, further out than before: rows outside may stay there or come back."""
    return (after < np.minimum(low, before)) | (after > np.maximum(high, before))


def too_far(most: float, before: np.ndarray, after: np.ndarray, precision: float) -> np.ndarray:
    """Changes larger than allowed; none if any is."""
    if np.isinf(most):
        return np.zeros(len(after), dtype=bool)
    size = np.maximum(np.maximum(np.abs(before), np.abs(after)), most)
    return np.abs(after - before) > most + _UNITS * precision * size


def between_steps(step: float, after: np.ndarray, precision: float) -> np.ndarray:
    """Numbers that are no multiple of the step."""
    nearest = np.rint(after / step) * step
    return np.abs(after - nearest) > _UNITS * precision * np.abs(after)


def fractional(after: np.ndarray) -> np.ndarray:
    """Numbers that are not whole."""
    return np.rint(after) != after


def unlisted(values: tuple[Any, ...], after: np.ndarray, dtype: Any) -> np.ndarray:
    """Numbers that are not on a list, as it is or as a column of this dtype holds it."""
    listed = np.array(values, dtype=np.float64)
    narrow = narrow_type(dtype)
    if narrow is None:
        held = listed
    else:
        held = listed.astype(narrow).astype(np.float64)
    return ~(np.isin(after, listed) | np.isin(after, held))


def held_ends(feature: Feature, dtype: Any) -> tuple[float, float]:
    """The stated domain, as a column of this dtype can hold it: in float32, 0.1 is a little
    more.
    """
    low, high = feature.limits
    narrow = narrow_type(dtype)
    if narrow is None:
        return low, high
    with np.errstate(over="ignore"):  # beyond what float16 holds is open
        return min(low, float(narrow(low))), max(high, float(narrow(high)))
