"""The pandas dtype of a column, in memory and as JSON, so that decoded columns are stored as they
were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from counterfactual_training.errors import FileError, InputError

# With at most so many rows, categories are looked up one by one, which is faster than asking
# pandas.
_FEW_ROWS = 64


def to_plain(value: Any) -> Any:
    """A category as JSON and TOML know it; an interval, as ``pd.cut`` makes them, as a table."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, pd.Interval):
        return {"interval": [to_plain(value.left), to_plain(value.right), value.closed]}
    raise InputError(
        f"{value!r} ({type(value).__name__}) cannot be written to a file; convert such "
        "categories to text."
    )


def from_plain(value: Any) -> Any:
    """The inverse of :func:`to_plain`."""
    if isinstance(value, Mapping):
        try:
            left, right, closed = value["interval"]
            return pd.Interval(left, right, closed)
        except (KeyError, TypeError, ValueError):
            expected = "{'interval': [left, right, closed]}"
            raise FileError(
                f"{dict(value)!r} is not a category; expected {expected}."
            ) from None
    return value


def dtype_to_dict(dtype: Any) -> Any:
    """A pandas dtype as JSON."""
    if not isinstance(dtype, pd.CategoricalDtype):
        return str(dtype)
    # Also the dtype of the categories: 1 and 1.0, or two kinds of text, look alike in JSON.
    levels = [to_plain(level) for level in dtype.categories.to_numpy(dtype=object)]
    return {
        "categories": levels,
        "ordered": bool(dtype.ordered),
        "of": str(dtype.categories.dtype),
    }


def dtype_from_dict(spec: Any) -> Any:
    """The inverse of :func:`dtype_to_dict`."""
    try:
        if isinstance(spec, str):
            return pd.api.types.pandas_dtype(spec)
        levels = as_objects([from_plain(level) for level in spec["categories"]])
        return pd.CategoricalDtype(levels.astype(spec["of"]), ordered=spec["ordered"])
    except (KeyError, TypeError, ValueError, NotImplementedError) as error:
        raise FileError(
            f"The file names a column type that pandas does not know: {spec!r} ({error})."
        ) from None


def holds_numbers(dtype: Any) -> bool:
    """Whether a column of this dtype can hold numbers: also as Python objects, or as categories."""
    if isinstance(dtype, pd.CategoricalDtype):
        return holds_numbers(dtype.categories.dtype)
    numeric = types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype)
    return numeric or types.is_bool_dtype(dtype) or types.is_object_dtype(dtype)


def as_objects(values: Any) -> pd.Index:
    """An index of Python objects, even for tuples."""
    if isinstance(values, pd.Index):
        objects = values.to_numpy(dtype=object)
    else:
        objects = values
    return pd.Index(objects, dtype=object, tupleize_cols=False)


def object_array(values: Sequence[Any]) -> np.ndarray:
    """Python objects ``(n,)``, even tuples."""
    array = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        array[place] = value
    return array


def value_range(dtype: Any) -> tuple[float, float]:
    """The smallest and largest whole number that the dtype can hold."""
    if types.is_bool_dtype(dtype) and not isinstance(dtype, pd.CategoricalDtype):
        return 0.0, 1.0
    if types.is_integer_dtype(dtype):
        info = np.iinfo(getattr(dtype, "numpy_dtype", dtype))
        return float(info.min), float(info.max)
    return -np.inf, np.inf


def restore_numbers(values: np.ndarray, dtype: Any, integers: bool) -> pd.Series:
    """Numbers ``(n,)`` in the given dtype, or in the nearest one that can hold them.

    A missing value in an ``int64`` column makes it ``float64``, 300 in an ``int8`` column makes it
    ``int64``.
    """
    # The same for usual whole numbers, without pandas: searches convert a few numbers very often.
    if isinstance(dtype, np.dtype) and dtype.kind in "iu":
        with np.errstate(invalid="ignore"):
            plain = values.astype(dtype)
        if np.array_equal(plain, values):
            return pd.Series(plain)
    series = pd.Series(values)
    if types.is_object_dtype(dtype):
        return _as_python_numbers(values, integers)
    # A narrower float rounds, which is fine, but may overflow.
    if types.is_float_dtype(dtype):
        narrow = series.astype(dtype)
        if np.isfinite(narrow.to_numpy(np.float64, na_value=0.0)).all():
            return narrow
        return series
    for candidate in (dtype, *_wider(dtype)):
        if (stored := _stored(series, candidate)) is not None:
            return stored
    return series


def _as_python_numbers(values: np.ndarray, integers: bool) -> pd.Series:
    """As objects: missing ones ``None``, and with ``integers``, whole numbers as ``int``."""
    numbers = [
        None if np.isnan(v) else int(v) if integers and v.is_integer() else v
        for v in values.tolist()
    ]
    return pd.Series(np.array(numbers, dtype=object), dtype=object)


def _wider(dtype: Any) -> tuple[str, ...]:
    """Dtypes that hold more numbers than this one, the smallest first."""
    if isinstance(dtype, pd.CategoricalDtype):
        return ()
    if types.is_extension_array_dtype(dtype):
        return ("Int64", "Float64")
    return ("int64",)


def restore_categories(values: np.ndarray, dtype: Any) -> pd.Series:
    """Categories ``(n,)``, as objects, in the given dtype; a value it cannot hold makes it
    ``object``.

    A category that a categorical dtype lacks is added to it, at the end.
    """
    if isinstance(dtype, pd.CategoricalDtype) and len(values) <= _FEW_ROWS:
        places = _text_places(values.tolist(), dtype)
        if places is not None:
            return pd.Series(pd.Categorical.from_codes(places, dtype=dtype))
    series = pd.Series(values, dtype=object)
    if isinstance(dtype, pd.CategoricalDtype):
        present = as_objects(series.dropna().to_numpy()).unique()
        levels = as_objects(dtype.categories)
        new = present[levels.get_indexer(present) < 0]
        if len(new):
            dtype = pd.CategoricalDtype(
                levels.append(new).infer_objects(), ordered=dtype.ordered
            )
        return series.astype(dtype)
    stored = _stored(series, dtype)
    if stored is None:
        return series
    return stored


def _text_places(values: list[Any], dtype: pd.CategoricalDtype) -> list[int] | None:
    """Where texts stand among the categories; ``None`` if one does not, or is something else."""
    levels = dtype.categories
    if not all(isinstance(value, str) for value in values) or not (
        isinstance(levels.dtype, pd.StringDtype) or levels.dtype == object
    ):
        return None
    try:
        # Categories are unique, so that each has one place.
        places: list[Any] = [levels.get_loc(value) for value in values]
    except KeyError:
        return None
    return places


def _stored(series: pd.Series, dtype: Any) -> pd.Series | None:
    """The series in a dtype, if that can hold every value, and what is missing."""
    try:
        with np.errstate(invalid="ignore"):  # 300 as int8: compared below
            stored = series.astype(dtype)
    except (TypeError, ValueError):
        return None
    missing = series.isna().to_numpy()
    same = stored.astype(object).to_numpy()[~missing] == series.to_numpy()[~missing]
    if bool(np.all(same)) and bool(stored.isna().to_numpy()[missing].all()):
        return stored
    return None
