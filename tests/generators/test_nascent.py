"""Eq. 4: x_adv is the last iterate within ε, also of a path that leaves the ball and comes back."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from counterfactual_training import Constraints, Generator, Status, linear, search
from counterfactual_training.constraints import Lattice
from counterfactual_training.models.stack import StackedModel


class Flat(nn.Module):
    """Logits that know no slope: all movement comes from the penalty."""

    def forward(self, x):
        return torch.stack([x.sum(-1) * 0 + 2.0, x.sum(-1) * 0], -1)


def walk(
    *places: float,
    epsilon: float = 0.3,
    strict: bool = False,
    constraints: Constraints | None = None,
):
    """Search whose iterates are these places on a line, from the factual 0."""

    def push(state):
        here = places[state.step - 1] if state.step else 0.0
        return (here - places[state.step]) * state.delta.sum(-1)

    generator = Generator(
        "walk",
        penalties=(push,),
        learning_rate=1.0,
        max_steps=len(places),
        decision_threshold=0.99,
        epsilon=epsilon,
        strict_epsilon=strict,
    )
    x, y_target = torch.zeros(1, 1), torch.tensor([1])
    return search(Flat(), x, y_target, generator, constraints, record=True, diagnose=False)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ((0.25, 0.5, 0.75), 0.25),  # leaves once
        ((0.5, 0.75, 1.0), 0.0),  # no iterate but the factual qualifies
        ((0.125, 0.25, 0.0), 0.0),  # never leaves: the last one
        ((0.125, 0.5, 0.25, 0.75), 0.25),  # leaves, re-enters, leaves
        ((0.125, 0.5, 0.75, -0.25), -0.25),  # leaves and is back at the end
        ((0.25, 0.5, 0.125, 0.5, -0.125, 0.5), -0.125),  # twice
        ((1.0, -0.0625, 2.0), -0.0625),
    ],
)
def test_the_last_iterate_in_the_ball(places, expected):
    result = walk(*places)
    assert result.path.flatten().tolist() == [0.0, *places], (
        "the test's own path is not what it should be"
    )
    assert float(result.x_adv) == expected
    assert float(result.x_cf) == places[-1]


def test_on_the_rim_counts_unless_strict():
    assert float(walk(0.25, 0.5, 1.0, epsilon=0.5).x_adv) == 0.5
    assert float(walk(0.25, 0.5, 1.0, epsilon=0.5, strict=True).x_adv) == 0.25


def test_a_ball_of_no_size_holds_the_factual_only():
    assert float(walk(0.25, 0.5, epsilon=0.0).x_adv) == 0.0
    assert float(walk(0.25, 0.5, epsilon=0.0, strict=True).x_adv) == 0.0


def test_clamped_iterates_are_the_ones_that_count():
    rules = Constraints.build(1, domain=(-0.25, 0.25))
    result = walk(5.0, 5.0, 5.0, constraints=rules)
    assert float(result.x_adv) == float(result.x_cf) == 0.25


def test_a_mature_counterfactual_within_reach_is_nascent_too():
    model = linear(1, 2)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-40.0], [40.0]]))
    generator = Generator("plain", learning_rate=0.001, decision_threshold=0.9)
    result = search(model, torch.tensor([[-0.01]]), torch.tensor([1]), generator)
    assert result.status.tolist() == [Status.CONVERGED] and torch.equal(
        result.x_adv, result.x_cf
    )


def test_snapping_may_leave_the_ball_but_the_relaxed_iterate_was_inside():
    rules = Constraints.build(1, lattices=[Lattice(0)])
    result = walk(0.125, 0.25, constraints=rules)
    assert float(result.x_cf) == 1.0 and float(result.x_adv) == 0.25


def test_what_a_member_is_snapped_to_at_its_end_is_not_nascent_either():
    """It is outside of the ball then, and comes back by rounding alone, while another member still
    searches.
    """
    models = [linear(1, 2), linear(1, 2)]
    for model in models:
        nn.init.zeros_(model[0].weight)
        nn.init.constant_(model[0].bias, 0.0)
        model[0].bias.data[0] = 2.0
    rules = Constraints.build(1, lattices=[Lattice(0, values=torch.tensor([0.0, 0.25]))])
    push = Generator(
        "push",
        penalties=(lambda state: -state.delta.sum(-1),),
        learning_rate=0.2,
        max_steps=2,
        decision_threshold=0.99,
        epsilon=0.3,
    )
    alone = search(models[0], torch.zeros(1, 1), torch.tensor([1]), push, rules)
    assert float(alone.x_cf) == 0.25 and float(alone.x_adv) == pytest.approx(0.2)
    fleet = replace(push, max_steps=torch.tensor([2, 9]))
    together = search(
        StackedModel(models), torch.zeros(2, 1, 1), torch.ones(2, 1).long(), fleet, rules
    )
    assert torch.equal(together.x_adv[0], alone.x_adv)
