"""The example service predicts and advises like the library, without torch, pandas, scikit-learn
and this package.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from counterfactual_training.tables.columns.plan_judge import PlanJudge

pytestmark = pytest.mark.check

EXAMPLE = Path(__file__).parents[3] / "examples" / "onnx_service.py"
# Runs the example where importing anything else fails; rows come as JSON, answers go as JSON.
RUN = """
import json, sys

BLOCKED = ("torch", "pandas", "sklearn", "scipy", "onnx", "counterfactual_training")

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
sys.path.insert(0, sys.argv[1])
from onnx_service import Service

asked = json.load(sys.stdin)
service = Service(asked["file"])
if not asked["advise"]:
    answers = []
else:
    answers = [service.advise(row, asked["target"], asked["confidence"]) for row in asked["advise"]]
json.dump({"predicted": service.predict(asked["rows"]), "answers": answers}, sys.stdout)
"""


def ask(file, frame, advise=None, target=None, confidence=None):
    def as_rows(rows):  # to the last digit, which pandas' own to_json would cut off
        return rows.astype(object).where(rows.notna(), None).to_dict("records")

    advised = [] if advise is None else as_rows(advise)
    asked = {
        "file": str(file),
        "rows": as_rows(frame),
        "advise": advised,
        "target": target,
        "confidence": confidence,
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(EXAMPLE.parent)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_answers(classifier, rows, answers, target, floor=0.5, confidence=None):
    """Of every answer: torch agrees, no rule is broken, sentence and row say the same; returns its
    cost and status.
    """
    found = pd.DataFrame([answer["row"] for answer in answers], index=rows.index)[
        list(rows.columns)
    ]
    status = np.array([answer["status"] for answer in answers])
    k = list(classifier.classes_).index(target)
    x, x_cf = (classifier._encoded(frame) for frame in (rows, found))
    assert PlanJudge(classifier.encoder_, classifier.constraints_)(rows, found) == []
    plausible = classifier.plausibility(found, given_fixed=True)[:, k]
    probability = classifier.predict_proba(found)[:, k]
    if confidence is None:
        assert (classifier.predict(found)[status != "not found"] == target).all()
        assert (plausible[status == "found"] >= floor).all()
    else:
        assert ((probability * plausible)[status == "found"] >= confidence).all()
    changed = classifier._finder().differs(x_cf, x).sum(-1).tolist()
    assert [len(answer["changes"]) for answer in answers] == changed
    assert all(
        (answer["cost"] > 0) == (answer["status"] in ("found", "implausible"))
        for answer in answers
    )
    return status, np.array([answer["cost"] for answer in answers])


@pytest.fixture(scope="module")
def loan_answers(loans, fitted, loan_file):
    frame = loans[0]
    refused = frame[fitted.predict(frame) == "denied"].head(25)
    return refused, ask(loan_file, frame, refused, "granted")


def test_loans_are_decided_alike(loans, fitted, loan_answers):
    predicted = loan_answers[1]["predicted"]
    frame = loans[0]
    assert [row["decision"] for row in predicted] == fitted.predict(frame).tolist()
    assert np.allclose(
        [row["probability"] for row in predicted], fitted.predict_proba(frame), atol=1e-6
    )
    plausibility = fitted.plausibility(frame, given_fixed=True)
    assert np.allclose([row["plausibility"] for row in predicted], plausibility, atol=1e-4)


def test_loans_get_advice_as_cheap_as_by_the_library(fitted, loan_answers):
    refused, told = loan_answers
    status, cost = check_answers(fitted, refused, told["answers"], "granted")
    assert (status == "found").all()
    assert (
        refused["age"].to_numpy() == [answer["row"]["age"] for answer in told["answers"]]
    ).all()
    ratio = cost / fitted.explain(refused, "granted").cost
    assert np.median(ratio) < 1.05 and ratio.mean() < 1.15
    assert any(
        "thousand dollars lower (from" in change
        for a in told["answers"]
        for change in a["changes"]
    )


def test_a_mixed_table(mixed, mixed_classifier, mixed_file):
    frame = mixed[0].copy()
    frame.loc[frame.index[:5], "job"] = "astronaut"  # never seen
    frame.loc[frame.index[5:8], "grade"] = "D"
    with pytest.warns(UserWarning, match="astronaut"):
        decided = mixed_classifier.predict(frame)
        probability = mixed_classifier.predict_proba(frame)
    refused = frame[decided == "no"].head(30)
    # Blanks stay blank in the library's answers; the service fills them in, so rows without any are
    # compared.
    refused = refused[refused["ratio"].notna()]
    told = ask(mixed_file, frame, refused, "yes")
    assert [row["decision"] for row in told["predicted"]] == decided.tolist()
    assert np.allclose(
        [row["probability"] for row in told["predicted"]], probability, atol=1e-6
    )
    status, cost = check_answers(mixed_classifier, refused, told["answers"], "yes")
    library = mixed_classifier.explain(refused, "yes")
    both = (status == "found") & (library.status == "converged")
    assert both.sum() >= 0.8 * (library.status == "converged").sum() > 5
    assert np.median(cost[both] / library.cost[both]) < 1.1
    # Codes stay, and so do numbers in other columns that no one asked for.
    coded = (refused["late"] == -9).to_numpy()
    assert coded.any() and all(
        a["row"]["late"] == -9 for a, c in zip(told["answers"], coded, strict=True) if c
    )


def test_a_confidence_is_reached(fitted, loan_file, loan_answers):
    refused = loan_answers[0].head(8)
    told = ask(loan_file, refused, refused, "granted", 0.8)
    status, _ = check_answers(fitted, refused, told["answers"], "granted", confidence=0.8)
    assert (status == "found").sum() >= 6


def service_of(path):
    sys.path.insert(0, str(EXAMPLE.parent))
    try:
        from onnx_service import Service
    finally:
        sys.path.remove(str(EXAMPLE.parent))
    return Service(str(path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"debt": "much"}, "'debt' is a number, got 'much'"),
        ({"debt": None}, "'debt' is missing"),
        ({"debt": float("inf")}, "'debt' is a number"),
        ({"owner": 2}, "'owner' is one of"),
        ({"debt": [1]}, "'debt' is a number"),
        ({"dept": 1}, "expected the columns"),
    ],
)
def test_rows_that_do_not_fit_are_refused(loans, loan_file, change, words):
    row = {**loans[0].iloc[0].to_dict(), **change}
    with pytest.raises(ValueError, match=words):
        service_of(loan_file).predict([row])


@pytest.mark.parametrize(
    ("row", "target", "said"),
    [
        ("{age: 35}", "granted", "the row is no JSON"),
        ("[35]", "granted", "expected the columns"),
        ('{"age": 35}', "granted", "expected the columns"),
        (None, "grante", "the target is one of ['denied', 'granted'], got 'grante'"),
        (None, None, "there is no file"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(loans, loan_file, row, target, said):
    row = loans[0].iloc[0].to_json() if row is None else row
    file = loan_file if target else "nothing.onnx"
    argv = [sys.executable, EXAMPLE, file, row, *([target] if target else [])]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and said in done.stderr and done.stderr.count("\n") == 1


def test_who_has_the_target_needs_no_advice(loans, fitted, loan_file):
    granted = loans[0][fitted.predict(loans[0]) == "granted"].iloc[0].to_dict()
    answer = service_of(loan_file).advise(granted, "granted")
    assert (
        answer["status"] == "already there"
        and answer["changes"] == []
        and answer["row"] == granted
    )


def test_locked_columns_stay(loans, fitted, loan_file):
    refused = loans[0][fitted.predict(loans[0]) == "denied"].iloc[0].to_dict()
    service = service_of(loan_file)
    assert service.advise(refused, "granted", lock=("debt",))["row"]["debt"] == refused["debt"]
    everything = service.advise(refused, "granted", lock=tuple(refused))
    assert everything["status"] == "not found" and everything["row"] == refused


LEAST = {"late": 1, "limit": 0.001, "ratio": -1e-9, "rooms": 1}


def test_the_service_judges_plans_as_the_library_does(mixed, mixed_classifier, mixed_file):
    """Plans with cells of somebody else, some of them shifted by the least, and categories never
    seen.
    """
    service, rng = service_of(mixed_file), np.random.default_rng(0)
    before = mixed[0].head(150).reset_index(drop=True)
    before.loc[:20, ["job", "sex"]] = "unheard of"
    after = before.copy()
    for name in before:
        other = before[name].sample(frac=1, random_state=1).to_numpy()
        after[name] = np.where(rng.random(len(before)) < 0.25, other, before[name])
    for name, least in LEAST.items():
        after[name] = after[name] + least * (rng.random(len(before)) < 0.1)
    after.loc[:5, "sex"] = "unheard of, too"
    judge = PlanJudge(mixed_classifier.encoder_, mixed_classifier.constraints_)
    named = {(violation.row, violation.column) for violation in judge(before, after)}
    plans = enumerate(zip(before.to_dict("records"), after.to_dict("records"), strict=True))
    found = {
        (place, name) for place, (row, plan) in plans for name in service.broken(row, plan)
    }
    assert found == named
    assert {name for _, name in found} == set(before.columns) - {
        "licence"
    }  # which may be anything
    assert (
        service.broken(before.loc[9].to_dict(), before.loc[9].to_dict(), lock=("late",)) == []
    )
    late = {**before.loc[30].to_dict(), "late": 7}
    assert service.broken(late, {**late, "late": 6}, lock=("late",)) == ["late"]


@pytest.mark.parametrize("change", [{"age": 1}, {"debt": 0.1}])
def test_the_service_withholds_a_plan_that_breaks_a_rule(
    loans, fitted, loan_file, monkeypatch, change
):
    """A search gone wrong: age may not change, debt may only fall."""
    service = service_of(loan_file)
    refused = loans[0][fitted.predict(loans[0]) == "denied"].iloc[0].to_dict()
    astray = {**refused, **{name: refused[name] + shift for name, shift in change.items()}}
    assert service.broken(refused, astray) == [*change]
    monkeypatch.setattr(
        service, "_told", lambda *given: {"row": astray, "changes": ["too much"]}
    )
    answer = service.advise(refused, "granted")
    assert (
        answer["status"] == "not found" and answer["row"] == refused and answer["changes"] == []
    )


def test_relations_are_not_searched(loan_file, loans, fitted):
    service = service_of(loan_file)
    service.spec["relations"] = ["a <= b"]
    with pytest.raises(ValueError, match="relations between columns"):
        service.advise(loans[0].iloc[0].to_dict())


def test_a_part_of_the_graph_suffices_for_a_prediction(loan_file, loans, fitted):
    service = service_of(loan_file)
    x = fitted._encoded(loans[0]).numpy()
    (probability,) = service.run(x, 1, "probability")
    assert torch.allclose(
        torch.as_tensor(probability), fitted.model_(torch.as_tensor(x)).softmax(-1), atol=1e-6
    )
