"""Words of the command line as values: columns, numbers of rows, classes, settings."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Sequence
from typing import Any

import pandas as pd

from counterfactual_training.errors import InputError, check_name, lookup


def columns(items: Sequence[str] | None, known: Sequence[str], flag: str) -> list[str]:
    """Names of columns as written after a flag: ``age,sex`` or ``age sex``; a name may itself contain a comma."""
    found: list[str] = []
    for item in items or ():
        found += [item] if item in known else [part.strip() for part in item.split(",") if part.strip()]
    for name in found:
        check_name(f"column in {flag}", name, known)
    return list(dict.fromkeys(found))


def pick_rows(frame: pd.DataFrame, spec: str) -> pd.DataFrame:
    """Rows by number, counted from 0: ``0,1,2`` or ``0-9`` or both."""
    numbers: list[int] = []
    for part in spec.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            start = int(first)
            numbers += range(start, int(last) + 1) if dash else [start]
        except ValueError:
            raise InputError(f"--rows takes numbers such as 0,1,2 or 0-9, got {spec!r}.") from None
    missing = [number for number in numbers if not 0 <= number < len(frame)]
    if missing or not numbers:
        asked = f"row {missing[0]}" if missing else "nothing"
        raise InputError(f"There are rows 0 to {len(frame) - 1}; {asked} was asked for.")
    return frame.iloc[numbers].set_axis(numbers, axis=0)


def pick_label(text: str | None, classes: Any, flag: str = "--target") -> Any:
    """The class label that a user wrote as text, or nothing."""
    return None if text is None else lookup(f"class in {flag}", text, {str(label): label for label in classes})


def assignments(items: Sequence[str] | None, option: str, form: str = "COLUMN=VALUE") -> dict[str, str]:
    """``["age=none", "debt=decrease"]`` as a dict."""
    pairs = {}
    for item in items or []:
        name, equals, value = item.rpartition("=")  # names of columns may contain "="
        if not equals or not name:
            raise InputError(f"--{option} takes {form}, got {item!r}.")
        pairs[name] = value
    return pairs


def numbers(text: str, flag: str) -> list[float | int]:
    """``-9,-8.5`` as numbers; whole ones as such."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} takes numbers separated by commas, got {text!r}.") from None
    return [int(number) if number.is_integer() else number for number in found]


def settings(items: Sequence[str]) -> dict[str, Any]:
    """``["burn_in=0.1", "adversarial_label=predicted"]`` as a dict; text that is not a Python literal stays text."""
    found: dict[str, Any] = dict(assignments(items, "set", "NAME=VALUE"))
    for name, text in found.items():
        with contextlib.suppress(ValueError, SyntaxError):
            found[name] = ast.literal_eval(text)
    return found


def interval(text: str) -> tuple[float | None, float | None]:
    """``18:90``, ``0:`` or ``:100``."""
    try:
        low, high = (float(end) if end else None for end in text.split(":", 1))
        return low, high
    except ValueError:
        raise InputError(f"--domain takes COLUMN=LOW:HIGH, either side may be empty, got {text!r}.") from None
