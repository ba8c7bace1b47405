"""The page of ``ct report``: everything that was reproduced, in one HTML file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from counterfactual_training.errors import InputError
from counterfactual_training.experiments.grid.outcome import CellOutcome, check_versions
from counterfactual_training.experiments.grid.store import Store
from counterfactual_training.experiments.paper.paper_results import Results
from counterfactual_training.experiments.paper.reproduce import EXPERIMENTS, FIGURE1, Effort, summarise
from counterfactual_training.persistence import atomic_write
from counterfactual_training.reports.page import Image, Section, render
from counterfactual_training.reports.paper_report import FIGURE1_CAPTION, effort_remark, reproduction_section
from counterfactual_training.reports.paper_tables import text_tables
from counterfactual_training.reports.text_table import TextTable
from counterfactual_training.text import duration


def write_report(runs: Sequence[str], page: str | Path, tables: str | Path = "reproduced") -> dict[str, Any]:
    """Write one page of all finished models in some folders, as ``ct report`` does.

    Args:
        runs: folders that :func:`reproduce` filled.
        page: the HTML file to write.
        tables: where :func:`write_reproduction` wrote Figure 1, which is not made of finished models.

    Returns:
        The titles of the page's ``sections`` and the number of ``models``.
    """
    sections: list[Section] = []
    settings: list[TextTable] = []
    remarks: list[str] = []
    found: list[CellOutcome] = []
    for root in runs:
        store = Store(root, any_version=True)
        kinds = store.kinds()
        if not kinds:
            raise InputError(f"There are no finished models in {root!r}. Fill it with: ct reproduce main --runs {root}")
        # Models trained with another effort or other settings are never summarised together.
        for (made_with, _), cells in kinds:
            effort, results = Effort(**made_with), Results.load(store, cells)
            found += results.all
            settings.append(_settings(results.settings_table(), f"Settings of {root}"))
            remarks.append(effort_remark(effort))
            # Figure 1 has no cells; it would have to train.
            names = [name for name in EXPERIMENTS if name != FIGURE1]
            parts = [reproduction_section(summarise(name, store, cells, effort)) for name in names]
            sections += [part for part in parts if part.tables or part.figures]
    check_versions(found)
    sections = [*_figure1(Path(tables)), *sections]
    done = [{**outcome.made, "seconds": outcome.seconds} for outcome in found]
    content = render(
        "sections.html",
        title="Counterfactual training, reproduced",
        subtitle="The paper's experiments run again, published numbers beside ours.",
        warning=" ".join(filter(None, dict.fromkeys(remarks))),
        sections=[*sections, Section("Settings", tuple(settings))],
        settings=_facts(done),
        commands=list(dict.fromkeys(d["command"] for d in done)),
    )
    atomic_write(page, content.encode())
    return {"sections": [part.title for part in sections], "models": len(done)}


def _figure1(folder: Path) -> list[Section]:
    """Figure 1 as :func:`write_reproduction` left it in a folder, if it did."""
    table, figure = folder / "figure1.csv", folder / "figures" / "figure1.png"
    made = folder / "provenance" / "figure1.json"
    if not (table.exists() and figure.exists() and made.exists()):
        return []
    effort = json.loads(made.read_text(encoding="utf-8"))["effort"]
    image = Image("figure1", f"{FIGURE1_CAPTION} Made with: {effort}.", figure.read_bytes())
    tables = text_tables("figure1", {"figure1": pd.read_csv(table)})
    return [Section(EXPERIMENTS["figure1"].title, tuple(tables), (image,))]


def _facts(done: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {
        "models": str(len(done)),
        "computing time": duration(sum(sum(d["seconds"].values()) for d in done)),
        "finished": max(d["date"] for d in done),
        **{name: number for d in done for name, number in d["versions"].items()},
    }


def _settings(table: pd.DataFrame, title: str) -> TextTable:
    """A row per setting, a column per data set."""
    names = [str(name) for name in table.columns if name != "data"]
    rows = tuple((name, *(str(value) for value in table[name])) for name in names)
    return TextTable(title, ("setting", *table["data"]), rows)
