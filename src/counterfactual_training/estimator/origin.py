"""Where the rows of a saved classifier came from: the column of the class, and which rows were kept from training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from pandas.api import types
from torch import Tensor

_ODD = np.uint64(0x9E3779B97F4A7C15)
_EMPTY = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Origin:
    """What a model file remembers of the table it was trained on.

    Attributes:
        target: the column of the class.
        positive: the class that people want; ``None`` if that was not said.
        reading: how the file was read, as JSON.
        trained, held_out: a mark per row, see :func:`row_marks`; ``(n,)`` and ``(m,)``.
    """

    target: str
    positive: Any = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    trained: np.ndarray = field(default_factory=_EMPTY.copy)
    held_out: np.ndarray = field(default_factory=_EMPTY.copy)

    def to_file(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As tensors and JSON."""
        tensors = {"trained": torch.from_numpy(self.trained), "held_out": torch.from_numpy(self.held_out)}
        return tensors, {"target": self.target, "positive": self.positive, "reading": dict(self.reading)}

    @classmethod
    def from_file(cls, tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> Origin:
        marks = {name: tensors[name].to(torch.int64).numpy() for name in ("trained", "held_out")}
        return cls(str(content["target"]), content["positive"], dict(content["reading"]), **marks)

    def seen(self, marks: np.ndarray) -> np.ndarray:
        """Of each row of a table ``(n,)``, whether it is one of the rows trained on.

        Rows of the same content cannot be told apart. As many of them as were held out count as held out.
        """
        known = np.isin(marks, self.trained)
        spare = np.isin(marks, self.held_out)
        left = dict(zip(*np.unique(self.held_out, return_counts=True), strict=True))
        for row in np.flatnonzero(known & spare).tolist():
            if left[marks[row]] > 0:
                left[marks[row]] -= 1
                known[row] = False
        return known

    def held(self, marks: np.ndarray) -> np.ndarray:
        """Of each row of a table ``(n,)``, whether it was held out when the model was trained."""
        return ~self.seen(marks) & np.isin(marks, self.held_out)


def row_marks(frame: pd.DataFrame, labels: pd.Series) -> np.ndarray:
    """A number ``(n,)`` for the content of each row and its class.

    It depends neither on the order of rows nor on how numbers are stored or written: 1 and 1.0 are the same.
    """
    marks = np.zeros(len(frame), dtype=np.uint64)
    for column in (*(frame[name] for name in frame.columns), labels):
        marks = (marks ^ _cell_marks(column)) * _ODD
        marks ^= marks >> np.uint64(29)
    return marks.view(np.int64)


def _cell_marks(column: pd.Series) -> np.ndarray:
    if types.is_numeric_dtype(column.dtype) or types.is_bool_dtype(column.dtype):
        return _number_marks(column.to_numpy(dtype=np.float64, na_value=np.nan))
    # A part of a column of texts may hold numbers only and be read as numbers.
    text = column.astype(object)
    numbers = pd.to_numeric(text, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    words = pd.util.hash_array(text.where(text.notna(), "").astype(str).to_numpy(dtype=object), categorize=True)
    return np.where(np.isnan(numbers) & text.notna().to_numpy(), words, _number_marks(numbers))


def _number_marks(numbers: np.ndarray) -> np.ndarray:
    return pd.util.hash_array(np.where(np.isnan(numbers), np.nan, numbers + 0.0))  # one NaN, and no negative zero
