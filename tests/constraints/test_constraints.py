"""The verbs of the one object that training, search, attacks, metrics and reports share."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from counterfactual_training import Constraints, Domain, OneHotGroup
from counterfactual_training.constraints import DIRECTIONS, Lattice
from counterfactual_training.constraints.stack_constraints import stack_constraints
from counterfactual_training.errors import ConstraintError

FEATURES = 5


@st.composite
def situations(draw):
    """Random directions and box, a factual, and a point that came of it by masked steps."""
    directions = draw(
        st.lists(st.sampled_from(DIRECTIONS), min_size=FEATURES, max_size=FEATURES)
    )
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    centre, width = torch.randn(FEATURES, generator=rng), torch.rand(FEATURES, generator=rng)
    rules = Constraints.build(
        FEATURES, directions, Domain(centre - width, centre + width, inferred=True)
    )
    x = centre + torch.randn(6, FEATURES, generator=rng)
    step = torch.randn(6, FEATURES, generator=rng)
    return rules, x, step


@settings(max_examples=60, deadline=None)
@given(situations())
def test_masked_steps_obey_every_direction(situation):
    rules, _, step = situation
    masked = rules.mask_step(step.clone())
    for j, direction in enumerate(rules.directions):
        allowed = {
            "both": torch.ones(6, dtype=torch.bool),
            "none": torch.zeros(6, dtype=torch.bool),
            "increase": step[:, j] > 0,
            "decrease": step[:, j] < 0,
        }[direction]
        assert torch.equal(masked[:, j], torch.where(allowed, step[:, j], torch.zeros(())))
    assert torch.equal(rules.mask_step(masked.clone()), masked)


@settings(max_examples=60, deadline=None)
@given(situations())
def test_project_is_idempotent_and_breaks_no_direction(situation):
    rules, x, step = situation
    bounds = rules.bounds(x)
    moved = rules.project(x + rules.mask_step(step.clone()), bounds)
    assert torch.equal(rules.project(moved.clone(), bounds), moved)
    assert not bool(rules.violations(moved, x).any())


@settings(max_examples=60, deadline=None)
@given(situations())
def test_protect_is_the_three_conditions_and_idempotent(situation):
    """§3.4: immutable; x⁺ above x′ though it may only fall; x⁺ below x′ though it may only rise."""
    rules, x_cf, step = situation
    x_pos = x_cf + step
    protected = rules.protect(x_pos.clone(), x_cf)
    for j, direction in enumerate(rules.directions):
        for row in range(len(x_cf)):
            binds = (
                direction == "none"
                or (direction == "decrease" and x_pos[row, j] > x_cf[row, j])
                or (direction == "increase" and x_pos[row, j] < x_cf[row, j])
            )
            assert protected[row, j] == (x_cf if binds else x_pos)[row, j]
    assert torch.equal(rules.protect(protected.clone(), x_cf), protected)


def test_protect_leaves_its_arguments_alone():
    rules = Constraints.build(2, ["none", "increase"])
    x_pos, x_cf = torch.zeros(1, 2), torch.ones(1, 2)
    assert rules.protect(x_pos, x_cf).tolist() == [[1.0, 1.0]]
    assert x_pos.tolist() == [[0.0, 0.0]] and x_cf.tolist() == [[1.0, 1.0]]


def test_a_stray_factual_is_pulled_back_only_if_it_may_move_there():
    rules = Constraints.build(
        3, ["both", "increase", "none"], Domain(torch.zeros(3), torch.ones(3), inferred=True)
    )
    x = torch.full((1, 3), 2.0)
    assert rules.project(x.clone(), rules.bounds(x)).tolist() == [[1.0, 2.0, 2.0]]
    low = torch.full((1, 3), -2.0)
    assert rules.project(low.clone(), rules.bounds(low)).tolist() == [[0.0, 0.0, -2.0]]


def test_outliers_may_stay_outside_on_both_sides():
    rules = Constraints.build(1, domain=Domain(torch.zeros(1), torch.ones(1), inferred=True))
    x = torch.tensor([[-2.0], [0.5], [3.0]])
    moved = replace(rules, keep_outside=True).project(
        x.clone(), replace(rules, keep_outside=True).bounds(x)
    )
    assert torch.equal(moved, x)
    assert rules.project(x.clone(), rules.bounds(x)).tolist() == [[0.0], [0.5], [1.0]]


def test_no_change_exceeds_the_reach_either_way():
    rules = replace(Constraints.build(2), reach=torch.tensor([0.5, torch.inf]))
    x = torch.tensor([[1.0, 1.0]])
    for sign in (-1.0, 1.0):
        moved = rules.project(x + sign, rules.bounds(x))
        assert moved.tolist() == [[1.0 + sign / 2, 1.0 + sign]]


def test_protect_leaves_numbers_behind_a_code_alone():
    """Column 0 holds no number where the flag in column 1 is set, so there is no difference to
    learn from.
    """
    rules = replace(Constraints.build(2, {1: "none"}), coded=((0, (1,)),))
    x_cf = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    x_pos = torch.tensor([[5.0, 0.0], [5.0, 0.0]])
    assert rules.protect(x_pos, x_cf).tolist() == [[0.0, 1.0], [5.0, 0.0]]


# ---- snap ----------------------------------------------------------------------------------------


def test_snap_decodes_to_the_nearest_reachable_category():
    transitions = torch.tensor([[1, 0, 1], [1, 1, 1], [1, 1, 1]]).bool()
    x = torch.tensor([[1.0, 0.0, 0.0]])
    relaxed = torch.tensor([[0.1, 0.8, 0.6]])
    free, bound = (
        Constraints.build(3, groups=[OneHotGroup((0, 1, 2), t)]) for t in (None, transitions)
    )
    assert free.snap(relaxed, x).tolist() == [[0.0, 1.0, 0.0]]
    assert bound.snap(relaxed, x).tolist() == [[0.0, 0.0, 1.0]]


@pytest.mark.parametrize(
    ("mutability", "expected"),
    [
        ({}, [0.0, 1.0, 0.0]),
        ({0: "none"}, [1.0, 0.0, 0.0]),  # the own column may not fall
        ({1: "none"}, [0.0, 0.0, 1.0]),  # that category may not rise
        ({1: "decrease"}, [0.0, 0.0, 1.0]),
        ({0: "increase"}, [1.0, 0.0, 0.0]),
    ],
)
def test_snap_heeds_directions_within_a_group(mutability, expected):
    rules = Constraints.build(3, mutability, groups=[(0, 1, 2)])
    x = torch.tensor([[1.0, 0.0, 0.0]])
    assert rules.snap(torch.tensor([[0.1, 0.8, 0.6]]), x).tolist() == [expected]


@pytest.mark.parametrize(
    ("direction", "expected"), [("both", 1.0), ("increase", 1.0), ("decrease", 0.0)]
)
def test_snap_of_a_binary_column(direction, expected):
    rules = Constraints.build(1, [direction], groups=[(0,)])
    assert rules.snap(torch.tensor([[0.9]]), torch.zeros(1, 1)).tolist() == [[expected]]


def test_snap_is_idempotent_and_makes_no_violation():
    torch.manual_seed(0)
    rules = Constraints.build(
        6,
        {4: "increase", 5: "none"},
        {4: (-3, 3)},
        groups=[(0, 1, 2)],
        lattices=[Lattice(3), Lattice(4, step=0.5)],
    )
    x = torch.cat(
        [torch.eye(3)[torch.randint(3, (20,))], torch.randint(-2, 3, (20, 3)).float()], 1
    )
    x_cf = rules.project(x + rules.mask_step(torch.randn(20, 6)), rules.bounds(x))
    assert bool(rules.violations(x_cf, x).any()), "the relaxed points should break something"
    snapped = rules.snap(x_cf, x)
    assert not bool(rules.violations(snapped, x).any())
    assert_close(rules.snap(snapped, x), snapped, atol=1e-6, rtol=0)


def test_snap_returns_a_new_tensor():
    x = torch.zeros(2, 2)
    assert Constraints.build(2).snap(x, x).data_ptr() != x.data_ptr()


def test_category_projection_decides_what_is_discrete():
    def discrete(when):
        return Constraints.build(
            4, groups=[(0, 1)], lattices=[Lattice(3)], category_projection=when
        ).discrete.tolist()

    assert discrete("end") == [True, True, False, True]
    assert discrete("step") == discrete("never") == [False, False, False, True]
    each = Constraints.build(2, groups=[(0, 1)], category_projection="step")
    x = torch.tensor([[1.0, 0.0]])
    assert each.project(torch.tensor([[0.4, 0.6]]), each.bounds(x)).tolist() == [[0.0, 1.0]]


CYCLE = torch.tensor([[1, 0, 1], [1, 1, 0], [0, 1, 1]]).bool()  # 0 → 2 → 1 → 0


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, [0.0, 1.0, 0.0]),
        ({"groups": [OneHotGroup((0, 1, 2), CYCLE)]}, [0.0, 0.0, 1.0]),
        ({"mutability": {0: "none"}}, [1.0, 0.0, 0.0]),  # the own column may not fall
        ({"mutability": {1: "none"}}, [0.0, 0.0, 1.0]),  # that category may not rise
        ({"mutability": {1: "decrease", 2: "decrease"}}, [1.0, 0.0, 0.0]),
        ({"domain": {1: (0.0, 0.5)}}, [0.0, 0.0, 1.0]),  # the domain has no room for it
    ],
)
def test_every_step_ends_in_a_category_that_may_be_had(rules, expected):
    each = Constraints.build(3, **{"groups": [(0, 1, 2)], **rules}, category_projection="step")
    x = torch.tensor([[1.0, 0.0, 0.0]])
    assert each.project(torch.tensor([[0.1, 0.8, 0.6]]), each.bounds(x)).tolist() == [expected]
    at_the_end = replace(each, category_projection="end")
    assert at_the_end.snap(torch.tensor([[0.1, 0.8, 0.6]]), x).tolist() == [expected]
    for rule in (each, at_the_end):
        assert not bool(rule.violations(torch.tensor([expected]), x).any())
        assert bool(rule.violations(torch.tensor([[0.0, 1.0, 0.0]]), x).any()) == (
            expected[1] == 0
        )


@pytest.mark.parametrize("keep_outside", [True, False])
def test_a_factual_far_outside_comes_back_no_further_than_it_may_change(keep_outside):
    rules = Constraints.build(
        1, domain=Domain(torch.zeros(1), torch.ones(1), torch.tensor([True]))
    )
    rules = replace(rules, reach=torch.tensor([0.5]), keep_outside=keep_outside)
    x = torch.tensor([[3.0], [-2.0], [0.8]])
    for wish, expected in (
        (-9.0, [2.5, -2.0 if keep_outside else -1.5, 0.3]),
        (9.0, [3.0 if keep_outside else 2.5, -1.5, 1.0]),
    ):
        found = rules.project(torch.full_like(x, wish), rules.bounds(x))
        assert found.squeeze(-1).tolist() == pytest.approx(expected)


def test_members_of_a_fleet_choose_among_their_own_categories():
    members = [
        Constraints.build(3, m, groups=[(0, 1, 2)], category_projection="step")
        for m in ({}, {1: "none"})
    ]
    x = torch.tensor([1.0, 0.0, 0.0]).expand(2, 4, 3)
    rules = stack_constraints(members)
    moved = rules.project(torch.tensor([0.1, 0.8, 0.6]).repeat(2, 4, 1), rules.bounds(x))
    assert moved[:, 0].tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]


def test_a_category_that_the_domain_leaves_no_room_for_is_not_taken_by_default():
    """All columns clamped to zero: a tie, which the first category must not win if it cannot be
    had.
    """
    each = Constraints.build(
        3, domain={0: (0.0, 0.0)}, groups=[(0, 1, 2)], category_projection="step"
    )
    x = torch.tensor([[0.0, 1.0, 0.0]])
    assert each.project(torch.tensor([[0.0, 0.0, 0.0]]), each.bounds(x)).tolist() == [
        [0.0, 1.0, 0.0]
    ]


@pytest.mark.parametrize("when", ["end", "step"])
def test_a_row_that_is_no_clean_category_is_not_made_one_against_a_direction(when):
    rules = Constraints.build(3, {0: "none"}, groups=[(0, 1, 2)], category_projection=when)
    x = torch.tensor([[0.3, 0.6, 0.0]])
    kept = rules.snap(rules.project(x + 0.01, rules.bounds(x)), x)
    assert kept[0, 0] == x[0, 0]
    assert not bool(rules.violations(x, x).any())
    free = Constraints.build(3, groups=[(0, 1, 2)], category_projection="step")
    assert free.project(x.clone(), free.bounds(x)).tolist() == [
        [0.0, 1.0, 0.0]
    ]  # as the authors decoded
    assert not bool(free.violations(x, x).any())


@pytest.mark.parametrize("category", [0, 1])
def test_a_category_outside_the_domain_with_no_way_back_stays(category):
    for when in ("end", "step"):
        rules = Constraints.build(
            2,
            domain={category: (0.0, 0.0)},
            groups=[OneHotGroup((0, 1), torch.eye(2))],
            category_projection=when,
        )
        x = torch.eye(2)[[category]]
        assert rules.snap(rules.project(x.clone(), rules.bounds(x)), x).tolist() == x.tolist()
        assert not bool(rules.violations(x, x).any())


@pytest.mark.parametrize("when", ["end", "step"])
@pytest.mark.parametrize(
    ("relaxed", "expected"),
    [
        ([0.9, 0.0, 0.0], 0),
        ([0.2, 0.6, 0.0], 1),
        ([0.4, 0.3, 0.0], None),
        ([0.0, 0.0, 0.0], None),
    ],
)
def test_a_row_without_a_category_takes_the_nearest_or_stays(when, relaxed, expected):
    rules = Constraints.build(3, groups=[(0, 1, 2)], category_projection=when)
    x, none = torch.zeros(1, 3), [0.0, 0.0, 0.0]
    point = rules.snap(rules.project(torch.tensor([relaxed]), rules.bounds(x)), x)
    assert point.tolist() == [none if expected is None else torch.eye(3)[expected].tolist()]
    assert not bool(rules.violations(point, x).any())
    held = Constraints.build(
        3, {0: "none", 1: "none", 2: "none"}, groups=[(0, 1, 2)], category_projection=when
    )
    assert held.snap(held.project(torch.tensor([relaxed]), held.bounds(x)), x).tolist() == [
        none
    ]


@pytest.mark.parametrize("when", ["end", "step"])
@pytest.mark.parametrize(
    ("direction", "value", "expected"),
    [
        ("both", 0.5, 0.5),
        ("both", 0.9, 1.0),
        ("both", 0.1, 0.0),
        ("both", 0.6, 0.5),
        ("increase", 0.1, 0.5),
        ("none", 0.9, 0.5),
    ],
)
def test_a_binary_that_is_neither_becomes_one_or_stays(when, direction, value, expected):
    rules = Constraints.build(2, {1: direction}, groups=[[1]], category_projection=when)
    x = torch.tensor([[0.3, 0.5]])
    point = rules.snap(rules.project(torch.tensor([[0.3, value]]), rules.bounds(x)), x)
    assert_close(point, torch.tensor([[0.3, expected]]))
    assert not bool(rules.violations(point, x).any())


def test_transitions_of_a_binary_hold_while_it_is_relaxed():
    only_up = OneHotGroup((0,), torch.tensor([[1, 1], [0, 1]]))
    rules = Constraints.build(1, groups=[only_up], category_projection="never")
    x = torch.tensor([[1.0], [0.0]])
    assert rules.project(torch.tensor([[0.4], [0.4]]), rules.bounds(x)).tolist() == [
        [1.0],
        [pytest.approx(0.4)],
    ]


def test_relaxed_forgets_categories_and_keeps_the_rest():
    rules = Constraints.build(
        3, {2: "none"}, (-1, 1), groups=[(0, 1)], lattices=[Lattice(2)]
    ).relaxed()
    assert not rules.has_discrete and rules.groups == ()
    assert rules.directions == ("both", "both", "none") and rules.domain.upper.tolist() == [
        1,
        1,
        1,
    ]


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": [(0, 1), (1, 2)]}, "different columns"),
        ({"groups": [(0, 3)]}, r"different columns in 0\.\.2"),
        ({"groups": [(0, 1)], "lattices": [Lattice(1)]}, "different columns"),
        ({"names": ["a", "b"]}, "2 names for 3 features"),
        ({"category_projection": "ende"}, "Did you mean 'end'"),
        ({"mutability": {"a": "none"}}, "Unknown column 'a'"),
    ],
)
def test_contradictions_are_refused(arguments, message):
    with pytest.raises(ConstraintError, match=message):
        Constraints.build(3, **arguments)


def test_a_factual_outside_its_stated_domain_is_refused():
    rules = Constraints.build(2, domain={"age": (18, 90)}, names=["age", "debt"])
    x = torch.tensor([[30.0, 1.0], [17.0, 1.0], [95.0, 1.0]])
    with pytest.raises(
        ConstraintError, match=r"2 factual.*'age' \[18, 90\].*row 1 with 17.*Widen the domain"
    ):
        rules.check_factuals(x)
    rules.check_factuals(x[:1])
    rules.check_factuals(torch.tensor([[90.00001, 0.0]]))
    Constraints.infer(x[:1]).check_factuals(x)


def test_constraints_follow_a_tensor():
    rules = Constraints.build(2, {0: "none"}, (-1, 1))
    double = rules.to(torch.zeros(1, dtype=torch.float64))
    assert double.domain.lower.dtype == torch.float64 and double.directions == rules.directions
    assert rules.to(torch.zeros(1)) is rules


def test_infer_takes_images():
    assert Constraints.infer(torch.randn(5, 2, 3)).num_features == 6


def test_violations_name_the_feature():
    rules = Constraints.build(3, ["none", "increase", "both"], {2: (0, 1)})
    x, x_cf = torch.full((1, 3), 0.5), torch.tensor([[0.6, 0.4, 1.5]])
    assert rules.violations(x_cf, x).tolist() == [[True, True, True]]
    assert rules.violations(torch.tensor([[0.5, 0.9, 1.0]]), x).tolist() == [
        [False, False, False]
    ]
