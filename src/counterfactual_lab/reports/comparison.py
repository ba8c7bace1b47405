"""A model compared with a conventional one, metric by metric, as text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from counterfactual_training.evaluation.metrics import METRICS, Metric
from counterfactual_training.evaluation.metrics_text import value_text
from counterfactual_training.text_table import NOTHING, ruled


class PrintedNumber(NamedTuple):
    """A number as printed, and whether it is the better one of its pair."""

    text: str
    best: bool


class MetricComparison(NamedTuple):
    """One metric of a model and of a conventional one."""

    usual: PrintedNumber
    ours: PrintedNumber
    change: str


@dataclass(frozen=True)
class Pair:
    """A model compared with a conventional one: one data set, one setting.

    Attributes:
        free: whether every feature may change; ``setting`` says it in words.
        names: what the conventional model and the other are called.
        comparisons: a comparison for each of :data:`METRICS`.
    """

    data: str
    free: bool
    setting: str
    names: tuple[str, str]
    comparisons: dict[str, MetricComparison]


def pairs(table: pd.DataFrame) -> list[Pair]:
    """Pairs of a table with columns ``data``, ``method``, ``protected`` and the metrics, the
    conventional one first.
    """
    comparisons = []
    for (data, protected), group in table.groupby(["data", "protected"], sort=False):
        usual, ours = (row for _, row in group.iterrows())
        compared = {}
        for name, metric in METRICS.items():
            old = float(usual[name])
            new = float(ours[name])
            compared[name] = MetricComparison(
                _printed(metric, old, new), _printed(metric, new, old), change(metric, new, old)
            )
        if protected:
            setting = f"{protected} immutable"
        else:
            setting = "all mutable"
        comparisons.append(
            Pair(
                str(data),
                not protected,
                setting,
                (usual["method"], ours["method"]),
                compared,
            )
        )
    return comparisons


def pairs_text(table: pd.DataFrame) -> str:
    """The pairs for a terminal; ``*`` marks the better one of each."""
    lines = [["data", "may change", "method", *(metric.title for metric in METRICS.values())]]
    for pair in pairs(table):
        printed = zip(
            *((one.usual, one.ours) for one in pair.comparisons.values()), strict=True
        )
        usual, ours = (
            [f"{text}{'*' if best else ' '}" for text, best in row] for row in printed
        )
        lines += [
            [pair.data, pair.setting, pair.names[0], *usual],
            ["", "", pair.names[1], *ours],
        ]
        lines += [
            ["", "", "change", *(f"{one.change} " for one in pair.comparisons.values())],
            [],
        ]
    return ruled(lines[:-1], num_left=3)


def change(metric: Metric, value: float, usual: float) -> str:
    """``−24 %`` or ``+0.07``."""
    if math.isnan(value) or math.isnan(usual) or (metric.change == "ratio" and usual == 0):
        return NOTHING
    if metric.change == "difference":
        return _signed(value - usual, metric.digits)
    return f"{_signed(100 * (value / usual - 1), 0)} %"


def _printed(metric: Metric, value: float, other: float) -> PrintedNumber:
    """The value as text. It is the better one only if the difference can be seen in print."""
    if metric.better == "higher":
        better = value > other
    else:
        better = value < other
    text = value_text(metric, value)
    return PrintedNumber(text, better and text != value_text(metric, other))


def _signed(value: float, digits: int) -> str:
    rounded = round(value, digits)
    if rounded > 0:
        sign = "+"
    elif rounded < 0:
        sign = "−"
    else:
        sign = "±"
    return f"{sign}{abs(rounded):.{digits}f}"
