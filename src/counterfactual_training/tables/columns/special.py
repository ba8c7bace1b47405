"""Numbers that look like codes, such as −9 for "no record" among ages."""

from __future__ import annotations

import numpy as np
import pandas as pd

from counterfactual_training.errors import InputWarning, Remedy
from counterfactual_training.tables.columns.frame import read
from counterfactual_training.tables.columns.plain import PlainNumbers
from counterfactual_training.tables.columns.schema import Schema

# Codes of a column on either side of its values, at most.
_MOST_CODES = 3
# A code is repeated at least so often, and in at least this share of the rows.
_REPEATED = 10
_SHARE = 1e-3
# With fewer different values beside the codes, it is not clear what is far from them.
_FEWEST_VALUES = 5
# A negative code beside numbers that are never negative is so many times the usual distance of
# neighbours away.
_APART = 3.0
# A zero below so many different positive numbers is suspicious if it is further from them than the
# width of their middle half.
_FEWEST_POSITIVE = 10
# Whole numbers over a shorter range are counted in a table.
_COUNTED = 2**16

Codes = dict[str, dict[int, int]]


def find_codes(schema: Schema, frame: pd.DataFrame) -> Codes:
    """By column, repeated whole numbers far from all others, and in how many rows each stands.

    A code lies further below or above the other values than these reach from end to end. If the
    others are never negative, a negative one need not be that far, nor a zero if the others are
    clearly positive: "not measured".
    """
    codes_by_column = {}
    plain_numbers = PlainNumbers(frame)
    for feature in schema:
        if feature.kind not in ("numeric", "integer"):
            continue
        numbers = plain_numbers.read(feature)
        if numbers is None:
            numbers = read(feature, frame[feature.name])
            numbers = numbers[~np.isnan(numbers)]
        if feature.special:
            ordinary = numbers[~feature.coded(numbers).any(1)]
        else:
            ordinary = numbers
        if not _ends_in_integer(ordinary):
            continue
        values, counts = _different(ordinary)
        below = _codes_below(values, counts, negative=True)
        above = _codes_below(-values[::-1], counts[::-1], negative=False)
        codes = {int(v): c for v, c in below} | {int(-v): c for v, c in above[::-1]}
        if codes:
            codes_by_column[feature.name] = codes
    return codes_by_column


def _different(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different numbers ``(n,)``, ascending, and how often each stands there."""
    low = numbers.min()
    # Whole numbers that lie close together are counted without sorting them.
    if numbers.max() - low < _COUNTED:
        places = (numbers - low).astype(np.intp)
        if np.array_equal(places + low, numbers):
            counts = np.bincount(places)
            offsets = np.flatnonzero(counts)
            return offsets + low, counts[offsets]
    return np.unique(numbers, return_counts=True)


def _ends_in_integer(numbers: np.ndarray) -> bool:
    """Whether the smallest number ``(n,)`` is whole and at most zero, or the largest one whole:
    others are no codes.
    """
    if len(numbers) == 0:
        return False
    low = numbers.min()
    high = numbers.max()
    return bool((low <= 0 and low % 1 == 0) or high % 1 == 0)


def _codes_below(
    values: np.ndarray, counts: np.ndarray, negative: bool
) -> list[tuple[float, int]]:
    """The codes at the lower end of different values ``(n,)``, ascending, with their counts.

    With ``negative``, codes are below zero.
    """
    for k in range(1, _MOST_CODES + 1):
        codes = values[:k]
        others = values[k:]
        if negative and k == 1 and _zero_apart(values, counts):
            return [(0.0, int(counts[0]))]
        if len(others) < _FEWEST_VALUES or (negative and codes[-1] >= 0) or (codes % 1).any():
            return []
        often = counts[:k].max() >= _REPEATED and counts[:k].sum() >= _SHARE * counts.sum()
        if often and _are_apart(codes, others, negative):
            return list(zip(codes.tolist(), counts[:k].tolist(), strict=True))
    return []


def _are_apart(codes: np.ndarray, others: np.ndarray, negative: bool) -> bool:
    """Whether the gap between codes and other values is wide beside the gaps between those."""
    gap = others[0] - codes[-1]
    if gap > others[-1] - others[0]:
        return True
    if not negative or others[0] < 0:
        return False
    return bool(gap >= _APART * np.median(np.diff(others)) and gap > 2)


def _zero_apart(values: np.ndarray, counts: np.ndarray) -> bool:
    """Whether the smallest value is a repeated zero, far from all others, as in a column of blood
    pressures.
    """
    often = counts[0] >= max(_REPEATED, _SHARE * counts.sum())
    if (
        len(values) <= _FEWEST_POSITIVE
        or values[0] != 0
        or not often
        or counts[0] > 0.5 * counts.sum()
    ):
        return False  # a value of most rows is no code
    low, high = np.interp([0.25, 0.75], np.cumsum(counts[1:]) / counts[1:].sum(), values[1:])
    return bool(values[1] > max(high - low, 2.0))


def codes_warning(codes_by_column: Codes) -> InputWarning | None:
    """What to state if these numbers are codes; ``None`` if there are none."""
    if not codes_by_column:
        return None
    sentences = []
    for name, codes in codes_by_column.items():
        rows = " and ".join(f"{code} in {count} rows" for code, count in codes.items())
        sentences.append(f'"{name}" holds {rows}, far from its other values')
    if len(codes_by_column) == 1 and len(next(iter(codes_by_column.values()))) == 1:
        stands = "it stands"
    else:
        stands = "they stand"
    return InputWarning(
        f'{"; ".join(sentences)}: if {stands} for "no record", ',
        Remedy("state_codes", {name: list(codes) for name, codes in codes_by_column.items()}),
    )
