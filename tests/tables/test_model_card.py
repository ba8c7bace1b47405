"""The model card: intervals, what is missing is said, Markdown that no name can break."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier

from counterfactual_training.tables.card import CardRows, ModelFacts, make_card
from counterfactual_training.tables.card_numbers import calibration_gap, wilson
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.explainer import Explainer

ODD = "a|b*c_<i>"


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "debt": rng.gamma(2, 10, 160).round(1),
            ODD: rng.integers(0, 2, 160),
            "age": range(160),
        }
    )
    y = np.where(frame["debt"] > 18, "no", "yes")
    fixed = {ODD: "none", "age": "none"}
    classifier = CounterfactualClassifier(
        epochs=8, gate="none", random_state=0, mutability=fixed
    )
    return classifier.fit(frame[:80], y[:80]), frame[80:], y[80:]


def section(card, name):
    return next(part for part in card.to_dict()["sections"] if part["id"] == name)


@pytest.mark.check
def test_a_card_with_measures(fitted):
    classifier, frame, y = fitted
    card = make_card(
        classifier,
        ModelFacts(facts=[("file", ODD)], sha256="ab12"),
        CardRows(frame, y),
        target="yes",
        people=20,
    )
    json.dumps(card.to_dict(), allow_nan=False)
    titles = [row[0] for row in section(card, "measures")["tables"][0]["rows"]]
    assert (
        titles[:2] == ["accuracy", "most frequent class"]
        and "burden" in titles
        and "calibration gap" in titles
    )
    assert [table["title"] for table in section(card, "groups")["tables"]] == [ODD, "age"]
    assert any("can be guessed" in item for item in section(card, "limits")["items"])
    text = card.to_markdown()
    # Bars and markup of names are escaped, so that every line of a table has as many cells as its
    # header.
    assert r"a\|b\*c\_\<i>" in text and ODD not in text


def test_a_table_is_not_broken_by_names(fitted):
    classifier, _, _ = fitted
    lines = make_card(classifier).to_markdown().splitlines()
    rows = [
        line.replace(r"\|", "")
        for line in lines
        if (line.startswith("| ") and "integer" in line) or "binary" in line
    ]
    assert rows and all(row.count("|") == 6 for row in rows)


def test_without_rows_it_says_so(fitted):
    classifier, frame, y = fitted
    assert "no rows" in section(make_card(classifier), "measures")["paragraphs"][0]
    undecided = make_card(classifier, rows=CardRows(frame, y))
    assert "It is not known which class" in section(undecided, "measures")["paragraphs"][0]
    assert section(undecided, "measures")["tables"][0]["rows"]


@pytest.mark.check
def test_without_labels_advice_is_measured_and_the_rest_is_said(fitted):
    classifier, frame, _ = fitted
    card = make_card(classifier, rows=CardRows(frame), target="yes", people=20)
    json.dumps(card.to_dict(), allow_nan=False)
    (said,) = section(card, "measures")["paragraphs"]
    assert "classes of these rows are not known" in said
    titles = [row[0] for row in section(card, "measures")["tables"][0]["rows"]]
    assert titles[0] == "denied" and "burden" in titles and "accuracy" not in titles
    assert section(card, "groups")["tables"]
    nothing = section(make_card(classifier, rows=CardRows(frame)), "measures")
    assert "It is not known which class" in nothing["paragraphs"][0] and not nothing["tables"]


def test_what_decides_is_called_by_its_name(fitted):
    classifier, frame, y = fitted
    sentence = section(make_card(classifier), "what")["paragraphs"][0]
    assert "A mean of several neural networks decides" in sentence
    line = CounterfactualClassifier(
        model="linear", epochs=1, gate="none", random_state=0, mutability={}
    ).fit(frame, y)
    assert "A linear classifier decides" in section(make_card(line), "what")["paragraphs"][0]
    forest = RandomForestClassifier(5, random_state=0).fit(frame, y)
    card = make_card(Explainer(forest, frame, y))
    assert (
        "A model that was trained elsewhere decides" in section(card, "what")["paragraphs"][0]
    )


def test_nobody_denied_is_told_not_raised(fitted):
    classifier, frame, _ = fitted
    lucky = frame[classifier.predict(frame) == "yes"]
    rows = CardRows(lucky, np.full(len(lucky), "yes"))
    card = make_card(classifier, rows=rows, target="yes")
    assert "Nobody among these" in section(card, "measures")["paragraphs"][0]


def test_wilson_is_that_of_scipy():
    from scipy.stats import binomtest

    for hits, n in ((0, 10), (7, 10), (40, 41)):
        expected = binomtest(hits, n).proportion_ci(method="wilson")
        assert wilson(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_calibration_gap_of_known_confidences():
    rng = np.random.default_rng(0)
    sure = np.full(1000, 0.8)
    gap, low, high = calibration_gap(sure, np.arange(1000) < 600, rng)
    assert gap == pytest.approx(0.2) and low < 0.2 < high
    # Confidences that fit have a gap by chance only, and resampling adds more of it.
    fits = np.repeat(np.linspace(0.55, 0.95, 5), 40)
    right = np.concatenate([np.arange(40) < round(40 * p) for p in np.linspace(0.55, 0.95, 5)])
    gap, low, high = calibration_gap(fits, right, rng)
    assert gap == pytest.approx(0, abs=0.02) and low <= gap < high
