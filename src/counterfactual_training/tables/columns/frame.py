"""The user's input as a frame with valid names, and its columns as numbers.

Every kind of column is read into one float array ``(n,)``: the value itself, or the position of the
category. Missing is NaN, an unseen category is :data:`UNSEEN`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from counterfactual_training.errors import InputError, Remedy
from counterfactual_training.tables.columns.dtypes import as_objects
from counterfactual_training.tables.columns.feature import Feature, show
from counterfactual_training.tables.columns.plain import LARGEST_INTEGER, is_plain

UNSEEN = -1.0
# With at most so many rows, categories are looked up in Python, which is faster than asking pandas.
_FEW_ROWS = 64
# What pandas calls the content of a column of Python objects that are all numbers.
_NUMBER_OBJECTS = ("integer", "floating", "mixed-integer-float", "boolean", "decimal", "empty")


def as_frame(x: Any, names: Sequence[str] | None = None) -> pd.DataFrame:
    """A frame with unique text column names; the columns of an array are called ``names``, or x0,
    x1, …
    """
    if isinstance(x, pd.DataFrame):
        return _checked_names(x)
    _check_no_other_table(x)
    array = np.asarray(x)
    _check_array(array)
    if names is not None and len(names) != array.shape[1]:
        raise InputError(
            f"X has {array.shape[1]} features, but Schema is expecting {len(names)} features as "
            f"input: {show(names)}."
        )
    if names is not None:
        labels = list(names)
    else:
        labels = [f"x{j}" for j in range(array.shape[1])]
    frame = pd.DataFrame(array, columns=labels)
    if array.dtype == object:
        return frame.infer_objects()
    return frame


def _check_no_other_table(x: Any) -> None:
    """Raise for sparse matrices, Series and dicts."""
    # scikit-learn's own checks of estimators look for these words.
    if hasattr(x, "toarray"):
        raise InputError(
            f"Sparse input ({type(x).__name__}) is not supported; use a DataFrame or .toarray()."
        )
    if isinstance(x, pd.Series):
        raise InputError(
            "Expected a DataFrame or an array of rows × columns, got Series; use .to_frame()."
        )
    if isinstance(x, Mapping) or (isinstance(x, list) and x and isinstance(x[0], Mapping)):
        if isinstance(x, list):
            hint = "pd.DataFrame(rows)"
        else:
            hint = "pd.DataFrame([row])"
        raise InputError(
            f"Expected a DataFrame or an array of rows × columns, got dict; use {hint}."
        )


def _check_array(array: np.ndarray) -> None:
    """Raise unless an array holds rows × columns of real numbers or objects."""
    if array.ndim != 2:
        raise InputError(
            f"Expected rows × columns, got an array of shape {array.shape}. Reshape your data."
        )
    if array.shape[1] == 0:
        raise InputError(
            f"Found array with 0 feature(s) (shape={array.shape}) while a minimum of 1 is required."
        )
    if np.iscomplexobj(array):
        raise InputError(
            "Complex data not supported; use the real and the imaginary part as two columns."
        )


def _checked_names(frame: pd.DataFrame) -> pd.DataFrame:
    if frame.shape[1] == 0:
        raise InputError("There are no columns.", code="no_columns")
    odd = [name for name in frame.columns if not isinstance(name, str)]
    if odd:
        raise InputError(
            f"Column names must be text, got {odd[0]!r}; rename with frame.columns.astype(str)."
        )
    if not frame.columns.is_unique:
        twice = list(dict.fromkeys(frame.columns[frame.columns.duplicated()]))
        raise InputError(f"Duplicate column names: {show(twice)}. Rename or drop the copies.")
    dtypes = frame.dtypes.tolist()
    if any(isinstance(dtype, pd.SparseDtype) for dtype in dtypes):
        named = zip(frame.columns, dtypes, strict=True)
        sparse = [name for name, dtype in named if isinstance(dtype, pd.SparseDtype)]
        raise InputError(
            f"Sparse columns are not supported: {show(sparse)}. Use frame[name].sparse.to_dense()."
        )
    return frame


def match_columns(
    frame: pd.DataFrame, names: Sequence[str], stated: bool = False
) -> pd.DataFrame:
    """The named columns in their order; an error if one is missing or extra.

    ``stated`` says that the names are those of a schema, not those that a model was trained on.
    """
    if list(frame.columns) == list(names):
        return frame
    missing = [name for name in names if name not in frame.columns]
    expected = set(names)
    extra = [name for name in frame.columns if name not in expected]
    if not missing and not extra:
        return frame[list(names)]
    raise _wrong_columns(missing, extra, stated)


def _wrong_columns(missing: Sequence[str], extra: Sequence[str], stated: bool) -> InputError:
    sentences = []
    if missing:
        near = {name: difflib.get_close_matches(name, extra, n=1) for name in missing}
        hints = [
            f"{name!r} (is it {match[0]!r}?)" if match else repr(name)
            for name, match in near.items()
        ]
        sentences.append(f"Missing columns: {', '.join(hints)}.")
    if extra:
        if stated:
            whose = "Columns the schema does not know:"
        else:
            whose = "The model was not trained on"
        sentences.append(
            f"{whose} {show(extra, 20)}; drop {'it' if len(extra) == 1 else 'them'}."
        )
    return InputError(" ".join(sentences), code="wrong_columns")


def read(feature: Feature, series: pd.Series, strict: bool = False) -> np.ndarray:
    """The column as float64 numbers ``(n,)``; categories as their position, unseen ones as
    :data:`UNSEEN`.

    Numbers are numbers: unless ``strict``, a whole-number column may hold 37.5, and a column of 0
        and 1 may hold 2.
    """
    if feature.is_category:
        return _codes(feature, series, strict)
    return _numbers(feature, series, strict)


def unseen_categories(
    feature: Feature, series: pd.Series, numbers: np.ndarray
) -> InputError | None:
    """The error about categories that are not in the schema, or ``None``."""
    new_ones = numbers == UNSEEN
    if not feature.is_category or not new_ones.any():
        return None
    unseen = series.to_numpy(dtype=object)[new_ones]
    new = list(dict.fromkeys(unseen))
    levels = {str(level): level for level in feature.levels}
    near = difflib.get_close_matches(str(new[0]), levels, n=1, cutoff=0.5)
    if near:
        hint = f" Did you mean {levels[near[0]]!r}?"
    else:
        hint = ""
    valid = show(feature.levels, 40)
    return InputError(
        f"{feature.name!r}: unseen {show(new)} in {len(unseen)} row(s).{hint} Valid: {valid}",
        code="unseen_category",
        field=feature.name,
        expected=f"one of {valid}",
    )


def is_number_like(series: pd.Series) -> bool:
    """Numbers or booleans, whatever the storage."""
    dtype = series.dtype
    if is_plain(dtype):
        return True
    if isinstance(dtype, pd.CategoricalDtype):
        return is_number_like(dtype.categories.to_series())
    if types.is_complex_dtype(dtype):
        return False
    if types.is_numeric_dtype(dtype) or types.is_bool_dtype(dtype):
        return True
    return (
        types.is_object_dtype(dtype)
        and types.infer_dtype(series, skipna=True) in _NUMBER_OBJECTS
    )


def to_float(series: pd.Series) -> np.ndarray:
    """float64 ``(n,)`` with NaN for missing."""
    if is_plain(series.dtype):
        return np.asarray(series.to_numpy(), dtype=np.float64)
    if isinstance(series.dtype, pd.CategoricalDtype) or types.is_object_dtype(series.dtype):
        series = pd.to_numeric(series.astype(object))
    return series.to_numpy(dtype=np.float64, na_value=np.nan)


def _numbers(feature: Feature, series: pd.Series, strict: bool) -> np.ndarray:
    name = feature.name
    if not is_number_like(series):
        values = series.dropna().to_numpy(dtype=object)
        odd = next((v for v in values if not isinstance(v, (int, float, np.number))), values[0])
        raise InputError(
            f"{name!r} is {feature.kind} but holds {odd!r} ({series.dtype}); ",
            Remedy("write_numbers", name),
            ", or state another kind",
            code="not_a_number",
            field=name,
        )
    values = to_float(series)
    infinite = np.isinf(values)
    if infinite.any():
        row = series.index[int(infinite.argmax())]
        raise InputError(
            f"{name!r}: {int(infinite.sum())} infinite value(s), the first in row {row!r}; drop "
            "these rows, or make "
            "them missing with .replace([np.inf, -np.inf], np.nan)"
        )
    if feature.kind == "integer":
        broken = np.isfinite(values) & (np.rint(values) != values)
        if strict and broken.any():
            raise InputError(
                f"{name!r} is integer but holds {float(values[broken][0])!r}; state kind 'numeric'"
            )
        if (np.abs(values) > LARGEST_INTEGER).any():
            raise InputError(
                f"{name!r}: whole numbers beyond ±2^49 (found {np.nanmax(np.abs(values)):.0f}) "
                "cannot be standardised "
                "exactly; an identifier should be dropped, a quantity divided"
            )
    return values


def _codes(feature: Feature, series: pd.Series, strict: bool) -> np.ndarray:
    if len(series) <= _FEW_ROWS:
        few = _few_codes(feature, series)
        if few is not None:
            return few
    index = as_objects(feature.levels)
    # Look up each category once, not each row.
    if isinstance(series.dtype, pd.CategoricalDtype):
        table = index.get_indexer(as_objects(series.dtype.categories)).astype(np.float64)
        positions = series.cat.codes.to_numpy()
        return np.where(positions < 0, np.nan, table[positions] if len(table) else np.nan)
    codes = index.get_indexer(as_objects(pd.Index(series.array))).astype(np.float64)
    # A missing value is no category, so it looks unseen.
    if not (codes == UNSEEN).any():
        return codes
    if not strict and feature.kind == "binary":
        codes = _on_the_line(feature, series, codes)
    return np.where(series.isna().to_numpy(), np.nan, codes)


def _few_codes(feature: Feature, series: pd.Series) -> np.ndarray | None:
    """The same for a few texts or categories, faster than pandas; ``None`` for other columns."""
    if isinstance(series.dtype, pd.StringDtype):
        code_of = {level: float(place) for place, level in enumerate(feature.levels)}
        codes = np.array(
            [code_of.get(text, UNSEEN) for text in series.tolist()], dtype=np.float64
        )
        if not (codes == UNSEEN).any():
            return codes
        return np.where(series.isna().to_numpy(), np.nan, codes)
    if isinstance(series.dtype, pd.CategoricalDtype):
        code_of = {level: float(place) for place, level in enumerate(feature.levels)}
        categories = series.dtype.categories
        positions = series.array.codes.tolist()
        return np.array(
            [code_of.get(categories[p], UNSEEN) if p >= 0 else np.nan for p in positions],
            dtype=np.float64,
        )
    return None


def _on_the_line(feature: Feature, series: pd.Series, codes: np.ndarray) -> np.ndarray:
    """The positions ``(n,)`` in a yes-or-no column of numbers; numbers other than its two are
    interpolated between them.
    """
    low, high = feature.levels
    numbers = all(
        isinstance(level, (int, float)) and not isinstance(level, bool) for level in (low, high)
    )
    if not numbers or not is_number_like(series):
        return codes
    line = (to_float(series) - float(low)) / (float(high) - float(low))
    # The last bit tells a number at the place of UNSEEN from an unseen category.
    line = np.where(line == UNSEEN, np.nextafter(UNSEEN, 0.0), line)
    return np.where((codes == UNSEEN) & np.isfinite(line), line, codes)
