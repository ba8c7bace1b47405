"""A table of strings, and how to write it: for a terminal, as Markdown, as LaTeX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, takewhile

import pandas as pd

from counterfactual_training.text import align

NOTHING = "–"
_SPECIAL = {"%": r"\%", "_": r"\_", "&": r"\&", "–": "--", "−": "$-$"}
_LATEX = str.maketrans(_SPECIAL | {"±": r"$\pm$", "*": r"$^{*}$", "ε": r"$\varepsilon$"})


@dataclass(frozen=True)
class TextTable:
    """What a reader sees.

    Attributes:
        header: column titles. The first columns, as far as they hold words, are set flush left.
        rows: cells, as many as titles.
        notes: sentences below the table.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def text_columns(self) -> int:
        """How many columns, from the left, hold words."""
        words = (
            all(row[j][:1] == "(" or row[j][:1].isalpha() for row in self.rows)
            for j in range(len(self.header))
        )
        return max(1, sum(1 for _ in takewhile(bool, words)))

    def text(self) -> str:
        """For a terminal."""
        if self.notes:
            below = ["", *self.notes]
        else:
            below = []
        return "\n".join(
            [self.title, "", ruled([self.header, *self.rows], self.text_columns), *below]
        )

    def markdown(self) -> str:
        """As Markdown; a title becomes a heading of the third level."""
        widths = [
            max(3, *(len(line[j]) for line in (self.header, *self.rows)))
            for j in range(len(self.header))
        ]
        left = self.text_columns
        marks = [
            "-" * width if j < left else "-" * (width - 1) + ":"
            for j, width in enumerate(widths)
        ]
        # Empty cells at both ends give every line its outer bars.
        framed = [["", *line, ""] for line in (self.header, marks, *self.rows)]
        drawn = [line.strip() for line in align(framed, left + 1, " | ")]
        parts = [f"### {self.title}", "\n".join(drawn), *self.notes]
        return "\n\n".join(parts if self.title else parts[1:]) + "\n"

    def latex(self) -> str:
        """A ``table`` that needs no package."""
        columns = "l" * self.text_columns + "r" * (len(self.header) - self.text_columns)
        lines = [
            " & ".join(cell.translate(_LATEX) for cell in line) + r" \\"
            for line in (self.header, *self.rows)
        ]
        caption = " ".join((f"{self.title}.", *self.notes)).translate(_LATEX)
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\begin{{tabular}}{{{columns}}}",
                r"\hline",
                lines[0],
                r"\hline",
                *lines[1:],
                r"\hline",
                r"\end{tabular}",
                rf"\caption{{{caption}}}",
                r"\end{table}",
                "",
            ]
        )


def ruled(rows: Sequence[Sequence[str]], num_left: int | None = None) -> str:
    """Aligned rows with a rule below the first, for a terminal; ``num_left`` as in
    :func:`text.align`.
    """
    header, *lines = align(rows, num_left)
    return "\n".join([header, "─" * max(map(len, (header, *lines))), *lines])


def number(value: float, digits: int | None = None) -> str:
    """A number for people; by default with as many digits as its size deserves."""
    if value is None or math.isnan(value):
        return NOTHING
    if digits is None:
        if abs(value) < 0.3:
            digits = 3
        elif abs(value) < 30:
            digits = 2
        else:
            digits = 1
    text = f"{value:.{digits}f}"
    # Without the minus that rounding leaves in "-0.0".
    if float(text) != 0:
        return text.replace("-", "−")
    return text.lstrip("-")


def cells(frame: pd.DataFrame, *digits: int | None) -> tuple[tuple[str, ...], ...]:
    """A frame as rows of a table: words as they are, numbers by :func:`number`.

    Args:
        digits: one count for all columns of numbers, or one for each of them.
    """
    counts = [cycle(digits or (None,)) for _ in range(len(frame))]
    rows = zip(frame.itertuples(index=False), counts, strict=True)
    return tuple(
        tuple(v if isinstance(v, str) else number(v, next(k)) for v in row) for row, k in rows
    )


def interval(value: float, low: float, high: float, digits: int | None = None) -> str:
    """``12.3 [10.1, 14.5]``."""
    if low is None or math.isnan(low) or math.isnan(high):
        return number(value, digits)
    return f"{number(value, digits)} [{number(low, digits)}, {number(high, digits)}]"


def p_value(value: float) -> str:
    """Values below 0.001 are shown as a bound."""
    if value is None or math.isnan(value):
        return NOTHING
    if value < 0.001:
        return "<0.001"
    return f"{value:.3f}"
