"""What would help a row that missed, and which rule forbids it."""

import pytest
import torch

from counterfactual_training import Constraints, OneHotGroup
from counterfactual_training.generators.diagnosis import (
    Obstacle,
    diagnose_points,
    forbidding_rules,
)
from counterfactual_training.models.classifiers import linear

TARGET = torch.ones(1, dtype=torch.long)


def sloped(*weights):
    """A linear model whose second logit rises by these weights."""
    model = linear(len(weights), 2)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.0] * len(weights), list(weights)]))
        model[0].bias.copy_(torch.tensor([9.0, 0.0]))
    return model.eval()


def test_each_rule_has_its_name():
    rules = Constraints.build(5, ["none", "increase", "decrease", "both", "both"])
    at_end = torch.tensor([[True, True, True, True, False]])
    up, down = (
        forbidding_rules(torch.full((1, 5), sign), at_end, rules)[0].tolist()
        for sign in (1.0, -1.0)
    )
    fixed, rises, falls, limit, none = (
        Obstacle.FIXED,
        Obstacle.ONLY_RISES,
        Obstacle.ONLY_FALLS,
        Obstacle.LIMIT,
        0,
    )
    assert up == [fixed, limit, falls, limit, none]
    assert down == [fixed, rises, limit, limit, none]


def test_rules_of_a_fleet_are_those_of_each_member():
    one, two = (
        Constraints.build(2, ["none", "both"]),
        Constraints.build(2, ["increase", "both"]),
    )
    both = Constraints(
        torch.stack([one.may_increase, two.may_increase]),
        torch.stack([one.may_decrease, two.may_decrease]),
        one.domain,
    )
    wish, free = -torch.ones(2, 3, 2), torch.zeros(2, 3, 2, dtype=torch.bool)
    found = forbidding_rules(wish, free, both)
    for member, rules in enumerate((one, two)):
        assert torch.equal(found[member], forbidding_rules(wish[member], free[member], rules))


def test_a_point_at_its_limit_is_stuck_and_a_free_one_is_not():
    rules = Constraints.build(2, domain={0: (-1, 1), 1: (-1, 1)})
    x, end = torch.zeros(1, 2), torch.tensor([[1.0, -1.0]])
    stuck = diagnose_points(sloped(2.0, -1.0), x, end, TARGET, rules)
    assert stuck.stuck.tolist() == [True] and stuck.obstacle.tolist() == [
        [Obstacle.LIMIT, Obstacle.LIMIT]
    ]
    assert stuck.gain[0, 0] == pytest.approx(2 * float(stuck.gain[0, 1]))
    free = diagnose_points(sloped(2.0, -1.0), x, x, TARGET, rules)
    assert free.stuck.tolist() == [False] and not bool(free.obstacle.any())


def test_categories_are_tried_one_by_one():
    may = torch.eye(3, dtype=torch.bool)
    may[0, 1] = True
    rules = Constraints.build(3, groups=[OneHotGroup((0, 1, 2), may)], domain=(0.0, 1.0))
    x = torch.tensor([[1.0, 0.0, 0.0]])
    closed = diagnose_points(sloped(0.0, -1.0, 5.0), x, x, TARGET, rules)
    assert closed.stuck.tolist() == [True] and closed.obstacle.tolist() == [
        [Obstacle.CATEGORY] * 3
    ]
    assert diagnose_points(sloped(0.0, 1.0, 5.0), x, x, TARGET, rules).stuck.tolist() == [False]


def test_a_doubted_slope_is_a_way_out_only_if_a_step_helps():
    class Bump(torch.nn.Module):
        """Feature 0 is at the top of a needle; feature 1 would help, but is fixed."""

        def forward(self, x):
            margin = x[:, 1] - 9.0 + 0.001 * torch.sin(1000 * x[:, 0])
            return torch.stack([torch.zeros_like(margin), margin], -1)

    rules = Constraints.build(2, ["both", "none"])
    x, numbers = torch.zeros(1, 2), torch.ones(2, dtype=torch.bool)
    assert diagnose_points(Bump(), x, x, TARGET, rules).stuck.tolist() == [False]
    doubted = diagnose_points(Bump(), x, x, TARGET, rules, numbers)
    assert doubted.stuck.tolist() == [True] and doubted.obstacle.tolist() == [
        [Obstacle.NONE, Obstacle.FIXED]
    ]
