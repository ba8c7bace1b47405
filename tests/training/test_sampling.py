"""The draws of Algorithm 1 have the distributions they should have."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfactual_training.training.sampling import (
    draw_positives,
    draw_rows,
    draw_targets,
    epoch_rng,
    shares,
)

DRAWS = 6000


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_rows_are_drawn_without_replacement():
    rows = draw_rows(50, 30, seeded())
    assert len(rows.unique()) == 30 and int(rows.max()) < 50
    assert sorted(draw_rows(50, 50, seeded()).tolist()) == list(range(50))


def test_more_rows_than_there_are_go_round_again():
    counts = draw_rows(10, 25, seeded()).bincount(minlength=10)
    assert int(counts.sum()) == 25 and int(counts.min()) >= 2 and int(counts.max()) <= 3


@pytest.fixture
def predictions():
    """Logits whose arg-max is class 0 in the first half, 1 in the second; true labels 2."""
    logits = torch.zeros(DRAWS, 4)
    logits[: DRAWS // 2, 0] = 1.0
    logits[DRAWS // 2 :, 1] = 1.0
    return logits, torch.full((DRAWS,), 2)


def shares_of(targets: torch.Tensor) -> list[float]:
    return (targets.bincount(minlength=4) / len(targets)).tolist()


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("not_predicted", [0.0, 1 / 3, 1 / 3, 1 / 3]),
        ("not_true", [1 / 3, 1 / 3, 0.0, 1 / 3]),
        ("uniform", [0.25, 0.25, 0.25, 0.25]),
        ("prior", [0.1, 0.2, 0.3, 0.4]),
    ],
)
def test_targets_follow_their_rule(rule, expected, predictions):
    logits, y = predictions
    targets = draw_targets(rule, seeded(1), logits, y, torch.tensor([10, 20, 30, 40]))[
        : DRAWS // 2
    ]
    # Four standard deviations of a share of 3000 draws are below 0.036.
    assert shares_of(targets) == pytest.approx(expected, abs=0.036)
    for share, wanted in zip(shares_of(targets), expected, strict=True):
        assert (share == 0.0) == (wanted == 0.0)


def test_binary_targets_are_the_other_class():
    logits = torch.randn(100, 2)
    targets = draw_targets(
        "not_predicted", seeded(), logits, torch.zeros(100).long(), torch.ones(2)
    )
    assert torch.equal(targets, 1 - logits.argmax(-1))


def test_positives_are_of_the_target_class_and_uniform():
    y = torch.tensor([0, 1, 2, 1, 1, 0, 2, 1])
    rows_by_class = [(y == k).nonzero().flatten() for k in range(3)]
    y_target = torch.arange(DRAWS) % 3
    drawn = draw_positives(rows_by_class, y_target, seeded())
    assert torch.equal(y[drawn], y_target)
    ones = drawn[y_target == 1].bincount(minlength=8)[[1, 3, 4, 7]] / 2000
    assert ones.tolist() == pytest.approx([0.25] * 4, abs=0.04)


def test_epochs_have_randomness_of_their_own():
    def draw(*key):
        return torch.rand(4, generator=epoch_rng(*key)).tolist()

    assert draw(0, 3) == draw(0, 3)
    different = [draw(0, 3), draw(0, 4), draw(1, 3), draw(-1, 3), draw(3, 0)]
    assert len({tuple(values) for values in different}) == 5


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 200), st.integers(1, 40))
def test_shares_are_nearly_equal(total, parts):
    sizes = shares(total, parts)
    assert len(sizes) == parts and sum(sizes) == total and max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True), "the first parts get the surplus"
