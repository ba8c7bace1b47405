"""Quantiles of a column are those of numpy."""

import numpy as np
import pytest

from counterfactual_training.tables.columns.ranked import Ranked

SHARES = (0.0, 0.005, 0.01, 0.37, 0.5, 0.99, 0.995, 1.0)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 101, 1000])
def test_quantiles_are_those_of_numpy_to_the_last_digit(size):
    values = np.random.default_rng(size).lognormal(size=size) * 1e3
    ranked = Ranked(values, SHARES)
    assert [ranked.lower(share) for share in SHARES] == np.quantile(
        values, SHARES, method="lower"
    ).tolist()
    assert [ranked.higher(share) for share in SHARES] == np.quantile(
        values, SHARES, method="higher"
    ).tolist()
    assert [ranked.between(share) for share in SHARES] == np.quantile(values, SHARES).tolist()


def test_the_values_stay_as_they_are():
    values = np.array([3.0, 1.0, 2.0])
    Ranked(values, (0.5,))
    assert values.tolist() == [3.0, 1.0, 2.0]
