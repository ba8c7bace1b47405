"""Cells, changes and outcomes in words: what a clerk could say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_training.estimator.obstacles import Obstacle
from counterfactual_training.tabular.feature import Feature

# Columns with at most so many decimals are written out; of longer ones, what the change makes worth reading.
_SHORT_DECIMALS = 4
_DIGITS_OF_CHANGE = 3


def is_missing(value: Any) -> bool:
    return bool(pd.isna(value))


def cell(feature: Feature, value: Any, decimals: int | None, change: float | None = None) -> str:
    """A value as it is written in a sentence, without its unit."""
    if is_missing(value):
        return "missing"
    if feature.is_category:
        return label(value)
    return number(float(value), _decimals(decimals, change))


def label(value: Any) -> str:
    """A class or category."""
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    return f"'{value}'" if isinstance(value, str) else str(value)


def number(value: float, decimals: int) -> str:
    """With thousands separated, without idle zeros."""
    text = f"{value:,.{max(decimals, 0)}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


def confidence(value: float) -> str:
    """Two decimals, cut off: a promise is not rounded up."""
    return f"{math.floor(value * 100 + 1e-6) / 100:.2f}"


def with_unit(feature: Feature, text: str) -> str:
    return f"{text} {feature.unit}" if feature.unit and text != "missing" else text


def change(feature: Feature, before: Any, after: Any, decimals: int | None) -> str:
    """One change: ``debt 12.4 thousand dollars lower (from 30.1 to 17.7)``."""
    if is_missing(before) or is_missing(after):
        old, new = (cell(feature, value, decimals) for value in (before, after))
        return f"{feature.name} {with_unit(feature, new)} (was {old})"
    if feature.is_category:
        return f"{feature.name} {with_unit(feature, label(after))} instead of {label(before)}"
    delta = float(after) - float(before)
    places = _decimals(decimals, delta)
    word = "higher" if delta > 0 else "lower"
    amount = with_unit(feature, number(abs(delta), places))
    return f"{feature.name} {amount} {word} (from {number(float(before), places)} to {number(float(after), places)})"


def _decimals(decimals: int | None, change: float | None) -> int:
    if decimals is not None and decimals <= _SHORT_DECIMALS:
        return decimals
    needed = _SHORT_DECIMALS
    if change:
        needed = max(0, _DIGITS_OF_CHANGE - 1 - math.floor(math.log10(abs(change))))
    return needed if decimals is None else min(decimals, needed)


def obstacle(kind: Obstacle, names: Sequence[str], values: Sequence[str]) -> str:
    """``age and sex may not change``; ``values`` is where the features stand, units included."""
    who = listed(names, None)
    if kind == Obstacle.LIMIT:
        return "; ".join(f"{name} is at its limit of {value}" for name, value in zip(names, values, strict=True))
    return {
        Obstacle.FIXED: f"{who} may not change",
        Obstacle.ONLY_RISES: f"{who} may only rise",
        Obstacle.ONLY_FALLS: f"{who} may only fall",
        Obstacle.CATEGORY: f"{who} may not become what would help",
    }[kind]


def listed(parts: Sequence[str], most: int | None) -> str:
    """``a``, ``a and b``, ``a, b and c``; of many, the first ones and how many more; nothing of none."""
    if not parts:
        return ""
    shown = list(parts) if most is None or len(parts) <= most else [*parts[:most], f"{len(parts) - most} more changes"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
