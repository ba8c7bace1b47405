"""The report of ``ct truth``: tables and figures, and the page that explains them."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from counterfactual_lab.reports import truth_figures as draw
from counterfactual_lab.reports.acceptance_tables import equal_table
from counterfactual_lab.reports.style import METRIC_NAMES
from counterfactual_lab.truth.truth import Truth
from counterfactual_training.evaluation.metrics import ACCEPTANCE
from counterfactual_training.tables.pages.files import csv_text, write_files
from counterfactual_training.text_table import NOTHING, TextTable, cells, number

Tables = Mapping[str, pd.DataFrame]

_SETTINGS = {"free": "every feature free to move", "protected": "protected features immutable"}
_FLOORS = {"real": "(real rows)", "unmoved": "(unmoved)", "nearest_unlike": "(nearest unlike)"}
# Title, factor and digits of each metric.
_COLUMNS = {
    "nn5": ("5-NN", 1, 3),
    "ip": ("IP", 1, 2),
    "ip_star": ("IP* ·10³", 1000, 1),
    "lof": ("inliers %", 100, 0),
    ACCEPTANCE: ("accepted %", 100, 0),
    "cost": ("cost", 1, 2),
    "changes": ("changes", 1, 1),
}
_NOTES = (
    "Means over the individuals for whom both the model and its reference have a valid "
    "counterfactual; * better, † worse "
    "than the reference, 5 % after Holm over all cells of truth.csv.",
    "5-NN −%: reduction against the reference. share: of the excess over real rows that a method "
    "removes. Diversity: "
    "spread of the counterfactuals, 1 as real rows. Judges were fitted to rows that no model saw. "
    "accepted: share of four judges of other families (boosting, logistic regression, support "
    "vectors, neighbours) that put the counterfactual into the wanted class.",
    ".5 and .95*: search that ends just past τ, logits scaled so that the median correctly "
    "classified training row has "
    ".95; there the rescaled model is the conventional one. 50 × 0.1: the published steps at "
    "τ = .5, logits as they are.",
)
_PICTURES = {
    "overshoot": draw.overshoot_figure,
    "rescaled": draw.rescaled_figure,
    "digits": draw.gallery_figure,
}


def truth_head(truth: Truth, command: str) -> str:
    """The sentence above tables and page: which rows were measured, how models were trained, and
    the command.
    """
    caps = truth.caps
    if truth.on_test:
        rows = "the test rows"
    else:
        rows = "rows cut from the training rows"
    if caps.rows is not None:
        limits = f"at most {caps.rows:,} rows, "
    else:
        limits = ""
    return f"Measured on {rows}; trained on {limits}{caps.epochs} epochs. Made with: {command}"


def write_truth(tables: Tables, folder: str | Path, head: str) -> list[str]:
    """Write tables as CSV and Markdown, floors and prices as figures, as ``ct truth`` does; returns
    the paths.

    Args:
        tables: see :func:`truth_tables`.
        head: see :func:`truth_head`.
    """
    files: dict[str, str | bytes] = {
        f"{name}.csv": csv_text(table) for name, table in tables.items() if len(table)
    }
    texts = (text.markdown() for text in truth_texts(tables))
    files["truth.md"] = "\n".join([f"## What the gains are made of\n\n{head}\n", *texts])
    if len(tables["truth"]):
        files["figures/price.png"] = draw.truth_price_figure(tables["truth"])
        files["figures/floor.png"] = draw.floor_figure(tables["truth"])
        if (tables["truth"]["metric"] == ACCEPTANCE).any():
            files["figures/acceptance.png"] = draw.truth_acceptance_figure(tables["truth"])
    return write_files(folder, files)


def write_truth_page(
    page: str | Path, tables: Tables, folder: str | Path, head: str
) -> list[str]:
    """Write *What the published gains are made of*, its figures and their tables; returns the
    paths.

    Args:
        page: the Markdown file, which links to ``folder``, where :func:`write_truth` wrote its
            files.
        tables: of :func:`truth_tables` and :func:`picture_tables` together.
    """
    from counterfactual_lab.reports.gains_page import PICTURED, gains_page, quoted

    page = Path(page)
    folder = Path(folder)
    beside = quoted(tables)
    files: dict[str, str | bytes] = {f"{name}.csv": csv_text(tables[name]) for name in PICTURED}
    files |= {f"{name}.csv": csv_text(table) for name, table in beside.items() if len(table)}
    for name, make in _PICTURES.items():
        if len(tables[name]):
            files[f"figures/{name}.png"] = make(tables[name])
    # From the tables as they are written, so that the page follows from the files to the last
    # digit.
    written = {name: table for name, table in tables.items() if name != "digits"}
    written |= {"truth": beside["quoted"], "truth_by_seed": beside["quoted_by_seed"]}
    for name in (name for name, table in written.items() if len(table)):
        written[name] = pd.read_csv(io.StringIO(csv_text(written[name])), dtype={"tau": str})
    text = gains_page(written, Path(os.path.relpath(folder, page.parent)).as_posix(), head)
    return write_files(folder, files) + write_files(page.parent, {page.name: text})


# ---- tables as text: every method beside its reference and beside real rows ----------------------


def truth_texts(tables: Tables) -> list[TextTable]:
    """The tables of :func:`counterfactual_lab.truth.truth_results.truth_tables` as text."""
    truth = tables["truth"]
    if truth.empty:
        return []
    out = [_gains(tables["truth_gains"])]
    for (setting, tau), part in truth.groupby(["setting", "tau"], sort=False):
        if "×" not in str(tau):
            title = f"Counterfactuals at τ = {tau}"
        else:
            title = f"Counterfactuals by {tau} steps"
        rows = [
            row
            for _, cell in part.groupby("data", sort=False)
            for row in _rows(cell, setting == "free")
        ]
        columns = (title for title, *_ in _COLUMNS.values())
        header = ("data", "method", "valid %", *columns, "5-NN −%", "share", "diversity")
        out.append(TextTable(f"{title}, {_SETTINGS[str(setting)]}", header, tuple(rows)))
    out[-1] = replace(out[-1], notes=_NOTES)
    equal = equal_tables(tables["truth_acceptance"])
    return [*out, *equal, _performance(tables["truth_performance"])]


def equal_tables(accepted: pd.DataFrame) -> list[TextTable]:
    """Cost at equal acceptance, by setting; a row per method."""
    return [
        equal_table(part, f"Cost at equal acceptance, {_SETTINGS[str(setting)]}")
        for setting, part in accepted.groupby("setting", sort=False)
    ]


def _rows(cell: pd.DataFrame, with_floors: bool) -> list[tuple[str, ...]]:
    """One row per model of a data set, after those that need no model."""
    data = str(cell["data"].iloc[0])
    first = cell[cell["method"] == cell["method"].iloc[0]].set_index("metric")
    out = []
    for floor, called in _FLOORS.items() if with_floors else ():
        out.append((data, called, NOTHING, *_shown(first[floor]), NOTHING, NOTHING, NOTHING))
    for model, part in cell.groupby("method", sort=False):
        by_metric = part.set_index("metric")
        marks = by_metric["verdict"].map({"better": "*", "worse": "†"}).fillna("")
        texts = (
            text + marks[m]
            for text, m in zip(_shown(by_metric["value"]), _COLUMNS, strict=True)
        )
        nearest = by_metric.to_dict("index")["nn5"]
        ends = (
            number(nearest[name], digits)
            for name, digits in (("change", 1), ("share", 2), ("diversity", 2))
        )
        out.append(
            (
                data,
                str(model),
                number(100 * nearest["validity"], 0) + marks["valid"],
                *texts,
                *ends,
            )
        )
    return out


def _shown(values: pd.Series) -> list[str]:
    """Values by metric as text."""
    return [
        number(factor * values.get(m, float("nan")), k)
        for m, (_, factor, k) in _COLUMNS.items()
    ]


def _gains(table: pd.DataFrame) -> TextTable:
    """The published reductions beside those of each method, by fixed steps and by the line
    search.
    """
    rows = cells(table.assign(metric=table["metric"].map(METRIC_NAMES)), 1)
    notes = (
        "Published: counterfactual training, 50 steps of 0.1 with an energy penalty, τ = .95 "
        "(cost: τ = .5, "
        "protected). Others: against the reference, on the same individuals.",
    )
    return TextTable(
        "What is left of the published reductions in %", tuple(table.columns), rows, notes
    )


def _performance(table: pd.DataFrame) -> TextTable:
    keys = ["data", "method", "setting"]
    both = ["value", "change"]
    accuracy, calibration = (
        table[table["metric"] == m].set_index(keys) for m in ("accuracy", "calibration_error")
    )
    shown = pd.concat(
        [100 * accuracy[both], calibration[both], accuracy["seconds"]], axis=1
    ).loc[accuracy.index]
    header = (
        *keys,
        "accuracy %",
        "change pp",
        "calibration error",
        "change",
        "seconds to train",
    )
    rows = cells(shown.reset_index(), 2, 2, 3, 3, 1)
    return TextTable("Predictive performance of the classifier that decides", header, rows)
