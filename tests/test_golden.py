"""What ``tools.golden`` finds different, and how it says so."""

import pandas as pd
import pytest

from tools.golden import differences, rows_by_name

ROW = {"value": 1.0, "low": 0.5, "verdict": None}


def test_a_row_that_changed_is_one_line():
    after = {"LS, ip": {**ROW, "value": 2.0, "low": 0.75}, "LS, nn5": ROW}
    before = {"LS, ip": ROW, "LS, nn5": ROW}
    assert list(differences(before, after)) == [".LS, ip: low 0.5 → 0.75, value 1 → 2"]


def test_a_row_more_changes_no_other():
    before = {"LS, ip": ROW, "OL, ip": ROW}
    after = {"LS, ip": ROW, "LS, nn5": ROW}
    assert list(differences(before, after)) == [".LS, nn5: is new", ".OL, ip: is gone"]


def test_a_column_more_is_told_in_the_line_of_its_row():
    after = {"LS, ip": {**ROW, "low": 0.75, "high": 2.0}}
    [line] = differences({"LS, ip": ROW}, after)
    assert line == ".LS, ip: high is new, low 0.5 → 0.75"


def test_long_values_are_shortened():
    [line] = differences({"costs": list(range(1000))}, {"costs": list(range(999))})
    assert line.startswith(".costs: [0, 1, 2")
    assert len(line) < 100


def test_rounding_is_no_difference_and_neither_is_the_time():
    before = {"value": 1.0, "low": float("nan"), "seconds": 3}
    after = {"value": 1.00001, "low": float("nan"), "seconds": 4}
    assert list(differences(before, after)) == []


def test_rows_are_named_by_their_columns():
    table = pd.DataFrame({"data": ["LS", "OL"], "metric": "ip", "value": [1.5, 2.5]})
    assert rows_by_name(table, ("data", "metric")) == {
        "LS, ip": {"value": 1.5},
        "OL, ip": {"value": 2.5},
    }
    with pytest.raises(ValueError, match="Two rows"):
        rows_by_name(table, ("metric",))
