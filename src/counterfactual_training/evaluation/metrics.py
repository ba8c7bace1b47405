"""Every measure of a model that :func:`evaluate` makes, each described once: name, which way is
better, meaning.

To add a measure, describe it here and compute it where it belongs:

- one value per individual, of counterfactuals: in ``_Measurement._columns`` of
  ``counterfactuals.py``, with its name in ``OF_ALL`` there, or in ``OF_VALID`` if only valid
  counterfactuals count; :func:`aggregate` averages it;
- one value per model: from logits and classes, in ``performance`` of ``evaluate.py``; from anything
  else, in ``_of_model`` there.

Users need none of this: they give :func:`evaluate` a function and a name (``plugins.py``).

A line in ``OTHERS`` is enough to print it. A :class:`Metric` in ``METRICS`` is also a column of
tables that compare models, of figures and of the demo, and, unless it is in ``_OF_MODEL``, of grids
and tuning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower"]

# Of judges that had no part in training or searching; a family follows an @.
ACCEPTANCE = "acceptance"
BY_WITNESSES = f"{ACCEPTANCE}@witnesses"
JURY_ACCURACY = "jury_accuracy"


@dataclass(frozen=True)
class Metric:
    """A measure as tables name and compare it.

    Attributes:
        name: in code, tables and JSON.
        label: where space is short.
        words: in titles and captions.
        better: which way is better.
        digits: after the point.
        change: whether two models are compared by the ``ratio`` of their values or by their
            ``difference``.
        meaning: for the reader.
    """

    name: str
    label: str
    words: str
    better: Better
    digits: int
    change: Literal["ratio", "difference"]
    meaning: str

    @property
    def title(self) -> str:
        """The label at the head of a column, with an arrow towards the better."""
        return (
            f"{self.label[0].upper()}{self.label[1:]} {'↑' if self.better == 'higher' else '↓'}"
        )


_FAR = (
    "implausibility: how far counterfactuals are from real members of the target class (mean L1 "
    "distance)"
)
_ALIKE = (
    "implausibility of counterfactuals as a group: squared MMD to the target class, 0 if both "
    "are alike"
)
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
    Metric(
        "robust_accuracy",
        "robust acc.",
        "accuracy under attack",
        "higher",
        3,
        "difference",
        _ATTACKED,
    ),
)
METRICS = {metric.name: metric for metric in _ALL}
# Measured once per model; the others, of counterfactuals, have one value per individual.
_OF_MODEL = ("accuracy", "robust_accuracy")
COUNTERFACTUAL = tuple(name for name in METRICS if name not in _OF_MODEL)
# Compared with a reference by their ratio.
RATIOS = tuple(name for name, metric in METRICS.items() if metric.change == "ratio")
# Measured by `evaluate` and printed, but not compared.
OTHERS: dict[str, tuple[Better, str]] = {
    "calibration_error": (
        "lower",
        "how far stated confidences are from the share of right decisions, on average",
    ),
    "f1": ("higher", "precision and recall in one number, the mean over the classes"),
    "validity_strict": (
        "higher",
        "share of counterfactuals whose target gets the probability asked for, τ",
    ),
    "share_mature": ("higher", "share of searches that ended because τ was reached"),
    "num_steps": ("lower", "steps of a search, on average"),
    "sparsity": ("lower", "number of columns that a counterfactual changes"),
    "redundancy": (
        "higher",
        "share of the encoded columns that a counterfactual leaves as they are",
    ),
    "energy_differential": (
        "lower",
        "how much less typical than real rows the model finds counterfactuals (energy)",
    ),
    "unfaithfulness": (
        "lower",
        "distance of counterfactuals from rows that the model itself imagines for the class",
    ),
    "violations": (
        "lower",
        "share of counterfactuals that break a rule; measured of explainers that are given",
    ),
    ACCEPTANCE: (
        "higher",
        "share of judges, models of other families fitted to rows that the model did not see, "
        "that also give the target class: would the advice work?",
    ),
    JURY_ACCURACY: ("higher", "how often these judges are right about real rows"),
    "sensitivity": (
        "lower",
        "how much the model relies on protected columns, against the others",
    ),
}


def direction_and_meaning(name: str) -> tuple[Better | Literal[""], str]:
    """Which way is better, and what is meant, for a name in a table of :func:`evaluate`; empty if
    it is not known.
    """
    if name in METRICS:
        return METRICS[name].better, METRICS[name].meaning
    base, _, epsilon = name.partition("@")
    if name == BY_WITNESSES:
        return "higher", "share of the witnesses that also give the target class"
    if base == ACCEPTANCE and epsilon:
        return "higher", f"share of counterfactuals that the judge by {epsilon} accepts"
    if base.startswith("robust_accuracy"):
        attack = base.removeprefix("robust_accuracy").strip("_")
        by = {"": "the attack", "random": "noise"}.get(attack, attack.upper())
        return (
            "higher",
            f"accuracy after {by} has moved every row by up to {epsilon or 'ε'} per feature",
        )
    return OTHERS.get(base, ("", ""))
