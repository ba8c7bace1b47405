"""Values in sentences."""

import pytest

from counterfactual_training.tables.advice.words import cell_with_unit, say_change
from counterfactual_training.tables.columns.feature import Feature

SCORE = Feature("score", "integer", unit="points", special=(-9,))
JOB = Feature("job", "categorical", categories=("no record", "clerk"), unit="of all")


@pytest.mark.parametrize(
    ("feature", "value", "text", "expected"),
    [
        (SCORE, 1, "1", "1 point"),
        (SCORE, 12, "12", "12 points"),
        # Codes and blanks count nothing, however they are told.
        (SCORE, -9, "unknown (-9)", "unknown (-9)"),
        (SCORE, None, "not told", "not told"),
        (JOB, "no record", "no record", "no record of all"),
    ],
)
def test_only_values_have_a_unit(feature, value, text, expected):
    assert cell_with_unit(feature, value, text) == expected


def test_a_change_as_large_as_a_code_has_its_unit():
    feature = Feature("debt", "integer", unit="dollars", special=(100,))
    assert say_change(feature, 300, 200, 0) == "debt 100 dollars lower (from 300 to 200)"
