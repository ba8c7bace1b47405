"""Changes taken back, as long as the decision allows it."""

import pytest
import torch

from counterfactual_training import Constraints
from counterfactual_training.tables.advice.refine import Shortener


def reaches(x, y_target, floor):
    return x.sum(-1) >= floor


def make_shortener(reaches, owner):
    num_features = int(owner.max()) + 1
    pixels = torch.zeros(num_features, dtype=torch.bool)
    rules = Constraints.build(len(owner))
    return Shortener(
        reaches, lambda points, rows: points, owner, pixels, rules, torch.ones(num_features)
    )


@pytest.mark.parametrize(("x_cf", "kept"), [([1.0, 2.0], 1), ([2.0, 1.0], 0)])
def test_of_two_changes_that_can_stand_for_each_other_the_smaller_one_goes(x_cf, kept):
    shorten = make_shortener(reaches, torch.arange(2))
    short = shorten(
        torch.tensor([x_cf]), torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), torch.ones(1)
    )
    assert short[0, 1 - kept] == 0
    assert short[0, kept] == 1.0  # and eased as far as the floor allows


def test_looking_ahead_takes_back_what_one_change_after_the_other_would():
    rng = torch.Generator().manual_seed(0)
    owner = torch.arange(40).repeat_interleave(torch.tensor([1, 3]).repeat(20))
    x, x_cf = torch.zeros(12, len(owner)), torch.rand(12, len(owner), generator=rng)
    bends = torch.randn(len(owner), 6, generator=rng)

    def wavy(
        points, y_target, floor
    ):  # what can go alone need not be able to go with others, nor the other way round
        return (points @ bends).sin().sum(-1) >= floor

    floor = (x_cf @ bends).sin().sum(-1) - 0.8
    y = torch.zeros(12, dtype=torch.long)
    shortener = make_shortener(wavy, owner)
    size = shortener._by_feature(x_cf)
    size[:, 30:] = torch.inf  # not to be tried
    expected = x_cf.clone()
    for row in range(12):
        for feature in size[row].argsort()[:30]:
            trial = torch.where(owner == feature, x[row], expected[row])
            if wavy(trial.unsqueeze(0), y, floor[row]).item():
                expected[row] = trial
    found = shortener._undo_in_turn(x_cf, x, y, floor, torch.arange(12), size)
    assert torch.equal(found, expected)
    gone = (found == 0).sum(-1)
    assert gone.min() > 0 and gone.float().mean() < 50  # of 60 columns
