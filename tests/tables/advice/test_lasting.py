"""Advice that refits accept: who steers, who reports, and what is promised."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

import counterfactual_training as ct
from counterfactual_training.errors import InputError
from counterfactual_training.tables.advice.lasting import BARS, Testimony

PEOPLE = ct.loan(300)
RULES = {"mutability": {"age": "none"}, "gate": "none", "random_state": 0, "progress": False}


@pytest.fixture(scope="module")
def classifier():
    return ct.CounterfactualClassifier("conventional", **RULES).fit(PEOPLE.frame, PEOPLE.labels)


@pytest.fixture(scope="module")
def witnesses(classifier):
    return ct.refits(classifier, PEOPLE.frame, PEOPLE.labels, 6)


@pytest.fixture(scope="module")
def denied(classifier):
    rows = PEOPLE.frame[classifier.predict(PEOPLE.frame) == "loan withheld"]
    return rows[classifier.explain(rows, "loan granted").status == "converged"].head(8)


class Below:
    """Grants whoever owes less than a limit, by so much more surely the less they owe."""

    classes_ = np.array(["loan granted", "loan withheld"])

    def __init__(self, limit):
        self.limit = limit

    def predict_proba(self, rows):
        odds = (self.limit - rows["debt"].to_numpy()) / 2
        granted = 1 / (1 + np.exp(-odds))
        return np.stack([granted, 1 - granted], 1)


def test_more_is_asked_for_until_those_that_steer_agree(classifier, denied):
    # What is just enough for the classifier is not for them, and those that report never accept.
    needs = classifier.explain(denied, "loan granted").frame["debt"].median()
    steer = [Below(needs - shift) for shift in (0.1, 0.3, 0.5)]
    never = [Below(-100.0), Below(-101.0), Below(-102.0)]
    advice = ct.lasting(classifier, denied, [*steer, *never], "loan granted")
    assert np.isfinite(advice.bar[advice.reached]).any()
    told = Testimony.of(steer, advice.frame, np.full(len(denied), "loan granted"))
    assert (told.probability[advice.reached] >= 0.9).all()
    assert (advice.cost >= advice.just_enough.cost - 1e-9).all()
    assert (advice.testimony.holds == 0).all() and advice.testimony.num_witnesses == 3
    assert (advice.testimony.probability < 0.1).all()


def test_where_refits_accept_what_is_just_enough_nothing_more_is_asked(classifier, denied):
    most = classifier.explain(denied, "loan granted").frame["debt"].max()
    easy = [Below(most + more) for more in (20.0, 21.0, 23.0, 20.0, 21.0, 23.0)]
    advice = ct.lasting(classifier, denied, easy, "loan granted")
    assert advice.reached.all() and np.isnan(advice.bar).all() and len(advice.answers) == 1
    pd.testing.assert_frame_equal(advice.frame, advice.just_enough.frame)
    assert "Just enough" not in advice.changes()[0]
    assert "It holds in 3 of 3 refits that had no part in it" in advice.changes()[0]


def test_where_nothing_satisfies_them_the_best_is_said_to_fall_short(classifier, denied):
    never = [Below(limit) for limit in (-100.0, -101.0, -102.0, -103.0)]
    advice = ct.lasting(classifier, denied, never, "loan granted")
    assert not advice.reached.any() and len(advice.answers) == len(BARS)
    assert len(advice) == len(denied) == len(advice.changes())
    assert list(advice.frame.index) == list(denied.index) == list(advice.summary.index)


def test_one_more_refit_is_predicted_by_students_t():
    rows = pd.DataFrame({"debt": [4.0, 8.0]})
    limits = np.array([5.0, 7.0, 12.0])
    told = Testimony.of([Below(limit) for limit in limits], rows, np.full(2, "loan granted"))
    odds = (limits[:, None] - rows["debt"].to_numpy()) / 2
    expected = t.cdf(odds.mean(0) / (odds.std(0, ddof=1) * np.sqrt(4 / 3)), 2)
    np.testing.assert_allclose(told.probability, expected, rtol=1e-6)
    np.testing.assert_array_equal(told.holds, [3, 1])
    alike = Testimony.of([Below(5.0)] * 3, rows, np.full(2, "loan granted"))
    np.testing.assert_array_equal(alike.probability, [1.0, 0.0])


def test_rules_and_targets_of_each_row_go_with_it(classifier, witnesses, denied):
    rows = denied.head(4)
    limits = [{"debt": 100}, {"debt": 100}, {"debt": 0.5}, {"debt": 100}]
    advice = ct.lasting(
        classifier, rows, witnesses, ["loan granted"] * 4, max_change=limits, share=0.99
    )
    change = (advice.frame["debt"] - rows["debt"]).abs()
    assert change.iloc[2] <= 0.5 and (change.drop(change.index[2]) > 0.5).all()


def test_it_works_around_any_model(denied):
    explainer = ct.Explainer(
        Below(20.0), PEOPLE.frame, PEOPLE.labels, mutability={"age": "none"}
    )
    others = [Below(limit) for limit in (18.0, 19.0, 20.0, 21.0, 18.5, 20.5)]
    advice = ct.lasting(explainer, denied.head(2), others, "loan granted")
    assert (advice.testimony.probability > advice.of_just_enough.probability).all()


def test_nobody_is_told_nothing(classifier, witnesses):
    advice = ct.lasting(classifier, PEOPLE.frame.head(0), witnesses, "loan granted")
    assert len(advice) == 0 and advice.changes() == [] and len(advice.frame) == 0


def test_refits_are_of_other_rows_and_repeatable(classifier, witnesses):
    again = ct.refits(classifier, PEOPLE.frame, PEOPLE.labels, 6)
    one, other = (refits[0].predict_proba(PEOPLE.frame) for refits in (witnesses, again))
    np.testing.assert_array_equal(one, other)
    assert (one != witnesses[1].predict_proba(PEOPLE.frame)).any()
    assert witnesses[0].gate_ is None
    centers = {one.encoder_.columns_[1].center for one in [classifier, *witnesses]}
    assert len(centers) == 7, "each has seen rows of its own"
    assert witnesses[0].get_params()["mutability"] == {"age": "none"}


def test_refits_train_as_long_as_the_classifier_and_stop_by_no_row_they_train_on(
    classifier, witnesses
):
    losses = classifier.history_.to_frame()["validation_loss"]
    for refit in witnesses:
        history = refit.history_.to_frame()
        assert len(history) == losses.idxmin() + 1 and history["validation_loss"].isna().all()


def test_refits_have_every_class():
    rare = PEOPLE.labels.astype(object).copy()
    rare[0] = "undecided"
    fitted = ct.CounterfactualClassifier("conventional", **RULES).fit(PEOPLE.frame, rare)
    made = ct.refits(fitted, PEOPLE.frame, rare, 4)
    assert all(len(one.classes_) == 3 for one in made)


def test_weights_go_with_the_rows(classifier):
    weight = np.where(PEOPLE.labels == "loan granted", 1.0, 1e-6)
    plain, heavy = (
        ct.refits(classifier, PEOPLE.frame, PEOPLE.labels, 1, sample_weight=own)[0]
        for own in (None, weight)
    )
    granted = [one.predict_proba(PEOPLE.frame)[:, 0].mean() for one in (plain, heavy)]
    assert granted[1] > granted[0] + 0.1


def test_refits_are_of_a_classifier(classifier):
    with pytest.raises(InputError, match="refits are of a CounterfactualClassifier, got Below"):
        ct.refits(Below(1.0), PEOPLE.frame, PEOPLE.labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confidence": 0.7}, "confidence is chosen here"),
        ({"n_options": 2}, "n_options is chosen here"),
        ({"share": 1.0}, "share of refits between 0 and 1"),
        ({"witnesses": 3}, "At least four witnesses are needed.*got 3"),
    ],
)
def test_bad_questions(classifier, witnesses, denied, options, message):
    some = witnesses[: options.pop("witnesses", None)]
    with pytest.raises(InputError, match=message):
        ct.lasting(classifier, denied, some, "loan granted", **options)


def test_a_witness_of_other_classes_is_refused(classifier, witnesses, denied):
    class Other(Below):
        classes_ = np.array(["yes", "no"])

    with pytest.raises(
        InputError, match="A witness knows the classes yes, no, not loan granted"
    ):
        ct.lasting(classifier, denied, [Other(1.0), *witnesses], "loan granted")
