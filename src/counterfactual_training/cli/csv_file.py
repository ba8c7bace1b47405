"""The one reader of CSV files: separators, decimal commas, encodings, blanks and codes for them."""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api import types

from counterfactual_training.cli.csv_format import BLANKS, NUMBER, CsvFormat, csv_format
from counterfactual_training.cli.output import note
from counterfactual_training.cli.parsing import pasted
from counterfactual_training.errors import InputError

# "1.234,5" and "1234,5"; a column of which every cell is one, and some have a comma, holds decimal
# commas.
COMMA = r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d+)?(?:[eE][+-]?\d+)?"
THOUSANDS = r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
POINTED_THOUSANDS = r"[+-]?\d{1,3}(?:\.\d{3})*"
# A text column with this share of numbers is reported.
_MOSTLY = 0.8
# A note names at most this many columns.
_SHOWN = 5


class Reading(NamedTuple):
    """Settings that a file does not show.

    Attributes:
        separator: of the cells; ``None`` finds out.
        na: texts that mean that nothing is known, besides blanks, ``NA`` and the like.
        text: columns whose cells stay as they are written: 007 is no number, and NA no blank.
    """

    separator: str | None = None
    na: Sequence[str] = ()
    text: Sequence[str] = ()


def read_table(
    spec: str | Path,
    reading: Reading | None = None,
    form: CsvFormat | None = None,
    flags: bool = True,
    empty: bool = False,
) -> pd.DataFrame:
    """The rows of a CSV file, numbered from 0. A note says what is left out or changed.

    Args:
        form: of the file, if it was looked at before.
        flags: whether the command has ``--na`` and ``--text``; otherwise no note names them.
        empty: whether a file without rows is taken; otherwise it is refused.
    """
    path = Path(spec)
    reading = reading or Reading()
    form = form or csv_format(path, reading.separator)
    try:
        frame = _read(path, form, reading, low_memory=False)
    except (ValueError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read as a table: {reason}") from error
    notes = [*form.notes]
    if not form.encoding.startswith("utf-8"):
        notes.append(f"read as {form.encoding.upper()}")
    _strip(frame, as_written(form, reading), reading)
    notes += _understand_numbers(path, form, frame, reading, flags)
    _refuse_infinity(path, form, frame)
    if flags:
        notes += _about_loss(form, frame, reading)
    frame, remarks = _without_blanks(path, frame, form)
    for line in (*notes, *remarks):
        note(f"{path.name}: {line}")
    if len(frame) == 0 and not empty:
        raise InputError(f"{path} has names of columns, but no rows.")
    return frame


def as_written(form: CsvFormat, reading: Reading) -> dict[int, type]:
    """The columns that stay text, as an argument for pandas."""
    text = set(reading.text)
    return {j: str for j, name in enumerate(form.names) if name in text}


def _read(path: Path, form: CsvFormat, reading: Reading, **options: Any) -> pd.DataFrame:
    """The cells, with columns numbered: pandas would take the first column for an index."""
    (frame,) = read_parts(path, form, reading, **options)
    return frame


def read_parts(
    path: Path, form: CsvFormat, reading: Reading, rows: int | None = None, **options: Any
) -> Iterator[pd.DataFrame]:
    """The cells, so many rows at a time; without a number, all of them at once."""
    text = as_written(form, reading)
    blanks: Any = ["", *BLANKS, *reading.na]
    if text:
        stated = ["", *reading.na]
        blanks = {j: stated if j in text else blanks for j in range(len(form.names))}
    with path.open(encoding=form.encoding, newline="") as file:
        # Not by skiprows, which counts a name with a line break as one line.
        for _ in range(form.skipped):
            next(file)
        columns = list(range(len(form.names)))
        try:
            read: Any = pd.read_csv(
                file,
                sep=form.separator,
                header=None,
                names=columns,
                index_col=False,
                skipinitialspace=form.separator != " ",
                keep_default_na=False,
                na_values=blanks,
                chunksize=rows,
                **{"dtype": text, **options},
            )
        except pd.errors.EmptyDataError:  # names of columns alone
            read = pd.DataFrame(columns=columns)
        yield from [read] if isinstance(read, pd.DataFrame) else read


def _strip(frame: pd.DataFrame, text: Container[int], reading: Reading) -> None:
    """Take spaces off the ends of texts, in place; pandas looks for blanks before that."""
    for j in _text_columns(frame):
        frame[j], is_blank = stripped(frame[j], j in text, reading)
        # A number beside " NA " was text for pandas.
        if is_blank and j not in text and _are_numbers(frame[j]):
            frame[j] = pd.to_numeric(frame[j])


def stripped(column: pd.Series, stays: bool, reading: Reading) -> tuple[pd.Series, bool]:
    """A column of text without spaces at the ends, and whether that made blanks; ``stays``: as it
    is written.
    """
    if stays:
        blanks = {"", *reading.na}
    else:
        blanks = {"", *BLANKS, *reading.na}
    bare = column.str.strip()
    is_blank = bare.isin(blanks)
    return bare.where(~is_blank), bool(is_blank.any())


def _are_numbers(column: pd.Series) -> bool:
    present = column.dropna()
    return len(present) > 0 and not pd.to_numeric(present, errors="coerce").isna().any()


def _text_columns(frame: pd.DataFrame) -> list[int]:
    """Columns of text; those that hold nothing, or yes and no only, are none."""
    # Looking at the type of a column first takes a tenth of the time, in tables with many columns.
    others = [j for j, dtype in enumerate(frame.dtypes) if not types.is_numeric_dtype(dtype)]
    return [j for j in others if types.infer_dtype(frame[j], skipna=True) == "string"]


def _without_blanks(
    path: Path, frame: pd.DataFrame, form: CsvFormat
) -> tuple[pd.DataFrame, list[str]]:
    """The frame with its names, without blank rows and unnamed columns, and what to tell."""
    notes = []
    blank = frame.isna().all(axis=1)
    if blank.any():
        notes.append(f"{int(blank.sum())} blank row(s) left out")
        frame = frame[~blank].reset_index(drop=True)
    unnamed = [j for j, name in enumerate(form.names) if not name]
    for j in unnamed:
        if frame[j].isna().all():
            notes.append(f"column {j + 1} has neither a name nor a value and is left out")
        elif j == 0:
            notes.append(
                "its first column has no name and is taken for the number of the row: left out"
            )
        else:
            raise InputError(
                f"Column {j + 1} of {path} has no name; give it one in the first line."
            )
    frame = frame.drop(columns=unnamed)
    return frame.set_axis([name for name in form.names if name], axis=1), notes


# ---- what a table of numbers cannot keep ---------------------------------------------------------


def _about_loss(form: CsvFormat, frame: pd.DataFrame, reading: Reading) -> list[str]:
    """Notes about 00123, which became 123, and about the category NA, which became a blank."""
    without_loss = {*reading.na, ""}
    written = as_written(form, reading)
    texts = set(_text_columns(frame))
    zeros = {
        form.names[j]: cell
        for j, cell in sorted(form.zeros.items())
        if cell not in without_loss
        and j not in written
        and types.is_numeric_dtype(frame[j].dtype)
    }
    words = {
        form.names[j]: cell
        for j, cell in sorted(form.words.items())
        if cell not in without_loss and j not in written and j in texts
    }
    zeros.pop("", None)
    words.pop("", None)
    notes = []
    if zeros:
        example = next(iter(zeros.values()))
        notes.append(
            f"zeros before a number are lost in {_columns(zeros)} ({example} is {int(example)}); "
            f"{_keep(zeros)} keeps such cells as written"
        )
    if words:
        shown = " and ".join(sorted(set(words.values())))
        notes.append(
            f"{shown} in {_columns(words)} is taken for a blank; {_keep(words)} keeps it as a text"
        )
    return notes


def _columns(names: Iterable[str]) -> str:
    quoted = [repr(name) for name in names]
    if len(quoted) > _SHOWN:
        more = f" and {len(quoted) - _SHOWN} more"
    else:
        more = ""
    return ", ".join(quoted[:_SHOWN]) + more


def _keep(names: Mapping[str, str]) -> str:
    """The flag that leaves columns as they are, as a shell takes it."""
    return pasted("--text", list(names)[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")


# ---- numbers that pandas took for text -----------------------------------------------------------


def _understand_numbers(
    path: Path, form: CsvFormat, frame: pd.DataFrame, reading: Reading, flags: bool
) -> list[str]:
    """Turn text into numbers, in place, where every cell is one; returns what to tell."""
    notes = []
    decimal_commas = False
    written = as_written(form, reading)
    for j in _text_columns(frame):
        if j in written:
            continue
        kind = _comma_means(frame[j].dropna(), form.separator)
        if kind == "thousands":
            frame[j] = pd.to_numeric(frame[j].str.replace(",", "", regex=False))
        elif kind == "decimals":
            decimal_commas = True
            plain = (
                frame[j].str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
            )
            frame[j] = pd.to_numeric(plain)
        elif (mostly := _mostly_numbers(frame[j], form.names[j], flags)) is not None:
            notes.append(mostly)
    if decimal_commas:
        notes.append("a comma is taken for the decimal sign")
        for j in range(len(form.names)):
            if types.is_float_dtype(frame[j].dtype):
                frame[j] = _pointed_thousands(path, form, frame, reading, j)
    return notes


def _refuse_infinity(path: Path, form: CsvFormat, frame: pd.DataFrame) -> None:
    for j, name in enumerate(form.names):
        if not types.is_float_dtype(frame[j].dtype):
            continue
        count = int(np.isinf(frame[j].to_numpy()).sum())
        if count:
            raise InputError(
                f"{path}: {name!r} holds infinity in {count} row(s). Correct these cells; if they "
                "mean 'not known', leave them blank."
            )


def _comma_means(text: pd.Series, separator: str) -> str:
    """The meaning of commas in a column of numbers: ``thousands``, ``decimals``, or nothing if a
    cell is no number.
    """
    if not text.str.contains(",", regex=False).any():
        return ""
    return comma_means(
        decimals=bool(text.str.fullmatch(COMMA).all()),
        thousands=bool(text.str.fullmatch(THOUSANDS).all()),
        separator=separator,
    )


def comma_means(decimals: bool, thousands: bool, separator: str) -> str:
    """Likewise for a column whose cells allow both."""
    # "1,234" may be either. Files that are separated by commas come from where commas group
    # thousands.
    if thousands and (separator == "," or not decimals):
        return "thousands"
    if decimals:
        return "decimals"
    return ""


def _pointed_thousands(
    path: Path, form: CsvFormat, frame: pd.DataFrame, reading: Reading, j: int
) -> pd.Series:
    """Where commas are decimal, the points of columns such as 1.200, 950 group thousands."""
    # As text, because pandas has already read 1.200 as a number of three decimals.
    text = _read(path, form, reading, usecols=[j], dtype=str)[j].str.strip()
    present = text[~text.isin(reading.na)].dropna()
    pointed = present.str.contains(".", regex=False).any()
    if not pointed or not present.str.fullmatch(POINTED_THOUSANDS).all():
        return frame[j]
    if len(text) != len(frame):
        return frame[j]
    numbers = present.str.replace(".", "", regex=False)
    return pd.to_numeric(numbers).reindex(frame.index).where(frame[j].notna())


def _mostly_numbers(column: pd.Series, name: str, flags: bool) -> str | None:
    """A sentence about a text column that was probably meant to hold numbers."""
    text = column.dropna().astype(str)
    numbers = text.str.fullmatch(NUMBER.pattern)
    others = text[~numbers].unique()
    if len(others) == 0 or numbers.mean() < _MOSTLY:
        return None
    shown = repr(others[0])
    if len(others) > 1:
        shown += f" and {len(others) - 1} more such texts"
    helps = f"add --na={shlex.quote(others[0])}"
    # Commas part the texts after --na, and a saved model has its own.
    if "," in others[0] or not flags:
        helps = "leave such cells blank"
    return f"{name!r} is read as text because of {shown}; if that means 'not known', {helps}"
