"""Eq. 3 and its ridge, against numbers worked out by hand and against Eq. 11."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from counterfactual_training import linear
from counterfactual_training.core.broadcast import per_member
from counterfactual_training.core.energy import energy, mean_rows
from eq2_terms import pair_terms

POSITIVE = torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 4.0]])
COUNTERFACTUAL = torch.tensor([[0.0, 7.0, 1.0], [-2.0, 1.0, 1.0]])
TARGET = torch.tensor([1, 0])


def contrastive_divergence(*pair):
    return pair_terms(*pair)["divergence"]


def energy_ridge(*pair):
    return pair_terms(*pair)["ridge"]


def test_energy_is_the_negative_logit_of_the_class():
    assert_close(energy(POSITIVE, TARGET), torch.tensor([-2.0, -0.5]))


def test_divergence_by_hand():
    # Row 0: −2 − (−7) = 5; row 1: −0.5 − 2 = −2.5.
    assert_close(contrastive_divergence(POSITIVE, COUNTERFACTUAL, TARGET), torch.tensor(1.25))


def test_ridge_by_hand():
    # Row 0: 2² + 7² = 53; row 1: 0.5² + 2² = 4.25.
    assert_close(energy_ridge(POSITIVE, COUNTERFACTUAL, TARGET), torch.tensor((53 + 4.25) / 2))


def test_weights_choose_rows():
    first = torch.tensor([1.0, 0.0])
    assert_close(
        contrastive_divergence(POSITIVE, COUNTERFACTUAL, TARGET, first), torch.tensor(5.0)
    )
    assert_close(energy_ridge(POSITIVE, COUNTERFACTUAL, TARGET, first), torch.tensor(53.0))
    assert_close(mean_rows(torch.tensor([2.0, 4.0]), torch.tensor([1, 3])), torch.tensor(3.5))


def test_no_weight_at_all_is_zero_not_nan():
    logits = POSITIVE.clone().requires_grad_()
    value = contrastive_divergence(logits, COUNTERFACTUAL, TARGET, torch.zeros(2))
    value.backward()
    assert float(value.detach()) == 0.0 and bool((logits.grad == 0).all())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 8))
def test_divergence_vanishes_where_counterfactual_and_positive_agree(seed, num_classes, rows):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, num_classes, generator=rng)
    y_target = torch.randint(num_classes, (rows,), generator=rng)
    assert float(contrastive_divergence(logits, logits, y_target)) == 0.0
    other = torch.randn(rows, num_classes, generator=rng)
    there = contrastive_divergence(logits, other, y_target)
    assert_close(contrastive_divergence(other, logits, y_target), -there)
    assert float(energy_ridge(logits, other, y_target)) >= 0


@pytest.mark.parametrize("num_classes", [2, 4])
def test_eq_11_on_a_linear_model(num_classes):
    """∂div/∂Θ[y⁺] = mean(x′ − x⁺) over the rows with that target, and nothing for other classes."""
    torch.manual_seed(0)
    model = linear(3, num_classes)
    x_pos, x_cf = torch.randn(8, 3), torch.randn(8, 3)
    y_target = torch.full((8,), 1)
    contrastive_divergence(model(x_pos), model(x_cf), y_target).backward()
    expected = torch.zeros(num_classes, 3)
    expected[1] = (x_cf - x_pos).mean(0)
    assert_close(model[0].weight.grad, expected)
    assert_close(model[0].bias.grad, torch.zeros(num_classes))


def test_eq_11_with_a_target_per_row():
    torch.manual_seed(0)
    model = linear(3, 3)
    x_pos, x_cf = torch.randn(9, 3), torch.randn(9, 3)
    y_target = torch.tensor([0, 0, 2, 2, 2, 0, 2, 0, 0])
    contrastive_divergence(model(x_pos), model(x_cf), y_target).backward()
    for k in range(3):
        expected = (
            torch.where((y_target == k).unsqueeze(1), x_cf - x_pos, torch.zeros(())).sum(0) / 9
        )
        assert_close(model[0].weight.grad[k], expected)


def test_numbers_per_member_gain_trailing_dimensions():
    assert per_member(0.5, 2) == 0.5
    assert per_member(torch.tensor([1.0, 2.0]), 2).shape == (2, 1, 1)
    assert per_member(torch.tensor(3.0), 2).shape == ()


def test_the_weights_of_a_mean_need_not_add_up_to_one():
    values = torch.tensor([1.0, 3.0])
    assert_close(mean_rows(values, torch.tensor([0.1, 0.3])), torch.tensor(2.5))
    assert mean_rows(values, torch.zeros(2)) == 0
