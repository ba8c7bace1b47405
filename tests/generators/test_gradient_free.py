"""Generators that ask the model for its answers only, against answers found by trying
everything.
"""

import numpy as np
import pytest
import torch
from torch import nn

from counterfactual_training import (
    Constraints,
    InputError,
    growing_spheres,
    linear,
    make_generator,
    nearest_unlike,
    search,
)
from counterfactual_training.constraints import Lattice
from counterfactual_training.generators import Status


class Steps(nn.Module):
    """A tree, in effect: flat everywhere, class 1 where both features exceed a threshold."""

    def forward(self, x):
        inside = ((x[..., 0].detach() > 1) & (x[..., 1].detach() > 0)).to(x)
        return torch.stack([torch.zeros_like(inside), 6 * inside - 3], -1)


def normal(*shape, seed=0):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


X, TRAIN = normal(12, 3), 1.5 * normal(60, 3, seed=1)
Y = torch.ones(12, dtype=torch.long)


def expect_nearest(found, model, points, x, tau):
    """Of the points, the one that is nearest in L1 among those that reach τ."""
    p = model(points).softmax(-1)[..., 1].detach().numpy()
    for i in range(len(x)):
        if found.status[i] == int(Status.ALREADY_THERE):
            continue
        own = points[i] if points.dim() == 3 else points
        reach = (p[i] if points.dim() == 3 else p) >= tau
        gaps = np.abs(own.numpy() - x[i].numpy()).sum(1)
        best = own[int(np.where(reach, gaps, np.inf).argmin())]
        assert torch.equal(found.x_cf[i], best) and bool(found.converged[i])


@pytest.mark.parametrize("model", [Steps(), linear(3, 2).double()], ids=["flat", "linear"])
def test_the_nearest_unlike_neighbour_is_the_nearest(model):
    if isinstance(model, nn.Sequential):
        with torch.no_grad():
            model[0].weight.copy_(torch.tensor([[0.0, 0, 0], [2.0, 1.0, -1.0]]))
            model[0].bias.copy_(torch.tensor([1.0, 0.0]))
    found = search(
        model, X, Y, nearest_unlike(x_train=TRAIN, decision_threshold=0.8, max_steps=60)
    )
    assert int((found.status == int(Status.CONVERGED)).sum()) > 5
    expect_nearest(found, model, TRAIN, X, 0.8)


def test_rows_are_moved_inside_the_rules():
    lattice = Lattice(0, values=torch.tensor([-4.0, 0.0, 1.5]))
    rules = Constraints.build(
        3, {2: "none", 1: "increase"}, {0: (-4.0, 1.5)}, lattices=[lattice]
    )
    x = X.clone()
    x[:, 0] = 0.0
    found = search(
        Steps(),
        x,
        Y,
        nearest_unlike(x_train=TRAIN, decision_threshold=0.8, max_steps=60),
        rules,
    )
    arrived = found.converged & (found.num_steps > 0)
    assert int(arrived.sum()) > 5 and torch.equal(found.x_cf[:, 2], x[:, 2])
    assert not bool(rules.violations(found.x_cf, x).any())
    moved = TRAIN.expand(12, 60, 3).clone()
    moved[..., 0] = moved[..., 0].clamp_max(1.5)
    for column in (1, 2):
        moved[..., column] = (
            torch.maximum(moved[..., 1], x[:, None, 1]) if column == 1 else x[:, None, 2]
        )
    known = Steps()(TRAIN).argmax(-1) == 1
    gaps = (moved - x[:, None]).abs().sum(-1).masked_fill(~known, torch.inf)
    # Snapped after the choice; what is continuous is that of the nearest row.
    assert torch.equal(
        found.x_cf[arrived, 1], moved[torch.arange(12), gaps.argmin(1)][arrived, 1]
    )


def test_without_an_example_that_arrives_the_most_confident_one_is_shown():
    model = linear(3, 2).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.0, 0, 0], [1.0, 0, 0]]))
        model[0].bias.zero_()
    generator = nearest_unlike(x_train=TRAIN, decision_threshold=0.99999)
    found = search(model, X, Y, generator)
    late = found.status == int(Status.EXHAUSTED)
    assert bool(late.any())
    best = TRAIN[TRAIN[:, 0].argmax()]
    assert torch.equal(found.x_cf[late], best.expand(int(late.sum()), 3))
    # With few steps, the best of those tried.
    few = search(model, X, Y, generator.replace(max_steps=3), record=True)
    for row in late.nonzero().flatten().tolist():
        assert float(few.x_cf[row, 0]) == float(few.path[1:3, row, 0].max())
    alone = search(Steps(), X, Y, nearest_unlike(x_train=-TRAIN.abs(), max_steps=4))
    assert torch.equal(alone.x_cf, X) and not bool(alone.converged[alone.num_steps > 0].any())


def test_a_sphere_grows_until_it_meets_the_target():
    found = search(
        Steps(), X, Y, growing_spheres(0.2, 40, 500, decision_threshold=0.8), record=True
    )
    moved = found.num_steps > 0
    assert int(moved.sum()) > 8 and bool(found.converged[moved].all())
    needed = torch.stack([(1 - X[:, 0]).clamp_min(0), (-X[:, 1]).clamp_min(0)], -1).norm(dim=-1)
    # Inside the shell before, no point reached the target; in three dimensions 500 points fill a
    # thin shell well.
    away = (found.x_cf - X).norm(dim=-1)
    assert bool((away[moved] >= needed[moved]).all()) and bool(
        (away - needed)[moved].mean() < 0.35
    )
    for row in moved.nonzero().flatten().tolist():
        before = found.path[1 : int(found.num_steps[row]), row] - X[row]
        radius = before.norm(dim=-1)
        assert bool((radius <= 0.2 * torch.arange(1, len(radius) + 1) + 1e-9).all())
        assert bool((radius >= 0.2 * torch.arange(len(radius)) - 1e-9).all())


def test_changes_that_are_not_needed_are_taken_back():
    found = search(Steps(), X, Y, growing_spheres(0.2, 40, 500, decision_threshold=0.8))
    assert torch.equal(found.x_cf[:, 2], X[:, 2])  # the model does not look at it
    enough = (X[:, 0] > 1) | (X[:, 1] > 0)
    assert bool(enough.any()) and bool(((found.x_cf != X).sum(-1)[enough] <= 1).all())


def test_points_of_a_shell_are_uniform_in_it():
    """Of a ball of radius 2 and dimension 3, one eighth lies within radius 1."""
    generator = growing_spheres(2.0, 1, 4000)
    from counterfactual_training.generators.steps import StepInput

    noise = generator.space.noise(3, None, X)
    step_input = StepInput(X, 2.0, 0, X[:, 0], noise[0], None)
    radius = generator.step_rule._shell(step_input, X).norm(dim=-1)
    assert (
        float((radius < 1).double().mean()) == pytest.approx(1 / 8, abs=0.02)
        and float(radius.max()) <= 2
    )
    outer = generator.step_rule._shell(step_input._replace(step=1), X).norm(dim=-1)
    assert float(outer.min()) >= 2 and float(outer.max()) <= 4
    assert float((outer < 3).double().mean()) == pytest.approx((27 - 8) / (64 - 8), abs=0.03)


def test_draws_follow_the_rng():
    def found(seed):
        rng = None if seed is None else torch.Generator().manual_seed(seed)
        return search(Steps(), X, Y, growing_spheres(num=50), rng=rng).x_cf

    assert torch.equal(found(1), found(1)) and not torch.equal(found(1), found(2))
    assert torch.equal(found(None), found(None))


def test_mistakes_are_told():
    with pytest.raises(InputError, match="'nearest_unlike' learns from training rows"):
        nearest_unlike()
    with pytest.raises(InputError, match="num must be a whole number of at least 1, got 0"):
        growing_spheres(num=0)
    with pytest.raises(
        InputError, match=r"Unknown generator 'growing_sphere'. Did you mean 'growing_spheres'"
    ):
        make_generator("growing_sphere")
