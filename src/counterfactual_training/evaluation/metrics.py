"""The measures of a model that tables, figures, grids and tuning share, each described once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """A measure as tables name and compare it.

    Attributes:
        name: in code, tables and JSON.
        label: where space is short.
        words: in titles and captions.
        better: which way is better.
        digits: after the point.
        change: whether two models are compared by the ``ratio`` of their values or by their ``difference``.
        meaning: for the reader.
    """

    name: str
    label: str
    words: str
    better: Literal["higher", "lower"]
    digits: int
    change: Literal["ratio", "difference"]
    meaning: str

    @property
    def title(self) -> str:
        """The label at the head of a column, with an arrow towards the better."""
        return f"{self.label[0].upper()}{self.label[1:]} {'↑' if self.better == 'higher' else '↓'}"


_FAR = "implausibility: how far counterfactuals are from real members of the target class (mean L1 distance)"
_ALIKE = "implausibility of counterfactuals as a group: squared MMD to the target class, 0 if both are alike"
_COST = "how far people have to move to get the other decision (L1 distance)"
_VALID = "share of counterfactuals that the model assigns to the target class"
_RIGHT = "share of test rows classified correctly"
_ATTACKED = "accuracy after FGSM has moved every test row against the model"
_ALL = (
    Metric("accuracy", "accuracy", "accuracy", "higher", 3, "difference", _RIGHT),
    Metric("implausibility", "IP", "implausibility (IP)", "lower", 2, "ratio", _FAR),
    Metric("implausibility_mmd", "IP*", "implausibility (IP*)", "lower", 3, "ratio", _ALIKE),
    Metric("cost", "cost", "cost", "lower", 2, "ratio", _COST),
    Metric("validity", "validity", "validity", "higher", 3, "difference", _VALID),
    Metric("robust_accuracy", "robust acc.", "accuracy under attack", "higher", 3, "difference", _ATTACKED),
)
METRICS = {metric.name: metric for metric in _ALL}
# Of counterfactuals, one value per individual; the others are measured once per model.
COUNTERFACTUAL = tuple(name for name in METRICS if "accuracy" not in name)
# Compared with a baseline by their ratio.
RATIOS = tuple(name for name, metric in METRICS.items() if metric.change == "ratio")
