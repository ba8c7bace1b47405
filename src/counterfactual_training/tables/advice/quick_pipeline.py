"""Pipelines of scikit-learn that start column by column, asked about few rows very often."""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline

# Rows on which a quick pipeline must start as the slow one does.
_COMPARED = 1000


class QuickPipeline:
    """A pipeline whose first step makes one number of each cell, whatever stands beside it.

    scikit-learn checks every column of every frame, which takes it longer than most models take for
    hundreds of rows. Here, the first step is asked about each cell once (:meth:`numbers`). Boosting
    that knows which columns are categories encodes them once more: that is asked about once, too.

    Attributes:
        columns: the columns of frames that the later steps see, in their order.
        places: where each of them stands.
    """

    def __init__(self, model: Pipeline, frame: pd.DataFrame) -> None:
        self._rest = model[1:]
        if len(self._rest) == 1:
            self._rest = self._rest[0]
        self._encoding: Any = None
        self._sample = frame[:1]
        self.columns: list[str] = []
        self._steps: dict[str, tuple[Any, list[str]]] = {}
        self._number_of_category: dict[str, dict[Any, float]] = {}
        self._read(model[0])
        if _encodes(self._rest):
            self._without_encoding()
        self.places = {name: place for place, name in enumerate(self.columns)}

    def _read(self, first: ColumnTransformer) -> None:
        """Which step of the first one makes which columns."""
        names = first.feature_names_in_.tolist()
        for _, step, chosen in first.transformers_:
            columns = [name if isinstance(name, str) else names[name] for name in chosen]
            if isinstance(step, str) and step == "drop":
                continue
            self.columns += columns
            self._steps |= {
                name: (None if _passes(step) else step, columns) for name in columns
            }
            # Categories are few, and the same again in every question.
            if hasattr(step, "categories_"):
                self._number_of_category |= {name: {} for name in columns}

    def _without_encoding(self) -> None:
        """Ask boosting for numbers that it has encoded, and encode cells in :meth:`numbers`."""
        self._encoding = self._rest._preprocessor
        self._rest = copy.copy(self._rest)
        self._rest._preprocessor = None
        self._encoded = {
            name: place
            for place, name in enumerate(self.columns)
            if self._rest.is_categorical_[place]
        }
        # It puts categories first.
        numbers = [name for name in self.columns if name not in self._encoded]
        self.columns = [*self._encoded, *numbers]

    @classmethod
    def of(cls, model: Any, frame: pd.DataFrame) -> QuickPipeline | None:
        """``None`` for a model that is no such pipeline; the frame has rows that it takes."""
        # Imported here: it loads half of scikit-learn, which only users of pipelines need.
        if "sklearn.pipeline" not in sys.modules:
            return None
        try:
            return cls._of(model, frame)
        except Exception:  # a pipeline that this cannot read is asked as a whole
            return None

    @classmethod
    def _of(cls, model: Any, frame: pd.DataFrame) -> QuickPipeline | None:
        if not _reads_columns_alone(model):
            return None
        quick = cls(model, frame)
        # Of a column that is taken twice, each cell becomes two numbers.
        if len(set(quick.columns)) < len(quick.columns):
            return None
        if not quick._equals(model, frame[:_COMPARED]):
            return None
        return quick

    def _equals(self, model: Any, some: pd.DataFrame) -> bool:
        """Whether numbers and answers are those of the pipeline, on some rows."""
        expected = model[0].transform(some)
        if not isinstance(expected, np.ndarray) or expected.dtype != np.float64:
            return False
        if expected.shape[1] != len(self.columns):
            return False
        if self._encoding is not None:
            expected = self._encoding.transform(expected)
        numbers = np.stack([self.numbers(name, some[name]) for name in self.columns], 1)
        if not np.array_equal(numbers, expected, equal_nan=True):
            return False
        return np.array_equal(self.predict_proba(numbers), model.predict_proba(some))

    def numbers(self, name: str, cells: pd.Series) -> np.ndarray:
        """What the first step, and an encoding after it, make of cells of one column ``(n,)``."""
        step, columns = self._steps[name]
        if step is None:
            return self._encode(name, cells.to_numpy(dtype=np.float64))
        number_of = self._number_of_category.get(name)
        if number_of is not None and all(cell in number_of for cell in cells):
            return np.array([number_of[cell] for cell in cells], dtype=np.float64)
        frame = (
            self._sample[columns].iloc[np.zeros(len(cells), dtype=int)].reset_index(drop=True)
        )
        frame[name] = cells.reset_index(drop=True)
        numbers = np.asarray(step.transform(frame), dtype=np.float64)[:, columns.index(name)]
        numbers = self._encode(name, numbers)
        if number_of is not None:
            # A missing cell is not equal to itself: it would be stored again every time.
            pairs = zip(cells, numbers.tolist(), strict=True)
            number_of.update((cell, number) for cell, number in pairs if cell == cell)
        return numbers

    def _encode(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """What boosting makes of the numbers ``(n,)`` of one column."""
        if self._encoding is None or name not in self._encoded:
            return numbers
        rows = np.zeros((len(numbers), len(self.columns)))
        rows[:, self._encoded[name]] = numbers
        return self._encoding.transform(rows)[:, self.places[name]]

    def predict_proba(self, numbers: np.ndarray) -> np.ndarray:
        """Probabilities ``(n, k)`` of rows ``(n, p)`` as the first step makes them."""
        return np.asarray(self._rest.predict_proba(numbers))


def _encodes(model: Any) -> bool:
    """Whether a model is boosting that encodes categories itself."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    return (
        type(model) is HistGradientBoostingClassifier
        and getattr(model, "_preprocessor", None) is not None
    )


def _passes(step: Any) -> bool:
    """Whether a step hands columns on as they are."""
    from sklearn.preprocessing import FunctionTransformer

    if isinstance(step, str):
        return step == "passthrough"
    return type(step) is FunctionTransformer and step.func is None and not step.validate


def _reads_columns_alone(model: Any) -> bool:
    """Whether this is a pipeline whose first step makes one number of each cell."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import (
        MaxAbsScaler,
        MinMaxScaler,
        OrdinalEncoder,
        RobustScaler,
        StandardScaler,
    )

    # A derived class may do something else.
    if type(model) is not Pipeline or len(model) < 2 or type(model[0]) is not ColumnTransformer:
        return False
    alone = (OrdinalEncoder, StandardScaler, RobustScaler, MinMaxScaler, MaxAbsScaler)
    for _, step, columns in model[0].transformers_:
        # Masks and slices select in other ways.
        if not isinstance(columns, list) or {type(name) for name in columns} - {str, int}:
            return False
        if not (_passes(step) or isinstance(step, str) or type(step) in alone):
            return False
    return True
