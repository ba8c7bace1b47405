"""The numbers that people write."""

import numpy as np
import pytest

from counterfactual_training.tabular.rounding import seen_spacing


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
