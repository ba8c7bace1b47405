"""Groups of people, from columns of a frame: categories, bands of numbers, two crossed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from pandas.api import types

from counterfactual_training.errors import InputError, check_name
from counterfactual_training.tables.columns.schema import Schema

Kind = Literal["all", "categories", "bands", "crossed"]

EVERYBODY = "everybody"
OTHERS = "others"
MISSING = "missing"
# More groups than this cannot be read; the rarest become "others".
_MOST_GROUPS = 8
# Text with more values than this is a name or a number of a row, not a group.
_MOST_VALUES = 60
# Where numbers are cut, before the edges are rounded.
_CUTS = (0.2, 0.4, 0.6, 0.8)
_CROSS = "*"


@dataclass(frozen=True, eq=False)
class Grouping:
    """People by group.

    Attributes:
        column: ``None`` for everybody, otherwise the column, or two joined by ``*``.
        codes: ``(n,)`` the group of each person, as a place in ``names``.
        names: of the groups, in an order for people.
        parts: the columns it is made of.
    """

    column: str | None
    kind: Kind
    codes: np.ndarray
    names: tuple[str, ...]
    parts: tuple[str, ...] = ()

    @property
    def sizes(self) -> np.ndarray:
        """``(g,)`` people in each group."""
        return np.bincount(self.codes, minlength=len(self.names))


def everybody(n: int) -> Grouping:
    return Grouping(None, "all", np.zeros(n, dtype=np.int64), (EVERYBODY,))


def make_groupings(frame: pd.DataFrame, columns: Sequence[str]) -> list[Grouping]:
    """One grouping per name; ``"sex*race"`` crosses two columns."""
    if isinstance(columns, str):
        raise InputError(
            f"groups takes a list of columns, such as [{columns!r}], got the text {columns!r}."
        )
    if columns is None or not all(isinstance(name, str) for name in columns):
        raise InputError(
            "groups takes a list of names of columns, such as ['sex', 'sex*race'], got "
            f"{columns!r}."
        )
    return [_grouping(frame, name) for name in dict.fromkeys(columns)]


def usual_groups(frame: pd.DataFrame, schema: Schema, most: int = 4) -> list[str]:
    """Columns to group by if none are named: unchangeable ones, categories first."""
    fixed = sorted(
        (f for f in schema if f.mutability == "none"),
        key=lambda feature: not feature.is_category,
    )
    names = []
    for feature in fixed:
        values = frame[feature.name].nunique(dropna=False)
        # A category with many values is hard to read; a user may still name it.
        if values > 1 and (values <= _MOST_GROUPS or not feature.is_category):
            names.append(feature.name)
    return names[:most]


def _grouping(frame: pd.DataFrame, name: str) -> Grouping:
    names = [str(column) for column in frame.columns]
    # A column may itself be called "a*b"; then it is meant.
    if name in names:
        parts = [name]
    else:
        parts = [part.strip() for part in str(name).split(_CROSS)]
    for part in parts:
        check_name("group column", part, names)
    if len(parts) == 1:
        return _of_column(frame[name])
    if len(parts) > 2 or parts[0] == parts[1]:
        raise InputError(
            f"A crossing takes two different columns, such as sex{_CROSS}race, got {name!r}."
        )
    return _crossed(*(_of_column(frame[part]) for part in parts))


def _of_column(column: pd.Series) -> Grouping:
    present = column.dropna()
    distinct = present.nunique()
    if distinct + int(column.isna().any()) < 2:
        if distinct:
            only = f" ({present.iloc[0]!r})"
        else:
            only = ""
        raise InputError(
            f"Group column {column.name!r} has one value{only} in these rows: there is nothing "
            "to compare."
        )
    numeric = types.is_numeric_dtype(column.dtype) and not types.is_bool_dtype(column.dtype)
    if numeric and distinct > _MOST_GROUPS:
        return _banded(column)
    # Few rows of a column of names hold few names; then nearly every row has its own.
    if distinct > _MOST_VALUES or distinct > max(_MOST_GROUPS, len(present) // 2):
        raise InputError(
            f"Group column {column.name!r} has {distinct:,} different values, too many for "
            "groups. Name another "
            "column, or write a coarser one into the data."
        )
    return _listed(column)


def _listed(column: pd.Series) -> Grouping:
    """Each value is a group; of many, the rarest are put together."""
    values = column.astype(object)
    counts = values.value_counts()
    if len(counts) <= _MOST_GROUPS:
        listed = counts.index
    else:
        listed = counts.index[: _MOST_GROUPS - 1]
    texts = (
        values.where(values.isin(listed) | values.isna(), OTHERS)
        .map(str)
        .where(values.notna(), MISSING)
    )
    ordered = [str(value) for value in _in_order(column, listed)]
    return _coded(column, "categories", texts, [*ordered, OTHERS, MISSING])


def _in_order(column: pd.Series, groups: pd.Index) -> list[object]:
    """As the data orders them: an ordered category by its order, everything else by value."""
    if isinstance(column.dtype, pd.CategoricalDtype) and column.dtype.ordered:
        return [value for value in column.dtype.categories if value in set(groups)]
    try:
        return sorted(groups)
    except TypeError:  # numbers and text in one column
        return sorted(groups, key=str)


def _banded(column: pd.Series) -> Grouping:
    """A column of numbers in up to five bands of similar size, cut at round numbers."""
    values = column.astype(float)
    values = values.where(np.isfinite(values))  # an infinite value belongs to no band
    edges = round_edges(values.dropna().to_numpy())
    integers = bool((values.dropna() % 1 == 0).all())
    names = _band_names(edges, integers)
    # An edge belongs to the band above it, so that "under 30" means what it says.
    place = np.searchsorted(edges, values.to_numpy(), side="right")
    texts = pd.Series(np.array(names, dtype=object)[place], index=column.index).where(
        values.notna(), MISSING
    )
    return _coded(column, "bands", texts, [*names, MISSING])


def round_edges(values: np.ndarray) -> np.ndarray:
    """Quintiles, rounded as coarsely as keeps them apart: 26, 33, 41, 50 become 25, 35, 40, 50."""
    cuts = np.unique(np.quantile(values, _CUTS))
    low = values.min()
    # Nobody lies below the smallest value.
    cuts = cuts[cuts > low]
    if not len(cuts):  # more than four in five share the smallest value
        cuts = np.array([values[values > low].min()])
    power = np.floor(np.log10(np.ptp(values)))
    for step in (
        size * 10.0**p for p in np.arange(power, power - 8, -1) for size in (5.0, 2.5, 2.0, 1.0)
    ):
        edges = np.unique(np.round(cuts / step) * step)
        if len(edges) == len(cuts) and edges[0] > low:
            # Through text, because 3 × 0.1 is above 0.3 and a person with 0.3 would fall below it;
            # + 0 turns −0 to 0.
            return np.array([float(f"{edge:.12g}") for edge in edges]) + 0.0
    return cuts


def _band_names(edges: np.ndarray, integers: bool) -> list[str]:
    shown = [f"{edge:,.6g}".replace("-", "−") for edge in edges]
    integers = integers and bool((edges % 1 == 0).all())
    last = [f"{edge - 1:,.6g}".replace("-", "−") for edge in edges]
    # "30 to 39" for whole numbers, "30 to under 40" for others.
    between = [
        (low if low == last[j + 1] else f"{low} to {last[j + 1]}")
        if integers
        else f"{low} to under {shown[j + 1]}"
        for j, low in enumerate(shown[:-1])
    ]
    return [f"under {shown[0]}", *between, f"{shown[-1]} and over"]


def _coded(column: pd.Series, kind: Kind, texts: pd.Series, order: Sequence[str]) -> Grouping:
    present = set(texts)
    names = tuple(name for name in dict.fromkeys(order) if name in present)
    place = {name: j for j, name in enumerate(names)}
    codes = np.array([place[text] for text in texts], dtype=np.int64)
    return Grouping(str(column.name), kind, codes, names, (str(column.name),))


def _crossed(first: Grouping, second: Grouping) -> Grouping:
    """Every pair of groups that occurs."""
    joint = first.codes * len(second.names) + second.codes
    present, codes = np.unique(joint, return_inverse=True)
    pairs = [divmod(int(pair), len(second.names)) for pair in present]
    names = tuple(f"{first.names[i]}, {second.names[j]}" for i, j in pairs)
    return Grouping(
        f"{first.column}{_CROSS}{second.column}",
        "crossed",
        codes,
        names,
        first.parts + second.parts,
    )
