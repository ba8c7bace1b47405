"""The class loss agrees with torch's own, and its closed-form gradient with autograd."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from counterfactual_training.core.losses import (
    class_loss,
    class_loss_gradient,
    log_odds,
    softmax,
)
from eq2_terms import pair_terms


def logistic_contrast(*pair):
    return pair_terms(*pair)["contrast"]


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return 3 * torch.randn(7, 4, dtype=torch.float64), torch.randint(4, (7,))


def test_agrees_with_torch(batch):
    logits, y = batch
    assert_close(class_loss(logits, y), cross_entropy(logits, y))
    weight = torch.rand(7, dtype=torch.float64)
    expected = (cross_entropy(logits, y, reduction="none") * weight).sum() / weight.sum()
    assert_close(class_loss(logits, y, weight), expected)


def test_log_odds_are_the_logit_of_the_probability(batch):
    logits, y = batch
    probability = logits.softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    assert_close(log_odds(logits, y), torch.logit(probability))
    two = logits[:, :2]
    assert_close(
        log_odds(two, y % 2),
        torch.where(y % 2 == 1, two[:, 1] - two[:, 0], two[:, 0] - two[:, 1]),
    )


def test_the_logistic_contrast_is_that_of_two_classes_of_points(batch):
    """Real and found points told apart by the odds that a real one has: those of .95."""
    logits, y = batch
    found = logits.flip(0)
    odds = [
        log_odds(own, y) - torch.logit(torch.tensor(0.95, dtype=torch.float64))
        for own in (logits, found)
    ]
    each = -torch.sigmoid(odds[0]).log() - (1 - torch.sigmoid(odds[1])).log()
    assert_close(logistic_contrast(logits, found, y), each.mean())
    weight = torch.rand(7, dtype=torch.float64)
    assert_close(
        logistic_contrast(logits, found, y, weight), (each * weight).sum() / weight.sum()
    )


def test_the_logistic_contrast_is_bounded_below():
    """Eq. 3 falls without end as energies part; this does not."""
    sure = torch.tensor([[1e4, 0.0, 0.0]])
    assert 0 <= float(logistic_contrast(sure, -sure, torch.tensor([0]))) < 1e-6


def test_gradient_agrees_with_autograd(batch):
    logits, y = batch
    leaf = logits.clone().requires_grad_()
    cross_entropy(leaf, y, reduction="sum").backward()
    assert_close(class_loss_gradient(logits.softmax(-1), y), leaf.grad)


def test_the_gradient_leaves_the_probabilities_alone(batch):
    logits, y = batch
    probability = logits.softmax(-1)
    before = probability.clone()
    class_loss_gradient(probability, y)
    assert torch.equal(probability, before)


def test_large_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4]])
    assert_close(class_loss(logits, torch.tensor([0, 0])), torch.tensor(1e4))


def test_two_classes_in_a_fleet_give_what_torch_gives():
    """The shortcut for many binary models equals softmax and cross-entropy, gradient included, at
    any scale.
    """
    for scale in (0.1, 5.0, 300.0):
        logits = (torch.randn(3, 50, 2, dtype=torch.float64) * scale).requires_grad_()
        y = torch.randint(2, (3, 50))
        assert_close(softmax(logits), logits.softmax(-1))
        ours = class_loss(logits, y)
        theirs = torch.stack(
            [cross_entropy(part, own) for part, own in zip(logits, y, strict=True)]
        )
        assert_close(ours, theirs)
        gradients = [torch.autograd.grad(loss.sum(), logits)[0] for loss in (ours, theirs)]
        assert_close(*gradients)
