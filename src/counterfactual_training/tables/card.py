"""The model card: what a classifier is, what it is for, how good it is with intervals, and what it
cannot do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

from counterfactual_training.defaults import CARD_PEOPLE
from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.models.shapes import describe
from counterfactual_training.tables.audits import Audit, AuditProtocol, audit, usual_groups
from counterfactual_training.tables.audits.robustness import module_of
from counterfactual_training.tables.card_numbers import by_group, measures, percent_span, span
from counterfactual_training.tables.card_parts import Card, CardSection, CardTable
from counterfactual_training.versions import versions

_RESAMPLES = 1000
_MOST_CLASSES = 12
_COLUMNS = ("column", "kind", "unit", "may change", "values and rules")
_MAY = {"none": "no", "both": "yes", "increase": "only up", "decrease": "only down"}


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model beside the model itself.

    Attributes:
        name: what it decides, for the title.
        facts: what it is, as pairs of words.
        sha256: of the model's file.
        command: that writes the card.
    """

    name: str = "a classifier"
    facts: Sequence[tuple[str, str]] = ()
    sha256: str | None = None
    command: str = ""


@dataclass(frozen=True, eq=False)
class CardRows:
    """Rows to measure a model on, which it was not trained on.

    Attributes:
        labels: their true classes; without them, advice is measured, but not whether decisions are
            right.
        description: which rows these are, in words.
    """

    frame: pd.DataFrame | None = None
    labels: Any = None
    description: str = ""


_NO_FACTS = ModelFacts()
_NO_ROWS = CardRows()


def make_card(
    classifier: Any,
    about: ModelFacts = _NO_FACTS,
    rows: CardRows = _NO_ROWS,
    *,
    target: Any = None,
    groups: Sequence[str] | None = None,
    people: int = CARD_PEOPLE,
    seed: int = 0,
) -> Card:
    """Describe a fitted classifier; with rows that it was not trained on, also measure it.

    Args:
        target: the class that people want; without it, advice is not measured.
        groups: columns to measure advice by; by default those that people cannot change.
        people: the most to explain.
    """
    audited = None
    reason = "There were no rows to measure it on."
    frame = rows.frame
    labels = rows.labels
    if frame is not None:
        audited, reason = _audited(classifier, frame, labels, target, groups, people, seed)
    sections = [
        _what(classifier, about.facts, about.sha256),
        _use(classifier, target),
        _data(classifier, about.facts, frame, labels, rows.description),
        _columns(classifier),
        measures(classifier, frame, labels, audited, reason, seed),
        *([by_group(audited)] if audited is not None and len(audited.groupings) > 1 else []),
        _limits(classifier, audited),
        _versions(about.command, about.sha256, seed),
    ]
    classes = ", ".join(repr(str(label)) for label in classifier.classes_)
    summary = (
        f"A classifier that decides between {classes} and says what would have to change for "
        "another decision."
    )
    return Card(f"Model card: {about.name}", summary, tuple(sections))


def _audited(
    classifier: Any,
    frame: pd.DataFrame,
    labels: Any,
    target: Any,
    groups: Sequence[str] | None,
    people: int,
    seed: int,
) -> tuple[Audit | None, str]:
    """The audit, or why there is none."""
    if target is None:
        return None, "It is not known which class people want, so advice was not measured."
    named = usual_groups(frame, classifier.schema_) if groups is None else groups
    try:
        return audit(
            classifier,
            frame,
            labels,
            named,
            target,
            protocol=AuditProtocol(people=people, resamples=_RESAMPLES, seed=seed),
        ), ""
    except InputError as error:
        if groups is not None:
            raise
        return None, str(error)


# ---- words ---------------------------------------------------------------------------------------


def _what(classifier: Any, facts: Sequence[tuple[str, str]], sha256: str | None) -> CardSection:
    gate = getattr(classifier, "gate_", None)
    sentences = [
        f"A {_kind(classifier)} decides. Its advice names changes after which the decision would "
        "be another one, "
        "within the rules of the columns, and every claim holds for the row as printed.",
        "Advice stays where real rows of the wanted class are: a gate judges plausibility. It "
        "changes no decision."
        if gate is not None
        else "No gate keeps advice among real rows: it may lead to combinations of values that "
        "nobody has.",
    ]
    rows = [
        *((str(key), str(value)) for key, value in facts),
        *([("sha256", sha256)] if sha256 else []),
    ]
    return CardSection("what", "What it is", tuple(sentences), tuple(rows))


def _kind(classifier: Any) -> str:
    """What decides, in a few words."""
    model = module_of(classifier)
    if model is None:
        return "model that was trained elsewhere"
    try:
        shape = describe(model)
    except ModelError:  # of the user's own
        return "neural network"
    several = shape["kind"] == "ensemble"
    if several:
        shape = shape["member"]
    if shape["kind"] == "mlp" and not shape["hidden"]:
        return "linear classifier"  # and so is a mean of such
    if several:
        return "mean of several neural networks"
    return "neural network"


def _use(classifier: Any, target: Any) -> CardSection:
    if target is None:
        wanted = "another decision"
    else:
        wanted = repr(str(target))
    fixed = [feature.name for feature in classifier.schema_ if feature.mutability == "none"]
    items = [
        f"For: telling people what they could change to get {wanted}; comparing models by what "
        "they ask of people; "
        "finding out who is asked for more than others.",
        "Not for: deciding about people without a person who can overrule it; people unlike "
        "those in its data; "
        "promises, because a model that is trained again may decide otherwise.",
        "Not for: learning what causes an outcome. Advice changes the decision of the model, not "
        "the world.",
    ]
    if not fixed:
        items.append(
            "No column is stated as fixed. Before use, say what people cannot change, such as age."
        )
    return CardSection("use", "Intended use", items=tuple(items))


def _data(
    classifier: Any,
    facts: Sequence[tuple[str, str]],
    frame: pd.DataFrame | None,
    labels: Any,
    measured: str,
) -> CardSection:
    rows = [(key, value) for key, value in facts if key in ("rows", "data set", "blank cells")]
    if frame is None:
        return CardSection(
            "data", "Data", ("No rows were given, so nothing was measured.",), tuple(rows)
        )
    sentences = [
        f"Measured on {measured}." if measured else f"Measured on {len(frame):,} rows."
    ]
    if labels is not None:
        counts = pd.Series(list(map(str, labels))).value_counts()
        shares = ", ".join(
            f"{label} {count / counts.sum():.1%}"
            for label, count in counts.head(_MOST_CLASSES).items()
        )
        rows.append(("classes of these rows", shares))
    return CardSection("data", "Data", tuple(sentences), tuple(rows))


def _columns(classifier: Any) -> CardSection:
    table = classifier.schema_.table()
    rows = tuple(
        (str(name), str(kind), str(unit or ""), _MAY.get(may, str(may)), str(values))
        for name, kind, unit, may, values in table.itertuples(index=False)
    )
    relations = tuple(f"Advice keeps: {relation}" for relation in classifier.schema_.relations)
    return CardSection(
        "columns", "Columns and rules", items=relations, tables=(CardTable("", _COLUMNS, rows),)
    )


def _limits(classifier: Any, audit: Audit | None) -> CardSection:
    items = [
        "Proxies: a column that is held fixed can still be guessed from others, so holding it "
        "fixed does not hide it."
    ]
    items += _proxies(audit)
    items += [
        "Causes: advice changes columns as if nothing else followed from that; in the world, "
        "other things change too.",
        "Multiplicity: other models are as accurate and advise otherwise; training again may "
        "withdraw today's advice.",
        "Cost: numbers count in standard deviations, a new category as 2; what is hard for a "
        "person may differ.",
    ]
    if getattr(classifier, "gate_", None) is not None:
        items.append(
            "Gate: plausible means like rows seen in training; groups that are rare there are "
            "judged by few rows."
        )
    if audit is not None:
        items += [
            f"{check['title']}: {_check_words(check)}" for check in audit.to_dict()["later"]
        ]
        items += list(audit.notes)
    return CardSection("limits", "Limits", items=tuple(items))


def _proxies(audit: Audit | None) -> list[str]:
    if audit is None:
        return []
    items = []
    for proxy in audit.to_dict()["proxies"]:
        features = proxy["features"]
        advice = proxy["advice"][0]
        if features["value"] is not None:
            if advice["value"] is None:
                from_advice = ""
            else:
                from_advice = f", from the advice with {span(advice, 2)}"
            items.append(
                f"Here, {proxy['column']} can be guessed from the columns that may change with "
                "an AUC of "
                f"{span(features, 2)}{from_advice}; .5 is chance."
            )
    return items


def _check_words(check: dict[str, Any]) -> str:
    return f"{percent_span(check['models'][0])}. {check['meaning']}"


def _versions(command: str, sha256: str | None, seed: int) -> CardSection:
    rows = [("date", f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"), ("seed", str(seed))]
    if command:
        rows += [("command", command)]
    return CardSection("versions", "Versions", rows=(*rows, *versions().items()))
