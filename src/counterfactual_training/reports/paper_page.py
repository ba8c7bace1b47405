"""One self-contained page: figures, tables that sort, settings, how to rerun."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from counterfactual_training.reports.extra import need
from counterfactual_training.reports.text_table import TextTable


@dataclass(frozen=True)
class Picture:
    """A PNG and what it shows."""

    caption: str
    content: bytes

    @property
    def data(self) -> str:
        return base64.b64encode(self.content).decode()


@dataclass(frozen=True)
class Section:
    """One experiment on the page."""

    title: str
    tables: tuple[TextTable, ...] = ()
    figures: tuple[Picture, ...] = ()
    failures: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


def paper_page(
    title: str,
    subtitle: str,
    sections: Sequence[Section],
    settings: Mapping[str, str],
    commands: Sequence[str],
    warning: str = "",
) -> str:
    """The page as HTML; it needs no network and no other file."""
    source = (files("counterfactual_training.reports") / "paper_page.html").read_text(encoding="utf-8")
    jinja2 = need("jinja2")
    # The loader is for the style sheet that all pages share.
    styles = jinja2.PackageLoader("counterfactual_training.reports", "templates")
    environment = jinja2.Environment(loader=styles, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(source).render(
        title=title, subtitle=subtitle, sections=sections, settings=settings, commands=commands, warning=warning
    )
