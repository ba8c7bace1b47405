"""What is in the way of rows that miss their target, with a model made by hand."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.generators import generic
from counterfactual_training.generators.diagnosis import Obstacle
from counterfactual_training.tables.advice import Question, explain_rows
from counterfactual_training.tables.advice.hurdles import Hurdle, in_words
from counterfactual_training.tables.advice.rules import Rules
from counterfactual_training.tables.advice.words import listed


def test_nothing_may_change(by_hand, sentence):
    frame, finder = by_hand(
        [1.0, -2.0, 0.0, 0.0, 0.0, 0.0],
        mutability={"age": "none", "debt": "none", "branch": "none"},
    )
    explanation = sentence(finder, frame.iloc[[40]])
    assert explanation.status.tolist() == ["infeasible"]
    assert explanation.changes() == [
        "Row 40: no allowed change was found that makes the decision 'granted' with confidence "
        "0.75: "
        "none of the columns may change. As it stands, the confidence is 0.15."
    ]


@pytest.mark.check
def test_what_is_in_the_way(by_hand, sentence):
    frame, finder = by_hand(
        [3.0, -1.0, 0.0, 0.0, 0.0, 0.0],
        bias=-9.0,
        mutability={"age": "none"},
        domain={"debt": (0, None)},
        schema={"debt": {"unit": "thousand dollars"}},
    )
    explanation = sentence(finder, frame.iloc[[10]])
    assert explanation.status.tolist() == ["infeasible"]
    assert explanation.obstacles == [
        [Hurdle(0, Obstacle.FIXED, "may not change"), Hurdle(1, Obstacle.LIMIT, "")]
    ]
    (text,) = explanation.changes()
    assert "age may not change; debt is at its limit of 0 thousand dollars." in text
    assert text.endswith(" Nothing comes near: the most that was found is less than 0.01.")


@pytest.mark.parametrize(
    ("weights", "direction", "words"),
    [
        ([-1.0, 0.0, 0.0, 0.0, 0.0, 0.0], "increase", "age may only rise"),
        ([1.0, 0.0, 0.0, 0.0, 0.0, 0.0], "decrease", "age may only fall"),
    ],
)
def test_the_wrong_way(by_hand, sentence, weights, direction, words):
    frame, finder = by_hand(weights, bias=-5.0, mutability={"age": direction})
    explanation = sentence(finder, frame.iloc[[10]])
    assert explanation.status.tolist() == ["infeasible"]
    assert words in explanation.changes()[0]


@pytest.mark.check
def test_a_category_out_of_reach(by_hand, sentence):
    frame, finder = by_hand(
        [0.0, 0.0, 0.0, 0.0, 0.0, 3.0],
        bias=-1.0,
        schema={"branch": {"forbidden": [("north", "west"), ("north", "south")]}},
    )
    explanation = sentence(finder, frame.iloc[[0]])
    assert explanation.status.tolist() == ["infeasible"]
    assert "branch may not become what would help" in explanation.changes()[0]
    assert sentence(finder, frame.iloc[[1]]).frame["branch"].tolist() == ["west"]


def terms():
    """Terms of 12, 24 and 48 months, income in hundreds, a rate and codes of who asks."""
    rng = np.random.default_rng(0)
    n = 240
    return pd.DataFrame(
        {
            "term": rng.choice([12, 24, 48], n),
            "income": 100 * rng.integers(100, 900, n),
            "rate": rng.uniform(5, 15, n).round(2),
            "asked": rng.integers(0, 60, n),
            "age": rng.integers(20, 70, n),
        }
    )


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (
            {"vary": ["term"], "domain": {"term": (40, 45)}},
            "confidence 0.5: term takes 12, 24 and 48 only, none of them from 40 to 45; ",
        ),
        (
            {"vary": ["term"], "domain": {"term": (5, 15)}},
            "confidence 0.5: term takes 12, 24 and 48 only, none of them but 12 from 5 to 15; ",
        ),
        (
            {"vary": ["income"], "max_change": {"income": 50}},
            "confidence 0.5: income changes in steps of 100, and max_change is 50; ",
        ),
        (
            {"vary": ["rate"], "step": {"rate": 1000}},
            r"confidence 0.5: rate takes multiples of 1,000 only, none of them from \d",
        ),
        (
            {"vary": ["asked"], "max_change": {"asked": 0.5}},
            "confidence 0.5: asked changes in steps of 1, and max_change is 0.5; ",
        ),
        (
            {"vary": ["term"], "domain": {"term": (40, 45)}},
            "income, rate and asked may not change, by vary; age may not change. As",
        ),
        (
            {"vary": ["asked"], "max_changes": 1, "max_change": {"asked": 0.5}},
            ", by vary; age may",
        ),
        (
            {"lock": ["term", "income", "rate", "asked"], "max_changes": 2},
            "confidence 0.5: none of the columns may change, 4 of them by lock. As",
        ),
    ],
)
def test_the_rule_that_leaves_nothing_is_named_and_who_stated_it(make_finder, rules, words):
    """Of columns that are held, the two that matter most."""
    frame = terms()
    finder = make_finder(frame, [-1.0, 3.0, -2.0, -0.5, 1.0], -15.0, mutability={"age": "none"})
    row = frame[frame["term"] == 12].iloc[[0]]
    question = Question(generic(decision_threshold=0.5))
    groups = [(np.arange(1), Rules(**rules))]
    told = explain_rows(
        finder, row, np.array(["denied", "granted"]), "granted", question, groups
    )
    assert told.status.tolist() == ["infeasible"]
    assert re.search(words, told.changes()[0]), told.changes()[0]


def test_who_ran_out_of_ways_is_told_which_columns_stand_in_the_way(make_finder):
    """Here one that may not change and lies far outside; of the others, only one may change."""
    frame = terms()[["income", "rate", "age"]]
    finder = make_finder(frame, [0.2, -0.2, -3.0], -2.0, mutability={"age": "none"})
    row = frame.iloc[[0]].assign(age=100)
    question = Question(generic(decision_threshold=0.5))
    groups = [(np.arange(1), Rules(max_changes=1))]
    told = explain_rows(
        finder, row, np.array(["denied", "granted"]), "granted", question, groups
    )
    assert told.status.tolist() == ["exhausted"] and not told.answered.any()
    reason = "may not change, and nearly all rows have 20 to 69"
    assert told.obstacles == [[Hurdle(2, Obstacle.FIXED, reason)]]
    assert f"with confidence 0.5; in the way: age {reason}. Nothing" in told.changes()[0]
    # Within the usual range, or if another number would help no more, nothing is said of it.
    usual = replace(finder, model=type(finder.model)([0.2, -0.2, 0.0], -8.0))
    told = explain_rows(
        usual, row, np.array(["denied", "granted"]), "granted", question, groups
    )
    assert told.status.tolist() == ["exhausted"] and "age" not in told.changes()[0]


def test_few_changes_of_a_best_effort_are_named(make_finder, sentence):
    wide = pd.DataFrame({name: np.linspace(0, 10, 41) for name in "abcdef"})
    finder = make_finder(wide, [1.0] * 6, bias=-10.5)
    (text,) = sentence(finder, wide.iloc[[0]]).changes()
    assert re.search(
        r"The closest, with (\w 10 higher [^,]*, ){3}\w 10 .* and 2 more changes", text
    )


def test_of_many_columns_two_are_named():
    hurdles = [Hurdle(j, Obstacle.FIXED, "may not change, by vary") for j in (4, 2, 0, 1)]
    hurdles += [Hurdle(3, Obstacle.LIMIT, ""), Hurdle(5, "a <= f", 'is held by "a <= f"')]
    text = in_words(hurdles, list("abcdef"), [f"{number}" for number in range(6)])
    assert text == (
        'e, c and 2 more may not change, by vary; d is at its limit of 3; "a <= f" keeps f at 5'
    )


def test_where_all_columns_are_held_it_is_told_by_what():
    fixed = [Hurdle(j, Obstacle.FIXED, "may not change") for j in (0, 1)]
    assert in_words(fixed, "ab", "01") == "none of the columns may change"
    locked = [*fixed, Hurdle(2, Obstacle.FIXED, "may not change, by lock", "lock")]
    assert in_words(locked, "abc", "012") == "none of the columns may change, 1 of them by lock"
    # What else is said of a column is no rule.
    outlying = [*fixed, Hurdle(2, Obstacle.FIXED, "may not change, and nearly all have 0 to 3")]
    assert in_words(outlying, "abc", "123") == "none of the columns may change"


def test_changes_of_a_best_effort_that_does_not_come_near_are_not_named(by_hand, sentence):
    frame, finder = by_hand([0.1, -0.1, 0.0, 0.0, 0.0, 0.0], bias=-9.0)
    (text,) = sentence(finder, frame.iloc[[10]]).changes()
    assert " Nothing comes near: the most that was found is less than 0.01." in text
    assert "with debt" not in text and "with age" not in text


def test_lists():
    assert listed([], None) == ""
    assert listed(["a"], None) == "a"
    assert listed(["a", "b", "c"], None) == "a, b and c"
    assert listed(["a", "b", "c"], 1) == "a and 2 more changes"
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more change"
