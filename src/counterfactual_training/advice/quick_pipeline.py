"""Pipelines of scikit-learn, asked about few rows very often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OrdinalEncoder

# Rows on which a quick pipeline must start as the slow one does.
_COMPARED = 1000


def quickened(model: Any, frame: pd.DataFrame) -> Any:
    """A model with the same ``predict_proba`` of frames like this one that answers sooner, or the model itself."""
    # Here, because these bring half of scikit-learn, and only models from there need them.
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline

    # Whoever derives a class may do something else in it.
    if type(model) is not Pipeline or len(model) < 2 or type(model[0]) is not ColumnTransformer:
        return model
    listed = all(isinstance(columns, list) for _, _, columns in model[0].transformers_)
    if not listed or model[0].sparse_output_ or model[0].transformer_weights:
        return model
    quick = QuickPipeline(model)
    some = frame[:_COMPARED]
    expected = model[0].transform(some)
    same = isinstance(expected, np.ndarray) and np.array_equal(quick.start(some), expected)
    return quick if same else model


class QuickPipeline:
    """A pipeline that starts with a ColumnTransformer.

    scikit-learn checks every column of every frame, which takes it longer than most models take for hundreds of rows.
    Here, its encoders are asked about each category once.
    """

    def __init__(self, model: Pipeline) -> None:
        self.classes_ = model.classes_
        self._parts = _parts(model[0])
        self._rest = model[1:]

    def start(self, frame: pd.DataFrame) -> np.ndarray:
        """What the ColumnTransformer makes of a frame."""
        return np.hstack([np.asarray(part.transform(frame)) for part in self._parts])

    def predict_proba(self, frame: pd.DataFrame) -> np.ndarray:
        """Probabilities ``(n, k)`` of a frame's rows."""
        return self._rest.predict_proba(self.start(frame))


def _parts(steps: ColumnTransformer) -> list[_Part]:
    from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder

    parts: list[_Part] = []
    names = steps.feature_names_in_.tolist()
    for _, step, chosen in steps.transformers_:
        columns = [name if isinstance(name, str) else names[name] for name in chosen]
        if len(columns) == 0 or (isinstance(step, str) and step == "drop"):
            continue
        plain = type(step) is FunctionTransformer and step.func is None and not step.validate
        if plain or isinstance(step, str):
            parts.append(_Part(columns))
        elif type(step) is OrdinalEncoder:
            parts.append(_Categories(columns, step))
        else:
            parts.append(_Step(columns, step))
    return parts


class _Part:
    """Columns of a frame that go on as they are."""

    def __init__(self, columns: list[str]) -> None:
        self.columns = columns

    def transform(self, frame: pd.DataFrame) -> Any:
        return np.stack([frame[name].to_numpy() for name in self.columns], 1)


class _Step(_Part):
    """Columns that a step transforms."""

    def __init__(self, columns: list[str], step: Any) -> None:
        super().__init__(columns)
        self.step = step

    def transform(self, frame: pd.DataFrame) -> Any:
        return self.step.transform(frame[self.columns])


class _Categories(_Step):
    """Columns whose categories become numbers, each by itself."""

    def __init__(self, columns: list[str], step: OrdinalEncoder) -> None:
        super().__init__(columns, step)
        self._known: list[dict[Any, Any]] = [{} for _ in columns]

    def transform(self, frame: pd.DataFrame) -> Any:
        found = [pd.factorize(frame[name], use_na_sentinel=False) for name in self.columns]
        new: set[int] = set()
        for (code, levels), known in zip(found, self._known, strict=True):
            unknown = [k for k, level in enumerate(levels) if level not in known]
            new.update(int(np.argmax(code == k)) for k in unknown)
        if new:
            rows = frame[self.columns].iloc[sorted(new)]
            numbers = self.step.transform(rows)
            for name, known, column in zip(self.columns, self._known, numbers.T, strict=True):
                known.update(zip(rows[name], column, strict=True))
        tables = [[known[level] for level in levels] for (_, levels), known in zip(found, self._known, strict=True)]
        return np.stack([np.array(table)[code] for table, (code, _) in zip(tables, found, strict=True)], 1)
