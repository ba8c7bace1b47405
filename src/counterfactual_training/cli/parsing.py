"""Words of the command line as values: CSV files, numbers of rows, classes, settings."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from counterfactual_training.errors import InputError, check_name, lookup


@dataclass(frozen=True, eq=False)
class Csv:
    """Rows of a CSV file, and their classes if a target column was named."""

    path: Path
    frame: pd.DataFrame
    labels: pd.Series | None

    def wanted(self, names: Sequence[str]) -> pd.DataFrame:
        """The columns that a model uses; a file may hold more, such as the class."""
        return self.frame[[name for name in self.frame.columns if name in names]]

    def need_labels(self) -> pd.Series:
        if self.labels is None:
            columns = f"one of {', '.join(map(str, self.frame.columns))}"
            raise InputError(f"Say which column of {self.path} holds the class: --target-column NAME, {columns}.")
        return self.labels


def is_csv(spec: str) -> bool:
    """Whether the user means a file: names of data sets have neither dots nor slashes."""
    return Path(spec).suffix != "" or Path(spec).name != spec


def read_csv(spec: str, target_column: str | None) -> Csv:
    path = Path(spec)
    if not path.is_file():
        raise InputError(f"There is no file {spec!r}.")
    try:
        frame = pd.read_csv(path, sep="\t" if path.suffix.lower() == ".tsv" else ",")
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{spec!r} cannot be read as a table: {error}") from error
    if target_column is None:
        return Csv(path, frame, None)
    check_name(f"column of {spec}:", target_column, frame.columns)
    return Csv(path, frame.drop(columns=target_column), frame[target_column])


def pick_rows(frame: pd.DataFrame, spec: str) -> pd.DataFrame:
    """Rows by number, counted from 0: ``0,1,2`` or ``0-9`` or both."""
    numbers: list[int] = []
    for part in spec.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            start = int(first)
            numbers += range(start, int(last) + 1) if dash else [start]
        except ValueError:
            raise InputError(f"--rows takes numbers such as 0,1,2 or 0-9, got {spec!r}.") from None
    missing = [number for number in numbers if not 0 <= number < len(frame)]
    if missing or not numbers:
        asked = f"row {missing[0]}" if missing else "nothing"
        raise InputError(f"There are rows 0 to {len(frame) - 1}; {asked} was asked for.")
    return frame.iloc[numbers].set_axis(numbers, axis=0)


def pick_label(text: str | None, classes: Any) -> Any:
    """The class label that a user wrote as text, or nothing."""
    return None if text is None else lookup("class", text, {str(label): label for label in classes})


def assignments(items: Sequence[str] | None, option: str, form: str = "COLUMN=VALUE") -> dict[str, str]:
    """``["age=none", "debt=decrease"]`` as a dict."""
    pairs = {}
    for item in items or []:
        name, equals, value = item.rpartition("=")  # names of columns may contain "="
        if not equals or not name:
            raise InputError(f"--{option} takes {form}, got {item!r}.")
        pairs[name] = value
    return pairs


def settings(items: Sequence[str]) -> dict[str, Any]:
    """``["burn_in=0.1", "adversarial_label=predicted"]`` as a dict; text that is not a Python literal stays text."""
    found: dict[str, Any] = dict(assignments(items, "set", "NAME=VALUE"))
    for name, text in found.items():
        with contextlib.suppress(ValueError, SyntaxError):
            found[name] = ast.literal_eval(text)
    return found


def interval(text: str) -> tuple[float | None, float | None]:
    """``18:90``, ``0:`` or ``:100``."""
    try:
        low, high = (float(end) if end else None for end in text.split(":", 1))
        return low, high
    except ValueError:
        raise InputError(f"--domain takes COLUMN=LOW:HIGH, either side may be empty, got {text!r}.") from None
