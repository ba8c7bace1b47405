"""CounterfactualBatch: valid as printed, inside the rules, said in words a clerk could say."""

import json
import os
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterfactual_training.errors import InputError
from counterfactual_training.estimator import Finder, explain_rows
from counterfactual_training.estimator.explanation import say_change, say_confidence, say_number
from counterfactual_training.estimator.why import listed
from counterfactual_training.search import ecco, generic
from counterfactual_training.search.diagnosis import Obstacle
from counterfactual_training.tabular.encode import Encoder
from counterfactual_training.tabular.feature import Feature
from counterfactual_training.tabular.schema import Schema

DEGREES = ["none", "BSc", "MSc"]
TOLERANCE = 1e-6  # the same row in another batch


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
    """What is said of confidence and prediction is what the classifier says of the frame handed back."""
    probability = classifier.predict_proba(explanation.frame)
    place = [classifier.classes_.tolist().index(label) for label in explanation.target]
    confidence = probability[np.arange(len(place)), place]
    np.testing.assert_allclose(confidence, explanation.confidence, atol=TOLERANCE)
    assert (classifier.predict(explanation.frame) == explanation.prediction).all()
    assert (confidence[explanation.status == "converged"] >= explanation.decision_threshold - TOLERANCE).all()
    assert (confidence[explanation.status == "exhausted"] <= explanation.decision_threshold + TOLERANCE).all()


# ---- the frame ------------------------------------------------------------------------------------------------------


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
    assert (explanation.frame.to_numpy(object)[unchanged] == shuffled.to_numpy(object)[unchanged]).all()
    assert (explanation.frame.to_numpy(object)[~unchanged] != shuffled.to_numpy(object)[~unchanged]).all()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        decision_threshold=data.draw(st.sampled_from([0.4, 0.6, 0.75, 0.95])),
        sparsify=data.draw(st.booleans()),
        max_steps=15,
    )
    holds_as_printed(fitted, explanation)
    keeps_the_rules(explanation)
    assert len(explanation.changes()) == len(frame)


@pytest.mark.parametrize("generator", ["generic", "ecco", "revise"])
def test_rules_hold_for_every_generator(loans, make_quick, schema, generator):
    frame, y = loans
    rules = {"mutability": {"age": "none", "debt": "decrease"}, "domain": {"debt": (0, None)}}
    classifier = make_quick(generator=generator, schema=schema, epochs=6, **rules).fit(frame, y)
    explanation = classifier.explain(frame.head(60), max_steps=30)
    keeps_the_rules(explanation)
    holds_as_printed(classifier, explanation)


def test_rounding_to_whole_numbers_does_not_flip_the_decision(make_quick):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"rooms": rng.integers(1, 6, 200), "floor": rng.integers(0, 4, 200)})
    classifier = make_quick().fit(frame, frame["rooms"] + frame["floor"] > 5)
    explanation = classifier.explain(frame, target=True)
    assert explanation.converged.mean() > 0.95
    assert explanation.frame.dtypes.tolist() == frame.dtypes.tolist()
    holds_as_printed(classifier, explanation)


def test_shorter_is_cheaper_and_still_enough(fitted, rejected):
    short, long = fitted.explain(rejected), fitted.explain(rejected, sparsify=False)
    assert (short.converged == long.converged).all()
    assert (short.cost <= long.cost + 1e-5).all()
    assert (short.summary["num_changed"] <= long.summary["num_changed"]).all()
    assert short.cost.mean() < 0.98 * long.cost.mean()


def test_a_generator_that_is_named_is_used_alone(fitted, rejected):
    alone = fitted.explain(rejected, generator=ecco(max_steps=1))
    helped = fitted.explain(rejected, max_steps=1)
    assert helped.converged.sum() > alone.converged.sum()
    assert fitted.explain(rejected.head(3), generator="generic").converged.all()
    assert fitted.explain(rejected.head(3), generator=generic(decision_threshold=0.6)).decision_threshold == 0.6
    with pytest.raises(InputError, match="needs a VAE"):
        fitted.explain(rejected, generator="revise")


@pytest.mark.parametrize(("params", "seconds"), [({"preset": "as_run"}, 1.0), ({"gate": "none"}, 1.0), ({}, 4.0)])
def test_a_thousand_rows_take_about_a_second(make_quick, schema, loans, params, seconds):
    rules = {"mutability": {"age": "none", "debt": "decrease"}, "domain": {"debt": (0, None)}}
    classifier = make_quick(schema=schema, epochs=5, **rules, **params).fit(*loans)
    frame = loans[0].sample(1000, replace=True, random_state=0)
    classifier.explain(frame.head(3))
    started = time.process_time()
    classifier.explain(frame)
    assert time.process_time() - started < seconds


# ---- targets --------------------------------------------------------------------------------------------------------


def test_the_other_class_by_default(fitted, loans):
    frame = loans[0].head(40)
    explanation = fitted.explain(frame)
    assert (explanation.target != explanation.decision).all()
    assert (explanation.decision == fitted.predict(frame)).all()


def test_the_most_probable_other_class_by_default(make_blobs, make_quick):
    x, y = make_blobs(num_classes=4, n=120)
    classifier = make_quick().fit(x.numpy(), np.array(list("abcd"))[y])
    probability = classifier.predict_proba(x.numpy())
    expected = classifier.classes_[np.argsort(-probability, axis=1)[:, 1]]
    assert (classifier.explain(x.numpy()).target == expected).all()


def test_a_target_per_row(make_blobs, make_quick):
    x, y = make_blobs(num_classes=3, n=90)
    classifier = make_quick(epochs=40).fit(x.numpy(), np.array(["a", "b", "c"])[y])
    targets = ["a", "b", "c"] * 2
    for given_as in (targets, np.array(targets), pd.Series(targets)):
        explanation = classifier.explain(x.numpy()[:6], target=given_as)
        assert explanation.target.tolist() == targets
        assert (explanation.prediction[explanation.converged] == explanation.target[explanation.converged]).all()
    with pytest.raises(InputError, match="2 targets for 6 rows"):
        classifier.explain(x.numpy()[:6], target=["a", "b"])


@pytest.mark.parametrize("target", ["grant", 1, ["granted", "grant", "denied"], [["granted"]] * 3])
def test_unknown_classes(fitted, rejected, target):
    with pytest.raises(InputError, match=r"Unknown class .*'denied', 'granted'"):
        fitted.explain(rejected.head(3), target=target)


def test_rows_outside_a_stated_domain_are_refused_in_their_units(fitted, rejected):
    frame = rejected.head(4).copy()
    frame.iloc[2, frame.columns.get_loc("debt")] = -5.5
    with pytest.raises(InputError, match=r"'debt': 1 row\(s\) outside the stated domain \[0, ∞\].*-5.5"):
        fitted.explain(frame)
    frame["debt"] = 999.0  # beyond what was seen, but not beyond what was stated
    assert len(fitted.explain(frame)) == 4


# ---- each outcome, with a model made by hand ------------------------------------------------------------------------


class ByHand(torch.nn.Module):
    """Logits (0, bias + weights · z) on standardised columns."""

    def __init__(self, weights, bias=0.0):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.tensor(weights))
        self.bias = bias

    def forward(self, x):
        margin = self.bias + x @ self.weights
        return torch.stack([torch.zeros_like(margin), margin], -1)


def by_hand(weights, bias=0.0, **schema):
    frame = pd.DataFrame(
        {
            "age": np.linspace(20, 60, 41).astype(int),
            "debt": np.linspace(0, 40, 41) + 0.1,
            "branch": ["north", "south", "west", "east"] * 10 + ["north"],
        }
    )
    encoder = Encoder(Schema.infer(frame, **schema)).fit(frame)
    return frame, Finder(ByHand(weights, bias), encoder, encoder.constraints(num_std=0.0))


def sentence(finder, row, target="granted", generator=None, **options):
    chosen = generator or generic(max_steps=200)
    return explain_rows(finder, row, np.array(["denied", "granted"]), target, chosen, **options)


def test_a_change_in_words():
    frame, finder = by_hand([0.0, -2.0, 0.0, 0.0, 0.0, 0.0], units={"debt": "thousand dollars"})
    explanation = sentence(finder, frame.iloc[[30]])
    (text,) = explanation.changes()
    assert text == (
        "Row 30: with debt 17 thousand dollars lower (from 30.1 to 13.1), "
        "the decision would be 'granted' (confidence 0.76)."
    )
    assert explanation.frame["debt"].tolist() == [13.1]
    assert explanation.status.tolist() == ["converged"]


def test_several_changes_in_words_the_largest_first():
    frame, finder = by_hand([1.0, 0.0, 0.0, 0.0, 4.0, 0.0], bias=-2.0)
    (text,) = sentence(finder, frame.iloc[[4]]).changes()
    assert text.startswith("Row 4: with branch 'south' instead of 'north' and age ")
    assert " higher (from 24 to " in text


def test_already_there():
    frame, finder = by_hand([0.0, -2.0, 0.0, 0.0, 0.0, 0.0], bias=0.5)
    explanation = sentence(finder, frame.iloc[[2, 19]])
    assert explanation.status.tolist() == ["already_there", "already_there"]
    assert explanation.frame.equals(explanation.original)
    assert explanation.cost.tolist() == [0.0, 0.0] and explanation.num_steps.tolist() == [0, 0]
    assert explanation.changes()[0] == (
        "Row 2: the decision already is 'granted' (confidence 0.97); nothing needs to change."
    )
    assert explanation.converged.tolist() == [True, False]  # the class is right, the threshold not met


def test_nothing_may_change():
    frame, finder = by_hand(
        [1.0, -2.0, 0.0, 0.0, 0.0, 0.0], mutability={"age": "none", "debt": "none", "branch": "none"}
    )
    explanation = sentence(finder, frame.iloc[[40]])
    assert explanation.status.tolist() == ["infeasible"]
    assert explanation.changes() == [
        "Row 40: no allowed change was found that makes the decision 'granted' with confidence 0.75: "
        "none of the columns may change. As it stands, the confidence is 0.15."
    ]


def test_what_is_in_the_way():
    frame, finder = by_hand(
        [3.0, -1.0, 0.0, 0.0, 0.0, 0.0],
        bias=-9.0,
        mutability={"age": "none"},
        domain={"debt": (0, None)},
        units={"debt": "thousand dollars"},
    )
    explanation = sentence(finder, frame.iloc[[10]])
    assert explanation.status.tolist() == ["infeasible"]
    assert explanation.obstacles == [[(0, Obstacle.FIXED), (1, Obstacle.LIMIT)]]
    (text,) = explanation.changes()
    assert "age may not change; debt is at its limit of 0 thousand dollars." in text
    assert "The closest, with debt 10.1 thousand dollars lower (from 10.1 to 0), reaches 0.00." in text


@pytest.mark.parametrize(
    ("weights", "direction", "words"),
    [
        ([-1.0, 0.0, 0.0, 0.0, 0.0, 0.0], "increase", "age may only rise"),
        ([1.0, 0.0, 0.0, 0.0, 0.0, 0.0], "decrease", "age may only fall"),
    ],
)
def test_the_wrong_way(weights, direction, words):
    frame, finder = by_hand(weights, bias=-5.0, mutability={"age": direction})
    explanation = sentence(finder, frame.iloc[[10]])
    assert explanation.status.tolist() == ["infeasible"]
    assert words in explanation.changes()[0]


def test_a_category_out_of_reach():
    frame, finder = by_hand(
        [0.0, 0.0, 0.0, 0.0, 0.0, 3.0], bias=-1.0, forbidden={"branch": [("north", "west"), ("north", "south")]}
    )
    explanation = sentence(finder, frame.iloc[[0]])
    assert explanation.status.tolist() == ["infeasible"]
    assert "branch may not become what would help" in explanation.changes()[0]
    assert sentence(finder, frame.iloc[[1]]).frame["branch"].tolist() == ["west"]


def test_out_of_steps():
    frame, finder = by_hand([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    explanation = sentence(finder, frame.iloc[[0]], generator=generic(max_steps=3), fall_back=False)
    assert explanation.status.tolist() == ["exhausted"]
    (text,) = explanation.changes()
    assert text.startswith("Row 0: no change was found that makes the decision 'granted' with confidence 0.75.")
    assert "The closest, with age " in text and " reaches 0." in text


def test_a_low_threshold_that_does_not_change_the_decision():
    frame, finder = by_hand([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    explanation = sentence(finder, frame.iloc[[0]], generator=generic(decision_threshold=0.3))
    assert "the probability of 'granted' would be 0.3" in explanation.changes()[0]
    assert explanation.prediction.tolist() == ["denied"]


def test_of_many_changes_the_largest_are_said():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(50, 30)), columns=[f"c{i}" for i in range(30)])
    encoder = Encoder().fit(frame)
    finder = Finder(ByHand([0.2] * 30, -6.0), encoder, encoder.constraints())
    explanation = sentence(finder, frame.head(1))
    assert explanation.changes()[0].count(" from ") <= 30 and "more changes" in explanation.changes()[0]
    assert explanation.changes(most=3)[0].count("(from ") == 3
    assert explanation.changes(most=None)[0].count("(from ") == explanation.summary["num_changed"].iloc[0]


# ---- tables ---------------------------------------------------------------------------------------------------------


def test_summary_and_differences(fitted, rejected):
    explanation = fitted.explain(rejected.head(6))
    summary, differences = explanation.summary, explanation.differences()
    assert summary.index.equals(rejected.head(6).index)
    assert summary["num_changed"].sum() == len(differences)
    numbers = differences[differences["column"] == "debt"]
    np.testing.assert_allclose(
        numbers["change"].astype(float), numbers["after"].astype(float) - numbers["before"].astype(float)
    )
    assert set(numbers["unit"]) == {"thousand dollars"}
    x, x_cf = (fitted.encoder_.transform(f) for f in (explanation.original, explanation.frame))
    np.testing.assert_allclose(explanation.cost, np.abs(x_cf - x).sum(1), rtol=1e-4, atol=1e-5)


def test_records_are_json(fitted, rejected):
    records = json.loads(json.dumps(fitted.explain(rejected.head(3)).records()))
    assert [record["row"] for record in records] == rejected.index[:3].tolist()
    assert records[0]["target"] == "granted" and records[0]["changes"]
    assert records[0]["sentence"].startswith(f"Row {rejected.index[0]}: with ")


def test_text_shows_unchanged_cells_as_dashes(fitted, loans):
    text = str(fitted.explain(loans[0].head(30)))
    assert "–" in text and " → " in text
    assert "Unchanged: age" in text
    assert "… and 10 more row(s)" in text
    assert max(len(line) for line in text.splitlines()[1:-2]) < 200
    assert repr(fitted.explain(loans[0].head(2))).startswith("Explanation of 2 row(s): ")


def test_html_is_text_whatever_the_columns_are_called(make_quick):
    rng = np.random.default_rng(0)
    bad = "<script>alert(1)</script>"
    frame = pd.DataFrame({bad: rng.normal(size=60), "b": rng.choice([bad, "x", "y"], 60)})
    classifier = make_quick(epochs=10).fit(frame, np.where(frame[bad] + (frame["b"] == "x") > 0.3, bad, "no"))
    html = classifier.explain(frame, target=bad)._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert html.count("<tr>") == 21


# ---- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (1234567, 0, "1,234,567"),
        (30.10, 1, "30.1"),
        (30.0, 1, "30"),
        (-0.0001, 2, "0"),
        (-2.5, 3, "-2.5"),
        (100, 0, "100"),
    ],
)
def test_numbers(value, decimals, text):
    assert say_number(value, decimals) == text


def test_a_promise_is_not_rounded_up():
    assert [say_confidence(v) for v in (0.7599, 0.75, 0.749999, 0.9999, 1.0)] == [
        "0.75",
        "0.75",
        "0.74",
        "0.99",
        "1.00",
    ]


@pytest.mark.parametrize(
    ("feature", "before", "after", "decimals", "text"),
    [
        (Feature("age", "integer", unit="years"), 31, 34, 0, "age 3 years higher (from 31 to 34)"),
        (Feature("pay", "integer"), 12000, 9500, 0, "pay 2,500 lower (from 12,000 to 9,500)"),
        (Feature("x", "numeric"), 0.123456, 0.124956, None, "x 0.0015 higher (from 0.12346 to 0.12496)"),
        (Feature("x", "numeric"), 1.23456789, 3.0, 8, "x 1.77 higher (from 1.23 to 3)"),
        (Feature("owner", "binary"), False, True, None, "owner yes instead of no"),
        (Feature("size", "categorical", unit="cm"), 10, 20, None, "size 20 cm instead of 10"),
        (Feature("pay", "numeric", unit="$"), np.nan, 5.0, 1, "pay 5 $ (was missing)"),
        (Feature("branch", "categorical"), None, "west", None, "branch 'west' (was missing)"),
    ],
)
def test_one_change(feature, before, after, decimals, text):
    assert say_change(feature, before, after, decimals) == text


def test_lists():
    assert listed([], None) == ""
    assert listed(["a"], None) == "a"
    assert listed(["a", "b", "c"], None) == "a, b and c"
    assert listed(["a", "b", "c"], 1) == "a and 2 more changes"


# ---- real people ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.environ.get("CT_DATA_HOME"), reason="CT_DATA_HOME is not set: no real data files at hand")
def test_five_rejected_people_of_adult(make_quick, capsys):
    from counterfactual_training.datasets.catalog import load_dataset
    from counterfactual_training.datasets.descriptions import EDUCATION_LEVELS

    data = load_dataset("adult", allow_download=False)
    names = np.array(data.class_names)
    classifier = make_quick(epochs=3, learning_rate=0.005, num_counterfactuals=500, schema=data.schema)
    classifier.fit(data.frame_train, names[data.y_train])
    assert classifier.score(data.frame_test, names[data.y_test]) > 0.83
    people = data.frame_test[classifier.predict(data.frame_test) == "<=50K"].head(5)
    explanation = classifier.explain(people, target=">50K")
    before, after = explanation.original, explanation.frame

    for column in ("age", "race", "sex", "marital_status", "country", "education_num"):
        assert (after[column] == before[column]).all()
    rank = [[EDUCATION_LEVELS.index(level) for level in frame["education"]] for frame in (before, after)]
    assert (np.array(rank[1]) >= np.array(rank[0])).all()
    for feature in data.schema:
        if feature.is_category:
            assert after[feature.name].isin(feature.categories).all()
            moved = after[feature.name] != before[feature.name]
            assert not (moved & after[feature.name].isin(["?", "Never-worked", "Without-pay"])).any()
        else:
            assert after[feature.name].dtype == before[feature.name].dtype
    holds_as_printed(classifier, explanation)
    assert explanation.converged.all()
    with capsys.disabled():
        print("\n" + "\n".join(explanation.changes()))


def test_constraints_are_left_as_they_were(fitted, rejected):
    before = replace(fitted.constraints_)
    fitted.explain(rejected.head(5))
    assert before.groups == fitted.constraints_.groups and before.lattices == fitted.constraints_.lattices
    assert fitted.constraints_.category_projection == "end"


class Coarse(Finder):
    """Rounding lowers every point a little."""

    def as_printed(self, points, factuals):
        return super().as_printed(points, factuals) - 0.05


def test_what_decoding_takes_below_the_threshold_is_not_shortened():
    frame, finder = by_hand([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    coarse = Coarse(finder.model, finder.encoder, finder.constraints)
    row, y = finder.factuals(frame.iloc[[20]]), torch.ones(1, dtype=torch.long)
    x_cf = row.x.clone()
    x_cf[0, :2] += 1.0
    floor = finder.model(x_cf).softmax(-1)[:, 1] - 0.2
    assert not torch.equal(finder.shorten(x_cf, row, y, floor), x_cf)
    assert torch.equal(coarse.shorten(x_cf, row, y, floor), x_cf)


# ---- categories never seen -----------------------------------------------------------------------------------------


def with_strangers(weights, bias=0.0, **schema):
    """Columns ``age, branch=a, branch=b, branch=c, sex=m``."""
    frame = pd.DataFrame(
        {"age": np.linspace(20, 60, 42).astype(int), "branch": ["a", "b", "c"] * 14, "sex": ["f", "m"] * 21}
    )
    encoder = Encoder(Schema.infer(frame, **schema), unknown="unknown").fit(frame)
    return frame, Finder(ByHand(weights, bias), encoder, encoder.constraints(num_std=0.0))


@pytest.mark.parametrize("sparsify", [True, False])
@pytest.mark.parametrize("branch", ["b", "z"])
def test_whoever_comes_from_a_branch_never_seen_may_be_told_the_first_one(branch, sparsify):
    frame, finder = with_strangers([0.0, 3.0, 0.0, 0.0, 0.0], bias=-1.0, mutability={"age": "none"})
    row = frame.head(1).assign(branch=branch)
    explanation = sentence(finder, row, sparsify=sparsify)
    assert explanation.status.tolist() == ["converged"]
    assert explanation.frame["branch"].tolist() == ["a"] and explanation.frame["sex"].tolist() == ["f"]


@pytest.mark.parametrize("sparsify", [True, False])
def test_a_yes_or_no_never_seen_stays_unless_it_helps(sparsify):
    frame, finder = with_strangers([1.0, 0.0, 0.0, 0.0, 0.0])
    row = frame.head(1).assign(sex="x", branch="z")
    explanation = sentence(finder, row, sparsify=sparsify)
    assert explanation.status.tolist() == ["converged"]
    assert explanation.frame[["sex", "branch"]].iloc[0].tolist() == ["x", "z"]
    for weight, expected in ((8.0, "m"), (-8.0, "f")):
        _, finder = with_strangers([0.0, 0.0, 0.0, 0.0, weight], bias=-weight / 2 - 1.5, mutability={"age": "none"})
        assert sentence(finder, row, sparsify=sparsify).frame["sex"].tolist() == [expected]


def test_a_branch_that_nobody_may_enter_is_closed_to_strangers_too():
    closed = {"branch": [("b", "a"), ("c", "a")]}
    frame, finder = with_strangers([0.0, 9.0, 0.0, 0.0, 0.0], -2.0, forbidden=closed, mutability={"age": "none"})
    explanation = sentence(finder, frame.head(1).assign(branch="z"))
    assert explanation.status.tolist() == ["infeasible"] and explanation.frame["branch"].tolist() == ["z"]
    assert "branch may not become what would help" in explanation.changes()[0]
