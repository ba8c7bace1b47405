"""Files of results: tables as CSV, documents as JSON, everything written atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from counterfactual_training.persistence import atomic_write


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
