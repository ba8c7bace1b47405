"""Sentences, tables and records of an explanation."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from counterfactual_training.gates import Gate
from counterfactual_training.generators import generic
from counterfactual_training.tables.advice.words import say_change, say_confidence, say_number
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier


def test_a_change_in_words(by_hand, sentence):
    frame, finder = by_hand(
        [0.0, -2.0, 0.0, 0.0, 0.0, 0.0], schema={"debt": {"unit": "thousand dollars"}}
    )
    explanation = sentence(finder, frame.iloc[[30]])
    (text,) = explanation.changes()
    assert text == (
        "Row 30: with debt 16.6 thousand dollars lower (from 30.1 to 13.5), "
        "the decision would be 'granted' (confidence 0.75, above the 0.75 asked for)."
    )
    assert explanation.frame["debt"].tolist() == [13.5]
    assert explanation.status.tolist() == ["converged"]


def test_several_changes_in_words_the_largest_first(by_hand, sentence):
    frame, finder = by_hand([1.0, 0.0, 0.0, 0.0, 4.0, 0.0], bias=-2.0)
    (text,) = sentence(finder, frame.iloc[[4]]).changes()
    assert text.startswith("Row 4: with branch 'south' instead of 'north' and age ")
    assert " higher (from 24 to " in text


def test_already_there(by_hand, sentence):
    frame, finder = by_hand([0.0, -2.0, 0.0, 0.0, 0.0, 0.0], bias=0.5)
    explanation = sentence(finder, frame.iloc[[2, 19]])
    assert explanation.status.tolist() == ["already_there", "already_there"]
    assert explanation.frame.equals(explanation.original)
    assert explanation.cost.tolist() == [0.0, 0.0] and explanation.num_steps.tolist() == [0, 0]
    assert explanation.changes()[0] == (
        "Row 2: the decision already is 'granted' (confidence 0.97); nothing needs to change."
    )
    assert explanation.answered.all()
    assert "(confidence 0.66, below the 0.75 asked for); nothing" in explanation.changes()[1]


def test_out_of_steps(by_hand, sentence):
    frame, finder = by_hand([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    explanation = sentence(finder, frame.iloc[[0]], generator=generic(max_steps=3), named=True)
    assert explanation.status.tolist() == ["exhausted"]
    (text,) = explanation.changes()
    assert text.startswith(
        "Row 0: no change was found that makes the decision 'granted' with confidence 0.75."
    )
    assert "The closest, with age " in text and " reaches 0." in text


def test_a_low_threshold_that_does_not_change_the_decision(by_hand, sentence):
    frame, finder = by_hand([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    explanation = sentence(finder, frame.iloc[[0]], generator=generic(decision_threshold=0.3))
    assert "the probability of 'granted' would be 0.3" in explanation.changes()[0]
    assert explanation.prediction.tolist() == ["denied"]


@pytest.mark.check
def test_all_changes_are_said_or_the_largest(make_finder, sentence):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(50, 30)), columns=[f"c{i}" for i in range(30)])
    finder = make_finder(frame, [0.2] * 30, -6.0, num_std=2.0)
    explanation = sentence(finder, frame.head(1))
    assert (
        explanation.changes()[0].count("(from ")
        == explanation.summary["num_changed"].iloc[0]
        > 12
    )
    assert (
        explanation.changes(most=3)[0].count("(from ") == 3
        and "more changes" in explanation.changes(most=3)[0]
    )


def test_summary_and_differences(fitted, rejected):
    explanation = fitted.explain(rejected.head(6))
    summary, differences = explanation.summary, explanation.differences()
    assert summary.index.equals(rejected.head(6).index)
    assert summary["num_changed"].sum() == len(differences)
    numbers = differences[differences["column"] == "debt"]
    np.testing.assert_allclose(
        numbers["change"].astype(float),
        numbers["after"].astype(float) - numbers["before"].astype(float),
    )
    assert set(numbers["unit"]) == {"thousand dollars"}
    x, x_cf = (fitted.encoder_.transform(f) for f in (explanation.original, explanation.frame))
    np.testing.assert_allclose(explanation.cost, np.abs(x_cf - x).sum(1), rtol=1e-4, atol=1e-5)


def test_records_are_json(fitted, rejected):
    records = json.loads(json.dumps(fitted.explain(rejected.head(3)).records()))
    assert [record["row"] for record in records] == rejected.index[:3].tolist()
    assert records[0]["target"] == "granted" and records[0]["changes"]
    assert records[0]["sentence"].startswith(f"Row {rejected.index[0]}: with ")


@pytest.mark.check
def test_text_shows_unchanged_cells_as_dashes(fitted, loans):
    text = str(fitted.explain(loans[0].head(30)))
    assert "–" in text and " → " in text
    assert "Unchanged: age" in text
    assert "… and 10 more row(s)" in text
    assert max(len(line) for line in text.splitlines()[1:-2]) < 200
    assert repr(fitted.explain(loans[0].head(2))).startswith("Explanation of 2 row(s): ")


def test_a_line_break_in_a_name_breaks_no_line(make_finder, sentence):
    frame = pd.DataFrame(
        {"total\ndebt": np.linspace(0, 40, 41) + 0.1, "time\nat address": np.linspace(0, 9, 41)}
    )
    finder = make_finder(frame, [-2.0, 0.0])
    explanation = sentence(finder, frame.iloc[[30, 35]])
    assert explanation.changes()[0].startswith(r"Row 30: with total\ndebt 1")
    head, names, *rows, still = str(explanation).splitlines()
    assert (
        head.startswith("Explanation") and names.split()[0] == r"total\ndebt" and len(rows) == 2
    )
    assert still == r"Unchanged: time\nat address"
    assert len(str(finder.encoder.schema_).splitlines()) == 3


def test_html_is_text_whatever_the_columns_are_called(make_quick):
    rng = np.random.default_rng(0)
    bad = "<script>alert(1)</script>"
    frame = pd.DataFrame({bad: rng.normal(size=60), "b": rng.choice([bad, "x", "y"], 60)})
    classifier = make_quick(epochs=10).fit(
        frame, np.where(frame[bad] + (frame["b"] == "x") > 0.3, bad, "no")
    )
    html = classifier.explain(frame, target=bad)._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert html.count("<tr>") == 21


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


def test_years_and_codes_have_no_thousands_separators(make_finder, sentence):
    """Neither those whose name says so, nor whole numbers that can only be years."""
    rng = np.random.default_rng(0)
    years = rng.integers(1975, 2021, 200)
    frame = pd.DataFrame(
        {
            "year_built": years,
            "since_when": years,
            "opened": years.astype(float),
            "first": years,
            "postcode": 10_000 + years,
            "visits_last_year": 10 * years,
            "income": 10 * years,
            "share": years + 0.5,
        }
    )
    finder = make_finder(frame, [1.0] * 8, bias=-11.0)
    told = sentence(finder, frame.iloc[[frame["income"].argmin()]])
    text = told.changes()[0]
    assert set(told.changed.columns[told.changed.to_numpy()[0]]) == set(frame.columns)
    for name in ("year_built", "since_when", "opened", "first"):
        assert re.search(rf"{name} \d+ higher \(from 19\d\d to 20\d\d\)", text)
    assert re.search(r"postcode \d+ higher \(from 119\d\d to 120\d\d\)", text)
    for name in ("visits_last_year", "income"):
        assert re.search(rf"{name} \d+ higher \(from 19,\d\d\d to 20,\d\d\d\)", text)
    assert re.search(r"share [\d.]+ higher \(from 1,9\d\d\.5 to 2,0[\d.]+\)", text)


def test_a_promise_is_not_rounded_up():
    assert [say_confidence(v) for v in (0.7599, 0.75, 0.749999, 0.9999, 1.0)] == [
        "0.75",
        "0.75",
        "0.74",
        "0.99",
        "1.00",
    ]


def test_little_confidence_is_not_none():
    assert [say_confidence(v) for v in (0.004, 0.0, 0.01)] == ["less than 0.01", "0.00", "0.01"]
    assert say_confidence(0.0004, 3) == "less than 0.001"


@pytest.mark.parametrize(
    ("feature", "before", "after", "decimals", "text"),
    [
        (
            Feature("late", "integer", unit="months"),
            1,
            0,
            0,
            "late 1 month lower (from 1 to 0)",
        ),
        (Feature("time", "numeric", unit="ms"), 1, 2, 0, "time 1 ms higher (from 1 to 2)"),
        (
            Feature("pay", "integer", unit="thousand dollars"),
            2,
            1,
            0,
            "pay 1 thousand dollars lower (from 2 to 1)",
        ),
        (
            Feature("age", "integer", unit="years"),
            31,
            34,
            0,
            "age 3 years higher (from 31 to 34)",
        ),
        (Feature("pay", "integer"), 12000, 9500, 0, "pay 2,500 lower (from 12,000 to 9,500)"),
        (
            Feature("x", "numeric"),
            0.123456,
            0.124956,
            None,
            "x 0.0015 higher (from 0.12346 to 0.124956)",
        ),
        (Feature("x", "numeric"), 1.23456789, 3.0, 8, "x 1.77 higher (from 1.23 to 3)"),
        (Feature("owner", "binary"), False, True, None, "owner yes instead of no"),
        (Feature("size", "categorical", unit="cm"), 10, 20, None, "size 20 cm instead of 10"),
        (Feature("pay", "numeric", unit="$"), np.nan, 5.0, 1, "pay 5 $ (was missing)"),
        (Feature("branch", "categorical"), None, "west", None, "branch 'west' (was missing)"),
    ],
)
def test_one_change(feature, before, after, decimals, text):
    assert say_change(feature, before, after, decimals) == text


@pytest.mark.check
def test_an_index_of_the_users_may_be_called_option(fitted, rejected):
    rows = rejected.head(3)
    rows.index = pd.MultiIndex.from_tuples(
        [("p", 7), ("q", 8), ("r", 9)], names=["id", "option"]
    )
    one = fitted.explain(rows)
    assert repr(one).startswith("Explanation of 3 row(s):") and one.option(1).index.equals(
        rows.index
    )
    assert one.changes()[0].startswith("Row ('p', 7): ")
    two = fitted.explain(rows, n_options=2)
    assert two.option(1).index.tolist() == rows.index.tolist()


def test_a_low_confidence_that_is_reached_where_nobody_lives(by_hand, sentence):
    frame, finder = by_hand([0.0, -2.0, 0.0, 0.0, 0.0, 0.0])

    class Nowhere(Gate):
        def forward(self, x):
            return torch.full((*x.shape[:-1], 2), -9.0)

    told = sentence(
        replace(finder, gate=Nowhere()),
        frame.iloc[[40]],
        generator=generic(decision_threshold=0.2),
    )
    (text,) = told.changes()
    assert told.status.tolist() == ["implausible"]
    assert (
        "the probability of 'granted' would be 0.2" in text
        and "but few real cases look like this" in text
    )


def test_costs_of_two_models_are_compared_on_one_scale(loans):
    frame, y = loans
    ours, other = (
        CounterfactualClassifier(
            epochs=5,
            learning_rate=0.02,
            random_state=0,
            gate="none",
            scaling=scaling,
            mutability={},
        )
        for scaling in ("robust", "standard")
    )
    ours.fit(frame, y)
    wide = frame.assign(
        debt=frame["debt"] * 3
    )  # a model of other people, whose debts vary more
    other.fit(wide, y)
    told = other.explain(wide[other.predict(wide) == "denied"].head(8), "granted")
    measured = told.measured_by(ours.encoder_, {"debt": 2.0})
    scale = {column.feature.name: column.scale for column in ours.encoder_.columns_}
    moved = (told.frame["debt"] - told.original["debt"]).abs().to_numpy() / scale["debt"]
    place = list(frame.columns).index("debt")
    np.testing.assert_allclose(measured.distance[:, place], moved, atol=1e-5)
    rest = np.delete(measured.distance, place, axis=1).sum(1)
    np.testing.assert_allclose(measured.cost, rest + 2 * moved, atol=1e-5)
    assert (measured.cost != told.cost).any() and measured.changes() is not None
    # By its own encoder, nothing changes.
    np.testing.assert_allclose(told.measured_by(other.encoder_).cost, told.cost, atol=1e-4)
