"""A table of changes, drawn for a terminal and for a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence

_DASH = "–"
_STYLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"
_CELL = "padding:3px 10px;text-align:left;border-bottom:1px solid #ddd;white-space:nowrap"


def as_text(title: str, header: Sequence[str], lines: Sequence[Sequence[str]], still: Sequence[str], more: int) -> str:
    """The table in columns of equal width, with what it leaves out said below."""
    rows = [list(header), *map(list, lines)]
    widths = [max(len(row[j]) for row in rows) for j in range(len(header))]
    drawn = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([title, *drawn, *_notes(still, more)])


def as_html(title: str, header: Sequence[str], lines: Sequence[Sequence[str]], still: Sequence[str], more: int) -> str:
    """The same as HTML; whatever names and categories contain is text, never markup."""
    head = "".join(f'<th style="{_CELL}">{html.escape(name)}</th>' for name in header)
    body = "".join(f"<tr>{''.join(_cell(text) for text in line)}</tr>" for line in lines)
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in _notes(still, more))
    return (
        f"<div><p>{html.escape(title)}</p>"
        f'<table style="{_STYLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}</div>'
    )


def _cell(text: str) -> str:
    weight = ";color:#999" if text == _DASH else ";font-weight:600" if " → " in text else ""
    return f'<td style="{_CELL}{weight}">{html.escape(text)}</td>'


def _notes(still: Sequence[str], more: int) -> list[str]:
    shown = ", ".join(still[:20]) + (f" and {len(still) - 20} more" if len(still) > 20 else "")
    notes = [f"Unchanged: {shown}"] if still else []
    return notes + ([f"… and {more} more row(s)"] if more else [])
