"""The truth tables as text: every method beside its conventional twin and beside real rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from counterfactual_training.reports.style import METRIC_NAMES
from counterfactual_training.reports.text_table import NOTHING, TextTable, number

_SETTINGS = {"free": "every feature free to move", "protected": "protected features immutable"}
_FLOORS = {"real": "(real rows)", "unmoved": "(unmoved)", "nearest_unlike": "(nearest unlike)"}
# Title, factor and digits of each metric.
_COLUMNS = {
    "nn5": ("5-NN", 1, 3),
    "ip": ("IP", 1, 2),
    "ip_star": ("IP* ·10³", 1000, 1),
    "lof": ("inliers %", 100, 0),
    "boosting": ("boosting %", 100, 0),
    "cost": ("cost", 1, 2),
    "changes": ("changes", 1, 1),
}
_NOTES = (
    "Means over the individuals for whom both the model and its twin have a valid counterfactual; * better, † worse "
    "than the twin, 5 % after Holm over all cells of truth.csv.",
    "5-NN −%: reduction against the twin. share: of the excess over real rows that the method removes. Diversity: "
    "spread of the counterfactuals, 1 as real rows. Judges were fitted to rows that no model saw.",
    ".5 and .95*: search that ends just past τ, logits scaled so that the median correctly classified training row has "
    ".95; there the rescaled baseline is the baseline. 50 × 0.1: the published steps at τ = .5, logits as they are.",
)


def truth_texts(tables: Mapping[str, pd.DataFrame]) -> list[TextTable]:
    """The tables of :func:`experiments.truth.truth_results.truth_tables` as text."""
    truth = tables["truth"]
    if truth.empty:
        return []
    out = [_gains(tables["truth_gains"])]
    for (setting, tau), part in truth.groupby(["setting", "tau"], sort=False):
        title = f"Counterfactuals at τ = {tau}" if "×" not in str(tau) else f"Counterfactuals by {tau} steps"
        rows = [row for _, cell in part.groupby("data", sort=False) for row in _rows(cell, setting == "free")]
        columns = (title for title, *_ in _COLUMNS.values())
        header = ("data", "model", "valid %", *columns, "5-NN −%", "share", "diversity")
        out.append(TextTable(f"{title}, {_SETTINGS[str(setting)]}", header, tuple(rows)))
    out[-1] = replace(out[-1], notes=_NOTES)
    return [*out, _performance(tables["truth_performance"])]


def _rows(cell: pd.DataFrame, with_floors: bool) -> list[tuple[str, ...]]:
    """One row per model of a data set, after those that need no model."""
    data = str(cell["data"].iloc[0])
    first = cell[cell["model"] == cell["model"].iloc[0]].set_index("metric")
    out = []
    for floor, called in _FLOORS.items() if with_floors else ():
        out.append((data, called, NOTHING, *_shown(first[floor]), NOTHING, NOTHING, NOTHING))
    for model, part in cell.groupby("model", sort=False):
        by_metric = part.set_index("metric")
        marks = by_metric["verdict"].map({"better": "*", "worse": "†"}).fillna("")
        texts = (text + marks[m] for text, m in zip(_shown(by_metric["value"]), _COLUMNS, strict=True))
        nearest = by_metric.to_dict("index")["nn5"]
        ends = (number(nearest[name], digits) for name, digits in (("change", 1), ("share", 2), ("diversity", 2)))
        out.append((data, str(model), number(100 * nearest["validity"], 0) + marks["valid"], *texts, *ends))
    return out


def _shown(values: pd.Series) -> list[str]:
    """Values by metric as text."""
    return [number(factor * values.get(m, float("nan")), k) for m, (_, factor, k) in _COLUMNS.items()]


def _gains(table: pd.DataFrame) -> TextTable:
    """The published reductions beside those of each method, by fixed steps and by the line search."""
    methods = [name for name in table.columns if name not in ("data", "metric", "published")]
    header = ("data", "metric", "published", *methods)
    rows = tuple(
        (str(row["data"]), METRIC_NAMES[str(row["metric"])], *(number(row[name], 1) for name in header[2:]))
        for _, row in table.iterrows()
    )
    notes = (
        "Published: counterfactual training, 50 steps of 0.1 with an energy penalty, τ = .95 (cost: τ = .5, "
        "protected). Others: against the twin, on the same individuals.",
    )
    return TextTable("What is left of the published reductions in %", header, rows, notes)


def _performance(table: pd.DataFrame) -> TextTable:
    rows = []
    for (data, model, setting), part in table.groupby(["data", "model", "setting"], sort=False):
        by_metric = part.set_index("metric").to_dict("index")
        accuracy, calibration = by_metric["accuracy"], by_metric["calibration_error"]
        numbers = [number(100 * accuracy[name], 2) for name in ("value", "change")]
        numbers += [number(calibration[name], 3) for name in ("value", "change")]
        rows.append((str(data), str(model), str(setting), *numbers, number(accuracy["seconds"], 1)))
    header = ("data", "model", "setting", "accuracy %", "change pp", "calibration error", "change", "seconds to train")
    return TextTable("Predictive performance of the classifier that decides", header, tuple(rows))
