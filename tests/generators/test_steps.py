"""Step rules against steps computed by hand."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from counterfactual_training import (
    Constraints,
    Generator,
    OneHotGroup,
    greedy,
    linear,
    make_generator,
    search,
    sparse,
)
from counterfactual_training.constraints import Lattice
from counterfactual_training.errors import InputError
from counterfactual_training.generators import Adam, Greedy, LatentSpace, Normalised, Shrink
from counterfactual_training.models.vae import fit_vae

# Two classes whose log-odds are SLOPE·x; all rows start on the side of class 0.
SLOPE = torch.tensor([0.5, -2.0, 1.0, 0.1], dtype=torch.float64)


@pytest.fixture
def model():
    made = linear(4, 2).double()
    with torch.no_grad():
        made[0].weight.copy_(torch.stack([torch.zeros(4), SLOPE]))
        made[0].bias.zero_()
    return made


X = torch.tensor([[-1.0, 1.0, -1.0, 0.0], [0.25, 2.0, 0.5, -3.0]], dtype=torch.float64)
Y = torch.ones(2, dtype=torch.long)


def path_of(model, rule, steps, constraints=None, rate=0.1):
    generator = Generator(
        "by hand", step_rule=rule, max_steps=steps, learning_rate=rate, decision_threshold=1.0
    )
    return search(model, X, Y, generator, constraints, record=True).path


def gradient(x):
    """Of −log p(class 1)."""
    p = 1 / (1 + np.exp(-x @ SLOPE.numpy()))
    return (p - 1)[:, None] * SLOPE.numpy()


def test_normalised_steps_have_the_length_of_the_learning_rate(model):
    path = path_of(model, "normalised", 5)
    assert_close(
        (path[1:] - path[:-1]).norm(dim=-1), torch.full((5, 2), 0.1, dtype=torch.float64)
    )
    assert_close(path[1] - path[0], (0.1 * SLOPE / SLOPE.norm()).expand(2, 4))


def test_normalised_steps_spend_nothing_on_what_cannot_move(model):
    rules = Constraints.build(4, {1: "none", 0: "decrease"}, {2: (-5.0, 0.5)})
    path = path_of(model, "normalised", 1, rules)
    # In the second row feature 2 is at its bound, so the whole step is left to feature 3.
    first = 0.1 * torch.tensor([0, 0, 1.0, 0.1]).double() / np.hypot(1.0, 0.1)
    assert_close(path[1] - path[0], torch.stack([first, torch.tensor([0, 0, 0, 0.1]).double()]))


def test_a_row_without_a_direction_stays(model):
    frozen = Constraints.build(4, {0: "decrease", 1: "increase", 2: "decrease", 3: "decrease"})
    assert torch.equal(path_of(model, "normalised", 3, frozen)[-1], X)


def test_signed_steps_move_what_can_move_by_the_learning_rate(model):
    rules = Constraints.build(4, {1: "none", 0: "decrease"}, {2: (-5.0, 0.55)})
    path = path_of(model, "signed", 3, rules)
    change = path[-1] - path[0]
    # The target is reached by raising features with a positive slope, by η each.
    towards = 0.3 * SLOPE.sign().expand(2, 4).clone()
    towards[:, 1] = 0
    towards[:, 0] = towards[:, 0].clamp_max(0)
    towards[:, 2] = torch.minimum(towards[:, 2], 0.55 - X[:, 2])
    assert_close(change, towards)


def test_adam_is_torchs(model):
    path = path_of(model, "adam", 12)
    leaf = X.clone().requires_grad_()
    optimizer = torch.optim.Adam([leaf], lr=0.1)
    for step in range(12):
        assert_close(path[step], leaf.detach())
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(leaf), Y, reduction="sum").backward()
        optimizer.step()
    assert_close(path[12], leaf.detach())
    other = path_of(model, Adam(beta1=0.5), 3)
    assert torch.equal(other[1], path[1]) and not torch.equal(other[2], path[2])


def test_greedy_moves_the_feature_with_the_largest_gradient(model):
    path = path_of(model, Greedy(most=2), 9)
    moves = [0.1 * torch.eye(4)[d] * SLOPE.sign()[d] for d in (1, 1, 2, 2, 0, 0, 3, 3)]
    expected = torch.stack([*moves, torch.zeros(4)]).double()  # then all are used up
    assert_close(path[1:] - path[:-1], expected.unsqueeze(1).expand(9, 2, 4))


def test_greedy_takes_what_may_move(model):
    rules = Constraints.build(4, {1: "none", 2: "decrease"}, {0: (None, 0.25)})
    change = path_of(model, Greedy(), 3, rules) - X
    # The first row walks on feature 0; in the second that is at its bound from the start.
    assert_close(change[3, 0], torch.tensor([0.3, 0, 0, 0]).double())
    assert_close(change[3, 1], torch.tensor([0, 0, 0, 0.3]).double())


def test_greedy_leaves_alone_what_was_rounded(model):
    rules = Constraints.build(4, lattices=[Lattice(1)])
    found = search(
        model, X, Y, greedy(decision_threshold=0.9, learning_rate=0.3, most=30), rules
    )
    assert bool(found.converged.all())
    assert torch.equal(found.x_cf[:, 1], found.x_cf[:, 1].round())


def test_greedy_counts_by_the_learning_rate(model):
    for rate, most in ((0.1, 10), (0.25, 4), (3.0, 1)):
        # One feature more than that many times, then the next one.
        path = path_of(model, Greedy(), most + 1, rate=rate)
        assert_close((path[-1] - X)[:, 1], torch.full((2,), -most * rate, dtype=torch.float64))
        assert_close((path[-1] - X)[:, 2], torch.full((2,), rate, dtype=torch.float64))
    with pytest.raises(InputError, match="most must be a whole number of at least 1, got 0"):
        greedy(most=0)


def test_a_proximal_step_is_soft_thresholding(model):
    path, eta, weight = path_of(model, Shrink(0.3), 20), 0.1, 0.3
    x = expected = X.numpy()
    for step in range(20):
        assert_close(path[step].numpy(), expected)
        change = expected - x - eta * gradient(expected)
        expected = x + np.sign(change) * np.maximum(np.abs(change) - eta * weight, 0)
    assert_close(path[20].numpy(), expected)
    # Exactly as they were, and not only nearly.
    assert torch.equal(path[-1][:, 3], X[:, 3]) and bool((path[-1][:, 1] != X[:, 1]).all())


def test_proximal_steps_come_back_where_directions_forbid_a_step_back():
    """A feature that may only increase may return to where it was: what counts is the whole
    change.
    """
    rules = Constraints.build(4, {0: "increase", 3: "increase"})

    class Turning(torch.nn.Module):
        """First feature 0 helps, then, once feature 1 has moved, it does not."""

        def forward(self, x):
            odds = 4 * x[..., 1] - 3 * x[..., 0] * (x[..., 1] + 0.2)
            return torch.stack([torch.zeros_like(odds), odds], -1)

    x = torch.tensor([[0.0, -0.5, 0.0, 0.0]], dtype=torch.float64)
    generator = sparse(0.02, learning_rate=0.1, max_steps=60, decision_threshold=0.999)
    path = search(Turning(), x, Y[:1], generator, rules, record=True).path[:, 0]
    assert (
        float(path[:, 0].max()) > 0.05
        and float(path[-1, 0]) == 0.0
        and float(path[:, 0].min()) == 0.0
    )


def test_a_group_shrinks_as_one(model):
    rules = Constraints.build(4, groups=[OneHotGroup((2, 3))], category_projection="never")
    path, x = path_of(model, Shrink(0.3), 1, rules), X.numpy()
    step = -0.1 * gradient(x)
    expected = np.sign(step) * np.maximum(np.abs(step) - 0.03, 0)
    length = np.linalg.norm(step[:, 2:], axis=1, keepdims=True)
    expected[:, 2:] = step[:, 2:] * np.maximum(1 - 0.03 / length, 0)
    assert_close((path[1] - path[0]).numpy(), expected)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_than_the_largest_changes_stay(model, most):
    path = path_of(model, Shrink(most=most), 8)
    largest = SLOPE.abs().argsort(descending=True)[:most].tolist()
    for step in range(1, 9):
        assert ((path[step] - X).abs() > 0).sum(-1).tolist() == [most, most]
    assert_close(
        path[1][:, largest], (X - 0.1 * torch.as_tensor(gradient(X.numpy())))[:, largest]
    )
    everything = path_of(model, Shrink(most=9), 2)
    assert_close(everything, path_of(model, "fixed", 2))


def test_a_group_counts_once_and_what_was_rounded_counts_first(model):
    x = torch.tensor([[-1.0, 1.0, 1.0, 0.0], [-2.0, 1.0, 0.0, 1.0]], dtype=torch.float64)
    rules = Constraints.build(4, groups=[OneHotGroup((2, 3))], lattices=[Lattice(1)])
    generator = sparse(0.0, most=2, learning_rate=0.5, max_steps=80, decision_threshold=0.9)
    found = search(model, x, Y, generator, rules)
    changed = found.x_cf != x
    features = torch.stack([changed[:, 0], changed[:, 1], changed[:, 2:].any(-1)], -1).sum(-1)
    assert bool(found.converged.all()) and bool((features <= 2).all())
    assert not bool(rules.violations(found.x_cf, x).any())


def test_sparse_changes_fewer_features_than_generic():
    torch.manual_seed(0)
    model, x = linear(30, 2), torch.randn(50, 30)
    y = 1 - model(x).argmax(-1)
    changed = {
        name: (search(model, x, y, made).x_cf != x).sum(-1).double().mean()
        for name, made in {
            "generic": make_generator("generic", max_steps=300),
            "sparse": sparse(0.1, max_steps=300),
            "three": sparse(most=3, max_steps=300),
        }.items()
    }
    assert changed["generic"] == 30 and changed["sparse"] < 25 and changed["three"] <= 3


def test_rules_may_be_named_and_mistakes_are_told():
    assert (
        Generator("a", step_rule="adam").rule == Adam()
        and Generator("a", step_rule="normalised").rule == Normalised()
    )
    assert Generator("a").rule is None and Generator("a", step_rule="line").rule is None
    with pytest.raises(
        InputError, match=r"Unknown step_rule 'normalized'\. Did you mean 'normalised'"
    ):
        Generator("a", step_rule="normalized")
    with pytest.raises(InputError, match="at least 0, got -1"):
        Shrink(-1.0)
    with pytest.raises(InputError, match="most must be"):
        Shrink(most=0)
    space = LatentSpace(fit_vae(torch.randn(20, 2), epochs=1))
    with pytest.raises(
        InputError,
        match=r"moves the features themselves, not in a LatentSpace; use step_rule='fixed'",
    ):
        Generator("a", step_rule="adam", space=space)
