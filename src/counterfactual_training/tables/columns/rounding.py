"""Numbers as people write them: the decimals a column uses, and values rounded to them.

float64 cannot undo a z-score exactly: where |v| is small relative to the mean, several values v
share one z. But a value that a person typed has few decimals, and only one such value fits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Powers of ten that float64 holds exactly; np.power may be off by a digit.
_POWERS = np.array([float(f"1e{k}") for k in range(23)])
_MAX_DECIMALS = 15
# A common divisor takes at least so many values other than zero, three of them different.
_FEWEST_MULTIPLES = 50
_NEARLY_ALL = 0.995
# So many values are checked first; all of them only if these leave it open.
_FIRST_LOOK = 16


def round_to(values: np.ndarray, decimals: np.ndarray | int) -> np.ndarray:
    """The float nearest to each value rounded to so many decimals (negative: tens, hundreds, …)."""
    d = np.clip(np.asarray(decimals, dtype=np.int64), -22, 22)
    up = _POWERS[np.maximum(d, 0)]
    down = _POWERS[np.maximum(-d, 0)]
    # N / 10^d with N and 10^d exact is the very float that the decimal literal denotes.
    with np.errstate(over="ignore"):
        scaled = values * up / down
        rounded = np.rint(scaled) / up * down
    return np.where(np.abs(scaled) < 2.0**52, rounded, values)


def seen_decimals(values: np.ndarray, dtype: Any) -> int | None:
    """The fewest decimals that write every value ``(n,)`` of a float column exactly; ``None`` if 15
    are too few.
    """
    largest = float(np.abs(values).max(initial=0.0))
    narrow = narrow_type(dtype)
    with np.errstate(over="ignore"):
        exact = np.flatnonzero(largest * _POWERS[: _MAX_DECIMALS + 1] < 2.0**49)
    # First a few values with all numbers of decimals at once: most columns fail there.
    few = values[:_FIRST_LOOK]
    written = round_to(few, exact[:, None])
    fits = ((written if narrow is None else written.astype(narrow)) == few).all(1)
    for decimals in exact[fits].tolist():
        for part in (values[:1000], values):
            rounded = round_to(part, decimals)
            if not np.array_equal(rounded if narrow is None else rounded.astype(narrow), part):
                break
        else:
            return decimals
    return None


def seen_spacing(values: np.ndarray) -> float | None:
    """The largest of 1, 2, 2.5 and 5 times a power of ten, above 1, that nearly all values ``(n,)``
    are multiples of.

    Credit limits are often whole thousands. ``None`` if there is no such number, or too few values
    to tell.
    """
    others = values[values != 0]
    if len(others) < _FEWEST_MULTIPLES:
        return None
    ends = others.min(), others.max()
    # Three different values or more: one of them is neither end.
    if not ((others != ends[0]) & (others != ends[1])).any():
        return None
    largest = max(abs(ends[0]), abs(ends[1]))
    if largest >= 2.0**52:
        return None
    for exponent in range(int(np.floor(np.log10(largest))), -1, -1):
        for factor in (5.0, 2.5, 2.0, 1.0):
            spacing = factor * 10.0**exponent
            if spacing > 1 and _nearly_all_multiples(others, spacing):
                return spacing
    return None


def _nearly_all_multiples(values: np.ndarray, spacing: float) -> bool:
    # Remainders are slow: a sample with more misfits than all values may have decides early.
    part = values[: len(values) // 64 + 64]
    misfits = np.count_nonzero(part % spacing)
    if (len(values) - misfits) / len(values) < _NEARLY_ALL:
        return False
    return bool(np.mean(values % spacing == 0) >= _NEARLY_ALL)


def tidy(values: np.ndarray, error: np.ndarray, decimals: int | None, dtype: Any) -> np.ndarray:
    """Decoded values ``(n,)``, known up to ``error``, as a user would have written them.

    A value that has, within its error, the given decimals is rounded to them. Otherwise, if it is a
    short number within its error, it is that number; short means at least three digits fewer than
    the error allows, so that it is not a coincidence. Any other value is rounded to the given
    decimals or, without any, to the digits that its error leaves.
    """
    size = np.maximum(np.abs(values), np.finfo(np.float64).tiny)
    coarse = np.maximum(2000.0 * error, 1e-12 * size)
    short = round_to(values, np.floor(-np.log10(coarse)).astype(np.int64))
    is_short = np.abs(short - values) <= error
    narrow = narrow_type(dtype)
    if narrow is not None:
        held = values.astype(narrow)
        near = (np.abs(held - values) <= error) & (2000.0 * error <= np.spacing(np.abs(held)))
        short = np.where(is_short, short, held)
        is_short = is_short | near
    if decimals is not None:
        rounded = round_to(values, decimals)
        return np.where(is_short & (np.abs(rounded - values) > error), short, rounded)
    # Keeping every digit loses nothing in float64.
    noisy = error > 1e-9 * size
    digits = np.ceil(-np.log10(np.maximum(error, np.finfo(np.float64).tiny))).astype(np.int64)
    return np.where(is_short, short, np.where(noisy, round_to(values, digits), values))


def narrow_type(dtype: Any) -> Any:
    """The numpy type of a column stored in fewer bits than float64; ``None`` of any other."""
    # Asked thousands of times by a search; the name of a numpy type is slow to make.
    if isinstance(dtype, np.dtype):
        if dtype.kind == "f" and dtype.itemsize < 8:
            return dtype.type
        return None
    return {"float32": np.float32, "float16": np.float16}.get(str(dtype).lower())
