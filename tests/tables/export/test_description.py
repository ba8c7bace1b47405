"""The rules of a classifier as the JSON beside its graph."""

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.tables.export.description import describe_classifier


@pytest.fixture
def columns(make_quick):
    """By name; age and branch may not change, and everybody is at one site."""
    frame = pd.DataFrame(
        {
            "age": np.arange(40) + 20,
            "debt": np.linspace(1000, 9000, 40),
            "branch": ["north", "south"] * 20,
            "job": ["clerk", "nurse", "pilot", "clerk"] * 10,
            "site": ["a"] * 40,
        }
    )
    rules = {"mutability": {"age": "none", "branch": "none"}, "domain": {"debt": (500, 20_000)}}
    rules["schema"] = {
        "site": {"kind": "categorical", "categories": ["a", "b"], "allowed": ["a", "b"]}
    }
    classifier = make_quick(model="linear", gate="none", epochs=1, **rules).fit(
        frame, np.arange(40) % 2
    )
    return {column["name"]: column for column in describe_classifier(classifier)["columns"]}


def test_limits_are_in_the_units_of_the_user(columns):
    assert (columns["debt"]["low"], columns["debt"]["high"]) == pytest.approx((500, 20_000))


def test_a_category_that_may_not_change_becomes_no_other(columns):
    assert columns["branch"]["may"] == [[0], [1], []]
    assert columns["site"]["may"] == [
        [0],
        [1],
        [],
    ]  # a constant column never moves, whatever is allowed
    assert columns["job"]["may"][0] == [0, 1, 2]
