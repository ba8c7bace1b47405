"""Directions in every spelling, and what is said of those that are none."""

import numpy as np
import pytest

from counterfactual_training.constraints import parse_direction, parse_mutability
from counterfactual_training.errors import ConstraintError

NAMES = ["age", "debt", "income"]


@pytest.mark.parametrize(
    ("value", "direction"),
    [
        ("both", "both"),
        ("none", "none"),
        (1, "increase"),
        (-1, "decrease"),
        (0, "both"),
        (np.int64(-1), "decrease"),
    ],
)
def test_spellings(value, direction):
    assert parse_direction(value) == direction


@pytest.mark.parametrize("value", ["increas", "up", True, 2, None, 0.5, ["none"]])
def test_unknown_direction_lists_the_valid_ones(value):
    with pytest.raises(ConstraintError, match=r"direction.*'increase', 'decrease'"):
        parse_direction(value)


def test_the_nearest_direction_is_suggested():
    with pytest.raises(ConstraintError, match="Did you mean 'increase'"):
        parse_mutability({"age": "increas"}, 3, NAMES)


@pytest.mark.parametrize(
    ("spec", "directions"),
    [
        (None, ("both", "both", "both")),
        ({"age": "none", "debt": "decrease"}, ("none", "decrease", "both")),
        ({0: "none", -1: "increase"}, ("none", "both", "increase")),
        ({"income": 1, "age": 0}, ("both", "both", "increase")),
        ([0, -1, 1], ("both", "decrease", "increase")),
        (("none", "both", "increase"), ("none", "both", "increase")),
        (np.array([0, -1, 1]), ("both", "decrease", "increase")),
        ({}, ("both", "both", "both")),
    ],
)
def test_specifications(spec, directions):
    assert parse_mutability(spec, 3, NAMES) == directions


def test_unknown_column_suggests_the_nearest():
    with pytest.raises(
        ConstraintError, match=r"column 'dept'.*Did you mean 'debt'\?.*'age', 'debt', 'income'"
    ):
        parse_mutability({"dept": "none"}, 3, NAMES)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("none", "one word for 3 features"),
        (["none"], "1 entries for 3 features"),
        ({3: "none"}, r"index 3 is outside 0\.\.2"),
        ({True: "none"}, "column True"),
    ],
)
def test_specifications_that_do_not_fit(spec, message):
    with pytest.raises(ConstraintError, match=message):
        parse_mutability(spec, 3, NAMES)


def test_names_are_needed_to_speak_by_name():
    with pytest.raises(ConstraintError, match="Unknown column 'age'"):
        parse_mutability({"age": "none"}, 3)
