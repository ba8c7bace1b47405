"""Where rows come from: a named data set, or a CSV file of the user's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from counterfactual_training.errors import InputError, unknown


@dataclass(frozen=True, eq=False)
class Csv:
    """Rows of a CSV file, and their classes where a target column was named."""

    path: Path
    frame: pd.DataFrame
    labels: pd.Series | None

    def need_labels(self) -> pd.Series:
        if self.labels is None:
            columns = ", ".join(map(str, self.frame.columns))
            raise InputError(
                f"Say which column of {self.path} holds the class: --target-column NAME, one of {columns}."
            )
        return self.labels


def is_csv(spec: str) -> bool:
    """Whether the user means a file: names of data sets have neither dots nor slashes."""
    return Path(spec).suffix != "" or Path(spec).name != spec


def read_csv(spec: str, target_column: str | None) -> Csv:
    path = Path(spec)
    if not path.is_file():
        raise InputError(f"There is no file {spec!r}.")
    try:
        frame = pd.read_csv(path, sep="\t" if spec.lower().endswith(".tsv") else ",")
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{spec!r} cannot be read as a table: {error}") from error
    if target_column is None:
        return Csv(path, frame, None)
    if target_column not in frame.columns:
        raise InputError(unknown(f"column of {spec}:", target_column, frame.columns))
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
    picked = frame.iloc[numbers]
    return picked.set_axis(numbers, axis=0)


def pick_label(text: str | None, classes: Any) -> Any:
    """The class label that a user wrote as text, or nothing."""
    if text is None:
        return None
    by_name = {str(label): label for label in classes}
    if text not in by_name:
        raise InputError(unknown("class", text, by_name))
    return by_name[text]


def assignments(items: list[str] | None, what: str) -> dict[str, str]:
    """``["age=none", "debt=decrease"]`` as a dict."""
    pairs = {}
    for item in items or []:
        name, equals, value = item.rpartition("=")
        if not equals or not name:
            raise InputError(f"--{what} takes COLUMN=VALUE, got {item!r}.")
        pairs[name] = value
    return pairs


def interval(text: str) -> tuple[float | None, float | None]:
    """``18:90``, ``0:`` or ``:100``."""
    low, colon, high = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return (float(low) if low else None), (float(high) if high else None)
    except ValueError:
        raise InputError(f"--domain takes COLUMN=LOW:HIGH, either side may be left out, got {text!r}.") from None
