"""Accuracy under attack."""

from functools import partial

import pytest
import torch
from torch import nn

from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.attacks import fgsm, pgd, random_perturbation, robust_accuracy
from counterfactual_training.evaluation.performance import accuracy


def linear_model():
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
        model.bias.zero_()
    return model


def test_a_linear_model_fails_exactly_where_its_margin_ends():
    # w = (1, 2): an attack of size ε moves wx by at most 3ε, so rows with |wx| > 3ε survive.
    margin = torch.tensor([0.1, 0.2, 0.4, 0.8])
    x, y = torch.stack([margin, torch.zeros(4)], -1), torch.ones(4, dtype=torch.long)
    epsilons = [0.0, 0.05, 0.1, 0.15, 0.3]
    expected = torch.tensor([1.0, 0.75, 0.5, 0.25, 0.0])
    curves = [
        robust_accuracy(linear_model(), x, y, epsilons, attack)
        for attack in (fgsm, partial(pgd, step_size=0.05, rng=torch.Generator().manual_seed(0)))
    ]
    for curve in curves:
        torch.testing.assert_close(curve, expected)
    noisy = robust_accuracy(linear_model(), x, y, epsilons, partial(random_perturbation, rng=torch.Generator()))
    assert bool((noisy >= curves[0]).all())


def test_batches_do_not_matter():
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 2, generator=rng), torch.randint(0, 2, (50,), generator=rng)
    whole = robust_accuracy(linear_model(), x, y, [0.1, 0.2])
    torch.testing.assert_close(robust_accuracy(linear_model(), x, y, [0.1, 0.2], batch_size=7), whole)
    per_feature = robust_accuracy(linear_model(), x, y, [torch.tensor([0.1, 0.1]), torch.tensor([0.0, 0.0])])
    assert per_feature[0] == whole[0]
    assert per_feature[1] == accuracy(linear_model()(x).detach(), y)


def test_a_fleet_gets_one_curve_per_member():
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 20, 2, generator=rng), torch.randint(0, 2, (3, 20), generator=rng)
    curves = robust_accuracy(linear_model(), x, y, [0.0, 0.1], batch_size=6)
    assert curves.shape == (2, 3)
    torch.testing.assert_close(curves[:, 1], robust_accuracy(linear_model(), x[1], y[1], [0.0, 0.1]))


def test_bad_input():
    with pytest.raises(InputError, match="no rows"):
        robust_accuracy(linear_model(), torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), [0.1])
    with pytest.raises(InputError, match="batch_size"):
        robust_accuracy(linear_model(), torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), [0.1], batch_size=0)
