"""How a text file writes a table: its encoding, what separates cells, names of columns; and whether
it is one.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import itertools
import math
import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_OTHER = (
    (b"PK\x03\x04", "an Excel or zip file"),
    (b"\x1f\x8b", "compressed"),
    (b"PAR1", "a Parquet file"),
)
# What the first lines of a file are judged by: so many of them, and about so many cells.
_SAMPLE = 200
_SAMPLE_CELLS = 2**20
# Excel's own first line, such as "sep=;".
_SEP_LINE = re.compile(r"sep=(.)", re.IGNORECASE)
# Cells of digits that a number would shorten: 007 is 7.
_ZEROS = re.compile(r"^0\d+$", re.MULTILINE)
# Words that pandas, too, takes for blanks.
_OF_OTHER_PROGRAMS = "#N/A,#N/A N/A,#NA,-1.#IND,-1.#QNAN,-NaN,-nan,1.#IND,1.#QNAN,<NA>"
BLANKS = frozenset(f"{_OF_OTHER_PROGRAMS},N/A,NA,NULL,NaN,None,n/a,nan,null".split(","))
NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class CsvFormat:
    """How to read a file.

    Attributes:
        names: of the columns, each once; empty text where a column has none.
        skipped: lines before the first row, as an editor counts them.
        notes: what to tell about the names.
        zeros: by number of the column, its first cell of digits that begins with 0.
        words: by number of the column, its first word for a blank, such as ``NA``.
    """

    encoding: str
    separator: str
    names: tuple[str, ...]
    skipped: int
    notes: tuple[str, ...]
    zeros: Mapping[int, str]
    words: Mapping[int, str]


def csv_format(path: Path, separator: str | None = None, large: bool = False) -> CsvFormat:
    """Find out how the whole file is written; raises if it is no table with column names.

    Args:
        large: whether a file of any size is taken, because it is never in memory as a whole.
    """
    _check_size(path, math.inf if large else _LARGEST)
    encoding = _encoding(path)
    announced = _SEP_LINE.fullmatch(next(_lines(path, encoding), "").strip())
    if announced is None:
        lead = 0
    else:
        lead = 1
    if separator is None:
        if announced is not None:
            chosen = announced[1]
        else:
            chosen = _separator(path, encoding, lead)
    else:
        chosen = _SPELLED.get(separator.lower(), separator)
        if len(chosen) != 1 or chosen in "\"'\r\n":
            raise InputError(
                f"--separator takes one character, or one of {', '.join(_SPELLED)}; got "
                f"{separator!r}."
            )
    return _checked(path, encoding, chosen, lead)


def rows_of(path: Path, form: CsvFormat) -> Iterator[tuple[int, list[str]]]:
    """The last line number and the cells, as text, of every row below the names."""
    return _records(path, form.encoding, form.separator, form.skipped)


def _check_size(path: Path, largest: float) -> None:
    if not path.is_file():
        raise InputError(f"There is no file {str(path)!r}.")
    size = path.stat().st_size
    if size > largest:
        raise InputError(
            f"{path} has {size / 2**30:.1f} GB; ct reads files of up to {largest / 2**30:.0f} "
            "GB. Take a part of its "
            f"rows, for example: head -n 1000000 {shlex.quote(path.name)} > part.csv"
        )
    if size == 0:
        raise InputError(f"{path} is empty.")


# ---- encoding ------------------------------------------------------------------------------------


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
    # Every other byte of Latin letters is 0 in UTF-16.
    if not candidates and max(zeros) > 0.2 * len(head) / 2:
        candidates = ["utf-16-be" if zeros[0] > zeros[1] else "utf-16-le"]
    if not candidates and any(zeros):
        raise InputError(
            f"{path} is not text: it holds bytes that are 0. Save it as CSV first."
        )
    for name in candidates or ("utf-8", "cp1252", "latin-1"):
        with contextlib.suppress(UnicodeError):
            # To the end: a file may begin as UTF-8 and go on otherwise.
            for _ in _lines(path, name):
                pass
            return name
    raise InputError(
        f"{path} begins as {candidates[0].upper()} and then is not; save it as UTF-8."
    )


# ---- cells ---------------------------------------------------------------------------------------


def _lines(path: Path, encoding: str) -> Iterator[str]:
    with path.open(encoding=encoding, newline="") as file:
        yield from file


def _records(
    path: Path, encoding: str, separator: str, lead: int
) -> Iterator[tuple[int, list[str]]]:
    """The last line number and the cells of every record that is not blank."""
    reader = csv.reader(
        itertools.islice(_lines(path, encoding), lead, None), delimiter=separator
    )
    try:
        for cells in reader:
            if len(cells) > 1 or "".join(cells).strip():
                yield lead + reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise InputError(
            f"{path}, line {lead + reader.line_num}: {error}. Is a quotation mark missing?"
        ) from None


def _separator(path: Path, encoding: str, lead: int) -> str:
    """The separator that splits the first lines most alike, and into more than one cell."""
    best = (0.0, 1)
    chosen = ","
    for candidate in _SEPARATORS:
        try:
            sample = _sample(_records(path, encoding, candidate, lead))
        except InputError:  # a quotation mark that is none with this separator
            continue
        rows = [cells for _, cells in sample]
        widths = [len(cells) for cells in rows[_count_titles(rows) :]]
        if not widths or widths[0] < 2:
            continue
        below = widths[1:] or widths
        # One more cell than names: names of rows.
        alike = max(below.count(widths[0]), below.count(widths[0] + 1)) / len(below)
        if (alike, widths[0]) > best:
            best = (alike, widths[0])
            chosen = candidate
    return chosen


def _sample(records: Iterator[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    """The first records; fewer of a wide table."""
    sample: list[tuple[int, list[str]]] = []
    num_cells = 0
    for line, cells in itertools.islice(records, _SAMPLE):
        sample.append((line, cells))
        num_cells += len(cells)
        if num_cells > _SAMPLE_CELLS:
            break
    return sample


def _checked(path: Path, encoding: str, separator: str, lead: int) -> CsvFormat:
    """The format, after every record was counted."""
    records = _records(path, encoding, separator, lead)
    sample = _sample(records)
    if not sample:
        raise InputError(f"{path} is empty.")
    num_titles = _count_titles([cells for _, cells in sample])
    titles = [cells for _, cells in sample[:num_titles]]
    skipped, header = sample[num_titles]
    widths: dict[int, int] = {}  # number of cells: the first line that has so many
    zeros: dict[int, str] = {}
    words: dict[int, str] = {}
    # Whether the last cell of every row is empty: then each row ends in a separator.
    trailing = True
    for line, cells in itertools.chain(sample[num_titles + 1 :], records):
        widths.setdefault(len(cells), line)
        trailing &= not cells[-1]
        if not BLANKS.isdisjoint(cells):
            _remember(words, cells, BLANKS.__contains__)
        if _ZEROS.search("\n".join(cells)):
            _remember(zeros, cells, _ZEROS.fullmatch)
    # Names of rows without a title, or a separator at the end of every row.
    if list(widths) == [len(header) + 1]:
        if trailing:
            header = [*header, ""]
        else:
            header = ["", *header]
    if titles:
        where = f"line {skipped}"
    else:
        where = "the first line"
    _check_widths(path, widths, len(header), where)
    _check_names(path, header, [cells for _, cells in sample[num_titles + 1 :]], where)
    notes = _about_titles(titles)
    names = unique_titles(header)
    notes += _about_names(header, names)
    if header[0].startswith("# "):
        notes.append(f"{where} was taken for names of columns; delete it if it is a title")
    return CsvFormat(encoding, separator, names, skipped, tuple(notes), zeros, words)


def _remember(
    examples: dict[int, str], cells: Sequence[str], matches: Callable[[str], object]
) -> None:
    for j, cell in enumerate(cells):
        if matches(cell):
            examples.setdefault(j, cell)


def _check_widths(path: Path, widths: Mapping[int, int], num_names: int, where: str) -> None:
    for width, line in widths.items():
        if width != num_names:
            if width == 1:
                cells = "1 cell"
            else:
                cells = f"{width} cells"
            if num_names == 1:
                columns = "1 column"
            else:
                columns = f"{num_names} columns"
            raise InputError(
                f"{path}, line {line}: {cells}, where {where} names {columns}. Correct "
                "or delete the line; text that contains the separator needs quotation marks."
            )


# ---- lines above the names -----------------------------------------------------------------------


def _count_titles(rows: Sequence[Sequence[str]]) -> int:
    """How many of the first records are titles or comments above the names of the columns."""
    comments = list(itertools.takewhile(_is_comment, rows))
    table = rows[len(comments) :]
    if comments and table:
        names_alone = len(table) == 1 and len(table[0]) > 1
        if names_alone or _heads_numbers(table[0], table[1:]):
            return len(comments)
    count = 0
    while count + 1 < len(rows) and _is_title(rows[count], rows[count + 1], rows[count + 2 :]):
        count += 1
    table = rows[count:]
    # Otherwise it is a table of one column, with or without mistakes.
    if _is_table(table) and count <= len(table):
        return count
    return 0


def _is_table(rows: Sequence[Sequence[str]]) -> bool:
    """Whether most records have as many cells as the first, or one more."""
    alike = [cells for cells in rows if len(cells) > 1 and len(cells) - len(rows[0]) in (0, 1)]
    return len(alike) >= 2 and len(rows) < 2 * len(alike)


def _is_comment(cells: Sequence[str]) -> bool:
    return len(cells) == 1 and cells[0].startswith("#")


def _is_title(
    cells: Sequence[str], following: Sequence[str], below: Sequence[Sequence[str]]
) -> bool:
    """Whether a record above another one is no row of names."""
    if len(cells) == 1 and len(following) != 2:
        return True
    if len(cells) == 1:
        # The other case is a column with names of rows, as R writes it.
        return not _rowlike(following, below)
    if len(cells) == len(following) and not cells[0].startswith("#"):
        return False
    return _heads_numbers(following, below)


def _heads_numbers(cells: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Whether these are names, because numbers stand below at least one of them."""
    rows = [row for row in below if len(row) == len(cells)]
    if not rows or not all(cells) or not BLANKS.isdisjoint(cells) or _rowlike(cells, rows):
        return False
    return any(all(NUMBER.fullmatch(row[j]) for row in rows) for j in range(len(cells)))


def _rowlike(names: Sequence[str], below: Sequence[Sequence[str]]) -> list[str]:
    """Names that are numbers, or occur again in their column."""
    return [
        name
        for j, name in enumerate(names)
        if name
        and (NUMBER.fullmatch(name) or any(name == row[j] for row in below if j < len(row)))
    ]


def _about_titles(titles: Sequence[Sequence[str]]) -> list[str]:
    if not titles:
        return []
    shown = repr(textwrap.shorten(" ".join(titles[0]), 60, placeholder=" …"))
    if len(titles) == 1:
        return [f"the line {shown} above the names of the columns is left out"]
    return [
        f"{len(titles)} lines above the names of the columns are left out, the first {shown}"
    ]


# ---- names of columns ----------------------------------------------------------------------------


def _check_names(
    path: Path, header: Sequence[str], sample: Sequence[Sequence[str]], where: str
) -> None:
    """Refuse a line of names that is a row."""
    num_named = sum(1 for name in header if name)
    rowlike = _rowlike(header, sample)
    if 2 * len(rowlike) > num_named or not num_named:
        shown = ", ".join(repr(name) for name in rowlike[:3]) or "nothing"
        raise InputError(
            f"{where.capitalize()} of {path} looks like a row, not like names of columns "
            f"({shown}). Put a "
            "line with the names at its top; a name that is a number needs a letter, such as y1990."
        )


def unique_titles(names: Sequence[str]) -> tuple[str, ...]:
    """Names of which none occurs twice: a, a becomes a, a.1, as pandas has it; empty ones stay."""
    taken = set(names)
    counts: Counter[str] = Counter()
    unique = []
    for name in names:
        chosen = name
        while name and counts[name] and chosen in taken:
            chosen = f"{name}.{counts[name]}"
            counts[name] += 1
        counts[name] += chosen == name
        unique.append(chosen)
    return tuple(unique)


def _about_names(header: Sequence[str], names: Sequence[str]) -> list[str]:
    renamed = [
        f"{old!r} is {new!r}" for old, new in zip(header, names, strict=True) if old != new
    ]
    if not renamed:
        return []
    shown = ", ".join(renamed[:3]) + (", …" if len(renamed) > 3 else "")
    return [f"{len(renamed)} column(s) had the name of another and got a new one: {shown}"]
