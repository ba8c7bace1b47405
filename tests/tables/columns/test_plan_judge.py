"""The judge of plans names every rule that is broken, by however little, and no other."""

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.errors import ConstraintError, InputError
from counterfactual_training.tables.advice.answer import advice_constraints
from counterfactual_training.tables.advice.rules import Rules
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.columns.plan_judge import PlanJudge
from counterfactual_training.tables.columns.schema import Schema

GRADES = ["C", "B", "A"]
JOBS = ["clerk", "cook", "nurse", "pilot"]
SCHEMA = {
    "balance": {"mutability": "none"},
    "region": {"mutability": "none", "kind": "categorical"},
    "income": {"mutability": "increase"},
    "debt": {"mutability": "decrease", "domain": (0, None)},
    "rate": {"domain": (0.05, 0.7), "step": 0.05},
    "limit": {"max_change": 0.2},
    "rooms": {"allowed": [1, 2, 4]},
    "late": {"special": [-9]},
    "grade": {
        "kind": "ordinal",
        "categories": GRADES,
        "mutability": "increase",
        "max_change": 1,
    },
    "job": {"categories": [*JOBS, "smith"], "forbidden": [("clerk", "pilot")]},
    "level": {"kind": "ordinal", "categories": ["1", "2", "3", "4"], "domain": ("2", "3")},
    "ratio": {"domain": (None, 0.9)},
}
RELATIONS = ["paid <= loans", "ratio = debt / income", "job = pilot requires licence = yes"]


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    n = 200
    frame = pd.DataFrame(
        {
            "balance": rng.normal(5e4, 4e4, n).round().astype(int),
            "region": rng.choice(["north", "south"], n),
            "income": rng.integers(10_000, 150_000, n),
            "debt": rng.gamma(2, 1e4, n).round(2),
            "rate": rng.choice(np.arange(1, 19), n) / 20,
            "limit": rng.normal(0.5, 0.3, n),
            "rooms": rng.choice([1, 2, 4], n),
            "late": np.where(rng.random(n) < 0.1, -9, rng.integers(0, 60, n)),
            "grade": rng.choice(GRADES, n),
            "job": rng.choice(JOBS, n),
            "level": rng.choice(["1", "2", "3", "4"], n),
            "licence": rng.choice(["no", "yes"], n),
            "loans": rng.integers(5, 9, n),
            "paid": rng.integers(0, 5, n),
            "bonus": 500 * rng.integers(1, 40, n),
            "same": 7,
        }
    )
    frame["ratio"] = (frame["debt"] / frame["income"]).round(4)
    frame["score"] = rng.normal(size=n)
    return frame


@pytest.fixture(scope="module")
def judge_of(people):
    """The judge of people under more rules."""
    with pytest.warns(UserWarning, match="constant"):
        encoder = Encoder(
            Schema.infer(people, SCHEMA, relations=RELATIONS), "unknown", "impute"
        ).fit(people)

    def make(max_changes=None, **rules):
        ruled = encoder.with_schema(Rules(**rules).narrow(encoder.schema_))
        return PlanJudge(ruled, advice_constraints(ruled, 0.0), max_changes)

    return make


ROW = {
    "balance": 91_234,
    "region": "Atlantis",
    "income": 60_000,
    "debt": 30_000.0,
    "rate": 0.3,
    "limit": 0.5,
    "rooms": 2,
    "late": 20,
    "grade": "C",
    "job": "clerk",
    "level": "2",
    "licence": "no",
    "loans": 6,
    "paid": 3,
    "bonus": 5000,
    "same": 7,
    "ratio": 0.5,
    "score": 0.0,
}


def rows(*changes):
    return pd.DataFrame([{**ROW, **change} for change in changes])


BROKEN = [
    ({"balance": 91_235}, "balance", "mutability"),
    ({"balance": 91_234.5}, "balance", "mutability"),
    ({"balance": np.nan}, "balance", "mutability"),
    ({"region": "Lyonesse"}, "region", "mutability"),
    ({"region": None}, "region", "mutability"),
    ({"income": 59_999, "ratio": 0.5}, "income", "mutability"),
    ({"debt": 30_000.01}, "debt", "mutability"),
    ({"debt": -0.01, "ratio": 0.0}, "debt", "domain"),
    ({"rate": 0.75}, "rate", "domain"),
    ({"rate": 0.300001}, "rate", "step"),
    ({"rate": np.nan}, "rate", "missing"),
    ({"limit": 0.70000001}, "limit", "max_change"),
    ({"limit": 0.29999999}, "limit", "max_change"),
    ({"rooms": 3}, "rooms", "allowed"),
    ({"late": -9}, "late", "special"),
    ({"late": 20.5}, "late", "kind"),
    ({"late": 200}, "late", "range"),
    ({"grade": "A"}, "grade", "max_change"),
    ({"grade": "D"}, "grade", "categories"),
    ({"job": "pilot", "licence": "yes"}, "job", "forbidden"),
    ({"job": "smith"}, "job", "seen"),
    ({"level": "1"}, "level", "domain"),
    ({"bonus": 5001}, "bonus", "digits"),
    ({"same": 8}, "same", "mutability"),
    ({"ratio": 0.5001}, "debt, income", "relations"),
    ({"paid": 4, "loans": 5, "debt": 15_000.0}, "debt, income", "relations"),
    ({"loans": 2}, "paid, loans", "relations"),
]


@pytest.mark.parametrize(("change", "column", "rule"), BROKEN)
def test_each_rule_broken_by_the_least_is_named(judge_of, change, column, rule):
    found = judge_of()(rows({}), rows(change))
    assert (column, rule) in [(v.column.removeprefix("ratio, "), v.rule) for v in found]
    assert all(v.column.split(", ")[0] in str(v) and "expected" in str(v) for v in found)
    # Among others it is found, too, and nobody else is blamed.
    among = judge_of()(rows({}, {}, {}), rows({}, change, {}))
    assert {v.row for v in among} == {1} and len(among) == len(found)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"income": 60_001, "ratio": 0.5},
        {"debt": 15_000.0, "ratio": 0.25},
        {"rate": 0.7},
        {"rate": 0.05},
        {"limit": 0.7},
        {"limit": 0.3},
        {"rooms": 4},
        {"late": 21},
        {"grade": "B"},
        {"job": "nurse"},
        {"level": "3"},
        {"loans": 5, "paid": 4},
        {"bonus": 5500},
        {"licence": "yes"},
        {"score": 0.123456789},
    ],
)
def test_plans_that_keep_the_rules_pass(judge_of, change):
    assert judge_of()(rows({}), rows(change)) == []


@pytest.mark.parametrize(
    ("rules", "change", "rule"),
    [
        ({"lock": ["loans"]}, {"loans": 7}, "mutability"),
        ({"vary": ["rate"]}, {"loans": 7}, "mutability"),
        ({"domain": {"loans": (None, 6)}}, {"loans": 7}, "domain"),
        ({"domain": {"licence": ["no"]}}, {"licence": "yes"}, "allowed"),
        ({"step": {"loans": 2}}, {"loans": 7}, "step"),
        ({"max_change": {"loans": 1}}, {"loans": 8, "rate": 0.7}, "max_change"),
        ({"relations": ["loans + paid <= 9"]}, {"loans": 7}, "relations"),
        ({"max_changes": 1}, {"loans": 7, "rate": 0.7}, "max_changes"),
    ],
)
def test_rules_of_a_question_hold_on_top(judge_of, rules, change, rule):
    assert judge_of()(rows({}), rows(change)) == []
    assert [violation.rule for violation in judge_of(**rules)(rows({}), rows(change))] == [rule]


def test_columns_that_follow_others_do_not_count(judge_of):
    assert judge_of(max_changes=1)(rows({}), rows({"debt": 15_000.0, "ratio": 0.25})) == []


def test_the_same_value_is_the_same_however_it_is_stored(judge_of):
    before = rows({"rate": np.nan, "late": -9}, {})
    after = before.assign(
        balance=before["balance"].astype(float), region=pd.Categorical(before["region"])
    )
    after = after.assign(
        late=np.array([-9, 20], dtype=object), income=np.array([60_000.0, np.int64(60_000)])
    )
    assert judge_of()(before, after) == []
    assert judge_of()(before, after[after.columns[::-1]].set_axis([5, 6])) == []


def test_who_stands_outside_may_stay_or_come_back(judge_of):
    before = rows({"rate": 0.9, "level": "4", "late": 500})
    assert judge_of()(before, rows({"rate": 0.85, "level": "4", "late": 400})) == []
    worse = judge_of()(before, rows({"rate": 0.95, "level": "4", "late": 501}))
    assert [violation.rule for violation in worse] == ["domain", "range"]


def test_a_code_stays_and_a_blank_may_be_filled(judge_of):
    assert [v.rule for v in judge_of()(rows({"late": -9}), rows({"late": 3}))] == ["special"]
    assert judge_of()(rows({"late": np.nan}), rows({"late": 3})) == []
    assert judge_of()(rows({"job": None}), rows({"job": "cook"})) == []


def test_float32_is_read_as_it_is_written(people):
    frame = people[["limit", "late"]].astype({"limit": "float32"})
    encoder = Encoder(
        Schema.infer(frame, {"limit": {"domain": (0.1, 0.7), "max_change": 0.3}})
    ).fit(frame)
    judge = PlanJudge(encoder, advice_constraints(encoder, 0.0))
    before = pd.DataFrame({"limit": np.array([0.4, 0.4, 0.4], dtype="float32"), "late": 5})
    after = before.assign(limit=np.array([0.1, 0.7, 0.70001], dtype="float32"))
    assert {violation.row for violation in judge(before, after)} == {2}


def test_rows_that_do_not_match_are_refused(judge_of):
    with pytest.raises(InputError, match="1 plans for 2 rows"):
        judge_of()(rows({}, {}), rows({}))
    with pytest.raises(InputError, match="Missing columns"):
        judge_of()(rows({}), rows({}).drop(columns="late"))


def by_hand(before, after):
    """The rules of :data:`SCHEMA` on one row, as a person reads them; shares no code with the
    judge.
    """
    broken = set()
    for name in ("balance", "region", "same"):
        if before[name] != after[name]:
            broken.add(name)
    moved = {name for name in before if before[name] != after[name]} - broken
    if "income" in moved and after["income"] < before["income"]:
        broken.add("income")
    if "debt" in moved and (after["debt"] > before["debt"] or after["debt"] < 0):
        broken.add("debt")
    low, high = min(0.05, before["rate"]), max(0.7, before["rate"])
    if "rate" in moved and not (
        low <= after["rate"] <= high and f"{after['rate']:.4f}"[3:] in ("000", "500")
    ):
        broken.add("rate")
    if "limit" in moved and round(abs(after["limit"] - before["limit"]), 9) > 0.2:
        broken.add("limit")
    if "rooms" in moved and after["rooms"] not in (1, 2, 4):
        broken.add("rooms")
    if "late" in moved and (before["late"] == -9 or after["late"] < 0):
        broken.add("late")
    if "grade" in moved and GRADES.index(after["grade"]) - GRADES.index(before["grade"]) != 1:
        broken.add("grade")
    if "job" in moved and (
        (before["job"], after["job"]) == ("clerk", "pilot") or after["job"] == "smith"
    ):
        broken.add("job")
    low, high = sorted(["2", "3", before["level"]])[0], sorted(["2", "3", before["level"]])[-1]
    if "level" in moved and not low <= after["level"] <= high:
        broken.add("level")
    return broken


def test_it_agrees_with_a_person_on_random_plans(people, judge_of):
    """Each plan takes some cells from somebody else, and shifts some by the least."""
    rng = np.random.default_rng(1)
    before = people.assign(limit=people["limit"].round(2)).reset_index(drop=True)
    after = before.copy()
    for name in SCHEMA:
        mixed = before[name].sample(frac=1, random_state=2).to_numpy()
        after[name] = np.where(rng.random(len(before)) < 0.3, mixed, before[name])
    shifted = rng.random((len(before), 4)) < 0.1
    for j, (name, least) in enumerate(
        {"balance": 1, "income": -1, "debt": 0.01, "limit": 0.01}.items()
    ):
        after[name] = after[name] + least * shifted[:, j]
    # Their relations, range and grid are judged elsewhere.
    named = {
        (v.row, v.column)
        for v in judge_of()(before, after)
        if v.rule not in ("relations", "range", "digits")
    }
    pairs = enumerate(zip(before.to_dict("records"), after.to_dict("records"), strict=True))
    expected = {(row, name) for row, (old, new) in pairs for name in by_hand(old, new)}
    assert {pair for pair in named if pair[1] != "ratio"} == expected
    assert len(expected) > 200


def test_a_list_and_a_step_hold_together():
    assert Feature("a", "integer", allowed=[5, 10, 12], step=5).named == (5, 10)
    with pytest.raises(
        ConstraintError, match="No allowed value of 'a' is a multiple of its step 5"
    ):
        Feature("a", "integer", allowed=[12], step=5)


def test_columns_that_may_differ_are_all_that_is_looked_at(judge_of):
    before = rows(*[{} for _ in BROKEN])
    after = rows(*[change for change, *_ in BROKEN])
    judge = judge_of(max_changes=1)
    changed = sorted({name for change, *_ in BROKEN for name in change})
    found = judge(before[list(judge.columns)], after[list(judge.columns)], changed)
    assert found == judge(before, after)
    names = {violation.column for violation in found}
    assert {"balance", "rate", "job"} <= names
    some = judge(before[list(judge.columns)], after[list(judge.columns)], ["rate"])
    assert {violation.column for violation in some} == {"rate"}
