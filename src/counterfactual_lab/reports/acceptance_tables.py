"""Cost at equal acceptance as a table: methods by data sets."""

from __future__ import annotations

import pandas as pd

from counterfactual_lab.reports.style import unique
from counterfactual_training.text_table import NOTHING, TextTable, number

NOTE = (
    "Cost as a multiple of the reference's, where as many judges accept the advice of both: each "
    "is searched up to several τ, and costs between two of them are interpolated. Paired: the "
    "same people, those whom both answer at every τ. In brackets: the interval over training "
    "seeds (Student's t, 95 %); * cheaper, † dearer than the reference beyond it. –: no "
    "acceptance that both reach, or fewer than eight people."
)


def equal_table(accepted: pd.DataFrame, title: str) -> TextTable:
    """Of one setting and one kind of judge: a row per method, a column per data set.

    Args:
        accepted: of :func:`equal_acceptance`.
    """
    data = unique(accepted["data"])
    rows = []
    for name, of_method in accepted.groupby("method", sort=False):
        by_data = {str(row["data"]): _cost(row) for _, row in of_method.iterrows()}
        shown = [by_data.get(one, NOTHING) for one in data]
        rows.append((str(name), number(of_method["cost"].median(), 2), *shown))
    return TextTable(title, ("method", "median", *data), tuple(rows), (NOTE,))


def _cost(row: pd.Series) -> str:
    """A cost with its interval, marked where this leaves out 1."""
    text = number(row["cost"], 2)
    if pd.isna(row["cost"]) or pd.isna(row["low"]):
        return text
    if row["high"] < 1:
        mark = "*"
    elif row["low"] > 1:
        mark = "†"
    else:
        mark = ""
    return f"{text}{mark} ({number(row['low'], 2)} … {number(row['high'], 2)})"
