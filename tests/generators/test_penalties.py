"""Closed-form gradients against autograd, and the penalties against the formulas."""

import pytest
import torch
from torch.testing import assert_close

from counterfactual_training import Generator, ecco, generic, mlp
from counterfactual_training.core.losses import class_loss_gradient
from counterfactual_training.generators.chain import ByAutograd
from counterfactual_training.generators.gradient import search_gradient
from counterfactual_training.generators.penalties import (
    Distance,
    Energy,
    SearchState,
    polynomial_decay,
)


@pytest.fixture
def situation():
    """Seven rows somewhere on their way: ``(model, x, x_cf, y_target)``; one feature of one row has
    not moved.
    """
    torch.manual_seed(0)
    model = mlp(3, 4, hidden=(8,), activation="tanh").double()
    x = torch.randn(7, 3, dtype=torch.float64)
    x_cf = x + torch.randn(7, 3, dtype=torch.float64)
    x_cf[2, 1] = x[2, 1]
    return model, x, x_cf, torch.randint(4, (7,))


def state_at(x_leaf, situation, step=4, max_steps=30):
    model, x, _, y_target = situation
    return SearchState(x, x_leaf, x_leaf - x, model(x_leaf), y_target, step, max_steps)


PENALTIES = {
    "distance": Distance(0.3),
    "no distance": Distance(0.0),
    "distance, a weight as a tensor": Distance(torch.tensor(0.3, dtype=torch.float64)),
    "energy as run": Energy(5.0),
    "energy as printed": Energy(0.7, decay="none", ridge=0.0),
    "energy, a weight as a tensor": Energy(torch.tensor(2.0, dtype=torch.float64), ridge=0.05),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_closed_form_gradients_equal_autograd(name, situation):
    penalty = PENALTIES[name]
    x_leaf = situation[2].clone().requires_grad_()
    state = state_at(x_leaf, situation)
    (expected,) = torch.autograd.grad(penalty(state).sum(), x_leaf, retain_graph=True)
    still = state._replace(
        x_cf=state.x_cf.detach(), delta=state.delta.detach(), logits=state.logits.detach()
    )
    if hasattr(penalty, "add_logit_gradient"):
        grad_logits = torch.zeros_like(state.logits)
        penalty.add_logit_gradient(still, grad_logits)
        (found,) = torch.autograd.grad(state.logits, x_leaf, grad_logits)
    else:
        found = torch.zeros_like(x_leaf)
        penalty.add_gradient(still, found)
    assert_close(found, expected)


def bump(state: SearchState) -> torch.Tensor:
    """A penalty without a derivative of its own that looks at all it may look at."""
    return (
        (state.delta.square().sum(-1) * state.logits[..., 0]).tanh()
        * state.step
        / state.max_steps
    )


GENERATORS = {
    "generic": generic(0.2),
    "ecco": ecco(0.2, 5.0),
    "own": Generator("own", penalties=(bump,)),
    "all": Generator("all", penalties=(Distance(0.1), bump, Energy(3.0), bump)),
    "nothing but the class": Generator("plain"),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_the_gradient_of_eq_1_is_autograds(name, situation):
    generator = GENERATORS[name]
    model, x, x_cf, y_target = situation
    x_leaf = x_cf.clone().requires_grad_()
    state = state_at(x_leaf, situation)
    loss = torch.nn.functional.cross_entropy(state.logits, y_target, reduction="sum")
    loss = loss + sum(penalty(state).sum() for penalty in generator.penalties)
    (expected,) = torch.autograd.grad(loss, x_leaf, retain_graph=True)
    still = state._replace(x_cf=x_cf, delta=x_cf - x, logits=state.logits.detach())
    by_logits = class_loss_gradient(still.logits.softmax(-1), y_target)
    network = ByAutograd(model)
    network.logits(x_cf)
    assert_close(search_gradient(generator, still, network, by_logits), expected)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_step_that_is_not_a_number_is_no_step(situation):
    def broken(state):
        return torch.where(state.delta[..., 0] > 0, torch.nan, 1.0) * state.delta.sum(-1)

    model, x, x_cf, y_target = situation
    x_leaf = x_cf.clone().requires_grad_()
    state = state_at(x_leaf, situation)
    still = state._replace(x_cf=x_cf, delta=x_cf - x, logits=state.logits.detach())
    generator = Generator("broken", penalties=(broken,))
    network = ByAutograd(model)
    network.logits(x_cf)
    grad = search_gradient(
        generator, still, network, class_loss_gradient(still.logits.softmax(-1), y_target)
    )
    ill = still.delta[:, 0] > 0
    assert bool(ill.any()) and bool((~ill).any())
    assert bool((grad[ill] == 0).all()) and bool((grad[~ill] != 0).all())


@pytest.mark.parametrize(
    ("max_steps", "t", "expected"),
    [
        (30, 1, 0.0536),
        (30, 2, 0.0372),
        (30, 10, 0.0116),
        (30, 30, 0.0045),
        (50, 1, 0.0744),
        (50, 50, 0.0057),
    ],
)
def test_decay_has_the_values_that_ran(max_steps, t, expected):
    assert polynomial_decay(t, max_steps) == pytest.approx(expected, abs=6e-5)


def test_short_searches_have_no_energy_penalty():
    assert polynomial_decay(1, 12) == 0.0
    assert polynomial_decay(1, 13) > 0.0


def test_penalties_by_hand():
    logits = torch.tensor([[1.0, 2.0]])
    state = SearchState(
        torch.zeros(1, 3),
        torch.tensor([[1.0, -2.0, 0.0]]),
        torch.tensor([[1.0, -2.0, 0.0]]),
        logits,
        torch.tensor([1]),
        0,
        30,
    )
    assert_close(Distance(0.5)(state), torch.tensor([1.5]))
    assert_close(Energy(3.0, decay="none", ridge=0.0)(state), torch.tensor([-6.0]))
    assert_close(
        Energy(5.0)(state), torch.tensor([5 * polynomial_decay(1, 30) * (-2 + 1e-3 * 4)])
    )
