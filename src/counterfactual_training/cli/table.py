"""A user's table as rows and classes to train on, as the options of `ct train`, `ct tune` and `ct schema` say."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pandas.api import types

from counterfactual_training.cli.csv_file import Reading, read_table
from counterfactual_training.cli.options import names
from counterfactual_training.cli.output import note
from counterfactual_training.cli.parsing import assignments, columns, interval, numbers, pick_label
from counterfactual_training.errors import InputError, check_name
from counterfactual_training.estimator.fit import validation_split
from counterfactual_training.estimator.origin import Origin, row_marks
from counterfactual_training.tabular.schema_file import read_features

# Fewer rows than this may hold different numbers by chance.
_FEWEST_ROWS = 10
_MOST_CLASSES = 50
_DATE = r"(?:\d{4}-\d{1,2}-\d{1,2}|\d{1,2}([./])\d{1,2}\1(?:\d{4}|\d{2}))(?:[T ].*)?"
_ID_NAME = re.compile(r"(.*[_\W])?(id|uid|uuid|index|row|nr|no|number)|.*[a-z]I[Dd]", re.IGNORECASE)
_CSV_ONLY = (
    "target", "positive", "separator", "na", "drop", "keep", "increase", "decrease", "mutability", "domain", "schema",
    "missing", "special", "gate",
)  # fmt: skip
_RULES = {"protect": "none", "increase": "increase", "decrease": "decrease"}
_FLAGS = {"protect": "--immutable", "increase": "--increase", "decrease": "--decrease"}


@dataclass(frozen=True, eq=False)
class TrainingTable:
    """Rows and their classes.

    Attributes:
        frame: the columns that a model may use.
        labels: the class of each row.
        target: the column they came from.
        positive: the class that people want, if it was said.
        left_out: columns of the file that are not used.
    """

    path: Path
    frame: pd.DataFrame
    labels: pd.Series
    target: str
    positive: Any
    left_out: tuple[str, ...]
    reading: Reading

    def split(self, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers to train on and to hold out, the same share of every class."""
        if not 0 <= share < 1:
            raise InputError(f"--test-share must be at least 0 and below 1, got {share}.")
        if not share:
            return np.arange(len(self.frame)), np.zeros(0, dtype=np.int64)
        codes = torch.from_numpy(pd.factorize(self.labels)[0])
        train, held_out = validation_split(codes, share, seed, keep_single=True)
        return train.numpy(), held_out.numpy()

    def origin(self, train: np.ndarray, held_out: np.ndarray) -> Origin:
        """What the model file should remember."""
        marks = row_marks(self.frame, self.labels)
        return Origin(self.target, self.positive, self.reading.to_dict(), marks[train], marks[held_out])


def add_reading(group: Any) -> None:
    """``--separator`` and ``--na``."""
    group.add_argument("--separator", metavar="CHAR", help="what separates cells (default: found out)")
    na = "texts that mean 'not known', besides blanks and NA, such as ?,unknown"
    group.add_argument("--na", metavar="TEXTS", help=na)


def add_columns(group: Any) -> None:
    """The options on the columns of a CSV file: class, rules, what to leave out."""
    group.add_argument("--target", "--target-column", metavar="COLUMN", help="the column that holds the class")
    add_reading(group)
    group.add_argument("--drop", nargs="+", metavar="COLUMNS", help="columns to leave out, such as id,name")
    keep = "columns to use although they look like the number or the name of a row"
    group.add_argument("--keep", nargs="+", metavar="COLUMNS", help=keep)


def add_rules(group: Any) -> None:
    """The rules on how columns may change, and what to do with blanks."""
    group.add_argument("--positive", metavar="CLASS", help="the class that people want; advice leads there by default")
    group.add_argument("--increase", nargs="+", metavar="COLUMNS", help="columns that may only rise")
    group.add_argument("--decrease", nargs="+", metavar="COLUMNS", help="columns that may only fall")
    mutability = "how a column may change: both, none, increase or decrease"
    group.add_argument("--mutability", nargs="+", metavar="COLUMN=HOW", help=mutability)
    group.add_argument("--domain", nargs="+", metavar="COLUMN=LOW:HIGH", help="where advice on a column may lead")
    special = "numbers that are codes, such as late=-9,-8 for 'no record': states of their own, never advised"
    group.add_argument("--special", nargs="+", metavar="COLUMN=CODES", help=special)
    schema = "TOML or JSON file that describes columns; `ct schema` writes a first draft"
    group.add_argument("--schema", metavar="FILE", help=schema)
    missing = "blank cells: refuse them, or fill in the median or the most frequent category (default: error)"
    group.add_argument("--missing", choices=["error", "impute"], help=missing)


def add_test_share(group: Any) -> None:
    """``--test-share``."""
    group.add_argument("--test-share", type=float, default=0.2, metavar="SHARE", help="of the rows, held out")


def refuse_csv_options(arguments: argparse.Namespace) -> None:
    """Raise an error if an option for CSV files was given with the name of a data set."""
    for option in _CSV_ONLY:
        if getattr(arguments, option, None) is not None:
            raise InputError(f"--{option} is for CSV files; {arguments.data!r} is the name of a data set.")


def chosen_reading(arguments: argparse.Namespace) -> Reading:
    return Reading(arguments.separator, tuple(names(arguments.na) or ()))


def training_table(arguments: argparse.Namespace) -> TrainingTable:
    """Read the file that ``arguments.data`` names, as the options of :func:`add_columns` say."""
    reading, path = chosen_reading(arguments), Path(arguments.data)
    frame = read_table(path, reading)
    target = need_target(path, frame, arguments.target)
    frame, left_out = usable(path, frame, target, arguments)
    rows = frame[target].notna()
    if not rows.all():
        note(f"{path.name}: {int((~rows).sum())} row(s) without a value of {target!r} are left out")
    labels = _classes(frame.loc[rows, target], target)
    frame = frame.loc[rows].drop(columns=target).reset_index(drop=True)
    positive = pick_label(getattr(arguments, "positive", None), sorted(labels.unique().tolist()), "--positive")
    return TrainingTable(path, frame, labels.reset_index(drop=True), target, positive, left_out, reading)


def need_target(path: Path, frame: pd.DataFrame, target: str | None) -> str:
    if len(frame.columns) == 1:
        raise InputError(
            f"{path} has one column, {frame.columns[0]!r}; a table needs the class and at least one more. If something "
            "other than , ; | or a tab separates its cells, say what: --separator."
        )
    if target is None:
        shown = ", ".join(map(str, frame.columns[:20])) + (", …" if len(frame.columns) > 20 else "")
        raise InputError(f"Say which column of {path} holds the class: --target COLUMN, one of {shown}.")
    check_name(f"column of {path} in --target", target, list(frame.columns))
    return target


def usable(
    path: Path, frame: pd.DataFrame, target: str | None, arguments: argparse.Namespace
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The frame without the columns that were named, are empty, or only tell rows apart; and their names."""
    known = list(frame.columns)
    dropped = columns(arguments.drop, known, "--drop")
    if target in dropped:
        raise InputError(f"{target!r} is named by --target and by --drop; it cannot be both.")
    keep = {*columns(arguments.keep, known, "--keep"), *dropped, *_named_in_rules(arguments, known), target}
    noticed = {name: why for name in known if name not in keep and (why := _useless(frame[name])) is not None}
    for name, why in noticed.items():
        note(f"{path.name}: {name!r} {why} and is left out; --keep {name} uses it")
    left_out = (*dropped, *noticed)
    if not set(known) - {*left_out, target}:
        raise InputError(f"Nothing is left of {path} to learn from: {', '.join(left_out) or 'nothing'} left out.")
    return frame.drop(columns=list(left_out)), left_out


def _useless(column: pd.Series) -> str | None:
    """Why nothing can be learned from a column as it is: it is empty, holds dates, or only tells rows apart."""
    present = column.dropna()
    if len(present) == 0:
        return "is empty"
    if types.is_string_dtype(column.dtype) and present.str.fullmatch(_DATE).all():
        return "holds dates, which no model takes as they are,"
    if len(column) < _FEWEST_ROWS or len(present) < len(column) or not present.is_unique:
        return None
    if types.is_bool_dtype(column.dtype):
        return None
    if not types.is_numeric_dtype(column.dtype):
        return "has a different text in every row"
    whole = types.is_integer_dtype(column.dtype) or bool((present % 1 == 0).all())
    if whole and present.max() - present.min() == len(present) - 1:
        return "counts the rows"
    return "numbers the rows" if whole and _ID_NAME.fullmatch(str(column.name)) else None


def _classes(labels: pd.Series, target: str) -> pd.Series:
    found = labels.nunique()
    if found < 2:
        only = f", {labels.iloc[0]!r}" if len(labels) else ""
        raise InputError(f"--target {target!r} holds {found} class(es){only}; a classifier needs at least two.")
    if found > _MOST_CLASSES:
        raise InputError(
            f"--target {target!r} holds {found} different values, too many for classes. Name another column, or write "
            "classes such as 'low' and 'high' into the file."
        )
    if types.is_float_dtype(labels.dtype) and (labels % 1 == 0).all():  # blanks made pandas store floats
        return labels.astype(np.int64)
    return labels.astype(str) if types.is_float_dtype(labels.dtype) else labels


# ---- rules -----------------------------------------------------------------------------------------------------------


def rules(arguments: argparse.Namespace, table: TrainingTable) -> dict[str, Any]:
    """``mutability``, ``domain``, ``schema`` and ``missing`` of the classifier."""
    known = list(table.frame.columns)
    mutability: dict[str, str] = {}
    for option, how in _RULES.items():
        for name in columns(getattr(arguments, option), known, _FLAGS[option]):
            if mutability.setdefault(name, how) != how:
                raise InputError(f"{name!r} is named by {_FLAGS[option]}, and another option says {mutability[name]}.")
    stated = assignments(arguments.mutability, "mutability")
    domain = {name: interval(text) for name, text in assignments(arguments.domain, "domain").items()}
    _check_columns(stated, known, "--mutability")
    _check_columns(domain, known, "--domain")
    schema = _schema(arguments.schema, table)
    for name, text in assignments(getattr(arguments, "special", None), "special", "COLUMN=CODES").items():
        check_name("column in --special", name, known)
        schema = {**(schema or {}), name: {**(schema or {}).get(name, {}), "special": numbers(text, "--special")}}
    return {
        "mutability": (stated | mutability) or None,
        "domain": domain,
        "schema": schema,
        "missing": arguments.missing or "error",
    }


def _schema(file: str | None, table: TrainingTable) -> dict[str, Any] | None:
    """What the file states; it may describe the class and columns that are left out."""
    if file is None:
        return None
    stated = read_features(file)
    unused = {table.target, *table.left_out}
    described = [name for name, spec in stated.items() if isinstance(spec, Mapping)]
    _check_columns(described, [*table.frame.columns, *unused], f"--schema {file}")
    return {name: spec for name, spec in stated.items() if name not in unused}


def _check_columns(given: Any, known: Sequence[str], flag: str) -> None:
    for name in given:
        check_name(f"column in {flag}", name, known)


def _named_in_rules(arguments: argparse.Namespace, known: Sequence[str]) -> set[str]:
    """Columns that a rule names are meant to be used."""
    given = [getattr(arguments, option, None) for option in _RULES]
    found = {name for items, flag in zip(given, _FLAGS.values(), strict=True) for name in columns(items, known, flag)}
    for option in ("mutability", "domain", "special"):
        found |= set(assignments(getattr(arguments, option, None), option))
    return found
