"""Quantiles of a column, which is sorted no further than they need."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np


class Ranked:
    """Values ``(n,)``, in order at some of their places: the quantiles of numpy, to the last digit.

    numpy goes through all values for each quantile; this does so once for all of them.

    Args:
        values: none of them NaN, and at least one.
        shares: of the quantiles to come, between 0 and 1.
    """

    def __init__(self, values: np.ndarray, shares: Iterable[float]) -> None:
        self._last = len(values) - 1
        places = [place for share in shares for place in self._around(share)]
        self._values = np.partition(values, sorted(set(places)))

    def lower(self, share: float) -> float:
        """The value at the quantile, or the next one below."""
        return float(self._values[math.floor(self._last * share)])

    def higher(self, share: float) -> float:
        """The value at the quantile, or the next one above."""
        return float(self._values[math.ceil(self._last * share)])

    def between(self, share: float) -> float:
        """The quantile, on the line between the two values next to it."""
        below, above = (float(self._values[place]) for place in self._around(share))
        weight = self._last * share - math.floor(self._last * share)
        # From the nearer value, as numpy does: rounding depends on it.
        gap = above - below
        if weight >= 0.5:
            return above - gap * (1 - weight)
        return below + gap * weight

    def _around(self, share: float) -> tuple[int, int]:
        place = math.floor(self._last * share)
        return place, min(place + 1, self._last)
