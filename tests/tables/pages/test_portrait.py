"""The numbers of the page about a classifier."""

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.pages.portrait import make_portrait


def make_people(n: int = 160) -> tuple[pd.DataFrame, pd.Series]:
    """Debt and age decide, shoes do not."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 70, n),
            "sex": rng.choice(["f", "m"], n),
            "debt": np.round(rng.gamma(2, 2000, n), 0),
            "shoes": rng.integers(36, 47, n),
        }
    )
    good = frame["debt"] / 4000 - frame["age"] / 60 + rng.normal(0, 0.1, n) < 0
    return frame, pd.Series(np.where(good, "yes", "no"))


@pytest.fixture(scope="module")
def portrait():
    frame, y = make_people()
    rules = {"age": "none", "sex": "none", "shoes": "none", "debt": "decrease"}
    classifier = CounterfactualClassifier(
        epochs=60,
        mutability=rules,
        domain={"debt": (2500, None)},
        random_state=0,
        progress=False,
    ).fit(frame[:120], y[:120])
    return classifier, make_portrait(classifier, frame[120:], y[120:], "yes")


@pytest.mark.check
def test_accuracy_stands_beside_the_most_frequent_class(portrait):
    classifier, found = portrait
    frame, y = make_people()
    assert found.accuracy == pytest.approx(classifier.score(frame[120:], y[120:]))
    assert found.majority == pytest.approx(y[120:].value_counts(normalize=True).max())
    assert found.confusion.sum() == 40 and np.trace(found.confusion) == pytest.approx(
        40 * found.accuracy
    )
    assert sum(rows for _, _, rows, _, _ in found.calibration) == 40


def test_what_decides_matters_most(portrait):
    _, found = portrait
    assert found.importance["column"].tolist()[0] == "debt" and set(
        found.importance["column"][-2:]
    ) == {"sex", "shoes"}
    assert found.importance["lost"].iloc[0] > 0.1


def test_people_without_recourse_are_counted_with_what_stands_in_the_way(portrait):
    classifier, found = portrait
    frame, _ = make_people()
    refused = int((classifier.predict(frame[120:]) == "no").sum())
    assert found.advice.people == refused == sum(found.advice.status.values())
    assert 0 < found.advice.answered < 1 and found.advice.status["infeasible"] > 0
    reasons = {(column, why) for column, why, _ in found.advice.reasons}
    assert ("age", "may not change") in reasons and (
        "debt",
        "is at the end of its range",
    ) in reasons
    by_age = found.groups[found.groups["column"] == "age"]
    assert (
        by_age["people"].sum() <= refused
        and by_age["answered"].iloc[0] < by_age["answered"].iloc[-1]
    )


def test_examples_have_options_in_words(portrait):
    _, found = portrait
    assert 1 < len(found.people) <= 4 and all(person.options for person in found.people)
    assert found.people[0].options[0].startswith("With debt") and found.people[0].row >= 120
    assert all(person.decision == "no" for person in found.people)


def test_the_rival_of_a_gated_model_has_no_gate(portrait):
    classifier, found = portrait
    assert found.rival == "without the gate" and found.rival_accuracy == found.accuracy
    assert found.rival_advice.cost <= found.advice.cost + 1e-6 and classifier.gate_ is not None


@pytest.mark.check
def test_the_rival_of_counterfactual_training_is_conventional():
    frame, y = make_people(90)
    classifier = CounterfactualClassifier(
        method="ct_published", gate="none", epochs=2, random_state=0, progress=False
    ).fit(frame, y)
    assert (
        make_portrait(classifier, frame[:20], y[:20], "yes").rival == ""
    )  # its rows are not known
    found = make_portrait(classifier, frame[:20], y[:20], "yes", trained_on=(frame, y))
    assert found.rival == "trained conventionally" and 0 <= found.rival_accuracy <= 1


@pytest.mark.check
def test_without_a_wanted_class_everybody_is_led_elsewhere():
    frame, y = make_people(60)
    classifier = CounterfactualClassifier(
        epochs=2, gate="none", random_state=0, progress=False
    ).fit(frame, y)
    found = make_portrait(classifier, frame[:10], y[:10])
    assert found.target is None and found.advice.people == 10 and found.rival == ""


@pytest.mark.check
def test_relations_and_missing_values_are_counted_too():
    frame, y = make_people()
    frame["age"] = frame["age"].astype(float).where(np.arange(len(frame)) % 3 > 0)
    frame["goods"] = frame["debt"] + 100
    rules = {"age": "none", "sex": "none", "shoes": "none", "goods": "none"}
    classifier = CounterfactualClassifier(
        epochs=60,
        mutability=rules,
        relations=["debt >= goods - 100"],
        missing="impute",
        random_state=0,
        progress=False,
    ).fit(frame[:120], y[:120])
    found = make_portrait(classifier, frame[120:], y[120:], "yes")
    assert 'is held by "debt >= goods - 100"' in {
        why for column, why, _ in found.advice.reasons if column == "debt"
    }
    by_age = found.groups[found.groups["column"] == "age"]
    refused = frame[120:][classifier.predict(frame[120:]) == "no"]
    missing = by_age.loc[by_age["group"] == "missing", "people"]
    assert missing.tolist() == [refused["age"].isna().sum()]
