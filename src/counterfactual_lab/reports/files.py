"""The parts of a page of results: figures and tables in sections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from counterfactual_training.tables.pages.files import templates
from counterfactual_training.text_table import TextTable


@dataclass(frozen=True)
class Image:
    """A figure as PNG.

    Attributes:
        name: its file name, without the suffix.
        dark: the same for a dark page, if there is one.
    """

    name: str
    caption: str
    png: bytes
    dark: bytes = b""


@dataclass(frozen=True)
class Section:
    """One part of a page: figures first, then tables."""

    title: str
    tables: tuple[TextTable, ...] = ()
    figures: tuple[Image, ...] = ()

    @property
    def anchor(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


def fill_template(template: str, **values: Any) -> str:
    """Fill a file of ``templates/``; text is escaped in HTML, not in Markdown.

    ``sections.html`` is a page of figures and sortable tables: ``title``, ``subtitle``,
    ``warning``, ``sections``, then ``settings`` (a mapping) and the ``commands`` to run it again.
    """
    return str(templates(__package__).get_template(template).render(**values))
