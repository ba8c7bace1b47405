"""The table of people: filtered, sorted, page by page."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from counterfactual_serve.people import People

QUERY = {
    "offset": 0,
    "limit": 50,
    "sort": "row",
    "descending": False,
    "decision": None,
    "search": None,
    "filters": [],
}


@pytest.fixture
def people():
    frame = pd.DataFrame({"age": [30, 20, 40, 20], "job": ["Nurse", "pilot", "clerk", "Pilot"]})
    decided = (np.array([0, 1, 0, 1]), np.array([0.9, 0.6, 0.7, 0.8]))
    model = SimpleNamespace(classes=["denied", "granted"])
    return People(SimpleNamespace(people=frame, decided=decided, model=model, rows=None))


def rows(people, **changes):
    return [row["row"] for row in people.page({**QUERY, **changes})["rows"]]


def test_a_search_ignores_capitals(people):
    assert rows(people, search="PILOT") == [1, 3] == rows(people, search="pilot")


def test_both_ends_of_a_filter_belong_to_it(people):
    between = {"column": "age", "between": [20, 30], "in": None}
    assert rows(people, filters=[between]) == [0, 1, 3]
    open_ended = {"column": "age", "between": [30, None], "in": None}
    assert rows(people, filters=[open_ended]) == [0, 2]


def test_rows_are_sorted_and_equal_ones_stay_in_their_order(people):
    assert rows(people, sort="age") == [1, 3, 0, 2]
    assert rows(people, sort="age", descending=True) == [2, 0, 1, 3]
    assert rows(people, sort="confidence", decision="granted") == [1, 3]


def test_a_page_begins_at_its_offset(people):
    found = people.page({**QUERY, "offset": 1, "limit": 2})
    assert (found["total"], found["offset"], [row["row"] for row in found["rows"]]) == (
        4,
        1,
        [1, 2],
    )
