"""A classifier of a user's table, measured on rows it was not trained on: the numbers of one page
about it.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.metrics import confusion_matrix

from counterfactual_training.tables.advice import Explanation
from counterfactual_training.tables.advice.why import in_short
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier

# Enough for a share with two digits; of wide tables, whose searches take longer, fewer.
_MAX_PEOPLE = 200
_MIN_PEOPLE = 10
_MOST_CELLS = 10_000
_MOST_SHUFFLED = 1000
_SHUFFLES = 3
# Shuffling every column of a wider table would take minutes.
_MOST_COLUMNS = 300
_EXAMPLES = 4
_OPTIONS = 3
_BINS = (0.0, 0.6, 0.7, 0.8, 0.9, 1.0)
_FEWEST_IN_GROUP = 5
_MOST_LEVELS = 6


@dataclass(frozen=True, eq=False)
class Advice:
    """How explanations of n people went.

    Attributes:
        people: n, those whose decision is not the wanted one, or a random part of them.
        status: people by status.
        answered: share who get the wanted decision, plausibly or not.
        plausible: share of the answered whose answer is at least as plausible as not; NaN without a
            gate.
        cost, changes: of the answered, the median distance and the mean number of columns that
            change.
        reasons: of people without an answer, what stands in the way, by column and reason, the most
            frequent first.
    """

    people: int
    status: dict[str, int]
    answered: float
    plausible: float
    cost: float
    changes: float
    reasons: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, eq=False)
class Person:
    """One of the rows: its number, its values by column, its decision, and one sentence per
    option.
    """

    row: int
    values: dict[str, str]
    decision: str
    options: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Portrait:
    """The numbers of a page.

    Attributes:
        classes: as text, in the order of the confusion table.
        target: the class that people want, as text; ``None`` leads everybody to the next most
            probable class.
        rows: measured.
        accuracy, majority: of the model, and of saying always the most frequent class, ``usual``.
        confusion: ``(k, k)`` rows by class and decision.
        calibration: by stated confidence: lower and upper end, rows, mean confidence, share of
            right decisions.
        importance: a row per column: ``column``, ``shift`` (mean change of the probability when the
            column is shuffled), ``lost`` (accuracy that is lost then) and ``mutability``; empty for
            very wide tables.
        advice: of the model.
        groups: a row per group of a column that may not change: ``column``, ``group``, ``people``,
            ``answered``.
        people: examples.
        rival: what the model is compared with, in words; empty if there is nothing to compare with.
        rival_accuracy, rival_advice: of the rival, for the same people.
    """

    classes: tuple[str, ...]
    target: str | None
    rows: int
    accuracy: float
    majority: float
    usual: str
    confusion: np.ndarray
    calibration: tuple[tuple[float, float, int, float, float], ...]
    importance: pd.DataFrame
    advice: Advice
    groups: pd.DataFrame
    people: tuple[Person, ...]
    rival: str
    rival_accuracy: float
    rival_advice: Advice | None


def make_portrait(
    classifier: CounterfactualClassifier,
    frame: pd.DataFrame,
    labels: pd.Series,
    target: Any = None,
    trained_on: tuple[pd.DataFrame, pd.Series] | None = None,
    seed: int = 0,
) -> Portrait:
    """Measure a classifier on rows and their classes.

    Args:
        target: the class that people want.
        trained_on: the rows of its training, to train the same model conventionally and compare.
    """
    rng = np.random.default_rng(seed)
    names = classifier.classes_.tolist()
    y = np.array([names.index(label) for label in labels.tolist()])
    probability = classifier.predict_proba(frame)
    decided = probability.argmax(1)
    counts = np.bincount(y, minlength=len(names))
    people = _people_to_advise(frame, decided, names, target, rng)
    if len(people):
        # As of the rival, which has no witnesses.
        explanation = classifier.explain(people, target, lasting=0)
    else:
        explanation = None
    rival, other = _rival(classifier, trained_on)
    rival_accuracy = math.nan
    rival_advice = None
    if other is not None and explanation is not None:
        rival_accuracy = float((other.predict(frame) == labels.to_numpy()).mean())
        rival_advice = _advice(other.explain(people, target), classifier)
    return Portrait(
        classes=tuple(map(str, names)),
        target=None if target is None else str(target),
        rows=len(frame),
        accuracy=float((decided == y).mean()),
        majority=float(counts.max() / counts.sum()),
        usual=str(names[int(counts.argmax())]),
        confusion=confusion_matrix(y, decided, labels=range(len(names))),
        calibration=_calibration(probability.max(1), decided == y),
        importance=_importance(classifier, frame, y, probability, rng),
        advice=_advice(explanation, classifier),
        groups=_groups(explanation, classifier),
        people=_people(classifier, explanation, target),
        rival=rival if rival_advice is not None else "",
        rival_accuracy=rival_accuracy,
        rival_advice=rival_advice,
    )


# ---- how good ------------------------------------------------------------------------------------


def _calibration(
    confidence: np.ndarray, right: np.ndarray
) -> tuple[tuple[float, float, int, float, float], ...]:
    bins = []
    for low, high in pairwise(_BINS):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            bins.append(
                (
                    low,
                    high,
                    int(inside.sum()),
                    float(confidence[inside].mean()),
                    float(right[inside].mean()),
                )
            )
    return tuple(bins)


def _importance(
    classifier: CounterfactualClassifier,
    frame: pd.DataFrame,
    y: np.ndarray,
    probability: np.ndarray,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """What is lost when the values of one column are shuffled."""
    records: list[dict[str, Any]] = []
    rows = rng.permutation(len(frame))[:_MOST_SHUFFLED]
    part = frame.iloc[rows]
    unshuffled = probability[rows]
    right = float((unshuffled.argmax(1) == y[rows]).mean())
    for feature in classifier.schema_ if len(classifier.schema_) <= _MOST_COLUMNS else ():
        shift = []
        lost = []
        for _ in range(_SHUFFLES):
            dealt = part[feature.name].iloc[rng.permutation(len(part))].set_axis(part.index)
            moved = classifier.predict_proba(part.assign(**{feature.name: dealt}))
            # Half of it, because what one class gains the others lose: 1 if every decision turns
            # from sure to sure.
            shift.append(float(np.abs(moved - unshuffled).sum(1).mean() / 2))
            lost.append(right - float((moved.argmax(1) == y[rows]).mean()))
        means = {"shift": float(np.mean(shift)), "lost": float(np.mean(lost))}
        records.append({"column": feature.name, **means, "mutability": feature.mutability})
    table = pd.DataFrame(records, columns=["column", "shift", "lost", "mutability"])
    return table.sort_values("shift", ascending=False, kind="stable", ignore_index=True)


# ---- advice --------------------------------------------------------------------------------------


def _people_to_advise(
    frame: pd.DataFrame,
    decided: np.ndarray,
    names: Sequence[Any],
    target: Any,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """The people who ask: those without the wanted decision, or everybody."""
    if target is None:
        wanting = np.arange(len(frame))
    else:
        wanting = np.flatnonzero(decided != names.index(target))
    most = min(_MAX_PEOPLE, max(_MIN_PEOPLE, _MOST_CELLS // frame.shape[1]))
    return frame.iloc[np.sort(rng.permutation(wanting)[:most])]


def _advice(explanation: Explanation | None, judge: CounterfactualClassifier) -> Advice:
    """The explanation in numbers; ``judge`` is the classifier whose gate says what is plausible."""
    if explanation is None:
        return Advice(0, {}, math.nan, math.nan, math.nan, math.nan, ())
    answered = explanation.answered.astype(bool)
    changed = explanation.changed.to_numpy().sum(1)
    plausible = math.nan
    if judge.gate_ is not None and answered.any():
        column = np.array(
            [
                judge.classes_.tolist().index(label)
                for label in explanation.target[answered].tolist()
            ]
        )
        seen = judge.plausibility(explanation.frame[answered], given_fixed=True)[
            np.arange(len(column)), column
        ]
        plausible = float((seen >= 0.5).mean())
    reasons: Counter[tuple[str, str]] = Counter()
    columns = [feature.name for feature in judge.schema_]
    for row in np.flatnonzero(explanation.status == "infeasible").tolist():
        hurdles = explanation.obstacles[row]
        reasons.update({(columns[hurdle.feature], in_short(hurdle)) for hurdle in hurdles})
    return Advice(
        people=len(explanation),
        status=dict(Counter(map(str, explanation.status.tolist()))),
        answered=float(answered.mean()),
        plausible=plausible,
        cost=float(np.median(explanation.cost[answered])) if answered.any() else math.nan,
        changes=float(changed[answered].mean()) if answered.any() else math.nan,
        reasons=tuple((column, why, count) for (column, why), count in reasons.most_common()),
    )


def _groups(
    explanation: Explanation | None, classifier: CounterfactualClassifier
) -> pd.DataFrame:
    """The answered people by group of the columns that cannot change."""
    records: list[dict[str, Any]] = []
    for feature in classifier.schema_ if explanation is not None else ():
        if feature.mutability != "none" or explanation is None:
            continue
        column = explanation.original[feature.name]
        if feature.is_category:
            key = column.where(
                column.isin(column.value_counts().index[:_MOST_LEVELS]), "others"
            ).astype(str)
            order = list(
                dict.fromkeys(sorted(key.unique(), key=lambda name: (name == "others", name)))
            )
        else:
            key, order = _thirds(column)
        for group in order:
            inside = (key == group).to_numpy()
            if inside.sum() >= _FEWEST_IN_GROUP:
                share = float(explanation.answered[inside].mean())
                records.append(
                    {
                        "column": feature.name,
                        "group": group,
                        "people": int(inside.sum()),
                        "answered": share,
                    }
                )
    return pd.DataFrame(records, columns=["column", "group", "people", "answered"])


def _thirds(column: pd.Series) -> tuple[pd.Series, list[str]]:
    """A column of numbers as low, middle, high and missing."""
    values = column.astype(float)
    first, second = (
        float(values.quantile(share, interpolation="lower")) for share in (1 / 3, 2 / 3)
    )
    words = [f"up to {first:g}", f"above {first:g}, up to {second:g}", f"above {second:g}"]
    parts = np.select([values <= first, values <= second, values > second], words, "missing")
    return pd.Series(parts, index=column.index), [*words, "missing"]


def _people(
    classifier: CounterfactualClassifier, explanation: Explanation | None, target: Any
) -> tuple[Person, ...]:
    """Easy, middling and hard cases, and somebody without an answer, each with several options."""
    if explanation is None:
        return ()
    moved = explanation.answered.astype(bool) & explanation.changed.to_numpy().any(1)
    cases = np.flatnonzero(moved)
    cases = cases[np.argsort(explanation.cost[cases], kind="stable")]
    missed = np.flatnonzero(~explanation.answered.astype(bool))[:1].tolist()
    wanted = _EXAMPLES - len(missed)
    places = np.linspace(0, len(cases) - 1, min(wanted, len(cases))).round().astype(int)
    chosen = cases[np.unique(places)].tolist() + missed
    if not chosen:
        return ()
    rows = explanation.original.iloc[chosen]
    answer = classifier.explain(rows, target, n_options=_OPTIONS)
    records = list(enumerate(answer.records()))
    people = []
    for place, row in enumerate(rows.index.tolist()):
        options = [(i, record) for i, record in records if record["row"] == row]
        values = {str(name): _shown(value) for name, value in rows.iloc[place].items()}
        sentences = tuple(answer.sentence(i) for i, _ in options)
        if options:
            decision = str(options[0][1]["decision"])
        else:
            decision = ""
        people.append(Person(row, values, decision, sentences))
    return tuple(people)


def _shown(value: Any) -> str:
    if pd.isna(value):
        return "not known"
    counted = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if counted:
        return f"{value:,.10g}"
    return str(value)


# ---- what to compare with ------------------------------------------------------------------------


def _rival(
    classifier: CounterfactualClassifier, trained_on: tuple[pd.DataFrame, pd.Series] | None
) -> tuple[str, CounterfactualClassifier | None]:
    """The same model trained conventionally; if it was, the same without its gate."""
    if not math.isnan(classifier.history_.last("share_mature")):
        if trained_on is None:
            return "", None
        other = clone(classifier).set_params(method="conventional", progress=False)
        return "trained conventionally", other.fit(*trained_on)
    if classifier.gate_ is None:
        return "", None
    other = copy.copy(classifier)
    other.gate_ = None
    return "without the gate", other
