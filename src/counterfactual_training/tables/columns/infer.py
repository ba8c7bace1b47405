"""Infer kinds, categories and ranges from the data, and find where a schema contradicts it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from counterfactual_training.errors import ConstraintError, InputError, Part, Remedy
from counterfactual_training.tables.columns.dtypes import value_range
from counterfactual_training.tables.columns.feature import (
    CATEGORY_KINDS,
    Feature,
    Kind,
    plain,
    show,
    show_domain,
)
from counterfactual_training.tables.columns.frame import (
    is_number_like,
    read,
    to_float,
    unseen_categories,
)
from counterfactual_training.tables.columns.plain import PlainNumbers

# Text with more distinct values than this, in more than this share of the rows, is a name or an
# identifier.
MANY_LEVELS = 50
MANY_SHARE = 0.2
# More than this are too many one-hot columns, however long the table.
TOO_MANY_LEVELS = 1000
_MONTHS = 12
# Dates as people write them, perhaps with a time behind: 2020-01-31, 31.01.2020, 1/31/20.
_DATE = r"(?:\d{4}-\d{1,2}-\d{1,2}|\d{1,2}([./])\d{1,2}\1(?:\d{4}|\d{2}))(?:[T ].*)?"
# If one of these is stated, the numbers alone do not say what a column is.
_NEEDS_A_LOOK = frozenset({"kind", "categories", "special"})
# pandas' names for dates and times, which no model takes as they are.
_TIMES = ("date", "datetime", "datetime64", "time", "timedelta", "timedelta64", "period")


def infer_feature(series: pd.Series, stated: Mapping[str, Any]) -> Feature:
    """A feature from its column and what the user states about it."""
    name = str(series.name)
    # The kind of a column of text depends on its different values alone, unless there are many.
    if isinstance(series.dtype, pd.StringDtype):
        texts = pd.unique(series.to_numpy(dtype=object))
        if len(texts) <= MANY_LEVELS:
            feature = _infer_text(name, texts, stated)
            if feature is not None:
                return feature
            series = series.drop_duplicates()
    if series.isna().all():
        raise InputError(
            f"{name!r} holds nothing but missing values; ",
            Remedy("drop", name),
            code="unusable_column",
            field=name,
        )
    fields = dict(stated)
    # Codes disguise the kind of the other values, so it is guessed without them.
    kind = fields.pop("kind", None)
    if kind is None and fields.get("special") is not None and is_number_like(series):
        kind = _guess_beside(series, fields["special"])
    kind = kind or _guess_kind(series, "categories" in fields)
    return complete_feature(Feature(name, kind, **fields), series)


def infer_plain(name: str, numbers: PlainNumbers, stated: Mapping[str, Any]) -> Feature | None:
    """The same for a column of plain numbers, without checking each; ``None`` if that is not
    enough.
    """
    kind = numbers.kind(name)
    if kind is None or not _NEEDS_A_LOOK.isdisjoint(stated):
        return None
    feature = Feature(name, kind, **stated)
    if kind != "binary":
        return feature
    return replace(
        feature, categories=(False, True) if numbers.arrays[name].dtype == bool else (0, 1)
    )


def _infer_text(name: str, texts: np.ndarray, stated: Mapping[str, Any]) -> Feature | None:
    """The same for the different texts of a column; ``None`` if all values must be checked, or
    something is wrong.
    """
    levels = sorted(text for text in texts.tolist() if isinstance(text, str))
    if (
        not levels
        or not _NEEDS_A_LOOK.isdisjoint(stated)
        or all(re.fullmatch(_DATE, text) for text in levels)
    ):
        return None
    feature = Feature(name, "binary" if len(levels) == 2 else "categorical", **stated)
    return replace(feature, categories=tuple(levels))


def complete_feature(feature: Feature, series: pd.Series) -> Feature:
    """The feature with its categories, or the range of a pixel, taken from the data if not
    stated.
    """
    if not is_open(feature):
        return feature
    if feature.is_category:
        return replace(feature, categories=_categories(feature, series))
    return replace(feature, domain=_pixel_range(feature, series))


def is_open(feature: Feature) -> bool:
    """Whether the data have to say what the categories are, or the range of a pixel."""
    if feature.is_category:
        return feature.categories is None
    return feature.kind == "pixel" and not np.isfinite(feature.limits).all()


def read_columns(
    features: Iterable[Feature],
    frame: pd.DataFrame,
    opening: str,
    *,
    unseen: bool = False,
    domain: bool = False,
    strict: bool = True,
) -> list[np.ndarray]:
    """Each column as numbers ``(n,)``; one error reports everything that is wrong. Missing values
    are allowed.

    Args:
        opening: of the error message.
        unseen: allow unseen categories.
        domain: check stated domains.
        strict: see :func:`read`.
    """
    arrays = []
    problems = []
    plain_numbers = PlainNumbers(frame)
    for feature in features:
        numbers = plain_numbers.read(feature)
        if numbers is not None and not (domain and feature.domain is not None):
            arrays.append(numbers)  # nothing can be wrong with these
            continue
        series = frame[feature.name]
        try:
            arrays.append(read(feature, series, strict))
        except InputError as error:
            problems.append(error)
            continue
        problem = None
        if not unseen:
            problem = unseen_categories(feature, series, arrays[-1])
        if problem is None and domain:
            problem = _outside(feature, series, arrays[-1])
        if problem is not None:
            problems.append(problem)
    if problems:
        raise combined(problems, opening)
    return arrays


def combined(problems: list[InputError], opening: str) -> InputError:
    """One error for all problems; a :class:`ConstraintError` if each of them is one."""
    if all(isinstance(problem, ConstraintError) for problem in problems):
        kind: type[InputError] = ConstraintError
    else:
        kind = InputError
    if len(problems) == 1:
        only = problems[0]
        return kind(*report(problems, opening), code=only.code, field=only.field)
    return kind(*report(problems, opening))


def report(problems: list[InputError], opening: str) -> tuple[Part, ...]:
    """One message for one problem, a list for more."""
    if len(problems) == 1:
        return (f"{opening}: ", *problems[0].clause, ".")
    parts: list[Part] = [f"{opening}:"]
    for problem in problems:
        parts += ["\n  - ", *problem.clause]
    return tuple(parts)


def _outside(feature: Feature, series: pd.Series, numbers: np.ndarray) -> InputError | None:
    if feature.domain is None:
        return None
    low, high = feature.limits
    outside = ((numbers < low) | (numbers > high)) & ~feature.coded(numbers).any(1)
    if not outside.any():
        return None
    first = plain(series[outside].iloc[0])
    return InputError(
        f"{feature.name!r}: {int(outside.sum())} row(s) outside the stated domain "
        f"{show_domain(feature)}, the first with {first!r}; widen the domain or leave these rows "
        "out",
        code="outside_domain",
        field=feature.name,
    )


def _guess_kind(series: pd.Series, has_categories: bool) -> Kind:
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        if not dtype.ordered and not has_categories:
            _refuse_many(series, len(dtype.categories), "categorical")
        if dtype.ordered:
            return "ordinal"
        if len(dtype.categories) == 2:
            return "binary"
        return "categorical"
    if not is_number_like(series):
        return _guess_text(series, has_categories)
    kind = _guess_number(series)
    if has_categories and kind not in CATEGORY_KINDS:
        return "categorical"
    return kind


def _guess_number(series: pd.Series) -> Kind:
    values = to_float(series.dropna())
    if types.infer_dtype(series, skipna=True) == "boolean" or set(values) == {0.0, 1.0}:
        return "binary"
    # pandas stores whole numbers as floats as soon as one is missing.
    doubtful = types.is_object_dtype(series.dtype) or bool(series.isna().any())
    is_integer = types.is_integer_dtype(series.dtype) or (
        doubtful and bool((values % 1 == 0).all())
    )
    if is_integer:
        return "integer"
    return "numeric"


def _guess_beside(series: pd.Series, special: Any) -> Kind | None:
    """The kind of a column of numbers beside its special codes; ``None`` if it has none, or holds
    categories.
    """
    numbers = Feature(str(series.name), "numeric", special=special)  # checks the codes
    if (
        not numbers.special
        or isinstance(series.dtype, pd.CategoricalDtype)
        or types.is_bool_dtype(series.dtype)
    ):
        return None
    ordinary = series.iloc[np.flatnonzero(~numbers.coded(to_float(series)).any(1))]
    # 0, 1 and −9: a whole number of two values.
    if _guess_number(ordinary) in ("binary", "integer"):
        return "integer"
    return "numeric"


def _guess_text(series: pd.Series, has_categories: bool) -> Kind:
    name = str(series.name)
    dtype = series.dtype
    content = types.infer_dtype(series, skipna=True)
    if content == "complex":
        raise InputError(
            f"{name!r} holds complex numbers, which no model takes; use the real and the "
            "imaginary part as two "
            "columns: np.real and np.imag"
        )
    if content in _TIMES or not (types.is_object_dtype(dtype) or types.is_string_dtype(dtype)):
        problem = (
            f"{name!r} is {content if types.is_object_dtype(dtype) else dtype}, which no model "
            "takes as it is"
        )
        if content in _TIMES:
            advice: tuple[Part, ...] = (
                Remedy("drop", name),
                ", or ",
                Remedy("convert", _as_numbers(series, content)),
            )
        else:
            advice = ("convert it to numbers or text, or ", Remedy("drop", name))
        raise InputError(f"{problem}; ", *advice, code="unusable_column", field=name)
    present = series.dropna()
    try:
        distinct = present.nunique()
    except TypeError:
        raise InputError(
            f"{name!r} holds {type(present.iloc[0]).__name__} objects; ",
            Remedy("drop", name),
            " or convert it",
            code="unusable_column",
            field=name,
        ) from None
    if not has_categories:
        _refuse_many(present, distinct, "text")
    if distinct == 2:
        return "binary"
    return "categorical"


def _as_numbers(series: pd.Series, content: str) -> str:
    """The line of code that turns dates or times into numbers; ``content`` is pandas' name for
    them.
    """
    name = f"frame[{json.dumps(series.name, ensure_ascii=False)}]"
    if content.startswith("time"):  # of the day, or a duration
        if content == "time":
            text = ".astype(str)"
        else:
            text = ""
        return f"{name} = pd.to_timedelta({name}{text}).dt.total_seconds()"
    if content == "period":
        dates = f"{name}.dt.to_timestamp()"
    else:
        dates = f"pd.to_datetime({name})"
    if isinstance(series.dtype, pd.DatetimeTZDtype):
        zone = f', tz="{series.dtype.tz}"'
    else:
        zone = ""
    return f'{name} = ({dates} - pd.Timestamp("2020-01-01"{zone})).dt.days'


def holds_dates(series: pd.Series) -> bool:
    """Whether all texts of a column are dates."""
    values = series.dropna().astype(object).unique()
    return len(values) > 0 and all(
        isinstance(value, str) and re.fullmatch(_DATE, value) for value in values
    )


def days_since(series: pd.Series) -> str:
    """The line of code that turns dates written as text into days."""
    name = f"frame[{json.dumps(series.name, ensure_ascii=False)}]"
    text = series.dropna().astype(str)
    # pandas must be told where the day comes first: otherwise it reads 05.06. as the sixth of May.
    first = pd.to_numeric(text.str.extract(r"^(\d{1,2})[./]")[0])
    day_first = text.str.contains(r"^\d{1,2}\.").any() or first.max() > _MONTHS
    zone = text.str.contains(r":\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})$").any()
    options = (", dayfirst=True" if day_first else "") + (", utc=True" if zone else "")
    if zone:
        start = '"2020-01-01", tz="UTC"'
    else:
        start = '"2020-01-01"'
    return f"{name} = (pd.to_datetime({name}{options}) - pd.Timestamp({start})).dt.days"


def _refuse_many(series: pd.Series, distinct: int, what: str) -> None:
    """Raise an error for names and identifiers, unless the user states that they are categories."""
    name = str(series.name)
    rows = int(series.notna().sum())
    if holds_dates(series):
        raise InputError(
            f"{name!r} holds dates as text, which no model takes; ",
            Remedy("drop", name),
            ", or ",
            Remedy("convert", days_since(series)),
            code="unusable_column",
            field=name,
        )
    many = distinct > MANY_LEVELS and distinct > MANY_SHARE * rows
    if not many and distinct <= TOO_MANY_LEVELS:
        return
    present = series.dropna().astype(object)
    numbers = pd.to_numeric(present, errors="coerce").notna().all()
    if numbers:
        advice: tuple[Part, ...] = (
            "every value reads as a number, so ",
            Remedy("write_numbers", name),
        )
    else:
        advice = (
            Remedy("drop", name),
            " if it is a name or an identifier, or ",
            Remedy("describe", (name, "kind", "'categorical'")),
        )
    raise InputError(
        f"{name!r} is {what} with {distinct} different values in {rows} rows; ",
        *advice,
        code="unusable_column",
        field=name,
    )


def _categories(feature: Feature, series: pd.Series) -> tuple[Any, ...]:
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        if feature.kind == "ordinal" and not dtype.ordered and not is_number_like(series):
            raise needs_order(feature)
        return tuple(dtype.categories.to_numpy(dtype=object))
    # Both, even if the data hold only one of them.
    if types.is_bool_dtype(dtype):
        return (False, True)
    values = tuple(pd.unique(series.dropna().astype(object)))
    if is_number_like(series):
        return _number_categories(feature, values)
    if feature.kind == "ordinal":
        raise needs_order(feature)
    if feature.kind == "binary" and len(values) == 1:
        raise ConstraintError(
            f"{feature.name!r} is binary, but the data holds only {values[0]!r}; ",
            Remedy("describe", (feature.name, "categories", f"[{values[0]!r}, …]")),
            ".",
            field=f"categories.{feature.name}",
        )
    return tuple(sorted(values, key=lambda v: (str(v), type(v).__name__)))


def _number_categories(feature: Feature, values: tuple[Any, ...]) -> tuple[Any, ...]:
    if feature.kind != "binary" or not set(values) <= {0, 1}:
        return tuple(sorted(values))
    # Both, as above.
    if all(isinstance(value, bool) for value in values):
        return (False, True)
    return (0, 1)


def needs_order(feature: Feature) -> ConstraintError:
    """The error where only the user knows which category is higher."""
    if feature.categories:
        levels = f" (in the data: {show(feature.categories)})"
    else:
        levels = ""
    return ConstraintError(
        f"{feature.name!r} is directed or ordinal, but which category is higher is not "
        f"known{levels}; ",
        Remedy("describe", (feature.name, "categories", "[lowest, …, highest]")),
        ".",
        code="unknown_order",
        field=f"categories.{feature.name}",
    )


def _pixel_range(feature: Feature, series: pd.Series) -> tuple[float, float]:
    # A byte can only be 0 to 255, whatever the data happen to hold.
    low, high = value_range(series.dtype)
    if np.isfinite(low) and high <= 255:
        return low, high
    values = read(feature, series)
    for low, high in ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)):
        if low <= np.nanmin(values) and np.nanmax(values) <= high:
            return low, high
    raise ConstraintError(
        f"The pixel {feature.name!r} holds {np.nanmin(values):g} to {np.nanmax(values):g}; ",
        Remedy("describe", (feature.name, "domain", "(lower, upper)")),
        ".",
        field=f"domain.{feature.name}",
    )
