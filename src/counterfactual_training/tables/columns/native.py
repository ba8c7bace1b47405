"""Frames of other libraries, such as polars, through narwhals: to pandas and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_training.errors import InputError, Remedy

# How polars turns dates and times into numbers, by their type.
_LINES = {
    "Date": '(pl.col("{0}") - pl.date(2020, 1, 1)).dt.total_days()',
    "Datetime": '(pl.col("{0}") - pl.datetime(2020, 1, 1)).dt.total_days()',
    "Duration": 'pl.col("{0}").dt.total_seconds()',
}


def is_native(x: Any) -> bool:
    """Whether x is a frame of another library than pandas, lazy or not."""
    if isinstance(x, (pd.DataFrame, pd.Series, np.ndarray, list, tuple)):
        return False
    return hasattr(x, "__arrow_c_stream__") or hasattr(x, "collect_schema")


def to_pandas(x: Any) -> Any:
    """A frame of another library as pandas, null as missing; anything else unchanged."""
    if not is_native(x):
        return x
    frame = _wrapped(x)
    return pd.DataFrame({column.name: _to_pandas(column) for column in frame.iter_columns()})


def like_native(
    frame: pd.DataFrame, like: Any, labels: Sequence[str] = (), typed: bool = True
) -> Any:
    """A pandas frame in the library of ``like``.

    Args:
        labels: names for the levels of the index, which become the first columns; other libraries
            have no index.
        typed: columns have the types of ``like``, wherever these hold the values.
    """
    import narwhals as nw

    wrapped = _wrapped(like)
    levels = [pd.Series(frame.index.get_level_values(i)) for i in range(len(labels))]
    columns = dict(zip(labels, levels, strict=True)) | {
        str(name): frame[name] for name in frame.columns
    }
    if typed:
        dtypes = dict(wrapped.schema)
    else:
        dtypes = {}
    backend = wrapped.implementation
    series = {
        name: _from_pandas(name, values, dtypes.get(name), backend)
        for name, values in columns.items()
    }
    return nw.from_dict(series).to_native()


def _wrapped(x: Any) -> Any:
    """The frame as narwhals sees it."""
    kind = f"{type(x).__module__.partition('.')[0]} {type(x).__name__}"
    try:
        import narwhals as nw
    except ImportError:
        raise InputError(
            f"To read a {kind}, install narwhals; or convert it yourself, for example with "
            ".to_pandas()."
        ) from None
    if (
        hasattr(x, "collect")
        and hasattr(x, "collect_schema")
        and not hasattr(x, "__arrow_c_stream__")
    ):
        raise InputError(f"A {kind} holds no rows yet; call .collect() first.")
    try:
        return nw.from_native(x, eager_only=True)
    except TypeError:
        raise InputError(
            f"Expected a DataFrame or an array of rows × columns, got a {kind}."
        ) from None


def _to_pandas(column: Any) -> Any:
    import narwhals as nw

    dtype = column.dtype
    if dtype.is_temporal():
        kind = type(dtype).__name__
        line = _LINES.get(kind, 'pl.col("{0}").cast(pl.Int64)').format(column.name)
        raise InputError(
            f"{column.name!r} is {kind}, which no model takes as it is; ",
            Remedy("drop", column.name),
            ", or ",
            Remedy("convert", f"frame = frame.with_columns({line})"),
            ".",
            code="unusable_column",
            field=column.name,
        )
    if isinstance(dtype, nw.Enum):
        return pd.Categorical(column.to_list(), categories=list(dtype.categories))
    if dtype.is_decimal():
        column = column.cast(nw.Float64)
    if dtype.is_numeric() or (dtype == nw.Boolean and column.null_count() == 0):
        return column.to_numpy()
    # Categorical columns of polars share their categories, so only the values tell which ones
    # belong to a column.
    text = dtype == nw.String or isinstance(dtype, nw.Categorical)
    return pd.Series(column.to_list(), dtype=None if text else object)


def _from_pandas(name: str, values: pd.Series, dtype: Any, backend: Any) -> Any:
    import narwhals as nw

    plain = [None if pd.isna(value) else value for value in values.tolist()]
    if dtype is not None and dtype.is_integer():
        plain = [int(v) if isinstance(v, float) and v.is_integer() else v for v in plain]
    try:
        return nw.new_series(name, plain, dtype, backend=backend)
    except (TypeError, ValueError, OverflowError):  # 37.5 in a column of whole numbers
        pass
    try:
        return nw.new_series(name, plain, backend=backend)
    except (
        TypeError,
        ValueError,
        OverflowError,
    ):  # numbers and categories, as in a list of differences
        return nw.new_series(
            name, [None if value is None else str(value) for value in plain], backend=backend
        )
