"""Files of results: pages from ``templates/``, tables as CSV, documents as JSON; everything is
written atomically.

HTML pages are self-contained: images and style are inside, nothing is requested.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from counterfactual_training.persistence import atomic_write
from counterfactual_training.versions import versions


@dataclass(frozen=True)
class RunInfo:
    """How a result was produced."""

    command: str = ""
    seconds: float = 0.0
    quick: bool = False
    date: datetime = field(default_factory=lambda: datetime.now().astimezone())
    versions: Mapping[str, str] = field(default_factory=versions)


def render(template: str, **values: Any) -> str:
    """Fill a file of ``templates/``; text is escaped in HTML."""
    return str(templates().get_template(template).render(**values))


@cache
def templates(*packages: str) -> jinja2.Environment:
    """The templates of these packages, which may include those of this folder."""
    folders = [jinja2.PackageLoader(package) for package in (*packages, __package__)]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(folders),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["uri"] = _data_uri
    return environment


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


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
