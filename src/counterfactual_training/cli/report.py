"""``ct report``: one page of everything that was reproduced."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

from counterfactual_training.cli.output import emit
from counterfactual_training.cli.paper import figure1_section, remark, section
from counterfactual_training.errors import InputError
from counterfactual_training.experiments.grid.outcome import CellOutcome, check_versions
from counterfactual_training.experiments.grid.store import Store
from counterfactual_training.experiments.paper.reproduce import EXPERIMENTS, FIGURE1, Effort, summarise
from counterfactual_training.experiments.paper.results import Results
from counterfactual_training.persistence import atomic_write
from counterfactual_training.reports.paper_page import Section, paper_page
from counterfactual_training.reports.text_table import TextTable
from counterfactual_training.text import duration


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "report",
        parents=[common],
        help="one HTML page of all that `ct reproduce` has finished",
        description="Reads folders that `ct reproduce` filled and writes one self-contained page: figures, tables that "
        "sort, settings, how to rerun. Trains nothing.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="folders of finished models")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="the page (%(default)s)")
    parser.add_argument(
        "--tables",
        default="reproduced",
        metavar="DIR",
        help="where `ct reproduce figure1` has put Figure 1, which is not made of finished models (%(default)s)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    sections: list[Section] = []
    settings: list[TextTable] = []
    found: list[CellOutcome] = []
    remarks: list[str] = []
    for root in arguments.runs:
        store = Store(root, any_version=True)
        kinds = store.kinds()
        if not kinds:
            raise InputError(f"There are no finished models in {root!r}. Fill it with: ct reproduce main --runs {root}")
        for (effort, _), cells in kinds:
            results = Results.load(store, cells)
            settings.append(_settings(results.settings_table(), f"Settings of {root}"))
            found += results.all
            remarks.append(remark(Effort(**effort)))
            # Figure 1 has no cells; it would have to train.
            names = [name for name in EXPERIMENTS if name != FIGURE1]
            parts = [section(summarise(name, store, cells, Effort(**effort))) for name in names]
            sections += [part for part in parts if part.tables or part.figures]
    check_versions(found)  # of all folders together
    done = [{**outcome.made, "seconds": outcome.seconds} for outcome in found]
    first = figure1_section(Path(arguments.tables))
    sections = [*([first] if first is not None else []), *sections]
    page = paper_page(
        "Counterfactual training, reproduced",
        "The paper's experiments run again, published numbers beside ours.",
        [*sections, Section("Settings", tuple(settings))],
        _facts(done),
        list(dict.fromkeys(d["command"] for d in done)),
        " ".join(filter(None, dict.fromkeys(remarks))),
    )
    atomic_write(arguments.out, page.encode())
    titles = [part.title for part in sections]
    emit(arguments, {"page": arguments.out, "sections": titles, "models": len(done)}, f"Open {arguments.out} to read.")


def _facts(done: list[dict[str, Any]]) -> dict[str, str]:
    return {
        "models": str(len(done)),
        "computing time": duration(sum(sum(d["seconds"].values()) for d in done)),
        "finished": max(d["date"] for d in done),
        **{name: number for d in done for name, number in d["versions"].items()},
    }


def _settings(table: pd.DataFrame, title: str) -> TextTable:
    """Settings turned on their side: one row each, one column per data set."""
    names = [str(name) for name in table.columns if name != "data"]
    rows = tuple((name, *(str(value) for value in table[name])) for name in names)
    return TextTable(title, ("setting", *table["data"]), rows)
