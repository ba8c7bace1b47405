"""Files of results: tables as CSV, documents as JSON, pages from ``templates/``; everything is
written atomically.

HTML pages are self-contained: images and style are inside, nothing is requested.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from counterfactual_training.errors import need_extra
from counterfactual_training.persistence import atomic_write
from counterfactual_training.reports.text_table import TextTable


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


def render(template: str, **values: Any) -> str:
    """Fill a file of ``templates/``; text is escaped in HTML, not in Markdown.

    ``sections.html`` is a page of figures and sortable tables: ``title``, ``subtitle``,
    ``warning``, ``sections``, then ``settings`` (a mapping) and the ``commands`` to run it again.
    """
    return str(_environment().get_template(template).render(**values))


@cache
def _environment() -> Any:
    jinja2 = need_extra("jinja2", "report")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("counterfactual_training.reports", "templates"),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["uri"] = lambda png: (
        f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
    )
    return environment


def csv_text(table: pd.DataFrame) -> str:
    """A table as CSV with six significant digits."""
    return table.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def json_text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def write_files(folder: str | Path, contents: Mapping[str, str | bytes]) -> list[str]:
    """Write files by their names in a folder; returns their paths."""
    paths = {Path(folder) / name: content for name, content in contents.items()}
    for path, content in paths.items():
        atomic_write(path, content.encode() if isinstance(content, str) else content)
    return [str(path) for path in paths]
