"""How a text file writes a table: its encoding, what separates cells, names of columns; and whether it is one."""

from __future__ import annotations

import codecs
import contextlib
import csv
import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from counterfactual_training.errors import InputError

# A file of this size takes several times as much memory.
_LARGEST = 2**30
_SEPARATORS = (",", ";", "\t", "|")
_SPELLED = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "pipe": "|", "space": " "}
_MARKS = (  # the longer marks first: that of UTF-32 begins like that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_OTHER = ((b"PK\x03\x04", "an Excel or zip file"), (b"\x1f\x8b", "compressed"), (b"PAR1", "a Parquet file"))
_SAMPLE = 200  # lines
# Excel's own first line, such as "sep=;".
_SEP_LINE = re.compile(r"sep=(.)", re.IGNORECASE)
NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class CsvFormat:
    """How to read a file.

    Attributes:
        names: of the columns; empty text where a column has none.
        skipped: lines before the first row, as an editor counts them.
    """

    encoding: str
    separator: str
    names: tuple[str, ...]
    skipped: int


def csv_format(path: Path, separator: str | None = None) -> CsvFormat:
    """Look at the whole file and find out how it is written; raises if it is no table with names of columns."""
    _check_size(path)
    encoding = _encoding(path)
    announced = _SEP_LINE.fullmatch(next(_lines(path, encoding), "").strip())
    lead = 0 if announced is None else 1
    if separator is None:
        chosen = announced[1] if announced is not None else _separator(path, encoding, lead)
    else:
        chosen = _SPELLED.get(separator.lower(), separator)
        if len(chosen) != 1 or chosen in "\"'\r\n":
            raise InputError(f"--separator takes one character, or one of {', '.join(_SPELLED)}; got {separator!r}.")
    return _checked(path, encoding, chosen, lead)


def _check_size(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"There is no file {str(path)!r}.")
    size = path.stat().st_size
    if size > _LARGEST:
        raise InputError(
            f"{path} has {size / 2**30:.1f} GB; ct reads files of up to {_LARGEST / 2**30:.0f} GB. Take a part of its "
            f"rows, for example: head -n 1000000 {shlex.quote(path.name)} > part.csv"
        )
    if size == 0:
        raise InputError(f"{path} is empty.")


# ---- encoding --------------------------------------------------------------------------------------------------------


def _encoding(path: Path) -> str:
    """The first of UTF-8, UTF-16, Windows-1252 and Latin-1 that fits the bytes."""
    with path.open("rb") as file:
        head = file.read(2**20)
    for mark, what in _OTHER:
        if head.startswith(mark):
            raise InputError(f"{path} is {what}, not text; save it as CSV first.")
    candidates = [name for mark, name in _MARKS if head.startswith(mark)][:1]
    # UTF-16 without a mark, as some exports are.
    zeros = head[::2].count(0), head[1::2].count(0)
    if not candidates and max(zeros) > 0.2 * len(head) / 2:  # every other byte of Latin letters is 0 in UTF-16
        candidates = ["utf-16-be" if zeros[0] > zeros[1] else "utf-16-le"]
    if not candidates and any(zeros):
        raise InputError(f"{path} is not text: it holds bytes that are 0. Save it as CSV first.")
    for name in candidates or ("utf-8", "cp1252", "latin-1"):
        with contextlib.suppress(UnicodeError):
            for _ in _lines(path, name):  # to the end: a file may begin as UTF-8 and go on otherwise
                pass
            return name
    raise InputError(f"{path} begins as {candidates[0].upper()} and then is not; save it as UTF-8.")


# ---- cells -----------------------------------------------------------------------------------------------------------


def _lines(path: Path, encoding: str) -> Iterator[str]:
    with path.open(encoding=encoding, newline="") as file:
        yield from file


def _records(path: Path, encoding: str, separator: str, lead: int) -> Iterator[tuple[int, list[str]]]:
    """The last line number and the cells of every record that is not blank."""
    reader = csv.reader(itertools.islice(_lines(path, encoding), lead, None), delimiter=separator)
    try:
        for cells in reader:
            if len(cells) > 1 or "".join(cells).strip():
                yield lead + reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise InputError(f"{path}, line {lead + reader.line_num}: {error}. Is a quotation mark missing?") from None


def _separator(path: Path, encoding: str, lead: int) -> str:
    """The separator that splits the first lines most alike, and into more than one cell."""
    best, found = (0.0, 1), ","
    for candidate in _SEPARATORS:
        try:
            records = [cells for _, cells in itertools.islice(_records(path, encoding, candidate, lead), _SAMPLE)]
        except InputError:  # a quotation mark that is none with this separator
            continue
        widths = [len(cells) for cells in records]
        if not widths or widths[0] < 2:
            continue
        rows = widths[1:] or widths
        alike = max(rows.count(widths[0]), rows.count(widths[0] + 1)) / len(rows)  # + 1: names of rows
        if (alike, widths[0]) > best:
            best, found = (alike, widths[0]), candidate
    return found


def _checked(path: Path, encoding: str, separator: str, lead: int) -> CsvFormat:
    """The format, after every record was counted."""
    records = _records(path, encoding, separator, lead)
    skipped, header = next(records, (0, []))
    if not header:
        raise InputError(f"{path} is empty.")
    sample: list[list[str]] = []
    widths: dict[int, int] = {}  # number of cells: the first line that has so many
    # Whether the last cell of every row is empty: then each row ends in a separator.
    trailing = True
    for line, cells in records:
        widths.setdefault(len(cells), line)
        trailing &= not cells[-1]
        if len(sample) < _SAMPLE:
            sample.append(cells)
    if not widths:
        raise InputError(f"{path} has names of columns, but no rows.")
    if list(widths) == [len(header) + 1]:  # names of rows without a title, or a separator at the end of every row
        header = [*header, ""] if trailing else ["", *header]
    for width, line in widths.items():
        if width != len(header):
            found = "1 cell" if width == 1 else f"{width} cells"
            raise InputError(
                f"{path}, line {line}: {found}, where the first line names {len(header)} columns. Correct or delete "
                "the line; text that contains the separator needs quotation marks."
            )
    _check_names(path, header, sample)
    return CsvFormat(encoding, separator, tuple(header), skipped)


def _check_names(path: Path, header: Sequence[str], sample: Sequence[Sequence[str]]) -> None:
    """Refuse a first line that is a row, and names that occur twice."""
    named = [(j, name) for j, name in enumerate(header) if name]
    rowlike = [
        name for j, name in named if NUMBER.fullmatch(name) or any(name == cells[j] for cells in sample if cells)
    ]
    if 2 * len(rowlike) > len(named) or not named:
        shown = ", ".join(repr(name) for name in rowlike[:3]) or "nothing"
        raise InputError(
            f"The first line of {path} looks like a row, not like names of columns ({shown}). Put a line with the "
            "names at its top; a name that is a number needs a letter, such as y1990."
        )
    twice = next((name for j, name in named if name in header[:j]), None)
    if twice is not None:
        raise InputError(f"{path} has two columns called {twice!r}; rename one of them in its first line.")
