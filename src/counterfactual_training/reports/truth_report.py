"""The report of ``ct truth``: tables and figures, and the page that explains them."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from counterfactual_training.experiments.truth.truth import Scope
from counterfactual_training.reports import truth_figures as draw
from counterfactual_training.reports.files import csv_text, write_files
from counterfactual_training.reports.gains_page import PICTURED, gains_page
from counterfactual_training.reports.truth_tables import truth_texts

Tables = Mapping[str, pd.DataFrame]

_PICTURES = {"overshoot": draw.overshoot_figure, "rescaled": draw.rescaled_figure, "digits": draw.gallery_figure}


def truth_head(scope: Scope, command: str) -> str:
    """The sentence above tables and page: which rows were measured, how models were trained, and the command."""
    caps, rows = scope.caps, "the test rows" if scope.on_test else "rows cut from the training rows"
    limits = f"at most {caps.rows:,} rows, " if caps.rows is not None else ""
    return f"Measured on {rows}; trained on {limits}{caps.epochs} epochs. Made with: {command}"


def write_truth(tables: Tables, folder: str | Path, head: str) -> list[str]:
    """Write tables as CSV and Markdown, floors and prices as figures, as ``ct truth`` does; returns the paths.

    Args:
        tables: see :func:`truth_tables`.
        head: see :func:`truth_head`.
    """
    files: dict[str, str | bytes] = {f"{name}.csv": csv_text(table) for name, table in tables.items() if len(table)}
    texts = (text.markdown() for text in truth_texts(tables))
    files["truth.md"] = "\n".join([f"## What the gains are made of\n\n{head}\n", *texts])
    if len(tables["truth"]):
        files["figures/price.png"] = draw.price_figure(tables["truth"])
        files["figures/floor.png"] = draw.floor_figure(tables["truth"])
    return write_files(folder, files)


def write_truth_page(page: str | Path, tables: Tables, folder: str | Path, head: str) -> list[str]:
    """Write *What the published gains are made of*, its figures and their tables; returns the paths.

    Args:
        page: the Markdown file, which links to ``folder``, where :func:`write_truth` wrote its files.
        tables: of :func:`truth_tables` and :func:`picture_tables` together.
    """
    page, folder = Path(page), Path(folder)
    files: dict[str, str | bytes] = {f"{name}.csv": csv_text(tables[name]) for name in PICTURED}
    for name, make in _PICTURES.items():
        if len(tables[name]):
            files[f"figures/{name}.png"] = make(tables[name])
    # From the tables as they are written, so that the page follows from the files to the last digit.
    written = {name: table for name, table in tables.items() if name != "digits"}
    for name in (name for name, table in written.items() if len(table)):
        written[name] = pd.read_csv(io.StringIO(csv_text(written[name])), dtype={"tau": str})
    text = gains_page(written, Path(os.path.relpath(folder, page.parent)).as_posix(), head)
    return write_files(folder, files) + write_files(page.parent, {page.name: text})
