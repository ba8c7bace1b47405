"""The columns of a frame that numpy stores as plain numbers, read together instead of one by
one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from counterfactual_training.tables.columns.feature import Feature, Kind

# z-scoring and back is exact for whole numbers up to here; above, float64 loses units.
LARGEST_INTEGER = 2**49
# With at most so many cells, a frame is faster to check as a whole than column by column.
_SMALL = 10_000
# Up to so many columns, it is faster to check one after the other.
_FEW_COLUMNS = 64


class PlainNumbers:
    """Columns of numbers and booleans without a blank, and the smallest and largest number of each.

    The ends alone answer most questions about a column, and are found for a whole block at once.
    Everything else, such as text, categories and columns with missing values, is left to pandas.

    Attributes:
        arrays: by name ``(n,)``, in the dtype of the frame.
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._ends: dict[str, tuple[float, float]] = {}
        if len(frame) == 0:
            return
        for names, block in number_blocks(frame):
            low = block.min(0).astype(np.float64)
            high = block.max(0).astype(np.float64)
            for name, column, *ends in zip(
                names, block.T, low.tolist(), high.tolist(), strict=True
            ):
                if ends[0] == ends[0]:  # not NaN, which the smallest of all is if one is
                    self.arrays[name] = column
                    self._ends[name] = (ends[0], ends[1])

    def kind(self, name: str) -> Kind | None:
        """What a column holds; ``None`` if it is not among these."""
        if name not in self.arrays:
            return None
        if self._yes_or_no(name):
            return "binary"
        if self.arrays[name].dtype.kind == "f":
            return "numeric"
        return "integer"

    def read(self, feature: Feature) -> np.ndarray | None:
        """The column as float64 numbers ``(n,)``, as :func:`read` reads it; ``None`` if its values
        must be checked one by one.
        """
        name = feature.name
        if name not in self.arrays or not np.isfinite(self._ends[name]).all():
            return None
        column = self.arrays[name]
        if feature.is_category:
            if (
                feature.kind != "binary"
                or feature.categories != (0, 1)
                or not self._zeros_and_ones(name)
            ):
                return None
            return column.astype(np.float64) + 0.0  # no −0.0, which is position 0 as well
        if feature.kind == "integer" and (
            column.dtype.kind == "f" or max(map(abs, self._ends[name])) > LARGEST_INTEGER
        ):
            return None
        return column.astype(np.float64, copy=False)

    def _yes_or_no(self, name: str) -> bool:
        """Booleans, or numbers that are 0 and 1, both of them."""
        if self.arrays[name].dtype.kind == "b":
            return True
        return self._ends[name] == (0.0, 1.0) and self._zeros_and_ones(name)

    def _zeros_and_ones(self, name: str) -> bool:
        low, high = self._ends[name]
        if low < 0 or high > 1:
            return False
        column = self.arrays[name]
        return column.dtype.kind != "f" or bool(((column == 0) | (column == 1)).all())


def number_blocks(frame: pd.DataFrame) -> list[tuple[list[str], np.ndarray]]:
    """Names and values ``(n, c)`` of the columns of plain numbers; those of a frame of one dtype in
    one block.
    """
    dtypes = list(frame.dtypes)
    if is_plain(dtypes[0]) and all(dtype == dtypes[0] for dtype in dtypes):
        return [(list(frame.columns), frame.to_numpy())]
    if frame.size <= _SMALL:
        return _small_blocks(frame, dtypes)
    # Views: a copy of all columns of a dtype would take as much memory as the frame.
    return [
        ([str(name)], column.to_numpy()[:, None])
        for name, column in frame.items()
        if is_plain(column.dtype)
    ]


def _small_blocks(frame: pd.DataFrame, dtypes: list[Any]) -> list[tuple[list[str], np.ndarray]]:
    """One block for each dtype; for many columns, all cells as objects are faster."""
    places: dict[Any, list[int]] = {}
    for place, dtype in enumerate(dtypes):
        if is_plain(dtype):
            places.setdefault(dtype, []).append(place)
    names = list(frame.columns)
    if len(names) <= _FEW_COLUMNS:
        columns = [column for _, column in frame.items()]
        return [
            (
                [names[j] for j in positions],
                np.stack([columns[j].to_numpy() for j in positions], 1),
            )
            for positions in places.values()
        ]
    cells = frame.to_numpy(dtype=object)
    return [
        ([names[j] for j in positions], cells[:, positions].astype(dtype))
        for dtype, positions in places.items()
    ]


def is_plain(dtype: Any) -> bool:
    """Whether numpy stores numbers or booleans of this dtype, in no more bits than float64."""
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf" and dtype.itemsize <= 8


def all_present(frame: pd.DataFrame, finite: bool = False) -> bool:
    """Whether no value is missing and, if ``finite``, none is infinite; ``False`` may also mean
    that it is not clear without checking each.
    """
    if frame.size <= _SMALL and frame.shape[1] <= _FEW_COLUMNS:
        return not any(_misses(column, finite) for _, column in frame.items())
    if not finite and frame.size <= _SMALL:
        return not frame.isna().to_numpy().any()
    # A sum of numbers one of which is NaN is NaN; that of large ones may be infinite.
    with np.errstate(over="ignore", invalid="ignore"):
        for _, block in number_blocks(frame):
            if block.dtype.kind == "f" and not (np.isfinite if finite else _is_number)(
                block.sum()
            ):
                return False
    others = [name for name, dtype in frame.dtypes.items() if not is_plain(dtype)]
    return not any(_may_miss(frame[name], finite) for name in others)


def _is_number(value: Any) -> bool:
    return bool(value == value)


def _misses(column: pd.Series, finite: bool) -> bool:
    """As :func:`_may_miss`, of any column."""
    if is_plain(column.dtype):
        if column.dtype.kind != "f":
            return False
        numbers = column.to_numpy()
        if finite:
            return not np.isfinite(numbers).all()
        return bool(np.isnan(numbers).any())
    if isinstance(column.dtype, pd.CategoricalDtype):
        return bool((column.array.codes < 0).any())
    return _may_miss(column, finite)


def _may_miss(column: pd.Series, finite: bool) -> bool:
    # A float of pandas' own, such as Float64, may be infinite.
    infinite = finite and pd.api.types.is_float_dtype(column.dtype)
    return infinite or bool(column.isna().any())
