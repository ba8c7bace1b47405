"""Durations and columns as plain text, for every folder that prints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# What ends a line, or moves the cursor, wherever text is printed.
_CONTROL = re.compile("[\\x00-\\x1f\\x7f\\x85\\u2028\\u2029]")


def duration(seconds: float) -> str:
    """``12 s``, ``3 min``, ``1 h 05 min``, ``4 days``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes / 1440:,.0f} days"


def one_line(text: str) -> str:
    """The text with line breaks and the like escaped, since a name may hold them."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def align(
    rows: Iterable[Sequence[str]],
    num_left: int | None = None,
    separator: str = "  ",
    min_width: int = 0,
) -> list[str]:
    """Lines with cells in columns of equal width; short rows are filled with empty cells.

    Args:
        num_left: columns set flush left; the others flush right. By default all are left.
        separator: between columns.
        min_width: of every column.
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    count = max(map(len, rows), default=0)
    full = [[*row, *[""] * (count - len(row))] for row in rows]
    widths = [max(min_width, *(len(row[j]) for row in full)) for j in range(count)]
    if num_left is None:
        left = count
    else:
        left = num_left
    lines = [
        separator.join(
            cell.ljust(w) if j < left else cell.rjust(w)
            for j, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in full
    ]
    return [line.rstrip() for line in lines]
