"""Receipts hold what can be worked out again, and show every alteration."""

import copy
import json

import pytest
from serving import ask

from counterfactual_serve.receipt import _digest, make_receipt, verify_receipt
from counterfactual_serve.served import Model

KEY = b"a key that only the server knows"


@pytest.fixture(scope="module")
def plan(client, denied):
    return ask(client, "explain", rows=denied[:1])["answers"][0]["plans"][0]["values"]


@pytest.fixture(scope="module")
def receipt(served, denied, plan):
    return make_receipt(
        served.model, denied[0], plan, {"target": "granted", "lock": ["age"], "vary": None}, KEY
    )


def failed(checks):
    return [check.name for check in checks if not check.passed]


def test_a_receipt_verifies_by_the_model_alone(served, receipt):
    again = json.loads(json.dumps(receipt))
    assert failed(verify_receipt(again, served.model)) == []
    assert failed(verify_receipt(again, served.model, KEY)) == []
    assert receipt["question"] == {"target": "granted", "lock": ["age"]}
    assert receipt["decision"]["class"] == "denied" and receipt["promise"]["class"] == "granted"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("plan", "debt"), 0.0),
        (("person", "age"), 20),
        (("promise", "class"), "denied"),
        (("issued",), "2020-01-01"),
        (("promise", "confidence"), 0.99),
        (("question", "lock"), []),
        (("model", "sha256"), "c" * 64),
        (("digest",), ""),
    ],
)
def test_every_alteration_shows(served, receipt, path, value):
    altered = copy.deepcopy(receipt)
    place = altered
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    assert "content" in failed(verify_receipt(altered, served.model))
    assert {"content", "signature"} <= set(
        failed(verify_receipt(altered, served.model, KEY))
    ) or path == ("digest",)


def test_a_forged_confidence_shows_without_a_key(served, denied):
    """Anybody can work out a digest, but not what the model says."""
    far = {**denied[0], "income": 60.0, "debt": 30.0, "owner": True}
    forged = make_receipt(served.model, denied[0], far, {})
    forged["promise"]["confidence"] -= 0.01
    forged["digest"] = _digest(forged)
    assert failed(verify_receipt(forged, served.model)) == ["promise"]


def test_who_has_no_key_cannot_sign(served, denied, plan):
    forged = make_receipt(served.model, denied[0], plan, {}, b"another key")
    assert failed(verify_receipt(forged, served.model, KEY)) == ["signature"]
    unsigned = make_receipt(served.model, denied[0], plan, {})
    assert unsigned["signature"] is None and failed(
        verify_receipt(unsigned, served.model, KEY)
    ) == ["signature"]


def test_the_class_that_a_server_was_started_for_is_written_down(served, denied):
    # A server for "denied" promised it; whoever checks later may know the model as one for
    # "granted".
    server = Model(served.model.classifier, "people.safetensors", "a" * 64, "denied")
    receipt = make_receipt(server, denied[0], denied[0], {})
    assert (
        receipt["question"] == {"target": "denied"}
        and failed(verify_receipt(receipt, served.model)) == []
    )


def test_another_model_is_told(served, receipt):
    other = Model(served.against.classifier, "rival.safetensors", "b" * 64, "granted")
    assert "model" in failed(verify_receipt(receipt, other))


def test_a_promise_that_breaks_a_rule_is_not_given(client, denied, plan):
    for change, words in (
        ({"age": plan["age"] + 1}, "may not change"),
        ({"debt": denied[0]["debt"] + 0.1}, "may only fall"),
    ):
        response = client.post(
            "/api/v1/receipt", json={"row": denied[0], "plan": {**plan, **change}}
        )
        assert response.status_code == 400 and words in response.json()["error"]["message"]
    changed = next(name for name in plan if plan[name] != denied[0][name])
    response = client.post(
        "/api/v1/receipt",
        json={"row": denied[0], "plan": plan, "question": {"lock": [changed]}},
    )
    assert response.status_code == 400 and changed in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"max_changes": 1}, "columns, expected at most 1"),
        ({"confidence": 0.999}, "less than 0.999"),
        ({"target": "denied"}, "not"),
    ],
)
def test_a_plan_that_misses_what_was_asked_for_gets_no_receipt(
    client, served, denied, question, said
):
    far = {**denied[0], "income": 60.0, "debt": 30.0, "owner": True}
    assert (
        ask(client, "receipt", row=denied[0], plan=far)["receipt"]["promise"]["class"]
        == "granted"
    )
    response = client.post(
        "/api/v1/receipt", json={"row": denied[0], "plan": far, "question": question}
    )
    assert response.status_code == 400 and said in response.json()["error"]["message"]
    # Nor does one that somebody wrote by hand verify.
    forged = make_receipt(served.model, denied[0], far, {})
    forged["question"] = question
    assert "rules" in failed(verify_receipt(forged, served.model))


def test_what_changes_nothing_is_no_plan(client, denied):
    response = client.post("/api/v1/receipt", json={"row": denied[0], "plan": denied[0]})
    assert (
        response.status_code == 400
        and "'denied', not 'granted'" in response.json()["error"]["message"]
    )


def test_without_a_key_it_is_told_what_a_receipt_proves(served, denied, plan, receipt):
    told = {
        check.name: check.message
        for check in verify_receipt(
            make_receipt(served.model, denied[0], plan, {}), served.model
        )
    }
    assert "not signed" in told["content"] and "signature" not in told
    assert (
        "no key here"
        in {check.name: check.message for check in verify_receipt(receipt, served.model)}[
            "content"
        ]
    )


def test_the_server_gives_and_checks_receipts_of_both_models(client, denied):
    # What both would grant.
    sure = ask(client, "explain", rows=denied[:1], confidence=0.9)
    plan = sure["answers"][0]["plans"][0]["values"]
    for model in ("main", "against"):
        found = ask(
            client,
            "receipt",
            row=denied[0],
            plan=plan,
            question={"target": "granted"},
            model=model,
        )["receipt"]
        told = ask(client, "verify", receipt=found)
        assert told["valid"] and {check["name"] for check in told["checks"]} >= {
            "model",
            "promise",
            "rules",
        }
        found["plan"]["income"] = 1
        assert not ask(client, "verify", receipt=found)["valid"]


@pytest.mark.parametrize(
    "nonsense", [{}, {"kind": "a cheque"}, {"model": 3}, {"model": {"sha256": []}}]
)
def test_what_is_no_receipt_is_told(client, nonsense):
    told = ask(client, "verify", receipt=nonsense)
    assert not told["valid"] and told["checks"][0]["name"] == "form"


def test_a_receipt_of_other_columns_is_told_not_raised(served, receipt):
    other = copy.deepcopy(receipt)
    other["person"] = {"height": 3}
    assert "values" in failed(verify_receipt(other, served.model))
    for question in ({"lock": 3}, {"domain": {"income": 3}}, {"colour": "red"}):
        assert "values" in failed(
            verify_receipt({**receipt, "question": question}, served.model)
        )
