"""The one reader of CSV files: separators, decimal commas, encodings, blanks and codes for them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api import types

from counterfactual_training.cli.csv_format import NUMBER, CsvFormat, csv_format
from counterfactual_training.cli.output import note
from counterfactual_training.errors import InputError

# "1.234,5" and "1234,5"; a column of which every cell is one, and some have a comma, holds decimal commas.
_COMMA = r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d+)?(?:[eE][+-]?\d+)?"
_THOUSANDS = r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_POINTED_THOUSANDS = r"[+-]?\d{1,3}(?:\.\d{3})*"
# A text column with this share of numbers is told.
_MOSTLY = 0.8


class Reading(NamedTuple):
    """What cannot be seen in a file.

    Attributes:
        separator: of the cells; ``None`` finds out.
        na: texts that mean that nothing is known, besides blanks, ``NA`` and the like.
    """

    separator: str | None = None
    na: Sequence[str] = ()


def read_table(spec: str | Path, reading: Reading | None = None) -> pd.DataFrame:
    """The rows of a CSV file, numbered from 0. An unnamed first column and blank rows are left out, and told."""
    path, reading = Path(spec), reading or Reading()
    form = csv_format(path, reading.separator)
    try:
        frame = _read(path, form, skipinitialspace=form.separator != " ", na_values=list(reading.na), low_memory=False)
    except (ValueError, OverflowError, MemoryError) as error:
        raise InputError(f"{path} cannot be read as a table: {' '.join(str(error).split())}") from error
    for j in _text_columns(frame):
        stripped = frame[j].str.strip()  # pandas compares cells with words for blanks before it strips them
        frame[j] = stripped.where(~stripped.isin(("", *reading.na)))
    said = [] if form.encoding.startswith("utf-8") else [f"read as {form.encoding.upper()}"]
    said += _understand_numbers(path, form, frame)
    _refuse_infinity(path, form, frame)
    frame, told = _without_blanks(path, frame, form)
    for text in (*said, *told):
        note(f"{path.name}: {text}")
    return frame


def _read(path: Path, form: CsvFormat, **options: Any) -> pd.DataFrame:
    """The cells, with columns numbered: pandas would rename some names, and take the first column for an index."""
    with path.open(encoding=form.encoding, newline="") as file:
        # Not by skiprows, which counts a name with a line break as one line.
        for _ in range(form.skipped):
            next(file)
        return pd.read_csv(
            file, sep=form.separator, header=None, names=list(range(len(form.names))), index_col=False, **options
        )


def _text_columns(frame: pd.DataFrame) -> list[int]:
    """Columns of text; those that hold nothing, or yes and no only, are none."""
    return [j for j in range(frame.shape[1]) if types.infer_dtype(frame[j], skipna=True) == "string"]


def _without_blanks(path: Path, frame: pd.DataFrame, form: CsvFormat) -> tuple[pd.DataFrame, list[str]]:
    """The frame with its names, without blank rows and unnamed columns, and what to tell."""
    said = []
    blank = frame.isna().all(axis=1)
    if blank.any():
        said.append(f"{int(blank.sum())} blank row(s) left out")
        frame = frame[~blank].reset_index(drop=True)
    unnamed = [j for j, name in enumerate(form.names) if not name]
    for j in unnamed:
        if frame[j].isna().all():
            said.append(f"column {j + 1} has neither a name nor a value and is left out")
        elif j == 0:
            said.append("its first column has no name and is taken for the number of the row: left out")
        else:
            raise InputError(f"Column {j + 1} of {path} has no name; give it one in the first line.")
    frame = frame.drop(columns=unnamed)
    return frame.set_axis([name for j, name in enumerate(form.names) if j not in unnamed], axis=1), said


# ---- numbers that pandas took for text -------------------------------------------------------------------------------


def _understand_numbers(path: Path, form: CsvFormat, frame: pd.DataFrame) -> list[str]:
    """Turn text into numbers, in place, in columns where every cell is one; returns what to tell."""
    said, commas = [], False
    for j in _text_columns(frame):
        kind = _comma_means(frame[j].dropna(), form.separator)
        if kind == "thousands":
            frame[j] = pd.to_numeric(frame[j].str.replace(",", "", regex=False))
        elif kind == "decimals":
            commas = True
            plain = frame[j].str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
            frame[j] = pd.to_numeric(plain)
        elif (told := _mostly_numbers(frame[j], form.names[j])) is not None:
            said.append(told)
    if commas:
        said.append("a comma is taken for the decimal sign")
        for j in (j for j in range(len(form.names)) if types.is_float_dtype(frame[j].dtype)):
            frame[j] = _pointed_thousands(path, form, frame, j)
    return said


def _refuse_infinity(path: Path, form: CsvFormat, frame: pd.DataFrame) -> None:
    for j, name in enumerate(form.names):
        if types.is_float_dtype(frame[j].dtype) and (count := int(np.isinf(frame[j].to_numpy()).sum())):
            raise InputError(
                f"{path}: {name!r} holds infinity in {count} row(s). Correct these cells; if they mean 'not known', "
                "leave them blank."
            )


def _comma_means(text: pd.Series, separator: str) -> str:
    """What the commas of a column of numbers are: ``thousands``, ``decimals``, or nothing if a cell is no number."""
    if not text.str.contains(",", regex=False).any():
        return ""
    decimals, thousands = (bool(text.str.fullmatch(pattern).all()) for pattern in (_COMMA, _THOUSANDS))
    # "1,234" may be either. Files that are separated by commas come from where commas group thousands.
    if thousands and (separator == "," or not decimals):
        return "thousands"
    return "decimals" if decimals else ""


def _pointed_thousands(path: Path, form: CsvFormat, frame: pd.DataFrame, j: int) -> pd.Series:
    """Where commas are decimal signs, the points of a column such as 1.200, 950, 12.000 group thousands."""
    # As text, because pandas has already read 1.200 as a number of three decimals.
    text = _read(path, form, usecols=[j], dtype=str)[j].str.strip()
    present = text.dropna()
    pointed = present.str.contains(".", regex=False).any() and present.str.fullmatch(_POINTED_THOUSANDS).all()
    if not pointed or len(text) != len(frame):
        return frame[j]
    return pd.to_numeric(text.str.replace(".", "", regex=False)).where(frame[j].notna())


def _mostly_numbers(column: pd.Series, name: str) -> str | None:
    """A sentence about a text column that was probably meant to hold numbers."""
    text = column.dropna().astype(str)
    numbers = text.str.fullmatch(NUMBER.pattern)
    others = text[~numbers].unique()
    if len(others) == 0 or numbers.mean() < _MOSTLY:
        return None
    shown = f"{others[0]!r}" + (f" and {len(others) - 1} more such texts" if len(others) > 1 else "")
    # Commas part the texts after --na.
    helps = "leave such cells blank" if "," in others[0] else f"add --na={shlex.quote(others[0])}"
    return f"{name!r} is read as text because of {shown}; if that means 'not known', {helps}"
