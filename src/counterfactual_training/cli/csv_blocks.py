"""A CSV file in blocks of rows, each read as `read_table` reads the whole: all cells of a column
decide its type.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pandas.api import types

from counterfactual_training.cli.csv_file import (
    COMMA,
    POINTED_THOUSANDS,
    THOUSANDS,
    Reading,
    as_written,
    comma_means,
    read_parts,
    stripped,
)
from counterfactual_training.cli.csv_format import BLANKS, NUMBER, csv_format, rows_of
from counterfactual_training.cli.output import note
from counterfactual_training.errors import InputError

# How a column is read. "bare" holds numbers between spaces, "pointed" ones such as 1.200 for 1200.
How = Literal[
    "written",
    "text",
    "bare",
    "thousands",
    "decimals",
    "pointed",
    "integer",
    "number",
    "boolean",
    "blank",
]
_AS_TEXT = ("written", "text", "bare", "thousands", "decimals", "pointed")
_DTYPES: dict[str, Any] = {
    **dict.fromkeys(_AS_TEXT, str),
    "integer": np.int64,
    "number": np.float64,
}


class CsvBlocks:
    """The rows of a file, so many at a time; their index counts from 0 through the whole file.

    The file is read several times from beginning to end, and never held in memory: first to find
    out what each column holds, then once for every iteration.

    Args:
        path: of the file; any size.
        reading: settings that the file does not show.
        rows: in a block, at most.
    """

    def __init__(self, path: Path, reading: Reading, rows: int) -> None:
        self.path = path
        self.reading = reading
        self.rows = rows
        self.form = csv_format(path, reading.separator, large=True)
        # By number of the column; first what pandas says, because the rest looks at texts only.
        self.how = _from_pandas(
            self._parts(as_written(self.form, reading)), as_written(self.form, reading)
        )
        self.how |= self._numbers_among_texts()
        if "decimals" in self.how.values():
            self.decimal = ","
        else:
            self.decimal = "."
        if self.decimal == ",":
            self.how |= self._pointed()
        self.names = self._named()
        self._tell()

    def __iter__(self) -> Iterator[pd.DataFrame]:
        count = 0
        for part in self._parts(self._dtypes()):
            frame = pd.DataFrame(
                {j: self._column(part[j], how) for j, how in self.how.items()}, index=part.index
            )
            frame = frame[~frame.isna().all(axis=1)]
            frame.index = pd.RangeIndex(count, count + len(frame))
            self._refuse_infinity(frame)
            count += len(frame)
            if len(frame):
                yield frame[list(self.names)].set_axis(list(self.names.values()), axis=1)

    def line(self, row: int) -> int:
        """Where a row stands in the file, as an editor counts lines."""
        for number, (line, _) in enumerate(self._filled()):
            if number == row:
                return line
        raise IndexError(row)

    def need_numbers(self, names: Collection[str]) -> None:
        """Raise if a column of numbers holds text; names the first such cell by line."""
        for j, name in enumerate(self.form.names):
            if name not in names or self.how[j] not in ("text", "boolean"):
                continue
            blanks = {"", *BLANKS, *self.reading.na}
            strange = ((n, cells[j]) for n, cells in self._filled() if cells[j] not in blanks)
            line, cell = next(
                (written for written in strange if not NUMBER.fullmatch(written[1])), (None, "")
            )
            if line is None:
                raise InputError(
                    f"{self.path}: the numbers of {name!r} are not all written alike; write "
                    "1234.5 or 1234,5."
                )
            raise InputError(
                f"{self.path}, line {line}: {name!r} is {cell!r}, and the model takes numbers "
                "there. Correct the cell; "
                "if it means 'not known', leave it blank."
            )

    # ---- what the columns hold -------------------------------------------------------------------

    def _numbers_among_texts(self) -> dict[int, How]:
        """Columns of text in which every cell is a number, and how it is written."""
        seen = {j: _Texts() for j, how in self.how.items() if how == "text"}
        for part in self._parts(self._dtypes()) if seen else ():
            for j, texts in seen.items():
                texts.look_at(*stripped(part[j], False, self.reading))
        return {
            j: how
            for j, texts in seen.items()
            if (how := texts.how(self.form.separator)) is not None
        }

    def _pointed(self) -> dict[int, How]:
        """Where commas are decimal, columns whose points group thousands: 1.200, 950."""
        pointed = {j: False for j, how in self.how.items() if how in ("number", "bare")}
        dtypes = self._dtypes() | dict.fromkeys(pointed, str)
        for part in self._parts(dtypes) if pointed else ():
            for j in list(pointed):
                text = part[j].str.strip()
                present = text[~text.isin(self.reading.na)].dropna()
                pointed[j] |= bool(present.str.contains(".", regex=False).any())
                if not present.str.fullmatch(POINTED_THOUSANDS).all():
                    del pointed[j]
        return {j: "pointed" for j, any_point in pointed.items() if any_point}

    def _named(self) -> dict[int, str]:
        """Names by column; one without a name may only be blank, or the number of the row."""
        for j, name in enumerate(self.form.names):
            if name or j == 0 or self.how[j] == "blank":
                continue
            raise InputError(
                f"Column {j + 1} of {self.path} has no name; give it one in the first line."
            )
        return {j: name for j, name in enumerate(self.form.names) if name}

    def _tell(self) -> None:
        notes = list(self.form.notes)
        if not self.form.encoding.startswith("utf-8"):
            notes.append(f"read as {self.form.encoding.upper()}")
        if self.decimal == ",":
            notes.append("a comma is taken for the decimal sign")
        for line in notes:
            note(f"{self.path.name}: {line}")

    # ---- cells -----------------------------------------------------------------------------------

    def _dtypes(self) -> dict[int, Any]:
        return {j: _DTYPES[how] for j, how in self.how.items() if how in _DTYPES}

    def _parts(self, dtypes: dict[int, Any]) -> Iterator[pd.DataFrame]:
        try:
            yield from read_parts(
                self.path, self.form, self.reading, self.rows, dtype=dtypes, low_memory=False
            )
        except (ValueError, OverflowError, MemoryError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{self.path} cannot be read as a table: {reason}") from error

    def _column(self, cells: pd.Series, how: How) -> pd.Series:
        if how not in _AS_TEXT:
            return cells
        if how == "pointed":
            return pd.to_numeric(self._points_off(cells)).astype(np.float64)
        text = stripped(cells, how == "written", self.reading)[0]
        if how == "thousands":
            text = text.str.replace(",", "", regex=False)
        if how == "decimals":
            text = text.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
        if how in ("written", "text"):
            return text
        return pd.to_numeric(text).astype(np.float64)

    def _points_off(self, cells: pd.Series) -> pd.Series:
        text = cells.str.strip()
        return text.where(~text.isin(self.reading.na)).str.replace(".", "", regex=False)

    def _filled(self) -> Iterator[tuple[int, list[str]]]:
        """Line and cells of the rows that are not blank."""
        written = as_written(self.form, self.reading)
        stated = {"", *self.reading.na}
        for line, cells in rows_of(self.path, self.form):
            if any(
                cell not in stated and (j in written or cell not in BLANKS)
                for j, cell in enumerate(cells)
            ):
                yield line, cells

    def _refuse_infinity(self, frame: pd.DataFrame) -> None:
        for j, name in enumerate(self.form.names):
            if not types.is_float_dtype(frame[j].dtype):
                continue
            infinite = np.flatnonzero(np.isinf(frame[j].to_numpy()))
            if len(infinite):
                raise InputError(
                    f"{self.path}, line {self.line(int(frame.index[infinite[0]]))}: {name!r} is "
                    "infinity. Correct the "
                    "cell; if it means 'not known', leave it blank."
                )


@dataclass
class _Texts:
    """What the cells of a text column have in common, as far as it has been read."""

    blanks: bool = False
    commas: bool = False
    some: bool = False
    numbers: bool = True
    decimals: bool = True
    thousands: bool = True

    def look_at(self, column: pd.Series, blanks: bool) -> None:
        present = column.dropna()
        self.blanks |= blanks
        self.some |= len(present) > 0
        # One cell that is no number decides; most columns of text are decided by their first block.
        if self.numbers:
            self.numbers = not pd.to_numeric(present, errors="coerce").isna().any()
        if self.decimals:
            self.decimals = bool(present.str.fullmatch(COMMA).all())
        if self.thousands:
            self.thousands = bool(present.str.fullmatch(THOUSANDS).all())
        if self.decimals or self.thousands:
            self.commas |= bool(present.str.contains(",", regex=False).any())

    def how(self, separator: str) -> How | None:
        if self.some and self.blanks and self.numbers:
            return "bare"
        if self.commas:
            means = comma_means(self.decimals, self.thousands, separator)
        else:
            means = ""
        return means or None  # type: ignore[return-value]


def _from_pandas(parts: Iterator[pd.DataFrame], written: Collection[int]) -> dict[int, How]:
    """By column, the type that pandas would infer from all cells, given those it infers from each
    block.
    """
    kinds: defaultdict[int, set[str]] = defaultdict(set)
    for part in parts:
        for j in range(part.shape[1]):
            kinds[j].add(_kind(part[j]))
    return {
        j: "written" if j in written else _joint(kinds_of_column)
        for j, kinds_of_column in sorted(kinds.items())
    }


def _kind(cells: pd.Series) -> str:
    if types.is_bool_dtype(cells.dtype):
        return "boolean"
    if types.is_signed_integer_dtype(cells.dtype):
        return "integer"
    if cells.isna().all():
        return "blank"
    if types.is_numeric_dtype(cells.dtype):
        return "number"
    if types.infer_dtype(cells, skipna=True) == "boolean":
        return "boolean"
    return "text"


def _joint(kinds: set[str]) -> How:
    filled = kinds - {"blank"}
    # A blank makes pandas store whole numbers as floats.
    if filled == {"integer"} and "blank" not in kinds:
        return "integer"
    if filled <= {"integer", "number"} and filled:
        return "number"
    if filled == {"boolean"}:
        return "boolean"
    if filled:
        return "text"
    return "blank"
