"""A user's table as rows and classes to train on, as the options of `ct train`, `ct tune` and `ct
schema` say.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pandas.api import types

from counterfactual_training import defaults
from counterfactual_training.cli.csv_file import Reading, read_table
from counterfactual_training.cli.csv_format import csv_format
from counterfactual_training.cli.options import names
from counterfactual_training.cli.output import note
from counterfactual_training.cli.parsing import (
    RANGE,
    assignments,
    columns,
    interval_ends,
    numbers,
    pasted,
    pick_label,
)
from counterfactual_training.datasets import load_dataset
from counterfactual_training.errors import InputError, check_name
from counterfactual_training.tables.columns.infer import days_since, holds_dates
from counterfactual_training.tables.columns.schema import Schema
from counterfactual_training.tables.columns.schema_file import read_features
from counterfactual_training.tables.estimators.file import Origin, row_marks
from counterfactual_training.tables.estimators.fit import validation_split

# Fewer rows than this may hold different numbers by chance.
_FEWEST_ROWS = 10
_MOST_CLASSES = 50
_ID_NAME = re.compile(
    r"(.*[_\W])?(id|uid|uuid|index|row|nr|no|number)|.*[a-z]I[Dd]", re.IGNORECASE
)
_DIRECTIONS = {"immutable": "none", "increase": "increase", "decrease": "decrease"}


@dataclass(frozen=True, eq=False)
class TrainingTable:
    """Rows and their classes, of a file or of a named data set.

    Attributes:
        source: the file, or the name of the data set.
        frame: the columns that a model may use.
        labels: the class of each row.
        target: the column they came from.
        positive: the class that people want, if it was said.
        dropped_columns: columns of the file that are not used.
        reading: what the model file should remember to find these rows again.
        schema: of a named data set, what it says about its columns.
        tested: of a named data set, how many of the last rows are its test rows.
    """

    source: str
    frame: pd.DataFrame
    labels: pd.Series
    target: str
    positive: Any
    dropped_columns: tuple[str, ...]
    reading: Mapping[str, Any]
    schema: Schema | None = None
    tested: int | None = None

    def split(self, share: float | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers to train on and to hold out: the test rows of a named data set, or the same
        share of every class, by default a fifth.
        """
        if self.tested is not None:
            rows = np.arange(len(self.frame))
            return rows[: -self.tested], rows[-self.tested :]
        if share is None:
            share = defaults.TEST_SHARE
        if not 0 <= share < 1:
            raise InputError(f"--test-share must be at least 0 and below 1, got {share}.")
        if not share:
            return np.arange(len(self.frame)), np.zeros(0, dtype=np.int64)
        # A class with a single row stays in training: a table of a user may well have one.
        codes = torch.from_numpy(pd.factorize(self.labels)[0])
        train, held_out = validation_split(codes, share, seed, keep_single=True)
        return train.numpy(), held_out.numpy()

    def origin(self, train: np.ndarray, held_out: np.ndarray) -> Origin:
        """What the model file should remember."""
        marks = row_marks(self.frame, self.labels)
        return Origin(
            self.target, self.positive, dict(self.reading), marks[train], marks[held_out]
        )


def read_with_options(arguments: argparse.Namespace) -> tuple[pd.DataFrame, Reading]:
    """The rows of the file that ``arguments.data`` names, and how the options say to read it."""
    form = csv_format(Path(arguments.data), arguments.separator)
    text = columns(arguments.text, form.names, "--text")
    reading = Reading(arguments.separator, tuple(names(arguments.na) or ()), tuple(text))
    return read_table(arguments.data, reading, form), reading


def training_table(arguments: argparse.Namespace) -> TrainingTable:
    """Read the file that ``arguments.data`` names, as the options of :func:`add_table` say."""
    path = Path(arguments.data)
    frame, reading = read_with_options(arguments)
    target = need_target(path, frame, arguments.target)
    frame, dropped_columns = usable(path, frame, target, arguments)
    rows = frame[target].notna()
    if not rows.all():
        note(
            f"{path.name}: {int((~rows).sum())} row(s) without a value of {target!r} are left out"
        )
    labels = _classes(frame.loc[rows, target], target)
    frame = frame.loc[rows].drop(columns=target).reset_index(drop=True)
    positive = pick_label(arguments.positive, sorted(labels.unique().tolist()))
    return TrainingTable(
        str(path),
        frame,
        labels.reset_index(drop=True),
        target,
        positive,
        dropped_columns,
        reading._asdict(),
    )


def named_table(arguments: argparse.Namespace) -> TrainingTable:
    """The data set that ``arguments.data`` names: its training rows, then its test rows."""
    data = load_dataset(arguments.data, arguments.variant)
    classes = np.array(data.class_names, dtype=object)
    frame = pd.concat([data.frame_train, data.frame_test], ignore_index=True)
    labels = pd.Series(classes[torch.cat([data.y_train, data.y_test]).numpy()])
    positive = pick_label(arguments.positive, list(data.class_names))
    return TrainingTable(
        data.name,
        frame,
        labels,
        "class",
        positive,
        (),
        {"dataset": data.name, "variant": data.variant},
        schema=data.schema,
        tested=len(data.y_test),
    )


def need_target(path: Path, frame: pd.DataFrame, target: str | None) -> str:
    if len(frame.columns) == 1:
        raise InputError(
            f"{path} has one column, {frame.columns[0]!r}; a table needs the class and at least "
            "one more. If something "
            "other than , ; | or a tab separates its cells, say what: --separator."
        )
    if target is None:
        shown = ", ".join(map(shlex.quote, frame.columns[:20])) + (
            ", …" if len(frame.columns) > 20 else ""
        )
        raise InputError(
            f"Say which column of {path} holds the class: --target COLUMN, one of {shown}."
        )
    check_name(f"column of {path} in --target", target, list(frame.columns))
    return target


def usable(
    path: Path, frame: pd.DataFrame, target: str | None, arguments: argparse.Namespace
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The frame without columns that were named, are empty or only tell rows apart."""
    column_names = list(frame.columns)
    dropped = columns(arguments.drop, column_names, "--drop")
    if target in dropped:
        raise InputError(f"{target!r} is named by --target and by --drop; it cannot be both.")
    ruled = _by_column(
        arguments, column_names
    ).values()  # columns that a rule names are meant to be used
    keep = {
        *columns(arguments.keep, column_names, "--keep"),
        *dropped,
        *(name for rule in ruled for name in rule),
        target,
    }
    noticed = {
        name: why
        for name in column_names
        if name not in keep and (why := _useless(frame[name])) is not None
    }
    for name, why in noticed.items():
        note(f"{path.name}: {name!r} {why} and is left out; {_helps(frame[name])}")
    dropped_columns = (*dropped, *noticed)
    if not set(column_names) - {*dropped_columns, target}:
        raise InputError(
            f"Nothing is left of {path} to learn from: "
            f"{', '.join(dropped_columns) or 'nothing'} left out."
        )
    return frame.drop(columns=list(dropped_columns)), dropped_columns


def _useless(column: pd.Series) -> str | None:
    """Why a column is useless for training: it is empty, holds dates, or only tells rows apart."""
    present = column.dropna()
    if len(present) == 0:
        return "is empty"
    if holds_dates(column):
        return "holds dates, which no model takes as they are,"
    # An identifier is there in every row, and different in every row.
    if len(column) < _FEWEST_ROWS or len(present) < len(column) or not present.is_unique:
        return None
    return _identifies(column)


def _identifies(present: pd.Series) -> str | None:
    """Why different values in all rows only tell these apart, if they do."""
    if types.is_bool_dtype(present.dtype):
        return None
    if not types.is_numeric_dtype(present.dtype):
        return "has a different text in every row"
    integers = types.is_integer_dtype(present.dtype) or bool((present % 1 == 0).all())
    if integers and present.max() - present.min() == len(present) - 1:
        return "counts the rows"
    if integers and _ID_NAME.fullmatch(str(present.name)):
        return "numbers the rows"
    return None


def _helps(column: pd.Series) -> str:
    """How to use a column that is left out."""
    if not holds_dates(column):
        return f"{pasted('--keep', [str(column.name)])} uses it"
    return f"to use it, write numbers into the file, with pandas: {days_since(column)}"


def _classes(labels: pd.Series, target: str) -> pd.Series:
    num_classes = labels.nunique()
    if num_classes < 2:
        if len(labels):
            only = f", {labels.iloc[0]!r}"
        else:
            only = ""
        raise InputError(
            f"--target {target!r} holds {num_classes} class(es){only}; "
            "a classifier needs at least two."
        )
    if num_classes > _MOST_CLASSES:
        raise InputError(
            f"--target {target!r} holds {num_classes} different values, too many for classes. Name "
            "another column, or write "
            "classes such as 'low' and 'high' into the file."
        )
    # Blanks made pandas store floats.
    if types.is_float_dtype(labels.dtype) and (labels % 1 == 0).all():
        return labels.astype(np.int64)
    if types.is_float_dtype(labels.dtype):
        return labels.astype(str)
    return labels


# ---- rules ---------------------------------------------------------------------------------------


def rules(arguments: argparse.Namespace, table: TrainingTable) -> dict[str, Any]:
    """``mutability``, ``domain``, ``special``, ``schema`` and ``missing`` of the classifier."""
    by_column = _by_column(arguments, list(table.frame.columns))
    schema: Any = table.schema
    if arguments.schema is not None:
        # A file may also describe the class and columns that are left out; it is one for the whole
        # CSV file.
        stated = read_features(arguments.schema)
        unused = {table.target, *table.dropped_columns}
        for name, spec in stated.items():
            if isinstance(spec, Mapping):  # others are relations
                check_name(
                    f"column in --schema {arguments.schema}",
                    name,
                    [*table.frame.columns, *unused],
                )
        schema = {name: spec for name, spec in stated.items() if name not in unused}
    # No mutability at all, unlike an empty one, lets `fit` point out columns that nobody can
    # change.
    by_column["mutability"] = by_column["mutability"] or None
    return {**by_column, "schema": schema, "missing": arguments.missing or "error"}


def _by_column(arguments: argparse.Namespace, column_names: Sequence[str]) -> dict[str, Any]:
    """``mutability``, ``domain`` and ``special`` by column, as the options say; `ct schema` has
    none of them.
    """
    directed: dict[str, str] = {}
    for option, how in _DIRECTIONS.items():
        flag = f"--{option}"
        for name in columns(getattr(arguments, option, None), column_names, flag):
            if directed.setdefault(name, how) != how:
                raise InputError(
                    f"{name!r} is named by {flag}, and another option says {directed[name]}."
                )
    rules: dict[str, dict[str, Any]] = {}
    for option, form, value in (
        ("mutability", "COLUMN=VALUE", str),
        ("domain", RANGE, interval_ends),
        ("special", "COLUMN=NUMBERS, separated by commas", numbers),
    ):
        rules[option] = assignments(getattr(arguments, option, None), option, form, value)
        for name in rules[option]:
            check_name(f"column in --{option}", name, column_names)
    rules["mutability"] |= directed
    return rules
