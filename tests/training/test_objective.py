"""Eq. 2: named weights, one forward, ablations by zero weights."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from counterfactual_training import (
    CounterfactualBatch,
    Objective,
    linear,
    methods,
    mlp,
    train,
)
from counterfactual_training.core.losses import class_loss
from eq2_terms import contrast as logistic_contrast
from eq2_terms import divergence, ridge

CONVENTIONAL = Objective(lambda_div=0.0, lambda_reg=0.0, lambda_adv=0.0)


@pytest.fixture
def batch():
    """A model, a mini-batch of six, counterfactuals for five others."""
    torch.manual_seed(0)
    explanations = CounterfactualBatch(
        x_cf=torch.randn(5, 3),
        x_pos=torch.randn(5, 3),
        x_adv=torch.randn(5, 3),
        y_target=torch.randint(4, (5,)),
        y_adv=torch.randint(4, (5,)),
    )
    return mlp(3, 4, hidden=(8,)), torch.randn(6, 3), torch.randint(4, (6,)), explanations


def gradients(model: nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])])
def test_the_fused_forward_equals_separate_forwards(batch, weight):
    model, x, y, explanations = batch
    explanations = explanations._replace(weight=weight)
    objective = Objective(lambda_class=0.8, lambda_div=0.5, lambda_reg=0.1, lambda_adv=0.25)
    terms = objective(model, x, y, explanations)
    logits_pos, logits_cf = model(explanations.x_pos), model(explanations.x_cf)
    parts = {
        "class_loss": class_loss(model(x), y),
        "divergence": divergence(logits_pos, logits_cf, explanations.y_target, weight),
        "ridge": ridge(logits_pos, logits_cf, explanations.y_target, weight),
        "adversarial": class_loss(model(explanations.x_adv), explanations.y_adv),
    }
    for name, value in parts.items():
        assert_close(getattr(terms, name), value)
    total = (
        0.8 * parts["class_loss"]
        + 0.5 * parts["divergence"]
        + 0.1 * parts["ridge"]
        + 0.25 * parts["adversarial"]
    )
    assert_close(terms.total, total)
    assert_close(terms.logits, model(x))
    for fused, separate in zip(
        gradients(model, terms.total), gradients(model, total), strict=True
    ):
        assert_close(fused, separate)


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])])
def test_terms_beyond_the_paper_are_added(batch, weight):
    model, x, y, explanations = batch
    explanations = explanations._replace(
        weight=weight, weight_adv=None if weight is None else weight.flip(0)
    )
    plain = Objective()(model, x, y, explanations)
    terms = Objective(lambda_contrast=0.3, lambda_recourse=0.2)(model, x, y, explanations)
    contrast = logistic_contrast(
        model(explanations.x_pos), model(explanations.x_cf), explanations.y_target, weight
    )
    recourse = class_loss(
        model(explanations.x_adv), explanations.y_target, explanations.weight_adv
    )
    assert plain.contrast is None and plain.recourse is None
    assert_close([terms.contrast, terms.recourse], [contrast, recourse])
    assert_close(terms.total, plain.total + 0.3 * contrast + 0.2 * recourse)
    only = Objective(lambda_div=0.0, lambda_reg=0.0, lambda_adv=0.0, lambda_recourse=1.0)
    assert (
        only.needs_counterfactuals and not only.needs_divergence and not only.needs_adversarial
    )
    assert_close(only(model, x, y, explanations).total, plain.class_loss + recourse)


def test_there_is_one_forward(batch):
    model, x, y, explanations = batch
    seen = []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    for objective, rows in (
        (Objective(), 21),
        (Objective(lambda_adv=0.0), 16),
        (Objective(lambda_div=0.0, lambda_reg=0.0), 11),
        (CONVENTIONAL, 6),
    ):
        seen.clear()
        objective(model, x, y, explanations)
        assert seen == [rows], objective


class Noisy(nn.Sequential):
    """Batch normalisation and dropout would show any extra row in the forward pass."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 4))


@pytest.mark.parametrize("build", [lambda: mlp(3, 4), Noisy])
def test_zero_weights_give_exactly_the_plain_classifiers_gradients(build, batch):
    _, x, y, explanations = batch
    ours = build()
    plain = copy.deepcopy(ours)
    torch.manual_seed(1)
    CONVENTIONAL(ours, x, y, explanations).total.backward()
    torch.manual_seed(1)
    class_loss(plain(x), y).backward()
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    for a, b in zip(ours.buffers(), plain.buffers(), strict=True):
        assert torch.equal(a, b)


def test_without_explanations_only_the_class_loss_remains(batch):
    model, x, y, _ = batch
    terms = Objective()(model, x, y)
    assert torch.equal(terms.total, terms.class_loss)
    assert float(terms.divergence) == float(terms.ridge) == float(terms.adversarial) == 0


def test_divergence_is_zero_where_counterfactual_and_positive_agree(batch):
    model, x, y, explanations = batch
    same = explanations._replace(x_cf=explanations.x_pos)
    assert float(Objective()(model, x, y, same).divergence.detach()) == pytest.approx(
        0.0, abs=1e-6
    )


def test_eq_11_through_the_objective(batch):
    """On a linear model the divergence adds λ_div·mean(x′ − x⁺) to the gradient of Θ[y⁺], and
    nothing elsewhere.
    """
    _, x, y, explanations = batch
    explanations = explanations._replace(y_target=torch.full((5,), 2))
    model = linear(3, 4)

    def gradient(lambda_div):
        objective = Objective(lambda_div=lambda_div, lambda_reg=0.0, lambda_adv=0.0)
        return gradients(model, objective(model, x, y, explanations).total)[0]

    expected = torch.zeros(4, 3)
    expected[2] = 0.7 * (explanations.x_cf - explanations.x_pos).mean(0)
    assert_close(gradient(0.7) - gradient(0.0), expected)


@pytest.mark.parametrize(
    ("objective", "divergence", "adversarial"),
    [
        (Objective(), True, True),
        (CONVENTIONAL, False, False),
        (Objective(lambda_adv=0.0), True, False),
        (Objective(lambda_div=0.0, lambda_reg=0.0), False, True),
    ],
)
def test_ablations(objective, divergence, adversarial, batch):
    assert (objective.needs_divergence, objective.needs_adversarial) == (
        divergence,
        adversarial,
    )
    assert objective.needs_counterfactuals == (divergence or adversarial)
    terms = objective(*batch)
    assert (float(terms.ridge.detach()) > 0) == divergence
    assert (float(terms.adversarial.detach()) > 0) == adversarial


def test_default_weights_are_the_papers():
    objective = Objective()
    paper = {"lambda_class": 1.0, "lambda_div": 0.5, "lambda_reg": 0.1, "lambda_adv": 0.25}
    assert vars(objective) == paper | {"lambda_contrast": 0.0, "lambda_recourse": 0.0}


def test_split_cuts_everything(batch):
    weights = {"weight": torch.arange(5.0), "weight_adv": torch.arange(5.0)}
    first, part, last = batch[3]._replace(**weights).split([1, 2, 2])
    assert all(len(value) == 2 for value in part) and len(first.x_cf) == 1
    assert torch.equal(part.x_cf, batch[3].x_cf[1:3]) and part.weight.tolist() == [1.0, 2.0]
    assert last.weight_adv.tolist() == [3.0, 4.0] and batch[3].split([5])[0].weight is None


class Bounded(Objective):
    def __call__(self, *args, **options):
        return super().__call__(*args, **options)


@pytest.mark.parametrize(
    ("objective", "lacks"),
    [
        (Objective(lambda_reg=0.0), True),
        (Objective(lambda_reg=0.01), False),
        (Objective(lambda_div=0.0, lambda_reg=0.0), False),
        (Bounded(lambda_reg=0.0), False),  # whose loss may bound it in another way
    ],
)
def test_who_lacks_a_ridge(objective, lacks, blobs, recwarn):
    assert objective.lacks_ridge is lacks
    train(
        linear(2, 2), *blobs, methods.ct_published(epochs=1, batch_size=60, objective=objective)
    )
    assert any("without a ridge" in str(warning.message) for warning in recwarn) is lacks
