"""How values, changes and confidences are written in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_training.tables.columns.feature import Feature

# Columns with at most this many decimals are written out; of longer ones, as many digits as the
# change needs.
_SHORT_DECIMALS = 4
_DIGITS_OF_CHANGE = 3


class RowNote(str):
    """A sentence about a row, ``Row 3 has 1 of 2 options``: the row, and the text about it."""

    __slots__ = ("row", "text")
    row: Any
    text: str

    def __new__(cls, row: Any, text: str) -> RowNote:
        note = super().__new__(cls, f"Row {row} {text}")
        note.row = row
        note.text = text
        return note

    def __reduce__(self) -> tuple[type[RowNote], tuple[Any, str]]:
        return RowNote, (self.row, self.text)


# Units up to this many letters are symbols, such as ms, whose s is no plural.
_SYMBOL = 3


def is_missing(value: Any) -> bool:
    return bool(pd.isna(value))


def is_special(feature: Feature, value: Any) -> bool:
    """Whether a cell holds a special code."""
    return (
        bool(feature.special)
        and not is_missing(value)
        and bool(feature.coded(np.array([float(value)])).any())
    )


def say_cell(
    feature: Feature,
    value: Any,
    decimals: int | None,
    change: float | None = None,
    exact: bool = False,
    grouped: bool = True,
) -> str:
    """A value as written in a sentence, without its unit; ``exact``: with all digits; not
    ``grouped``: without thousands separators.
    """
    if is_missing(value):
        return "missing"
    if feature.is_category:
        return say_label(value)
    if is_special(feature, value):
        return f"no record ({say_number(float(value), _SHORT_DECIMALS, grouped)})"
    places = places_of(decimals, change)
    if exact and is_long(feature, decimals):
        places = places_in(value)
    return say_number(float(value), places, grouped)


def is_long(feature: Feature, decimals: int | None) -> bool:
    """Whether values of a column have more digits than are written out."""
    written = decimals is not None and decimals <= _SHORT_DECIMALS
    return not written and not feature.is_category and feature.kind not in ("integer", "pixel")


def places_in(value: Any) -> int:
    """Decimals that write a number in full, in the precision of its type."""
    number = value if isinstance(value, np.floating) else float(value)
    return len(np.format_float_positional(number, trim="-").partition(".")[2])


def say_label(value: Any) -> str:
    """A class or category."""
    if isinstance(value, (bool, np.bool_)):
        if value:
            return "yes"
        return "no"
    if isinstance(value, str):
        return f"'{value}'"
    return str(value)


def say_row(label: Any) -> str:
    """What a row is called in the index; of several levels, without the types of numpy."""
    if isinstance(label, tuple):
        return str(tuple(map(plain_value, label)))
    return str(label)


def say_number(value: float, decimals: int, grouped: bool = True) -> str:
    """With thousands separators if ``grouped``, without trailing zeros."""
    text = f"{value:,.{max(decimals, 0)}f}"
    if not grouped:
        text = text.replace(",", "")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    # Rounding a small negative number leaves its sign behind.
    if text in ("-0", ""):
        return "0"
    return text


def say_confidence(value: float, decimals: int = 2) -> str:
    """In a sentence: so many decimals, and "less than 0.01" instead of 0."""
    least = 10**-decimals
    # 0.00 would say "impossible", which a small probability is not.
    if 0 < value < least - 1e-6:
        return f"less than {least:.{decimals}f}"
    return cut_off(value, decimals)


def cut_off(value: float, decimals: int = 2) -> str:
    """So many decimals, cut off: a confidence is never rounded up."""
    unit = 10**decimals
    # 0.57 · 100 is 56.99… in binary: the 1e-6 keeps such values from losing a digit.
    return f"{math.floor(value * unit + 1e-6) / unit:.{decimals}f}"


def has_unit(feature: Feature, value: Any) -> bool:
    """Whether a cell is so many of the column's unit: codes and blanks are none."""
    return bool(feature.unit) and not is_missing(value) and not is_special(feature, value)


def cell_with_unit(feature: Feature, value: Any, text: str) -> str:
    """A cell, as ``text`` says it, with its unit if it has one."""
    if has_unit(feature, value):
        return with_unit(feature, text)
    return text


def with_unit(feature: Feature, text: str) -> str:
    """``3 months``, ``1 month``; the unit as it was stated, unless it is one word in the plural
    beside a 1.
    """
    if not feature.unit:
        return text
    unit = feature.unit
    # "1 years" reads wrong; but "1 ms" and "1 glass" must not lose their s.
    if (
        text == "1"
        and unit.isalpha()
        and unit.endswith("s")
        and not unit.endswith("ss")
        and len(unit) > _SYMBOL
    ):
        unit = unit.removesuffix("s")
    return f"{text} {unit}"


def say_change(
    feature: Feature, before: Any, after: Any, decimals: int | None, grouped: bool = True
) -> str:
    """One change: ``debt 12.4 thousand dollars lower (from 30.1 to 17.7)``."""
    if is_missing(before) or is_missing(after):
        old = say_cell(feature, before, decimals, grouped=grouped)
        new = say_cell(feature, after, decimals, exact=True, grouped=grouped)
        return f"{feature.name} {cell_with_unit(feature, after, new)} (was {old})"
    if feature.is_category:
        return (
            f"{feature.name} {with_unit(feature, say_label(after))} instead of "
            f"{say_label(before)}"
        )
    delta = float(after) - float(before)
    places = places_of(decimals, delta)
    if delta > 0:
        word = "higher"
    else:
        word = "lower"
    amount = with_unit(feature, say_number(abs(delta), places))
    # What to change it to in full, because that is what was checked.
    full = places_in(after) if is_long(feature, decimals) else places
    new = say_number(float(after), full, grouped)
    old = say_number(float(before), places, grouped)
    return f"{feature.name} {amount} {word} (from {old} to {new})"


def places_of(decimals: int | None, change: float | None) -> int:
    """Decimals that a value is written with, of a column that has so many, beside a change."""
    if decimals is not None and decimals <= _SHORT_DECIMALS:
        return decimals
    needed = _SHORT_DECIMALS
    if change and not math.isnan(change):
        # As many decimals as show three digits of the change, or "from 0.12 to 0.12" would be
        # printed.
        needed = max(0, _DIGITS_OF_CHANGE - 1 - math.floor(math.log10(abs(change))))
    if decimals is None:
        return needed
    return min(decimals, needed)


def plain_value(value: Any) -> Any:
    """A numpy or pandas scalar as a JSON value."""
    if isinstance(value, np.generic):
        value = value.item()
    # NaN is not equal to itself, and no JSON value.
    if isinstance(value, (str, bool, int, float)) and value == value:
        return value
    if is_missing(value):
        return None
    return str(value)


def listed(parts: Sequence[str], most: int | None = None, rest: str = "more change") -> str:
    """``a``, ``a and b``, ``a, b and c``; of more than ``most``, the first and how many more."""
    if most is None or len(parts) <= most:
        shown = list(parts)
    else:
        shown = [*parts[:most], _more(len(parts) - most, rest)]
    if len(shown) > 1:
        return " and ".join([", ".join(shown[:-1]), shown[-1]])
    return "".join(shown)


def _more(number: int, rest: str) -> str:
    return f"{number} {rest}{'s' * (number > 1 and rest != 'more')}"
