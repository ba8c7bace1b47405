"""The metrics of a table: what each means, which way is better, and a model compared with its baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pandas as pd

from counterfactual_training.reports.text_table import NOTHING, ruled


@dataclass(frozen=True)
class Metric:
    """A metric as a table shows it.

    Attributes:
        name: in code and JSON.
        label: the title of its column.
        meaning: for the reader.
        digits: after the point.
        change: whether two models are compared by the ``ratio`` of their values or by their ``difference``.
    """

    name: str
    label: str
    better: Literal["higher", "lower"]
    digits: int
    change: Literal["ratio", "difference"]
    meaning: str

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
        better = value > other if self.better == "higher" else value < other
        return PrintedNumber(self.text(value), better and self.text(value) != self.text(other))


class PrintedNumber(NamedTuple):
    """A number as printed, and whether it is the better one of its pair."""

    text: str
    best: bool


_FAR = "implausibility: how far counterfactuals are from real members of the target class (mean L1 distance)"
_ALIKE = "implausibility of counterfactuals as a group: squared MMD to the target class, 0 if both are alike"
_COST = "how far people have to move to get the other decision (L1 distance)"
_VALID = "share of counterfactuals that the model assigns to the target class"
_ATTACKED = "accuracy after FGSM has moved every test row against the model"
METRICS = (
    Metric("accuracy", "Accuracy", "higher", 3, "difference", "share of test rows classified correctly"),
    Metric("implausibility", "IP", "lower", 2, "ratio", _FAR),
    Metric("implausibility_mmd", "IP*", "lower", 3, "ratio", _ALIKE),
    Metric("cost", "Cost", "lower", 2, "ratio", _COST),
    Metric("validity", "Validity", "higher", 3, "difference", _VALID),
    Metric("robust_accuracy", "Robust acc.", "higher", 3, "difference", _ATTACKED),
)


class Comparison(NamedTuple):
    """One metric of a model and of its baseline."""

    baseline: PrintedNumber
    ours: PrintedNumber
    change: str


@dataclass(frozen=True)
class Pair:
    """A model compared with its baseline: one data set, one setting.

    Attributes:
        free: whether every feature may change; ``setting`` says it in words.
        names: what the baseline and the model are called.
        comparisons: a comparison for each of :data:`METRICS`.
    """

    data: str
    free: bool
    setting: str
    names: tuple[str, str]
    comparisons: dict[str, Comparison]


def pairs(table: pd.DataFrame) -> list[Pair]:
    """Pairs of a table with columns ``data``, ``training``, ``protected`` and the metrics, the baseline first."""
    found = []
    for (data, protected), group in table.groupby(["data", "protected"], sort=False):
        baseline, ours = (row for _, row in group.iterrows())
        compared = {}
        for metric in METRICS:
            old, new = float(baseline[metric.name]), float(ours[metric.name])
            printed = metric.printed(old, new), metric.printed(new, old)
            compared[metric.name] = Comparison(*printed, metric.change_text(new, old))
        setting = f"{protected} immutable" if protected else "all mutable"
        found.append(Pair(str(data), not protected, setting, (baseline["training"], ours["training"]), compared))
    return found


def pairs_text(table: pd.DataFrame) -> str:
    """The pairs for a terminal; ``*`` marks the better one of each."""
    lines = [["data", "may change", "training", *(f"{metric.label} {metric.arrow}" for metric in METRICS)]]
    for pair in pairs(table):
        printed = zip(*((one.baseline, one.ours) for one in pair.comparisons.values()), strict=True)
        baseline, ours = ([f"{text}{'*' if best else ' '}" for text, best in row] for row in printed)
        lines += [[pair.data, pair.setting, pair.names[0], *baseline], ["", "", pair.names[1], *ours]]
        lines += [["", "", "change", *(f"{one.change} " for one in pair.comparisons.values())], []]
    return ruled(lines[:-1], num_left=3)


def metrics_text(numbers: pd.Series) -> str:
    """The numbers of one model with their meanings, for a terminal; metrics without a description come last."""
    described = {metric.name: metric for metric in METRICS}
    lines = [["metric", "value", "better", "meaning"]]
    lines += [[name, m.text(float(numbers[name])), m.better, m.meaning] for name, m in described.items()]
    lines += [[str(name), f"{value:.3f}", "", ""] for name, value in numbers.items() if name not in described]
    return ruled(lines)


def _signed(value: float, digits: int) -> str:
    rounded = round(value, digits)
    sign = "+" if rounded > 0 else "−" if rounded < 0 else "±"
    return f"{sign}{abs(rounded):.{digits}f}"
