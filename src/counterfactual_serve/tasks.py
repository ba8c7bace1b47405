"""What is done in other processes: searches, audits and the model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from counterfactual_serve.answers import answers_of, rounded
from counterfactual_serve.questions import PageQuestion
from counterfactual_serve.served import Served
from counterfactual_training.errors import InputError
from counterfactual_training.rules import with_trait


def explain_served(
    served: Served, question: PageQuestion, frame: pd.DataFrame, seconds: float
) -> tuple[list[dict[str, Any]], bool]:
    """Answers to the rows of a question, and whether time sufficed to try everything."""
    model = served.named(question.model)
    classifier = model.classifier
    explanation = classifier.explain(
        frame,
        None if question.target is None else model.label(question.target),
        n_options=question.options,
        confidence=question.confidence,
        lasting=question.lasting,
        time_limit=seconds,
        **question.rules,
    )
    if question.model != "main":  # by one ruler, or costs could not be compared
        explanation = explanation.measured_by(
            served.model.classifier.encoder_, question.rules.get("difficulty")
        )
    answers = answers_of(explanation, len(frame))
    for answer, probability in zip(answers, classifier.predict_proba(frame), strict=True):
        answer["confidence"] = rounded(probability.max())
        for plan in answer["plans"]:
            seen = plan["plausibility"]
            if seen is None:
                plan["percentile"] = None
            else:
                plan["percentile"] = served.percentile(question.model, answer["target"], seen)
            if not plan["answered"] and not plan["binding"]:
                plan["binding"] = _stated(question.rules)
    return answers, explanation.complete


def _stated(rules: Mapping[str, Any]) -> list[dict[str, str]]:
    """Rules of a question that may be why nothing was found; its user can withdraw them."""
    stated = [(name, "is locked in this question") for name in rules.get("lock", ())]
    stated += [
        (name, "is limited in this question")
        for rule in with_trait("reach")
        for name in rules.get(rule, ())
    ]
    if "vary" in rules:
        stated += [(name, "may change, and nothing else may") for name in rules["vary"]]
    return [{"column": name, "reason": reason} for name, reason in stated]


def audit_served(
    served: Served, groups: list[str], people: int, which: str, target: Any
) -> dict[str, Any]:
    """The audit of one model; of both, if ``which`` is ``"main"`` and there is another one."""
    # Here, because only audits need trees and forests, which take their memory.
    from counterfactual_training.tables.audits import AuditProtocol, Subject
    from counterfactual_training.tables.audits import audit as audit_groups

    model = served.named(which)
    frame, labels = _measured(served)
    if target is None and model.wanted is None:
        raise InputError(
            "It is not known which class people want: name it as target, or start the server with "
            "--positive."
        )
    if which == "main":
        other = served.against
    else:
        other = None
    if other is None:
        against = None
    else:
        against = Subject(other.classifier, other.name)
    subject = Subject(model.classifier, model.name)
    if target is None:
        wanted = model.wanted
    else:
        wanted = model.label(target)
    protocol = AuditProtocol(people=people, seed=served.seed)
    audit = audit_groups(
        subject, frame, labels, groups, wanted, against=against, protocol=protocol
    )
    return audit.to_dict()


def card(served: Served) -> dict[str, Any]:
    """The card of the main model, with measures if there are rows and classes."""
    from counterfactual_training.tables.card import CardRows, ModelFacts, make_card

    model = served.model
    rows = served.rows
    about = ModelFacts(facts=model.facts, sha256=model.sha256)
    card_settings: dict[str, Any] = {"target": model.wanted, "seed": served.seed}
    if rows is None or rows.labels is None:
        return make_card(model.classifier, about, **card_settings).to_dict()
    frame, labels = _measured(served)
    names = list(model.classifier.schema_.names)
    if rows.trained_on is None:
        held_out = ""
    else:
        held_out = " that training did not use"
    measured = CardRows(frame[names], labels, f"{len(frame):,} rows of {rows.name}{held_out}")
    return make_card(model.classifier, about, measured, **card_settings).to_dict()


def _measured(served: Served) -> tuple[pd.DataFrame, pd.Series | None]:
    """Rows to measure on, and their classes if they are known."""
    rows = served.rows
    assert rows is not None  # noqa: S101 - requests without rows are refused before
    return rows.frame.iloc[rows.fresh], None if rows.labels is None else rows.labels.iloc[
        rows.fresh
    ]
