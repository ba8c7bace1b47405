"""What is in the way of rows that miss their target, with a model made by hand."""

import pytest

from counterfactual_training.generators.diagnosis import Obstacle
from counterfactual_training.tables.advice.why import listed


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
    assert explanation.obstacles == [[(0, Obstacle.FIXED), (1, Obstacle.LIMIT)]]
    (text,) = explanation.changes()
    assert "age may not change; debt is at its limit of 0 thousand dollars." in text
    assert (
        "The closest, with debt 10.1 thousand dollars lower (from 10.1 to 0), reaches less than "
        "0.01." in text
    )


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


def test_lists():
    assert listed([], None) == ""
    assert listed(["a"], None) == "a"
    assert listed(["a", "b", "c"], None) == "a, b and c"
    assert listed(["a", "b", "c"], 1) == "a and 2 more changes"
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more change"
