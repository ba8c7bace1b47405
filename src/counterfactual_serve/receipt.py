"""Receipts: what a model decides before and after a plan, under which rules and when, in a form
that can be checked later.

A receipt states only what can be worked out again from the model: the decision now, and the
decision after the plan. So anyone with the model can check it, also after a restart, on another
machine, years later. With a key, it is also signed (HMAC-SHA256): then only a holder of the key can
have written it, its time included.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import counterfactual_training
from counterfactual_serve.answers import predictions_of, row_values
from counterfactual_serve.questions import request_frame, rule_fields, rules_of
from counterfactual_serve.reading import (
    ByName,
    Fields,
    Maybe,
    Number,
    OneOf,
    RefusedError,
    Scalar,
    Text,
)
from counterfactual_serve.served import Model
from counterfactual_training.errors import InputError
from counterfactual_training.tables.advice.answer import advice_constraints
from counterfactual_training.tables.advice.rules import Rules
from counterfactual_training.tables.advice.words import plain_value
from counterfactual_training.tables.columns.plan_judge import PlanJudge

KIND = "counterfactual-training receipt"
# A probability is the same on another machine up to rounding.
_SAME = 1e-4


@dataclass(frozen=True)
class ReceiptCheck:
    """One check of a receipt, and its result."""

    name: str
    passed: bool
    message: str


def make_receipt(
    model: Model,
    row: Mapping[str, Any],
    plan: Mapping[str, Any],
    question: Mapping[str, Any],
    key: bytes | None = None,
) -> dict[str, Any]:
    """A receipt for a plan; raises if the plan breaks a rule of the question or does not reach what
    was asked for.

    Args:
        row, plan: all columns, as the API sends them.
        question: the rules asked under, as in ``/api/explain``.
    """
    claims = _claims(model, row, plan)
    # Written down, because the class that people want is stated where a server starts, and not in
    # the model.
    if question.get("target") is None:
        question = {**question, "target": plain_value(model.wanted)}
    broken = _broken(model, claims, question)
    if broken:
        raise RefusedError(f"There is no receipt for this plan: {'; '.join(broken)}.", "plan")
    receipt = {
        "kind": KIND,
        "format": 1,
        "issued": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": counterfactual_training.__version__,
        "model": {"name": model.name, "sha256": model.sha256},
        "question": {
            name: value for name, value in question.items() if value not in (None, [], {})
        },
        **claims,
    }
    receipt["digest"] = _digest(receipt)
    if key is None:
        receipt["signature"] = None
    else:
        receipt["signature"] = _signature(receipt, key)
    return receipt


def verify_receipt(
    receipt: Mapping[str, Any], model: Model, key: bytes | None = None
) -> list[ReceiptCheck]:
    """Everything that can be checked about a receipt; it is valid if all of it passed."""
    checks = [_check_form(receipt)]
    if not checks[0].passed:
        return checks
    intact = _digest(receipt) == receipt["digest"]  # no secret: everyone can compute it
    fits = f"Its content fits its digest.{_unproven(receipt, key)}"
    checks.append(
        ReceiptCheck(
            "content", intact, fits if intact else "It was altered after it was issued."
        )
    )
    checks += _check_signature(receipt, key)
    same = receipt["model"]["sha256"] == model.sha256
    message = f"It was issued for this very model, {model.name}."
    checks.append(
        ReceiptCheck(
            "model",
            same,
            message if same else f"It was issued for another model, not for {model.name}.",
        )
    )
    return [*checks, *_check_claims(receipt, model)]


# ---- claims --------------------------------------------------------------------------------------


def _claims(model: Model, row: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """What the model says of a row before and after."""
    frame, _ = request_frame([row, plan], model.classifier, ["row", "plan"])
    now, then = predictions_of(model, frame)
    return {
        "person": row_values(frame, 0),
        "plan": row_values(frame, 1),
        "decision": {"class": now["decision"], "confidence": now["confidence"]},
        "promise": {"class": then["decision"], "confidence": then["confidence"]},
    }


def _broken(model: Model, claims: Mapping[str, Any], question: Mapping[str, Any]) -> list[str]:
    """The rules that a plan breaks, and what it misses of what was asked for."""
    classifier = model.classifier
    schema = Rules(**rules_of(question, classifier)).narrow(classifier.schema_)
    encoder = classifier.encoder_.with_schema(schema)
    rules = advice_constraints(encoder, classifier.num_std_)
    judge = PlanJudge(encoder, rules, question.get("max_changes"))
    frame, _ = request_frame([claims["person"], claims["plan"]], classifier, ["person", "plan"])
    violations = [str(violation) for violation in judge(frame[:1], frame[1:])]
    if question.get("target") is None:
        target = claims["promise"]["class"]
    else:
        target = question["target"]
    return violations + _short_of(model, claims, target, question.get("confidence"))


def _short_of(
    model: Model, claims: Mapping[str, Any], target: Any, confidence: float | None
) -> list[str]:
    """Whether the plan misses the class that was asked for, or the confidence."""
    promised = claims["promise"]
    if confidence is None:
        if promised["class"] == target:
            return []
        return [f"its decision is {promised['class']!r}, not {target!r}"]
    frame, _ = request_frame([claims["plan"]], model.classifier, ["plan"])
    prediction = predictions_of(model, frame)[0]
    reached = prediction["probabilities"][str(target)]
    # As explain counts: a probability times its plausibility.
    if prediction["plausibility"] is not None:
        reached *= prediction["plausibility"][str(target)]
    if reached >= confidence - _SAME:
        return []
    return [
        f"it reaches {target!r} with a confidence of {reached:.3f}, less than {confidence:g}"
    ]


def _check_claims(receipt: Mapping[str, Any], model: Model) -> list[ReceiptCheck]:
    try:
        claims = _claims(model, receipt["person"], receipt["plan"])
        # Written by anybody, so read as strictly as a request.
        fields = Fields(rule_fields(model.classifier.schema_.names, model.classes))
        broken = _broken(model, claims, fields.read(receipt["question"], "question"))
    except InputError as error:
        return [
            ReceiptCheck("values", False, f"This model does not accept its values: {error}")
        ]
    words = {
        "decision": ("The decision then", "now"),
        "promise": ("The decision after the plan", "promised"),
    }
    checks = []
    for name, (what, stated) in words.items():
        stated_claim = receipt[name]
        claim = claims[name]
        same = (
            stated_claim["class"] == claim["class"]
            and abs(stated_claim["confidence"] - claim["confidence"]) <= _SAME
        )
        text = (
            f"{what} is {claim['class']!r} with confidence {claim['confidence']:.3f}, as "
            f"{stated}."
        )
        other = (
            f"{what} is {claim['class']!r} with confidence {claim['confidence']:.3f}; the "
            "receipt says "
            f"{stated_claim['class']!r} with {stated_claim['confidence']:.3f}."
        )
        checks.append(ReceiptCheck(name, same, text if same else other))
    keeps = "The plan keeps the rules it was asked under, and reaches what was asked for."
    checks.append(
        ReceiptCheck(
            "rules", not broken, keeps if not broken else f"Not as asked: {'; '.join(broken)}."
        )
    )
    return checks


# ---- form ----------------------------------------------------------------------------------------


def _check_form(receipt: Mapping[str, Any]) -> ReceiptCheck:
    """Whether it is a receipt at all; everything else can then count on its fields."""
    claim = Fields({"class": Scalar(), "confidence": Number(0, 1)}, ["class", "confidence"])
    row: Any = _AnyRow()
    fields = {
        "kind": OneOf([KIND]),
        "format": OneOf([1]),
        "issued": Text(40),
        "version": Text(40),
        "model": Fields({"name": Text(), "sha256": Text(64)}, ["name", "sha256"]),
        "question": _AnyRow(),
        "person": row,
        "plan": row,
        "decision": claim,
        "promise": claim,
        "digest": Text(64),
        "signature": Maybe(Text(64)),
    }
    try:
        Fields(fields, [*fields]).read(dict(receipt), "")
        datetime.fromisoformat(str(receipt["issued"]))
    except (RefusedError, ValueError) as error:
        return ReceiptCheck("form", False, f"This is no receipt: {error}")
    return ReceiptCheck(
        "form", True, f"A receipt of {receipt['issued']}, for {receipt['model']['name']}."
    )


class _AnyRow(ByName):
    """Values by any name; names that the model does not know fail the check of values."""

    def __init__(self) -> None:
        super().__init__((), Scalar())

    def read(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict) or not all(len(name) <= 1000 for name in value):
            raise RefusedError(f"{where} must be an object.", where)
        return value


def _check_signature(receipt: Mapping[str, Any], key: bytes | None) -> list[ReceiptCheck]:
    if key is None:
        # What cannot be checked has neither passed nor failed; the check of the content reports it.
        return []
    signed = receipt["signature"]
    good = isinstance(signed, str) and hmac.compare_digest(
        _signature(receipt, key).encode(), signed.encode()
    )
    if good:
        words = "It was signed with this key."
    else:
        words = "It was not signed with this key."
    return [ReceiptCheck("signature", good, words)]


def _unproven(receipt: Mapping[str, Any], key: bytes | None) -> str:
    """What a digest that fits does not prove."""
    if key is not None:
        return ""
    if receipt["signature"] is None:
        return (
            " It is not signed: anybody who has the model could have written it, and its time."
        )
    return " It is signed, but there is no key here to check that."


def _canonical(receipt: Mapping[str, Any]) -> bytes:
    content = {
        name: value for name, value in receipt.items() if name not in ("digest", "signature")
    }
    return json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=True
    ).encode()


def _digest(receipt: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(receipt)).hexdigest()


def _signature(receipt: Mapping[str, Any], key: bytes) -> str:
    return hmac.new(key, _canonical(receipt), hashlib.sha256).hexdigest()
