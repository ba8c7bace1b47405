"""Explanations of rows that came as a frame of another library than pandas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from counterfactual_training.estimator.explanation import Explanation
from counterfactual_training.tabular.native import is_native, like_native


@dataclass(frozen=True, eq=False, repr=False)
class NativeExplanation:
    """An :class:`Explanation` whose frames are of the library that the rows came in, such as polars.

    Where an explanation has an index, with several options per row, the frames begin with columns ``row`` and
    ``option``. Everything else is that of ``pandas``, the same explanation in pandas.
    """

    pandas: Explanation
    rows: Any

    @property
    def original(self) -> Any:
        return self._native(self.pandas.original)

    @property
    def frame(self) -> Any:
        return self._native(self.pandas.frame)

    @property
    def changed(self) -> Any:
        return self._native(self.pandas.changed, typed=False)

    @property
    def summary(self) -> Any:
        return self._native(self.pandas.summary, typed=False)

    def differences(self) -> Any:
        return like_native(self.pandas.differences(), self.rows, typed=False)

    def option(self, number: int) -> Any:
        return like_native(self.pandas.option(number), self.rows)

    def __len__(self) -> int:
        return len(self.pandas)

    def __getattr__(self, name: str) -> Any:
        if name in ("pandas", "rows"):  # not there yet while an object is copied
            raise AttributeError(name)
        return getattr(self.pandas, name)

    def __repr__(self) -> str:
        return repr(self.pandas)

    def __str__(self) -> str:
        return str(self.pandas)

    def _repr_html_(self) -> str:
        return self.pandas._repr_html_()

    def _native(self, frame: pd.DataFrame, typed: bool = True) -> Any:
        return like_native(frame, self.rows, ("row", "option") if frame.index.nlevels == 2 else (), typed)


def in_kind(explanation: Explanation, rows: Any) -> Any:
    """The explanation with frames like the rows that were asked about."""
    return NativeExplanation(explanation, rows) if is_native(rows) else explanation
