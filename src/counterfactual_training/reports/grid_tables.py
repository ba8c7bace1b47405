"""Tables of a grid as text: what each value of each axis does, and the best settings."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from counterfactual_training.reports.grid_figures import label, text
from counterfactual_training.reports.text_table import TextTable, interval, number

_BEST = 10
_BASELINE = (
    "Changes are in % of the mean over all conventional models of the grid with the same data set, architecture and "
    "length of training; negative is better."
)


def marginal_tables(marginal: pd.DataFrame) -> list[TextTable]:
    """Per data set: the median and the quartiles over all settings with a value, for each value of each axis."""
    if marginal.empty:
        return []
    header = ("axis", "value", "settings", "IP %", "IP* %", "cost %", "validity", "accuracy, points", "share mature")
    out = []
    for data, part in marginal.groupby("data", sort=False):
        rows = tuple(
            (
                label(row["axis"]),
                f"{row['value']}",
                f"{row['settings']}",
                *(_spread(row, metric) for metric in ("implausibility", "implausibility_mmd", "cost")),
                number(row["validity"], 2),
                number(row["accuracy change, points"], 1),
                number(row["share mature"], 2),
            )
            for _, row in part.iterrows()
        )
        stopped = int(part["stopped"].max()) if len(part) else 0
        notes = ["Medians of settings with quartiles in brackets. " + _BASELINE]
        notes += ["Some models ended early because their weights became non-finite."] * bool(stopped)
        out.append(TextTable(f"What each setting does on {data}", header, rows, tuple(notes)))
    return out


def best_tables(summary: pd.DataFrame, axes: Sequence[str]) -> list[TextTable]:
    """Per data set: the settings of lowest implausibility among those with mostly valid counterfactuals."""
    if summary.empty:
        return []
    out = []
    metrics = ("implausibility", "implausibility change %", "cost change %", "validity", "accuracy", "share mature")
    header = ("rank", *(label(axis) for axis in axes), "IP", "IP %", "cost %", "validity", "accuracy", "share mature")
    for data, part in summary[summary["training"] != "conventional"].groupby("data", sort=False):
        best = part[part["validity"] >= 0.5].sort_values("implausibility").head(_BEST)
        rows = tuple(
            (f"{rank}", *(text(row[axis]) for axis in axes), *(number(row[metric]) for metric in metrics))
            for rank, (_, row) in enumerate(best.iterrows(), start=1)
        )
        if rows:
            out.append(TextTable(f"Best settings on {data}", header, rows, (_BASELINE,)))
    return out


def _spread(row: pd.Series, metric: str) -> str:
    return interval(row[f"{metric} median"], row[f"{metric} low"], row[f"{metric} high"], 1)
