"""Words of the command line as values: columns, numbers of rows, classes, settings."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterfactual_training.errors import InputError, lookup, unknown

if TYPE_CHECKING:
    import pandas as pd

# What --domain takes; see `interval`.
RANGE = "COLUMN=LOW:HIGH, either side may be empty"


def is_file_name(spec: str) -> bool:
    """Whether the user means a file: names of data sets have neither dots nor slashes."""
    return Path(spec).suffix != "" or Path(spec).name != spec


def columns(items: Sequence[str] | None, valid: Sequence[str], flag: str) -> list[str]:
    """Names of columns as written after a flag: ``age,sex`` or ``age sex``; a name with a comma
    stands alone.
    """
    names: list[str] = []
    for item in items or ():
        if item in valid:
            parts = [item]
        else:
            parts = [part.strip() for part in item.split(",") if part.strip()]
        for name in parts:
            if name not in valid:
                meant = [column for column in valid if "," in column and column in item]
                if meant:
                    alone = f" A name with a comma stands alone: {pasted(flag, meant[:1])}."
                else:
                    alone = ""
                raise InputError(unknown(f"column in {flag}", name, valid) + alone)
        names += parts
    return list(dict.fromkeys(names))


def pasted(flag: str, values: Sequence[str]) -> str:
    """A flag and its values as a shell takes them: ``--keep 'Case ID' age``."""
    return " ".join([flag, *map(shlex.quote, values)])


def pick_rows(frame: pd.DataFrame, spec: str) -> pd.DataFrame:
    """Rows by number, counted from 0: ``0,1,2`` or ``0-9`` or both."""
    numbers: list[int] = []
    for part in spec.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            start = int(first)
            if dash:
                numbers += range(start, int(last) + 1)
            else:
                numbers += [start]
        except ValueError:
            raise InputError(
                f"--rows takes numbers such as 0,1,2 or 0-9, got {spec!r}."
            ) from None
    missing = [number for number in numbers if not 0 <= number < len(frame)]
    if missing or not numbers:
        if missing:
            missing_text = f"row {missing[0]}"
        else:
            missing_text = "nothing"
        raise InputError(f"There are rows 0 to {len(frame) - 1}; {missing_text} was asked for.")
    return frame.iloc[numbers].set_axis(numbers, axis=0)


def pick_label(
    text: str | None, classes: Any, default: Any = None, flag: str = "--positive"
) -> Any:
    """The class label that a user wrote as text, or the default."""
    if text is None:
        return default
    return lookup(f"class in {flag}", text, {str(label): label for label in classes})


def assignments(
    items: Sequence[str] | None,
    option: str,
    form: str = "COLUMN=VALUE",
    value: Callable[[str], Any] = str,
) -> dict[str, Any]:
    """``["age=none", "debt=decrease"]`` as a dict; ``value`` reads what stands on the right, or
    raises ValueError.
    """
    pairs = {}
    for item in items or ():
        name, _, text = item.rpartition("=")  # names of columns may contain "="
        try:
            pairs[name] = value(text)
        except ValueError:
            name = ""
        if not name:
            raise InputError(f"--{option} takes {form}, got {item!r}.")
    return pairs


def numbers(text: str) -> list[float | int]:
    """``-9,-8.5`` as numbers; whole ones as such."""
    return [
        int(number) if number.is_integer() else number for number in map(float, text.split(","))
    ]


def settings(items: Sequence[str]) -> dict[str, Any]:
    """``["burn_in=0.1", "adversarial_label=predicted"]`` as a dict; text that is not a Python
    literal stays text.
    """

    def literal(text: str) -> Any:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text

    return assignments(items, "set", "NAME=VALUE", literal)


def interval_ends(text: str) -> tuple[float | None, float | None]:
    """``18:90``, ``0:`` or ``:100``."""
    low, high = (float(end) if end else None for end in text.split(":", 1))
    return low, high
