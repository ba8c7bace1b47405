"""The numbers that people write."""

import numpy as np
import pytest

from counterfactual_training.tables.columns.rounding import (
    round_to,
    seen_decimals,
    seen_spacing,
)


@pytest.mark.parametrize(
    ("strays", "spacing"),
    [(0, 1000.0), (1, 1000.0), (30, None)],
    ids=["all are multiples", "nearly all", "too many are not"],
)
def test_a_spacing_is_that_of_nearly_all_values(strays, spacing):
    values = np.concatenate([1000.0 * np.arange(1, 250), np.arange(strays) + 0.3])
    assert seen_spacing(values) == spacing


def test_few_values_tell_no_spacing():
    assert seen_spacing(1000.0 * np.arange(1, 40)) is None
    assert seen_spacing(np.repeat([0.0, 1000.0, 2000.0], 100)) is None


@pytest.mark.parametrize("strays", [49, 50, 51])
def test_a_spacing_allows_one_stray_in_two_hundred_wherever_they_stand(strays):
    multiples = 500.0 * np.arange(1, 10_001 - strays)
    expected = 500.0 if strays <= 50 else None
    values = np.concatenate([np.full(strays, 0.3), multiples])
    assert seen_spacing(values) == expected
    assert seen_spacing(values[::-1]) == expected


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("decimals", [0, 1, 4])
def test_decimals_are_those_of_the_longest_value_wherever_it_stands(dtype, decimals):
    whole = np.arange(2000.0)
    for place in (0, 20, 1500):
        values = whole.copy()
        values[place] = round_to(np.array([3.3333333]), decimals)[0]
        assert (
            seen_decimals(values.astype(dtype).astype(np.float64), np.dtype(dtype)) == decimals
        )
    assert seen_decimals(np.array([np.pi, 1e300]), np.float64) is None
    assert seen_decimals(np.zeros(0), np.float64) == 0
