"""What a grid leaves behind: tables, figures, one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from counterfactual_training.experiments.grid.outcome import versions
from counterfactual_training.experiments.grid.results import GridResults
from counterfactual_training.persistence import atomic_write
from counterfactual_training.reports.grid_figures import detail_figure, maturity_figure, overview_figure
from counterfactual_training.reports.grid_tables import best_tables, marginal_tables
from counterfactual_training.reports.paper_page import Picture, Section, paper_page
from counterfactual_training.reports.text_table import TextTable
from counterfactual_training.text import duration

_METRICS = {"implausibility": ("ip", "implausibility (IP)"), "cost": ("cost", "cost")}
Figures = list[tuple[str, str, bytes]]


def write_report(results: GridResults, out: Path, record: dict[str, Any]) -> tuple[str, list[str]]:
    """Write everything; a text for the terminal, and the files written.

    Args:
        record: the ``command`` that ran the grid, and the ``seconds`` that its runs took altogether, if known.
    """
    grid, name = results.grid, results.grid.name
    tables = marginal_tables(results.marginal)
    best = best_tables(results.summary, list(grid.axes))
    drawn = _overviews(results)
    details = {data: _details(results, data) for data in dict.fromkeys(results.changes.get("data", ()))}
    facts = _facts(results, record)
    files: dict[Path, bytes] = {
        out / f"{name}.csv": _csv(results.tidy),
        out / f"{name}_summary.csv": _csv(results.summary),
        out / f"{name}.md": _markdown(results, [*tables, *best], facts).encode(),
        out / f"{name}.html": _page(results, tables, best, drawn, details, facts, record).encode(),
        out / "provenance" / f"{name}.json": (json.dumps({**facts, **record}, indent=2) + "\n").encode(),
    }
    for figure, _, content in [*drawn, *(one for found in details.values() for one in found)]:
        files[out / "figures" / f"{figure}.png"] = content
    for path, content in files.items():
        atomic_write(path, content)
    return "\n\n".join(table.text() for table in tables), [str(path) for path in files]


def _overviews(results: GridResults) -> Figures:
    """Figures over all data sets."""
    axes, remark = list(results.grid.axes), _remark(results)
    if not axes or not len(results.changes):
        return []
    out = []
    for metric, (short, words) in _METRICS.items():
        caption = f"Change of {words} against the baseline; boxes span settings, λ_egy at test time and runs."
        content = overview_figure(results.changes, axes, metric, remark)
        out.append((f"{results.grid.name}_{short}", caption, content))
    caption = "Share of counterfactuals that mature in training; lines are means of settings, bands half of them."
    out.append((f"{results.grid.name}_maturity", caption, maturity_figure(results.maturity, axes, remark)))
    return out


def _details(results: GridResults, data: str) -> Figures:
    """Figures of one data set, in the arrangement of the paper's appendix."""
    axes, remark = list(results.grid.axes), _remark(results)
    out = []
    for metric, (short, words) in _METRICS.items() if len(axes) > 1 else ():
        caption = f"{data}: change of {words} against the baseline; boxes span λ_egy at test time and runs."
        content = detail_figure(results.changes, axes, data, metric, remark)
        out.append((f"{results.grid.name}_{data}_{short}", caption, content))
    return out


def _page(
    results: GridResults,
    tables: list[TextTable],
    best: list[TextTable],
    drawn: Figures,
    details: dict[str, Figures],
    facts: dict[str, Any],
    record: dict[str, Any],
) -> str:
    overview = Section("What each setting does", tuple(tables), tuple(Picture(text, png) for _, text, png in drawn))
    sections = [overview]
    for data, found in details.items():
        mine = tuple(table for table in best if table.title.endswith(f" {data}"))
        sections.append(Section(data, mine, tuple(Picture(text, png) for _, text, png in found)))
    title = results.grid.title or f"Grid {results.grid.name}"
    subtitle = "Models trained with counterfactuals, each compared with conventional models of the same shape."
    commands = [record["command"]] if record.get("command") else []
    return paper_page(title, subtitle, sections, {k: str(v) for k, v in facts.items()}, commands, _remark(results))


def _markdown(results: GridResults, tables: list[TextTable], facts: dict[str, Any]) -> str:
    warning = _remark(results)
    head = f"## {results.grid.title or results.grid.name}\n\n" + (f"**{warning}**\n\n" if warning else "")
    listed = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    return f"{head}{listed}\n\n" + "\n".join(table.markdown() for table in tables)


def _facts(results: GridResults, record: dict[str, Any]) -> dict[str, Any]:
    grid, protocol = results.grid, results.grid.measurement.protocol
    wall = record.get("seconds")
    return {
        "settings": f"{results.points - results.missing:,} of {results.points:,}",
        "models": f"{results.models:,}",
        "computing time": duration(results.seconds),
        **({"time by the clock": duration(wall)} if wall else {}),
        "counterfactuals measured on": f"{grid.measurement.on} rows",
        "evaluation": f"{protocol.num_runs} runs × {protocol.num_individuals} individuals × "
        f"λ_egy {', '.join(f'{value:g}' for value in protocol.lambda_energy)}",
        "accuracy measured on": "test rows",
        **versions(),
    }


def _remark(results: GridResults) -> str:
    """What a reader must know first."""
    parts = []
    if results.grid.quick:
        parts.append("A quick look (a tenth of the epochs), not the published settings: do not compare these numbers.")
    if results.missing:
        parts.append(f"{results.missing:,} of {results.points:,} settings are missing.")
    return " ".join(parts)


def _csv(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False, float_format="%.6g", lineterminator="\n").encode()
