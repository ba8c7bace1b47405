"""The report of a grid: tables, figures and one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from counterfactual_lab.grids.results import GridResults, differs
from counterfactual_lab.reports.files import Image, Section, fill_template
from counterfactual_lab.reports.grid_figures import (
    axis_maturity_figure,
    axis_overview_figure,
    detail_figure,
    label,
    text,
)
from counterfactual_training.evaluation.metrics import METRICS, RATIOS
from counterfactual_training.tables.pages.files import csv_text, json_text, write_files
from counterfactual_training.text import duration
from counterfactual_training.text_table import TextTable, interval, number
from counterfactual_training.versions import versions

_SHOWN = (METRICS["implausibility"], METRICS["cost"])
_BEST = 10
_COMPARED = (
    "Changes are in % of the mean over all conventional models of the grid with the same data "
    "set, architecture and "
    "length of training; negative is better."
)


def write_grid(
    results: GridResults, folder: str | Path, record: Mapping[str, Any] | None = None
) -> list[str]:
    """Write the tables, figures and page of a grid, as ``ct grid report`` does; returns the paths.

    Args:
        results: see :meth:`GridResults.load`.
        record: the ``command`` that ran the grid and the ``seconds`` that its runs took, if known.
    """
    name = results.grid.name
    record = dict(record or {})
    marginal = marginal_tables(results.marginal)
    best = best_tables(results.summary, list(results.grid.axes))
    sections = [Section("What each setting does", tuple(marginal), tuple(_images(results)))]
    for data in dict.fromkeys(results.changes.get("data", ())):
        mine = tuple(table for table in best if table.title.endswith(f" {data}"))
        sections.append(Section(data, mine, tuple(_images(results, data))))
    facts = _facts(results, record.get("seconds"))
    warning = _remark(results)
    head = _head(results.grid.title or name, warning, facts)
    page = fill_template(
        "sections.html",
        title=results.grid.title or f"Grid {name}",
        subtitle="Models trained with counterfactuals, each compared with conventional models of "
        "the same shape.",
        warning=warning,
        sections=sections,
        settings=facts,
        commands=[record["command"]] if record.get("command") else [],
    )
    files: dict[str, str | bytes] = {
        f"{name}.csv": csv_text(results.tidy),
        f"{name}_summary.csv": csv_text(results.summary),
        f"{name}.md": "\n".join([*head, *(table.markdown() for table in (*marginal, *best))]),
        f"{name}.html": page,
        f"provenance/{name}.json": json_text({**facts, **record}),
    }
    images = (image for section in sections for image in section.figures)
    return write_files(
        folder, files | {f"figures/{image.name}.png": image.png for image in images}
    )


def _head(title: str, warning: str, facts: Mapping[str, Any]) -> list[str]:
    """The first lines of the Markdown page."""
    lines = [f"## {title}\n"]
    if warning:
        lines.append(f"**{warning}**\n")
    return [*lines, *(f"- {key}: {value}" for key, value in facts.items()), ""]


def grid_text(results: GridResults) -> str:
    """What each setting does, for a terminal."""
    return "\n\n".join(table.text() for table in marginal_tables(results.marginal))


def _images(results: GridResults, data: str | None = None) -> list[Image]:
    """Figures over all data sets, or of one, arranged as in the paper's appendix."""
    name = results.grid.name
    axes = list(results.grid.axes)
    remark = _remark(results)
    if not len(results.changes) or len(axes) < (1 if data is None else 2):
        return []
    images = []
    for metric in _SHOWN:
        if data is None:
            start = name
            whose = "Change"
            spans = "settings, λ_egy at test time and runs"
            png = axis_overview_figure(results.changes, axes, metric.name, remark=remark)
        else:
            start = f"{name}_{data}"
            whose = f"{data}: change"
            spans = "λ_egy at test time and runs"
            png = detail_figure(results.changes, axes, data, metric.name, remark=remark)
        caption = (
            f"{whose} of {metric.words} against conventional training; boxes span {spans}."
        )
        images.append(Image(f"{start}_{metric.label.lower()}", caption, png))
    if data is None:
        caption = (
            "Share of counterfactuals that mature in training; lines are means of settings, "
            "bands half of them."
        )
        images.append(
            Image(
                f"{name}_maturity",
                caption,
                axis_maturity_figure(results.maturity, axes, remark=remark),
            )
        )
    return images


def _facts(results: GridResults, wall: float | None) -> dict[str, Any]:
    measurement = results.grid.measurement
    protocol = measurement.protocol
    return {
        "settings": f"{results.points - results.missing:,} of {results.points:,}",
        "models": f"{results.models:,}",
        "computing time": duration(results.seconds),
        **({"time by the clock": duration(wall)} if wall else {}),
        "counterfactuals measured on": f"{measurement.on} rows",
        "evaluation": f"{protocol.num_runs} runs × {protocol.num_individuals} individuals × "
        f"λ_egy {', '.join(f'{value:g}' for value in protocol.lambda_energy)}",
        "accuracy measured on": "test rows",
        **versions(),
    }


def _remark(results: GridResults) -> str:
    """The warning at the top."""
    parts = []
    if results.grid.quick:
        parts.append(
            "A quick look (a tenth of the epochs), not the published settings: do not compare "
            "these numbers."
        )
    if results.missing:
        parts.append(f"{results.missing:,} of {results.points:,} settings are missing.")
    return " ".join(parts)


# ---- tables --------------------------------------------------------------------------------------


def marginal_tables(marginal: pd.DataFrame) -> list[TextTable]:
    """Per data set: the median and the quartiles over all settings with a value, for each value of
    each axis.
    """
    header = (
        "axis",
        "value",
        "settings",
        "IP %",
        "IP* %",
        "cost %",
        "validity",
        "accuracy, points",
        "share mature",
    )
    out = []
    for data, part in marginal.groupby("data", sort=False) if len(marginal) else ():
        rows = []
        for _, row in part.iterrows():
            spreads = (
                interval(row[f"{m} median"], row[f"{m} low"], row[f"{m} high"], 1)
                for m in RATIOS
            )
            ends = (("validity", 2), ("accuracy change, points", 1), ("share mature", 2))
            others = (number(row[name], digits) for name, digits in ends)
            rows.append(
                (label(row["axis"]), f"{row['value']}", f"{row['settings']}", *spreads, *others)
            )
        notes = ["Medians of settings with quartiles in brackets. " + _COMPARED]
        notes += ["Some models ended early because their weights became non-finite."] * bool(
            part["stopped"].max()
        )
        out.append(
            TextTable(f"What each setting does on {data}", header, tuple(rows), tuple(notes))
        )
    return out


def best_tables(summary: pd.DataFrame, axes: Sequence[str]) -> list[TextTable]:
    """Per data set: the settings of lowest implausibility among those with mostly valid
    counterfactuals.
    """
    out = []
    metrics = (
        "implausibility",
        "implausibility change %",
        "cost change %",
        "validity",
        "accuracy",
        "share mature",
    )
    header = (
        "rank",
        *(label(axis) for axis in axes),
        "IP",
        "IP %",
        "cost %",
        "validity",
        "accuracy",
        "share mature",
    )
    for data, part in summary.groupby("data", sort=False) if len(summary) else ():
        allowed = part[differs(part) & (part["validity"] >= 0.5)]
        best = allowed.sort_values("implausibility").head(_BEST)
        rows = tuple(
            (
                f"{rank}",
                *(text(row[axis]) for axis in axes),
                *(number(row[metric]) for metric in metrics),
            )
            for rank, (_, row) in enumerate(best.iterrows(), start=1)
        )
        if rows:
            out.append(TextTable(f"Best settings on {data}", header, rows, (_COMPARED,)))
    return out
