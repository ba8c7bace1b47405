"""The parts of a model card: text, as JSON and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

FORMAT = 1


@dataclass(frozen=True)
class CardTable:
    """Text cells under a header."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class CardSection:
    """One part of a card: paragraphs, pairs of words, a list, tables; any of them may be empty."""

    id: str
    title: str
    paragraphs: tuple[str, ...] = ()
    rows: tuple[tuple[str, str], ...] = ()
    items: tuple[str, ...] = ()
    tables: tuple[CardTable, ...] = ()


@dataclass(frozen=True)
class Card:
    """A model card; everything is text, ready to be shown."""

    title: str
    summary: str
    sections: tuple[CardSection, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: lists of text."""
        document = asdict(self)
        for section in document["sections"]:
            section["tables"] = [
                {
                    **table,
                    "header": list(table["header"]),
                    "rows": [list(row) for row in table["rows"]],
                }
                for table in section["tables"]
            ]
            section["rows"] = [list(row) for row in section["rows"]]
            section |= {name: list(section[name]) for name in ("paragraphs", "items")}
        return {"format": FORMAT, **document, "sections": list(document["sections"])}

    def to_markdown(self) -> str:
        parts = [f"# {escaped(self.title)}", escaped(self.summary)]
        for section in self.sections:
            parts.append(f"## {section.title}")
            parts += [escaped(paragraph) for paragraph in section.paragraphs]
            if section.rows:
                parts += [_table(("", ""), section.rows)]
            if section.items:
                parts += ["\n".join(f"- {escaped(item)}" for item in section.items)]
            for table in section.tables:
                if table.title:
                    parts += [f"### {escaped(table.title)}"]
                parts.append(_table(table.header, table.rows))
        return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Names and categories are data, not markup."""
    for mark in "\\`*_<|":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
