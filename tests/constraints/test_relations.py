"""Relations between features in model space."""

import pytest
import torch

from counterfactual_training.constraints import (
    Constraints,
    Lattice,
    OneHotGroup,
)
from counterfactual_training.constraints.expression import Expression
from counterfactual_training.constraints.relations import Follower, Implication, Relations
from counterfactual_training.generators import generic, line, search


def related(normals, upper, lower=None, **others):
    rows = torch.tensor(normals, dtype=torch.float32)
    size = rows.norm(dim=-1)
    high = torch.tensor(upper, dtype=torch.float32) / size
    low = (
        torch.full_like(high, -torch.inf)
        if lower is None
        else torch.tensor(lower, dtype=torch.float32) / size
    )
    texts = tuple(f"relation {i}" for i in range(len(rows)))
    return Relations(texts, rows / size.unsqueeze(-1), low, high, **others)


def with_relations(relations, num_features, **rules):
    return Constraints(
        **{**vars(Constraints.build(num_features, **rules)), "relations": relations}
    )


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


def test_projections_keep_limits_and_box(rng):
    relations = related(torch.randn(3, 5, generator=rng).tolist(), [0.5, 0.2, 1.0])
    x, points = torch.randn(200, 5, generator=rng) * 0.3, torch.randn(200, 5, generator=rng) * 3
    lower, upper = torch.full((5,), -1.5), torch.full((5,), 1.5)
    x = x.clamp(lower, upper)
    moved = relations.project(points.clamp(lower, upper), x, lower, upper)
    assert not relations.broken(moved, x).any()
    assert (moved >= lower - 1e-5).all() and (moved <= upper + 1e-5).all()


def test_a_single_projection_is_the_nearest_point():
    relations = related([[1.0, 1.0]], [1.0])
    wide = torch.full((2,), 9.0)
    point = relations.project(torch.tensor([[2.0, 1.0]]), torch.zeros(1, 2), -wide, wide)
    torch.testing.assert_close(point, torch.tensor([[1.0, 0.0]]), atol=1e-4, rtol=0)


def test_factuals_that_break_a_relation_set_the_limit():
    relations = related([[1.0, 0.0]], [1.0])
    x, wide = torch.tensor([[3.0, 0.0]]), torch.full((2,), 9.0)
    points = torch.tensor([[5.0, 1.0]])
    assert relations.project(points, x, -wide, wide)[0, 0] <= 3.0
    assert relations.broken(points, x).tolist() == [[True, False]]
    assert not relations.broken(torch.tensor([[2.0, 1.0]]), x).any()


def test_a_column_alone_has_the_room_that_the_others_leave():
    relations = related([[1.0, -1.0], [1.0, 1.0]], [0.0, 10.0])
    x, wide = torch.tensor([[1.0, 4.0]]), torch.full((1, 2), 99.0)
    lower, upper = relations.narrow(x, -wide, wide)
    torch.testing.assert_close(lower, torch.tensor([[-99.0, 1.0]]))
    torch.testing.assert_close(upper, torch.tensor([[4.0, 9.0]]))


def test_rounding_steps_back_until_limits_hold(rng):
    lattices = [Lattice(j) for j in range(3)]
    relations = related([[1.0, 1.0, 1.0], [1.0, -2.0, 0.0]], [4.0, 1.0])
    rules = with_relations(relations, 3, lattices=lattices)
    x = torch.zeros(300, 3)
    points = rules.confine(
        torch.randn(300, 3, generator=rng) * 4, x, torch.full((3,), -9.0), torch.full((3,), 9.0)
    )
    snapped = rules.snap(points, x)
    assert not rules.violations(snapped, x).any()
    assert (snapped == snapped.round()).all() and (snapped != 0).any(-1).float().mean() > 0.9


RATIO = Expression.column("debt").joined("/", Expression.column("income"))
FOLLOWER = Follower(2, RATIO, {"debt": (0, 10.0, 2.0), "income": (1, 20.0, 5.0)}, 0.5, 0.1)


def test_what_follows_is_computed_where_its_inputs_changed():
    relations = Relations((), torch.zeros(0, 3), torch.zeros(0), torch.zeros(0), (FOLLOWER,))
    x = torch.tensor([[0.0, 0.0, 7.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 7.0]])
    # Unchanged, 20 / 20, division by 0, and a factual that does not match and keeps its distance.
    points = torch.tensor([[0.0, 0.0, 9.0], [5.0, 0.0, 9.0], [5.0, -4.0, 9.0], [5.0, 0.0, 9.0]])
    torch.testing.assert_close(
        relations.follow(points, x)[:, 2], torch.tensor([7.0, (1.0 - 0.5) / 0.1, 9.0, 12.0])
    )


def test_gradients_flow_through_what_follows(rng):
    relations = Relations((), torch.zeros(0, 3), torch.zeros(0), torch.zeros(0), (FOLLOWER,))
    points = torch.randn(20, 3, generator=rng).requires_grad_()
    weights = torch.tensor([1.0, -2.0, 3.0])
    followed = torch.stack([points[:, 0], points[:, 1], FOLLOWER.derive(points)[0]], -1)
    expected = torch.autograd.grad((followed @ weights).sum(), points)[0]
    torch.testing.assert_close(
        relations.through(weights.expand(20, 3), points.detach()), expected
    )


def linear_model(*weights):
    model = torch.nn.Linear(len(weights), 2)
    with torch.no_grad():
        model.weight.copy_(torch.stack([torch.zeros(len(weights)), torch.tensor(weights)]))
        model.bias.zero_()
    return model


@pytest.mark.parametrize("generator", [generic(max_steps=150), line()], ids=["fixed", "line"])
def test_searches_stay_within_relations(generator, rng):
    relations = related([[1.0, -1.0, 0.0]], [0.0])  # the first may not exceed the second
    rules = with_relations(relations, 3, mutability=["both", "increase", "none"])
    x = torch.randn(60, 3, generator=rng) - 1.0
    found = search(
        linear_model(2.0, -0.5, 1.0), x, torch.ones(60, dtype=torch.long), generator, rules
    )
    assert not rules.violations(found.x_cf, x).any()
    assert (found.converged & (found.num_steps > 0)).float().mean() > 0.5


@pytest.mark.parametrize("generator", [generic(max_steps=150), line()], ids=["fixed", "line"])
def test_searches_move_what_follows_along(generator, rng):
    relations = Relations((), torch.zeros(0, 3), torch.zeros(0), torch.zeros(0), (FOLLOWER,))
    rules = with_relations(relations, 3, mutability=["both", "both", "none"])
    x = relations.follow(
        torch.randn(40, 3, generator=rng) * 0.3, torch.full((40, 3), torch.nan)
    )
    found = search(
        linear_model(0.0, 0.0, -1.0), x, torch.ones(40, dtype=torch.long), generator, rules
    )
    torch.testing.assert_close(
        found.x_cf[:, 2], FOLLOWER.derive(found.x_cf)[0], atol=1e-4, rtol=1e-4
    )
    assert (
        found.converged[found.num_steps > 0].float().mean() > 0.8
        and not rules.violations(found.x_cf, x).any()
    )


NEEDS = Implication("a requires b", (0, 1), (0.0, 1.0), (2,), (1.0,))


@pytest.mark.parametrize(
    ("mutability", "held", "expected"),
    [
        ("both", False, [0.0, 1.0, 1.0]),
        ("none", False, [1.0, 0.0, 0.0]),
        ("both", True, [1.0, 0.0, 0.0]),
    ],
)
def test_a_category_brings_the_one_it_needs_or_is_given_up(mutability, held, expected):
    relations = Relations((), torch.zeros(0, 3), torch.zeros(0), torch.zeros(0), (), (NEEDS,))
    groups = [OneHotGroup((0, 1)), OneHotGroup((2,))]
    rules = with_relations(relations, 3, groups=groups, mutability=["both", "both", mutability])
    x, wish = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.2, 0.9, 0.1]])
    still = torch.tensor([[False, False, held]])
    assert rules.snap(wish, x, still).tolist() == [expected]
    assert not rules.violations(rules.snap(wish, x, still), x).any()
