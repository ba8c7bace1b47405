"""Numbers for people."""

import math

import pandas as pd
import pytest

from counterfactual_lab.reports.comparison import change, pairs, pairs_text
from counterfactual_training.evaluation.metrics import METRICS


def make_table(**changes: float) -> pd.DataFrame:
    baseline = {
        "accuracy": 0.9,
        "implausibility": 2.0,
        "implausibility_mmd": 0.2,
        "cost": 1.0,
        "validity": 1.0,
        "robust_accuracy": 0.5,
    }
    ours = {**baseline, **changes}
    return pd.DataFrame(
        [
            {"data": "loan", "method": "conventional", "protected": "age", **baseline},
            {"data": "loan", "method": "counterfactual", "protected": "age", **ours},
        ]
    )


@pytest.mark.parametrize(
    ("metric", "value", "change", "ours_better"),
    [
        ("implausibility", 1.5, "−25 %", True),
        ("implausibility", 2.5, "+25 %", False),
        ("accuracy", 0.95, "+0.050", True),
        ("accuracy", 0.85, "−0.050", False),
        ("robust_accuracy", 0.8, "+0.300", True),
        ("cost", 1.2, "+20 %", False),
    ],
)
def test_the_better_one_is_marked_by_the_direction_of_its_metric(
    metric, value, change, ours_better
):
    (pair,) = pairs(make_table(**{metric: value}))
    found = pair.comparisons[metric]
    assert found.change == change
    assert found.ours.best is ours_better and found.usual.best is not ours_better


def test_what_prints_alike_is_not_better():
    found = pairs(make_table(implausibility=2.0001))[0].comparisons["implausibility"]
    assert found.ours.text == found.usual.text == "2.00"
    assert not found.ours.best and not found.usual.best
    assert found.change == "±0 %"


def test_a_missing_number_is_a_dash_and_never_the_better_one():
    found = pairs(make_table(cost=math.nan))[0].comparisons["cost"]
    assert found.ours.text == "–" and found.change == "–"
    assert not found.ours.best and not found.usual.best
    assert change(METRICS["cost"], 1.0, 0.0) == "–"


def test_pairs_say_what_may_change():
    table = make_table()
    assert pairs(table)[0].setting == "age immutable" and not pairs(table)[0].free
    assert pairs(table.assign(protected=""))[0].setting == "all mutable"


def test_the_text_table_is_aligned_and_stars_the_better_one():
    lines = pairs_text(make_table(cost=0.5)).splitlines()
    assert "0.50*" in lines[3] and "1.00 " in lines[2]
    column = lines[0].index("Cost ↓")
    assert "0.50" in lines[3][column - 2 : column + 8]
