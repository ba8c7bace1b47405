"""Tables of a grid as text: what each value of each axis does, and the best settings."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from counterfactual_training.evaluation.metrics import RATIOS
from counterfactual_training.reports.grid_figures import label, text
from counterfactual_training.reports.text_table import TextTable, interval, number

_BEST = 10
_BASELINE = (
    "Changes are in % of the mean over all conventional models of the grid with the same data set, architecture and "
    "length of training; negative is better."
)


def marginal_tables(marginal: pd.DataFrame) -> list[TextTable]:
    """Per data set: the median and the quartiles over all settings with a value, for each value of each axis."""
    header = ("axis", "value", "settings", "IP %", "IP* %", "cost %", "validity", "accuracy, points", "share mature")
    out = []
    for data, part in marginal.groupby("data", sort=False) if len(marginal) else ():
        rows = []
        for _, row in part.iterrows():
            spreads = (interval(row[f"{m} median"], row[f"{m} low"], row[f"{m} high"], 1) for m in RATIOS)
            ends = (("validity", 2), ("accuracy change, points", 1), ("share mature", 2))
            others = (number(row[name], digits) for name, digits in ends)
            rows.append((label(row["axis"]), f"{row['value']}", f"{row['settings']}", *spreads, *others))
        notes = ["Medians of settings with quartiles in brackets. " + _BASELINE]
        notes += ["Some models ended early because their weights became non-finite."] * bool(part["stopped"].max())
        out.append(TextTable(f"What each setting does on {data}", header, tuple(rows), tuple(notes)))
    return out


def best_tables(summary: pd.DataFrame, axes: Sequence[str]) -> list[TextTable]:
    """Per data set: the settings of lowest implausibility among those with mostly valid counterfactuals."""
    out = []
    metrics = ("implausibility", "implausibility change %", "cost change %", "validity", "accuracy", "share mature")
    header = ("rank", *(label(axis) for axis in axes), "IP", "IP %", "cost %", "validity", "accuracy", "share mature")
    for data, part in summary.groupby("data", sort=False) if len(summary) else ():
        allowed = part[(part["training"] != "conventional") & (part["validity"] >= 0.5)]
        best = allowed.sort_values("implausibility").head(_BEST)
        rows = tuple(
            (f"{rank}", *(text(row[axis]) for axis in axes), *(number(row[metric]) for metric in metrics))
            for rank, (_, row) in enumerate(best.iterrows(), start=1)
        )
        if rows:
            out.append(TextTable(f"Best settings on {data}", header, rows, (_BASELINE,)))
    return out
