"""Changes taken back, as long as the decision allows it."""

import pytest
import torch

from counterfactual_training import Constraints
from counterfactual_training.advice.refine import Shortener


def reaches(x, y_target, floor):
    return x.sum(-1) >= floor


@pytest.mark.parametrize(("x_cf", "kept"), [([1.0, 2.0], 1), ([2.0, 1.0], 0)])
def test_of_two_changes_that_can_stand_for_each_other_the_smaller_one_goes(x_cf, kept):
    pixels = torch.zeros(2, dtype=torch.bool)
    shorten = Shortener(
        reaches, lambda points, rows: points, torch.arange(2), pixels, Constraints.build(2), torch.ones(2)
    )
    short = shorten(torch.tensor([x_cf]), torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), torch.ones(1))
    assert short[0, 1 - kept] == 0
    assert short[0, kept] == 1.0  # and eased as far as the floor allows
