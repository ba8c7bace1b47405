"""The metrics of a table: what each means, which way is better, and a model compared with its baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from counterfactual_training.reports.text_table import NOTHING, ruled


@dataclass(frozen=True)
class Metric:
    """A metric as a table shows it.

    Attributes:
        name: in code and JSON.
        label: the title of its column.
        better: which way is better.
        meaning: for the reader.
        digits: after the point.
        change: whether two models are compared by the ``ratio`` of their values or by their ``difference``.
    """

    name: str
    label: str
    better: Literal["higher", "lower"]
    meaning: str
    digits: int = 3
    change: Literal["ratio", "difference"] = "ratio"

    @property
    def arrow(self) -> str:
        return "↑" if self.better == "higher" else "↓"

    def text(self, value: float) -> str:
        return NOTHING if math.isnan(value) else f"{value:.{self.digits}f}"

    def change_text(self, value: float, baseline: float) -> str:
        """``−24 %`` or ``+0.07``."""
        if math.isnan(value) or math.isnan(baseline) or (self.change == "ratio" and baseline == 0):
            return NOTHING
        if self.change == "difference":
            return _signed(value - baseline, self.digits)
        return f"{_signed(100 * (value / baseline - 1), 0)} %"

    def printed(self, value: float, other: float) -> PrintedNumber:
        """The value as text. It is the better one only if the difference can be seen in print."""
        gain = value - other if self.better == "higher" else other - value
        return PrintedNumber(self.text(value), gain > 0 and self.text(value) != self.text(other))


@dataclass(frozen=True)
class PrintedNumber:
    """A number as printed, and whether it is the better one of its pair."""

    text: str
    best: bool = False

    @property
    def starred(self) -> str:
        return f"{self.text}*" if self.best else f"{self.text} "


METRICS = (
    Metric("accuracy", "Accuracy", "higher", "share of test rows classified correctly", change="difference"),
    Metric(
        "implausibility",
        "IP",
        "lower",
        "implausibility: how far counterfactuals are from real members of the target class (mean L1 distance)",
        digits=2,
    ),
    Metric(
        "implausibility_mmd",
        "IP*",
        "lower",
        "implausibility of counterfactuals as a group: squared MMD to the target class, 0 if both are alike",
    ),
    Metric("cost", "Cost", "lower", "how far people have to move to get the other decision (L1 distance)", digits=2),
    Metric(
        "validity",
        "Validity",
        "higher",
        "share of counterfactuals that the model assigns to the target class",
        change="difference",
    ),
    Metric(
        "robust_accuracy",
        "Robust acc.",
        "higher",
        "accuracy after FGSM has moved every test row against the model",
        change="difference",
    ),
)


@dataclass(frozen=True)
class Comparison:
    """One metric of a model and of its baseline."""

    metric: Metric
    baseline: PrintedNumber
    ours: PrintedNumber
    change: str


@dataclass(frozen=True)
class Pair:
    """A model compared with its baseline: one data set, one setting.

    Attributes:
        free: whether every feature may change; ``setting`` says it in words.
        names: what the baseline and the model are called.
    """

    data: str
    free: bool
    setting: str
    names: tuple[str, str]
    comparisons: tuple[Comparison, ...]

    def get(self, metric: str) -> Comparison:
        return next(found for found in self.comparisons if found.metric.name == metric)


def pairs(table: pd.DataFrame) -> list[Pair]:
    """Pairs of a table with columns ``data``, ``training``, ``protected`` and the metrics, the baseline first."""
    found = []
    for (data, protected), group in table.groupby(["data", "protected"], sort=False):
        baseline, ours = (row for _, row in group.iterrows())
        setting = f"{protected} immutable" if protected else "all mutable"
        names = (str(baseline["training"]), str(ours["training"]))
        compared = tuple(_compare(metric, float(baseline[metric.name]), float(ours[metric.name])) for metric in METRICS)
        found.append(Pair(str(data), not protected, setting, names, compared))
    return found


def _compare(metric: Metric, baseline: float, ours: float) -> Comparison:
    printed = metric.printed(baseline, ours), metric.printed(ours, baseline)
    return Comparison(metric, *printed, metric.change_text(ours, baseline))


def pairs_text(table: pd.DataFrame) -> str:
    """The pairs for a terminal; ``*`` marks the better one of each."""
    lines = [["data", "may change", "training", *(f"{metric.label} {metric.arrow}" for metric in METRICS)]]
    for pair in pairs(table):
        found = pair.comparisons
        lines.append([pair.data, pair.setting, pair.names[0], *(one.baseline.starred for one in found)])
        lines.append(["", "", pair.names[1], *(one.ours.starred for one in found)])
        lines.append(["", "", "change", *(f"{one.change} " for one in found)])
        lines.append([])
    return ruled(lines[:-1], num_left=3)


def metrics_text(numbers: pd.Series) -> str:
    """The numbers of one model with their meanings, for a terminal; those that are no :data:`METRICS` come last."""
    described = {metric.name: metric for metric in METRICS}
    lines = [["metric", "value", "better", "meaning"]]
    lines += [[name, m.text(float(numbers[name])), m.better, m.meaning] for name, m in described.items()]
    lines += [[str(name), f"{value:.3f}", "", ""] for name, value in numbers.items() if name not in described]
    return ruled(lines)


def _signed(value: float, digits: int) -> str:
    rounded = round(value, digits)
    sign = "+" if rounded > 0 else "−" if rounded < 0 else "±"
    return f"{sign}{abs(rounded):.{digits}f}"
