"""Numbers for people: what each metric means, which way is better, and tables in text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd


@dataclass(frozen=True)
class Metric:
    """A metric as a table shows it.

    Attributes:
        name: in code and JSON.
        label: at the head of a column.
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
        return "–" if math.isnan(value) else f"{value:.{self.digits}f}"

    def gain(self, value: float, baseline: float) -> float:
        """How much better a value is than the baseline, positive where it is; NaN where that cannot be said."""
        sign = 1 if self.better == "higher" else -1
        return sign * (value - baseline)

    def change_text(self, value: float, baseline: float) -> str:
        """``−24 %`` or ``+0.07``."""
        if math.isnan(value) or math.isnan(baseline) or (self.change == "ratio" and baseline == 0):
            return "–"
        if self.change == "difference":
            return _signed(value - baseline, self.digits)
        return f"{_signed(100 * (value / baseline - 1), 0)} %"


METRICS = (
    Metric("accuracy", "Accuracy", "higher", "share of test rows that the model classifies right", change="difference"),
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
        "share of counterfactuals that the model really puts into the target class",
        change="difference",
    ),
    Metric(
        "robust_accuracy",
        "Robust acc.",
        "higher",
        "accuracy after every test row was moved against the model by FGSM",
        change="difference",
    ),
)


@dataclass(frozen=True)
class Cell:
    """A number as printed, and whether it is the better one of its pair."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Comparison:
    """One metric of a model and of its baseline."""

    metric: Metric
    baseline: Cell
    ours: Cell
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

    def of(self, metric: str) -> Comparison:
        return next(found for found in self.comparisons if found.metric.name == metric)


def pairs(table: pd.DataFrame, metrics: Sequence[Metric] = METRICS) -> list[Pair]:
    """Pairs of a table with columns ``data``, ``training``, ``protected`` and the metrics, the baseline first."""
    found = []
    for (data, protected), group in table.groupby(["data", "protected"], sort=False):
        baseline, ours = (row for _, row in group.iterrows())
        found.append(
            Pair(
                data=str(data),
                free=not protected,
                setting=f"{protected} immutable" if protected else "all mutable",
                names=(str(baseline["training"]), str(ours["training"])),
                comparisons=tuple(_compare(m, float(baseline[m.name]), float(ours[m.name])) for m in metrics),
            )
        )
    return found


def _compare(metric: Metric, baseline: float, ours: float) -> Comparison:
    return Comparison(
        metric=metric,
        baseline=Cell(metric.text(baseline), _better(metric, baseline, ours)),
        ours=Cell(metric.text(ours), _better(metric, ours, baseline)),
        change=metric.change_text(ours, baseline),
    )


def pairs_text(table: pd.DataFrame, metrics: Sequence[Metric] = METRICS) -> str:
    """The same for a terminal; ``*`` marks the better one of each pair."""
    lines = [["data", "may change", "training", *(f"{m.label} {m.arrow}" for m in metrics)]]
    for pair in pairs(table, metrics):
        found = pair.comparisons
        lines.append([pair.data, pair.setting, pair.names[0], *(_starred(c.baseline) for c in found)])
        lines.append(["", "", pair.names[1], *(_starred(c.ours) for c in found)])
        lines.append(["", "", "change", *(f"{c.change} " for c in found)])
        lines.append([])
    return aligned(lines[:-1], numbers_from=3)


def aligned(lines: Sequence[Sequence[str]], numbers_from: int | None = None) -> str:
    """Lines of cells as columns, a rule below the first line; cells from ``numbers_from`` on are set right."""
    width = max(len(line) for line in lines)
    full = [[*line, *[""] * (width - len(line))] for line in lines]
    widths = [max(len(line[j]) for line in full) for j in range(width)]
    right = width if numbers_from is None else numbers_from
    out = [
        "  ".join(
            cell.rjust(w) if j >= right else cell.ljust(w) for j, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in full
    ]
    out.insert(1, "─" * (sum(widths) + 2 * (width - 1)))
    return "\n".join(line.rstrip() for line in out)


def _better(metric: Metric, value: float, other: float) -> bool:
    """Whether a value is the better one as printed."""
    return metric.text(value) != metric.text(other) and metric.gain(value, other) > 0


def _starred(cell: Cell) -> str:
    return f"{cell.text}*" if cell.best else f"{cell.text} "


def _signed(value: float, digits: int) -> str:
    rounded = round(value, digits)
    sign = "+" if rounded > 0 else "−" if rounded < 0 else "±"
    return f"{sign}{abs(rounded):.{digits}f}"
