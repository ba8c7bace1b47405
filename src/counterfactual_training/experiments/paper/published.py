"""Every number the paper published, from ``published.csv`` beside this file.

Tables in it: ``main`` (reductions in %, with ± and asterisk), ``means`` (absolute values, and the difference with its
99 % interval), ``unconstrained`` (cost reduction without protected features), ``validity``, ``attribution`` (median,
95 % interval), ``ablation`` and ``robustness`` (read off figures: ``spread`` is the reading error, ``approximate``
marks values partly hidden in the figure), ``by_lambda`` and ``accuracy`` (printed only in a draft).

Sources: ``satml`` the final paper, ``preprint`` the version of July 2025, ``draft`` an earlier submission.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from io import StringIO

import pandas as pd

from counterfactual_training.errors import check_name

KEYS = ["table", "data", "metric", "quantity", "detail", "source"]


@cache
def _numbers() -> pd.DataFrame:
    text = (files("counterfactual_training.experiments.paper") / "published.csv").read_text()
    frame = pd.read_csv(StringIO(text), dtype={"detail": "str"})
    return frame.assign(detail=frame["detail"].fillna(""))


def published(table: str | None = None, source: str | None = "satml") -> pd.DataFrame:
    """The numbers of one table from one source (``None``: of all), without the printed averages."""
    numbers = _numbers()
    for column, wanted in (("table", table), ("source", source)):
        if wanted is not None:
            check_name(f"{column} of published numbers", wanted, sorted(set(numbers[column])))
            numbers = numbers[numbers[column] == wanted]
    return numbers[numbers["data"] != "Avg."].reset_index(drop=True)


def value(
    table: str, data: str, metric: str, quantity: str, detail: str = "", source: str = "satml", column: str = "value"
) -> float:
    """One published number; NaN where the paper has none."""
    numbers = _numbers()
    wanted = (table, data, metric, quantity, detail, source)
    rows = numbers[(numbers[KEYS] == pd.Series(wanted, KEYS)).all(axis=1)]
    return float(rows[column].iloc[0]) if len(rows) else float("nan")
