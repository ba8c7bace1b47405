"""Counterfactuals are valid as printed and keep every rule, in the user's units."""

import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterfactual_training.errors import InputError
from counterfactual_training.generators import GENERATORS, ecco, generic, line
from counterfactual_training.tables.advice import Finder
from counterfactual_training.tables.columns.encode import Encoder
from covering import by_default, repeats

DEGREES = ["none", "BSc", "MSc"]
TOLERANCE = 1e-6  # the same row in another batch
RANKS = ["none", "BSc", "MSc", "PhD"]
JOBS = ["clerk", "nurse", "cook", "pilot", "spy"]
HOMES = ["owned", "rented", "shared"]


def keeps_the_rules(explanation, domain=True):
    before, after = explanation.original, explanation.frame
    assert (after["age"] == before["age"]).all()
    assert (after["debt"] <= before["debt"]).all()
    assert (after["debt"] >= 0).all()
    assert (after["degree"].map(DEGREES.index) >= before["degree"].map(DEGREES.index)).all()
    assert after["branch"].isin(["north", "south", "west"]).all()
    assert after["owner"].isin([True, False]).all()
    np.testing.assert_allclose(after["debt"], after["debt"].round(1), atol=1e-9)


def holds_as_printed(classifier, explanation):
    """What is said of confidence and prediction is what the classifier says of the frame handed
    back.
    """
    probability = classifier.predict_proba(explanation.frame)
    place = [classifier.classes_.tolist().index(label) for label in explanation.target]
    confidence = probability[np.arange(len(place)), place]
    np.testing.assert_allclose(confidence, explanation.confidence, atol=TOLERANCE)
    assert (classifier.predict(explanation.frame) == explanation.prediction).all()
    asked = 0.5 if explanation.asked is None else explanation.asked
    assert (confidence[explanation.status == "converged"] >= asked - TOLERANCE).all()
    assert (confidence[explanation.status == "exhausted"] <= asked + TOLERANCE).all()


def test_counterfactuals_are_valid_as_printed(fitted, rejected):
    explanation = fitted.explain(rejected, target="granted")
    assert explanation.converged.mean() > 0.95
    holds_as_printed(fitted, explanation)
    keeps_the_rules(explanation)
    assert (explanation.decision == "denied").all()


def test_same_columns_dtypes_and_index(fitted, rejected):
    shuffled = rejected.sample(frac=1, random_state=0)
    explanation = fitted.explain(shuffled)
    assert explanation.frame.index.equals(shuffled.index)
    assert (explanation.frame.dtypes == shuffled.dtypes).all()
    unchanged = ~explanation.changed.to_numpy()
    assert (
        explanation.frame.to_numpy(object)[unchanged] == shuffled.to_numpy(object)[unchanged]
    ).all()
    assert (
        explanation.frame.to_numpy(object)[~unchanged] != shuffled.to_numpy(object)[~unchanged]
    ).all()


@pytest.mark.check
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_row_any_threshold(fitted, data):
    rows = data.draw(
        st.lists(
            st.tuples(
                st.integers(18, 95),
                st.floats(0, 200).map(lambda v: round(v, 1)),
                st.sampled_from(DEGREES),
                st.sampled_from(["north", "south", "west"]),
                st.booleans(),
            ),
            min_size=1,
            max_size=6,
        )
    )
    frame = pd.DataFrame(rows, columns=["age", "debt", "degree", "branch", "owner"])
    explanation = fitted.explain(
        frame,
        target=data.draw(st.sampled_from([None, "granted", "denied"])),
        confidence=data.draw(st.sampled_from([None, 0.4, 0.6, 0.75, 0.95])),
        sparsify=data.draw(st.booleans()),
        max_steps=15,
    )
    holds_as_printed(fitted, explanation)
    keeps_the_rules(explanation)
    assert len(explanation.changes()) == len(frame)


def test_rounding_to_whole_numbers_does_not_flip_the_decision(make_quick):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"rooms": rng.integers(1, 6, 200), "floor": rng.integers(0, 4, 200)})
    classifier = make_quick().fit(frame, frame["rooms"] + frame["floor"] > 5)
    explanation = classifier.explain(frame, target=True)
    assert explanation.converged.mean() > 0.95
    assert explanation.frame.dtypes.tolist() == frame.dtypes.tolist()
    holds_as_printed(classifier, explanation)


@pytest.mark.check
def test_shorter_is_cheaper_and_still_enough(fitted, rejected):
    short, long = (
        fitted.explain(rejected, generator=line(), sparsify=sparsify)
        for sparsify in (True, False)
    )
    assert (short.converged == long.converged).all()
    assert (short.cost <= long.cost + 1e-5).all()
    assert (short.summary["num_changed"] <= long.summary["num_changed"]).all()
    assert short.cost.mean() < 0.98 * long.cost.mean()


@pytest.mark.check
def test_a_generator_that_is_named_is_used_alone(fitted, rejected):
    alone = fitted.explain(rejected, generator=ecco(max_steps=1))
    helped = fitted.explain(rejected, max_steps=1)
    assert helped.converged.sum() > alone.converged.sum()
    assert fitted.explain(rejected.head(3), generator="generic").converged.all()
    assert (
        fitted.explain(rejected.head(3), generator=generic(decision_threshold=0.6)).asked == 0.6
    )
    with pytest.raises(InputError, match="needs a VAE"):
        fitted.explain(rejected, generator="revise")


@pytest.mark.parametrize("params", [{"method": "ct_published", "gate": "none"}, *repeats({})])
def test_rows_are_read_once_and_printed_once(loans, make_quick, schema, monkeypatch, params):
    classifier = make_quick(
        schema=schema, mutability={"age": "none", "debt": "none"}, **params
    ).fit(*loans)
    calls = []
    for name in ("_read", "put"):
        original = getattr(Encoder, name)

        def counted(self, *args, name=name, original=original, **options):
            calls.append(name)
            return original(self, *args, **options)

        monkeypatch.setattr(Encoder, name, counted)
    explanation = classifier.explain(loans[0], confidence=0.99)
    assert not explanation.converged.all()  # so that every attempt was made
    assert calls == ["_read", "put"]


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "Float32", "int64", "int8", "Int64", "object", "category"]
)
def test_rounding_a_point_is_decoding_and_encoding_it(make_finder, dtype):
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 9, 60)
    value = (
        whole if "i" in dtype.lower() or dtype == "category" else rng.normal(3, 2, 60).round(3)
    )
    frame = pd.DataFrame(
        {"value": pd.Series(value).astype(dtype), "branch": rng.choice(["a", "b", "c"], 60)}
    )
    finder = make_finder(frame, [0.0])
    factuals = finder.factuals(frame)
    points = finder.constraints.to(factuals.x).snap(
        factuals.x + 0.3 * torch.randn(factuals.x.shape), factuals.x
    )
    printed = finder.encoder.inverse_transform(points, like=frame)
    expected = torch.as_tensor(finder.encoder.transform(printed)).to(points)
    assert torch.equal(finder.as_printed(points, factuals), expected)
    assert not torch.equal(expected, factuals.x)


@pytest.mark.check
@pytest.mark.skipif(
    not os.environ.get("CT_DATA_HOME"),
    reason="CT_DATA_HOME is not set: no real data files at hand",
)
def test_five_rejected_people_of_adult(make_quick, capsys):
    from counterfactual_training.datasets.catalog import load_dataset
    from counterfactual_training.datasets.tables import EDUCATION_LEVELS

    data = load_dataset("adult", allow_download=False)
    names = np.array(data.class_names)
    classifier = make_quick(epochs=3, learning_rate=0.005, schema=data.schema)
    classifier.fit(data.frame_train, names[data.y_train])
    assert classifier.score(data.frame_test, names[data.y_test]) > 0.83
    people = data.frame_test[classifier.predict(data.frame_test) == "<=50K"].head(5)
    explanation = classifier.explain(people, target=">50K")
    before, after = explanation.original, explanation.frame

    for column in ("age", "race", "sex", "marital_status", "country", "education_num"):
        assert (after[column] == before[column]).all()
    rank = [
        [EDUCATION_LEVELS.index(level) for level in frame["education"]]
        for frame in (before, after)
    ]
    assert (np.array(rank[1]) >= np.array(rank[0])).all()
    for feature in data.schema:
        if feature.is_category:
            assert after[feature.name].isin(feature.categories).all()
            moved = after[feature.name] != before[feature.name]
            assert not (
                moved & after[feature.name].isin(["?", "Never-worked", "Without-pay"])
            ).any()
        else:
            assert after[feature.name].dtype == before[feature.name].dtype
    holds_as_printed(classifier, explanation)
    assert explanation.converged.all()
    with capsys.disabled():
        print("\n" + "\n".join(explanation.changes()))


def test_constraints_are_left_as_they_were(fitted, rejected):
    before = replace(fitted.constraints_)
    fitted.explain(rejected.head(5))
    assert (
        before.groups == fitted.constraints_.groups
        and before.lattices == fitted.constraints_.lattices
    )
    assert fitted.constraints_.category_projection == "end"


class Coarse(Finder):
    """Rounding lowers every point a little."""

    def as_printed(self, points, factuals):
        return super().as_printed(points, factuals) - 0.05


def test_what_is_shortened_is_enough_after_decoding(by_hand):
    frame, finder = by_hand([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    coarse = Coarse(finder.model, finder.encoder, finder.constraints)
    row, y = finder.factuals(frame.iloc[[20]]), torch.ones(1, dtype=torch.long)
    x_cf = row.x.clone()
    x_cf[0, :2] += 1.0
    floor = finder.model(x_cf).softmax(-1)[:, 1] - 0.2
    for one in (finder, coarse):
        shorter = one.shorten(x_cf, row, y, floor)
        assert not torch.equal(shorter, x_cf)
        assert one.reaches(shorter, y, floor).all()


def with_strangers(make_finder, weights, bias=0.0, schema=None, mutability=None):
    """Columns ``age, branch=a, branch=b, branch=c, sex=m``."""
    frame = pd.DataFrame(
        {
            "age": np.linspace(20, 60, 42).astype(int),
            "branch": ["a", "b", "c"] * 14,
            "sex": ["f", "m"] * 21,
        }
    )
    finder = make_finder(frame, weights, bias, schema, mutability, unseen="unknown")
    return frame, finder


@pytest.mark.parametrize("sparsify", [True, False])
@pytest.mark.parametrize("branch", ["b", "z"])
def test_whoever_comes_from_a_branch_never_seen_may_be_told_the_first_one(
    make_finder, sentence, branch, sparsify
):
    frame, finder = with_strangers(
        make_finder, [0.0, 3.0, 0.0, 0.0, 0.0], bias=-1.0, mutability={"age": "none"}
    )
    row = frame.head(1).assign(branch=branch)
    explanation = sentence(finder, row, sparsify=sparsify)
    assert explanation.status.tolist() == ["converged"]
    assert explanation.frame["branch"].tolist() == ["a"] and explanation.frame[
        "sex"
    ].tolist() == ["f"]


@pytest.mark.parametrize("sparsify", [True, False])
def test_a_yes_or_no_never_seen_stays_unless_it_helps(make_finder, sentence, sparsify):
    frame, finder = with_strangers(make_finder, [1.0, 0.0, 0.0, 0.0, 0.0])
    row = frame.head(1).assign(sex="x", branch="z")
    explanation = sentence(finder, row, sparsify=sparsify)
    assert explanation.status.tolist() == ["converged"]
    assert explanation.frame[["sex", "branch"]].iloc[0].tolist() == ["x", "z"]
    for weight, expected in ((8.0, "m"), (-8.0, "f")):
        _, finder = with_strangers(
            make_finder,
            [0.0, 0.0, 0.0, 0.0, weight],
            bias=-weight / 2 - 1.5,
            mutability={"age": "none"},
        )
        assert sentence(finder, row, sparsify=sparsify).frame["sex"].tolist() == [expected]


@pytest.mark.check
def test_a_branch_that_nobody_may_enter_is_closed_to_strangers_too(make_finder, sentence):
    closed = {"branch": {"forbidden": [("b", "a"), ("c", "a")]}}
    frame, finder = with_strangers(
        make_finder, [0.0, 9.0, 0.0, 0.0, 0.0], -2.0, schema=closed, mutability={"age": "none"}
    )
    explanation = sentence(finder, frame.head(1).assign(branch="z"))
    assert explanation.status.tolist() == ["infeasible"] and explanation.frame[
        "branch"
    ].tolist() == ["z"]
    assert "branch may not become what would help" in explanation.changes()[0]


def draw_people(n=80, seed=0):
    """Every column decides, so that a search wants to move every one of them."""
    rng = np.random.default_rng(seed)
    people = pd.DataFrame(
        {
            "debt": rng.gamma(2.0, 10.0, n).round(2),
            "loans": rng.integers(0, 9, n),
            "rate": rng.choice([0.0, 2.5, 5.0], n),
            "degree": rng.choice(RANKS[:3], n),
            "job": rng.choice(JOBS[:4], n),
            "home": rng.choice(HOMES, n),
            "grade": rng.choice([1, 2, 3, 4, 5], n),
            "owner": rng.random(n) > 0.5,
            "sex": rng.choice(["f", "m"], n),
        }
    )
    score = (
        1
        - 0.05 * people["debt"]
        - 0.2 * people["loans"]
        - 0.2 * people["rate"]
        + 0.2 * people["grade"]
    )
    score += 0.5 * people["degree"].map(RANKS.index) + 0.5 * people["job"].isin(
        ["pilot", "cook"]
    )
    score += (
        0.4 * (people["home"] == "shared")
        + 0.6 * people["owner"]
        + 0.6 * (people["sex"] == "f")
    )
    return people, np.where(score > 1.5, "granted", "denied")


def draw_rules(seed):
    """A rule, and another one each time, for every column."""
    rng = np.random.default_rng(seed)
    way = ["both", "increase", "decrease", "none"]
    pairs = [(a, b) for a in JOBS for b in JOBS if a != b]
    ranks = [(a, b) for a in range(1, 6) for b in range(1, 6) if a != b]
    return {
        "debt": {"domain": (0, 120), "mutability": str(rng.choice(way))},
        "loans": {"domain": (0, None), "mutability": str(rng.choice(way))},
        "rate": {"allowed": [0.0, 1.25, 5.0]},
        "degree": {"kind": "ordinal", "categories": RANKS, "mutability": "increase"},
        "job": {
            "categories": JOBS,
            "forbidden": [pairs[i] for i in rng.choice(len(pairs), 6, replace=False)],
        },
        "home": {
            "allowed": ["owned", "rented"],
            "categories": HOMES,
            "mutability": str(rng.choice(way[:3])),
        },
        "grade": {
            "kind": "ordinal",
            "categories": [1, 2, 3, 4, 5],
            "forbidden": [ranks[i] for i in rng.choice(len(ranks), 8, replace=False)],
        },
        "owner": {"mutability": str(rng.choice(way))},
        "sex": {"mutability": "none"},
    }


def broken_rules(rules, people, before, after):
    """Every change that a rule forbids, read from the rules as the user wrote them."""
    broken = []
    for name, rule in rules.items():
        low, high = rule.get("domain", (None, None))
        order = rule["categories"].index if "categories" in rule else float
        way = rule.get("mutability", "both")
        for old, new in zip(before[name], after[name], strict=True):
            if old == new:
                continue
            wrong = {
                "direction": way
                not in ("both", "increase" if order(new) > order(old) else "decrease"),
                "domain": (low is not None and new < low) or (high is not None and new > high),
                "allowed": new not in rule.get("allowed", [new]),
                "forbidden": (old, new) in rule.get("forbidden", []),
                "unseen": "categories" in rule and new not in set(people[name]),
                "whole": name == "loans" and new != int(new),
            }
            broken += [(name, old, new, what) for what, is_wrong in wrong.items() if is_wrong]
    return broken


# Growing spheres take ten seconds; laws and relations are tested with them, too.
@pytest.mark.parametrize(
    "generator", by_default([g for g in GENERATORS if g != "growing_spheres"], "line")
)
def test_every_kind_of_rule_holds_for_every_generator(make_quick, generator):
    people, decision = draw_people()
    rules = draw_rules(seed=list(GENERATORS).index(generator) % 3)  # others for the next one
    classifier = make_quick(
        f"conventional(generator={generator})", epochs=5, schema=rules, num_std=1.0
    )
    classifier.fit(people, decision)
    denied = people[classifier.predict(people) == "denied"]
    for chosen in (None, generator):  # with the fall back, and alone
        explanation = classifier.explain(
            denied, target="granted", generator=chosen, max_steps=15, confidence=0.6
        )
        assert broken_rules(rules, people, explanation.original, explanation.frame) == []
        assert explanation.notes == ()  # nothing was withheld either
        assert explanation.frame.dtypes.equals(denied.dtypes)
        assert (explanation.frame["loans"] >= 0).all()
        assert (
            explanation.changed.to_numpy().sum() > len(denied) / 2
        )  # rules that allow nothing prove nothing


@pytest.mark.check
def test_what_was_never_negative_does_not_become_so(make_quick):
    people, decision = draw_people()
    classifier = make_quick(epochs=5, num_std=3.0).fit(people, decision)
    denied = people[classifier.predict(people) == "denied"]
    after = classifier.explain(denied, target="granted", confidence=0.99).frame
    assert (after[["debt", "loans", "rate"]] >= 0).all(axis=None)


@pytest.mark.parametrize("gate", ["none", "density"])
def test_a_best_effort_asks_for_nothing_that_does_not_help(make_quick, gate):
    people, decision = draw_people()
    people["noise"] = np.random.default_rng(1).normal(size=len(people)).round(2)
    held = dict.fromkeys(("debt", "loans", "degree", "job", "grade", "owner", "sex"), "none")
    classifier = make_quick(epochs=10, mutability=held, gate=gate).fit(people, decision)

    def reached(frame):  # what is to reach the threshold
        if gate == "none":
            return classifier.predict_proba(frame)[:, 1]
        x = torch.as_tensor(classifier.encoder_.transform(frame), dtype=torch.float32)
        return classifier.predict_proba(frame)[:, 1] * classifier.gate_(x).exp()[:, 1].numpy()

    denied = people[classifier.predict(people) == "denied"]
    asked = {
        "target": "granted",
        "confidence": 0.999,
        "generator": "ecco",
    }  # alone: energy moves what it likes
    explanation = classifier.explain(denied, **asked)
    missed = ~explanation.converged
    if (
        gate != "none"
    ):  # a decision that flips is an answer, however implausible: not this kind of effort
        missed &= ~explanation.answered
    assert missed.sum() > (5 if gate == "none" else 0)
    confidence = reached(explanation.frame)
    for name in people:
        moved = missed & explanation.changed[name].to_numpy()
        undone = explanation.frame.assign(**{name: explanation.original[name]})
        assert (reached(undone)[moved] < confidence[moved]).all()
    longer = classifier.explain(denied, **asked, sparsify=False)
    assert explanation.changed.to_numpy().sum() < longer.changed.to_numpy().sum()
    assert (confidence[missed] >= reached(longer.frame)[missed] - 1e-5).all()
