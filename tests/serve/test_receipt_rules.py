"""No receipt for a plan that breaks a rule, by however little: plans are judged in the user's
units.
"""

import json

import numpy as np
import pandas as pd
import pytest
from test_receipt import failed

from counterfactual_serve.reading import RefusedError
from counterfactual_serve.receipt import _digest, make_receipt, verify_receipt
from counterfactual_serve.served import Model
from counterfactual_training import cli
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier

ROW = {"balance": 91_234, "region": "Atlantis", "income": 60_000, "rate": 0.3, "rooms": 2}


@pytest.fixture(scope="module")
def lender():
    rng = np.random.default_rng(0)
    n = 200
    frame = pd.DataFrame(
        {
            "balance": rng.normal(50_000, 40_000, n).round().astype(int),
            "region": rng.choice(["north", "south"], n),
            "income": rng.integers(10_000, 150_000, n),
            "rate": rng.choice(np.arange(1, 90), n) / 100,
            "rooms": rng.integers(1, 6, n),
        }
    )
    schema = {
        "balance": {"mutability": "none"},
        "region": {"kind": "categorical", "mutability": "none"},
        "income": {"mutability": "increase", "max_change": 3000},
        "rate": {"domain": (0.05, 0.7), "step": 0.05},
    }
    y = np.where(frame["income"] + rng.normal(0, 5000, n) > 70_000, "yes", "no")
    settings = {
        "model": "linear",
        "epochs": 2,
        "gate": "none",
        "random_state": 0,
        "progress": False,
    }
    return CounterfactualClassifier(schema=schema, **settings).fit(frame, y)


def model_of(classifier, wanted, sha256="a" * 64):
    return Model(classifier, "lender.safetensors", sha256, wanted)


def promised(classifier, plan):
    """A server that wants what the model decides for a plan: nothing but its rules can be wrong."""
    return model_of(classifier, str(classifier.predict(pd.DataFrame([plan]))[0]))


BROKEN = [
    ({"balance": ROW["balance"] + 1}, "balance"),
    ({"balance": ROW["balance"] + 8}, "balance"),
    ({"region": "Lyonesse"}, "region"),
    ({"region": "north"}, "region"),
    ({"income": ROW["income"] - 1}, "income"),
    ({"income": ROW["income"] + 3001}, "income"),
    ({"rate": 0.71}, "rate"),
    ({"rate": 0.35001}, "rate"),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("change", "column"), BROKEN)
def test_a_plan_that_breaks_a_rule_by_the_least_gets_no_receipt(lender, change, column):
    plan = {**ROW, **change}
    model = promised(lender, plan)
    with pytest.raises(RefusedError, match=f"no receipt for this plan: {column} "):
        make_receipt(model, ROW, plan, {})
    # Nor does one verify that somebody wrote by hand.
    forged = make_receipt(model, plan, plan, {})
    forged["person"] = dict(ROW)
    forged["digest"] = _digest(forged)
    checks = {check.name: check for check in verify_receipt(forged, model)}
    assert not checks["rules"].passed and column in checks["rules"].message


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "change",
    [{}, {"income": 63_000}, {"rate": 0.7}, {"rate": 0.15}, {"rooms": 5, "income": 60_001}],
)
def test_a_plan_that_keeps_them_gets_one(lender, change):
    plan = {**ROW, **change}
    model = promised(lender, plan)
    receipt = json.loads(json.dumps(make_receipt(model, ROW, plan, {})))
    assert failed(verify_receipt(receipt, model)) == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_locks_of_a_question_are_exact(lender):
    plan = {**ROW, "income": ROW["income"] + 1}
    model = promised(lender, plan)
    assert make_receipt(model, ROW, plan, {"lock": ["rate"]})["question"]["lock"] == ["rate"]
    for question in ({"lock": ["income"]}, {"vary": ["rate"]}, {"step": {"income": 2}}):
        with pytest.raises(RefusedError, match="income"):
            make_receipt(model, ROW, plan, question)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_command_refuses_it_too(lender, tmp_path, capsys):
    file = tmp_path / "lender.safetensors"
    lender.save(file)
    plan = {**ROW, "balance": ROW["balance"] + 1}
    receipt = make_receipt(promised(lender, plan), plan, plan, {})
    receipt["person"] = dict(ROW)
    receipt["digest"] = _digest(receipt)
    (tmp_path / "receipt.json").write_text(json.dumps(receipt))
    code = cli.main(["verify", str(tmp_path / "receipt.json"), "--model", str(file)])
    assert code and "NO  rules: Not as asked: balance" in capsys.readouterr().out
