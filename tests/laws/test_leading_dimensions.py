"""Many models as one tensor program, each with settings of its own (test_search_laws.py: with one
setting for all).
"""

import pytest
import torch
from cases import GENERATOR_NAMES, OwnModule, generator_of, vae
from torch import Tensor, nn
from torch.testing import assert_close

from counterfactual_training import (
    Constraints,
    CounterfactualBatch,
    Domain,
    Objective,
    OneHotGroup,
    mlp,
    search,
)
from counterfactual_training.constraints import Lattice
from counterfactual_training.core.energy import energy, mean_rows
from counterfactual_training.core.losses import class_loss, class_loss_gradient
from counterfactual_training.generators import LatentSpace
from covering import each_value
from eq2_terms import pair_terms

MEMBERS, ROWS, FEATURES, CLASSES = 2, 9, 9, 3


class Stacked(nn.Module):
    """Two-layer perceptrons with their weights stacked: ``(m, n, d)`` → ``(m, n, k)``."""

    def __init__(self, members: list[nn.Sequential]) -> None:
        super().__init__()
        layers = [
            [layer for layer in member if isinstance(layer, nn.Linear)] for member in members
        ]
        stacks = zip(*layers, strict=True)
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for stack in stacks:
            self.weights.append(torch.stack([layer.weight.detach() for layer in stack]))
            self.biases.append(torch.stack([layer.bias.detach() for layer in stack]))

    def forward(self, x: Tensor) -> Tensor:
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.einsum("mnd,mhd->mnh", x.relu() if i else x, weight) + bias.unsqueeze(1)
        return x


@pytest.fixture
def fleet():
    """Two perceptrons, their stack, and rows of their own for each."""
    torch.manual_seed(4)
    members = [mlp(FEATURES, CLASSES, hidden=(8,)).double() for _ in range(MEMBERS)]
    for member in members:
        for parameter in member.parameters():
            parameter.data.mul_(2.0)
    x = torch.randn(MEMBERS, ROWS, FEATURES, dtype=torch.float64)
    x[..., 5:8] = nn.functional.one_hot(torch.randint(3, (MEMBERS, ROWS)), 3).double()
    x[..., 3] = x[..., 3].round()
    y_target = torch.randint(CLASSES, (MEMBERS, ROWS))
    return members, Stacked(members), x, y_target


def doubles(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


CONSTRAINTS = {
    "none": lambda: Constraints.build(FEATURES),
    "box": lambda: Constraints.build(FEATURES, {0: "none", 1: "increase"}, (-5.0, 5.0)),
    "discrete": lambda: Constraints.build(
        FEATURES,
        groups=[OneHotGroup((5, 6, 7), torch.ones(3, 3).triu().bool())],
        lattices=[Lattice(3)],
    ),
}


def doubled(generator):
    if isinstance(generator.space, LatentSpace):
        twin = type(vae())(FEATURES, vae().latent_dim, vae().trunk[0].out_features).double()
        twin.load_state_dict(vae().state_dict())
        return generator.replace(
            space=LatentSpace(twin.requires_grad_(False), generator.space.reencode)
        )
    return generator


def search_seeded(model, x, y_target, generator, constraints):
    return search(
        model,
        x,
        y_target,
        generator,
        constraints,
        torch.Generator().manual_seed(3),
        record=True,
    )


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def expect_member(result, alone, member):
    for name in ("x_cf", "x_adv", "confidence"):
        assert_close(getattr(result, name)[member], getattr(alone, name), atol=1e-9, rtol=1e-9)
    for name in ("converged", "num_steps", "status", "binding"):
        assert torch.equal(getattr(result, name)[member], getattr(alone, name)), name
    if result.path is not None:
        assert_close(result.path[:, member], alone.path, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", GENERATOR_NAMES)
def test_settings_may_differ_by_member(name, fleet):
    members, stacked, x, y_target = fleet
    settings = {
        "learning_rate": [0.1, 0.6],
        "decision_threshold": [0.6, 0.95],
        "epsilon": [0.2, 0.7],
    }
    together = doubled(generator_of(name, max_steps=15))
    result = search_seeded(
        stacked,
        x,
        y_target,
        together.replace(**{k: doubles(v) for k, v in settings.items()}),
        None,
    )
    for i, member in enumerate(members):
        lone = together.replace(**{k: v[i] for k, v in settings.items()})
        expect_member(result, search_seeded(member, x[i], y_target[i], lone, None), i)


@each_value(name=GENERATOR_NAMES, constraints=list(CONSTRAINTS))
def test_the_number_of_steps_and_the_randomness_may_differ_by_member(name, constraints, fleet):
    members, stacked, x, y_target = fleet
    rules, limits = CONSTRAINTS[constraints](), [30, 7]
    together = doubled(generator_of(name)).replace(decision_threshold=0.97, epsilon=2.0)
    result = search(
        stacked,
        x,
        y_target,
        together.replace(max_steps=torch.tensor(limits)),
        rules,
        [seeded(8), seeded(9)],
    )
    for i, member in enumerate(members):
        lone = search(
            member,
            x[i],
            y_target[i],
            together.replace(max_steps=limits[i]),
            rules,
            seeded(8 + i),
        )
        expect_member(result, lone, i)
    assert int(result.num_steps[0].max()) > int(result.num_steps[1].max())


def test_a_member_that_may_not_move_makes_no_step(fleet):
    members, stacked, x, y_target = fleet
    free, frozen = Constraints.build(FEATURES), Constraints.build(FEATURES, ["none"] * FEATURES)
    both = Constraints(
        torch.stack([free.may_increase, frozen.may_increase]),
        torch.stack([free.may_decrease, frozen.may_decrease]),
        free.domain,
    )
    result = search(stacked, x, y_target, generator_of("generic"), both)
    assert int(result.num_steps[1].max()) == 0 and torch.equal(result.x_cf[1], x[1])
    expect_member(
        result, search(members[0], x[0], y_target[0], generator_of("generic"), free), 0
    )


def test_penalty_weights_may_differ_by_member(fleet):
    members, stacked, x, y_target = fleet
    costs, energies = [0.0, 0.2], [1.0, 8.0]
    generator = generator_of(
        "ecco", lambda_cost=doubles(costs), lambda_energy=doubles(energies)
    )
    result = search_seeded(stacked, x, y_target, generator, None)
    for i, member in enumerate(members):
        alone = generator_of("ecco", lambda_cost=costs[i], lambda_energy=energies[i])
        expect_member(result, search_seeded(member, x[i], y_target[i], alone, None), i)


def test_constraints_may_differ_by_member(fleet):
    members, stacked, x, y_target = fleet
    lone = [
        Constraints.build(FEATURES, {0: "none", 4: "increase"}, (-4.0, 4.0)),
        Constraints.build(FEATURES, {2: "decrease"}, (-9.0, 9.0)),
    ]
    both = Constraints(
        torch.stack([c.may_increase for c in lone]),
        torch.stack([c.may_decrease for c in lone]),
        Domain(
            torch.stack([c.domain.lower for c in lone]),
            torch.stack([c.domain.upper for c in lone]),
        ),
    )
    generator = generator_of("generic")
    result = search_seeded(stacked, x, y_target, generator, both)
    x_pos = torch.randn_like(x)
    for i, member in enumerate(members):
        expect_member(result, search_seeded(member, x[i], y_target[i], generator, lone[i]), i)
        assert torch.equal(
            both.protect(x_pos, result.x_cf)[i], lone[i].protect(x_pos[i], result.x_cf[i])
        )


def test_core_functions_map_over_members():
    lead = (2, 3)
    logits, other = torch.randn(*lead, 5, 4), torch.randn(*lead, 5, 4)
    y = torch.randint(4, (*lead, 5))
    weight = torch.rand(*lead, 5)
    functions = {
        "energy": lambda i: energy(logits[i], y[i]),
        "divergence": lambda i: pair_terms(logits[i], other[i], y[i])["divergence"],
        "divergence, weighted": lambda i: pair_terms(logits[i], other[i], y[i], weight[i])[
            "divergence"
        ],
        "ridge": lambda i: pair_terms(logits[i], other[i], y[i], weight[i])["ridge"],
        "class": lambda i: class_loss(logits[i], y[i], weight[i]),
        "class gradient": lambda i: class_loss_gradient(logits[i].softmax(-1), y[i]),
        "mean": lambda i: mean_rows(weight[i]),
    }
    for name, function in functions.items():
        whole = function(())
        for a in range(lead[0]):
            for b in range(lead[1]):
                assert_close(whole[a, b], function((a, b)), msg=name)


def test_the_objective_of_a_fleet_is_that_of_its_members(fleet):
    members, stacked, x, y = fleet
    torch.manual_seed(0)
    rows = [torch.randn(MEMBERS, 4, FEATURES, dtype=torch.float64) for _ in range(3)]
    targets = [torch.randint(CLASSES, (MEMBERS, 4)) for _ in range(2)]
    weight = torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0]]).double()
    lambdas = {"lambda_div": [0.5, 0.0], "lambda_reg": [0.1, 0.7], "lambda_adv": [0.0, 2.0]}
    terms = Objective(**{k: doubles(v) for k, v in lambdas.items()})(
        stacked, x, y, CounterfactualBatch(*rows, *targets, weight)
    )
    terms.total.sum().backward()
    for i, member in enumerate(members):
        part = CounterfactualBatch(*(r[i] for r in rows), *(t[i] for t in targets), weight[i])
        alone = Objective(**{k: v[i] for k, v in lambdas.items()})(member, x[i], y[i], part)
        assert_close(terms.total[i], alone.total)
        assert_close(terms.class_loss[i], alone.class_loss)
        alone.total.backward()
        assert_close(stacked.weights[0].grad[i], member[0].weight.grad)


def test_images_keep_their_shape():
    """Features may have any shape; the result has it too."""
    model = nn.Sequential(nn.Flatten(), OwnModule(3)).eval()
    x, y_target = torch.randn(5, 3, 3), torch.arange(5) % 3
    generator = generator_of("generic")
    images = search(model, x, y_target, generator, record=True)
    flat = search(model, x.flatten(1), y_target, generator)
    assert images.x_cf.shape == images.x_adv.shape == x.shape
    assert images.path.shape == (generator.max_steps + 1, 5, 3, 3) and images.binding.shape == (
        5,
        9,
    )
    assert_close(images.x_cf.flatten(1), flat.x_cf)
