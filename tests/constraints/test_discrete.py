"""One-hot groups and lattices, one value at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from counterfactual_training import OneHotGroup
from counterfactual_training.constraints import Lattice
from counterfactual_training.errors import ConstraintError


def test_category_and_encode_are_inverse():
    group, category = OneHotGroup((1, 3, 4)), torch.tensor([2, 0, 1])
    x = torch.zeros(3, 5)
    x[:, [1, 3, 4]] = group.encode(category, x.dtype)
    assert torch.equal(group.category(x), category)
    binary = OneHotGroup((0,))
    assert binary.encode(torch.tensor([1, 0]), x.dtype).tolist() == [[1.0], [0.0]]
    assert binary.category(torch.tensor([[0.7], [0.2]])).tolist() == [1, 0]


def test_settle_takes_the_nearest_choice():
    group, home = OneHotGroup((0, 1, 2)), torch.tensor([[1.0, 0.0, 0.0]]).expand(2, 3)
    relaxed = torch.tensor([[0.2, 0.9, 0.4], [0.2, 0.9, 0.4]])
    choices = torch.tensor([[True, True, True, False], [True, False, True, False]])
    assert group.settle(relaxed, home, choices).tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    both = torch.tensor([[True, True, False]]).expand(2, 3)
    assert OneHotGroup((0,)).settle(
        torch.tensor([[0.6], [0.4]]), torch.zeros(2, 1), both
    ).tolist() == [[1.0], [0.0]]


def test_ones_own_category_is_always_reachable():
    group = OneHotGroup((0, 1, 2), torch.zeros(3, 3))
    assert torch.equal(group.reachable(torch.eye(3)), torch.eye(3).bool())
    assert bool(OneHotGroup((0, 1, 2)).reachable(torch.eye(3)).all())


def test_a_category_never_seen_is_none():
    group, binary = OneHotGroup((0, 1, 2)), OneHotGroup((0,))
    assert group.category(torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])).tolist() == [-1, 0]
    assert binary.category(torch.tensor([[0.5], [0.0], [1.0], [0.49], [0.51]])).tolist() == [
        -1,
        0,
        1,
        0,
        1,
    ]
    assert binary.own(torch.tensor([[0.5], [1.0]])).tolist() == [[False, False], [False, True]]


def test_who_has_no_category_may_become_what_some_other_category_may_become():
    transitions = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 0, 1]])  # nobody else may become 1
    group = OneHotGroup((0, 1, 2), transitions)
    assert group.reachable(torch.zeros(1, 3)).tolist() == [[True, False, True]]
    assert bool(OneHotGroup((0, 1, 2)).reachable(torch.zeros(1, 3)).all())


@pytest.mark.parametrize("columns", [(), (1, 1)])
def test_a_group_needs_distinct_columns(columns):
    with pytest.raises(ConstraintError, match="distinct columns"):
        OneHotGroup(columns)


def test_transitions_have_one_row_and_column_per_category():
    with pytest.raises(ConstraintError, match=r"3 × 3, got \(2, 2\)"):
        OneHotGroup((0, 1, 2), torch.ones(2, 2))
    OneHotGroup((0,), torch.ones(2, 2))


def snapped(
    lattice: Lattice, value: float, factual: float, lower: float = -10.0, upper: float = 10.0
) -> float:
    return float(lattice.snap(*(torch.tensor([v]) for v in (value, factual, lower, upper))))


@pytest.mark.parametrize(
    ("value", "factual", "upper", "expected"),
    [
        (2.3, 1.0, 10.0, 3.0),  # away from the factual, so that the change is not undone
        (0.6, 1.0, 10.0, 0.0),
        (2.3, 1.0, 2.5, 2.0),  # unless that leaves the bounds
        (1.0, 1.0, 10.0, 1.0),
        (1.4, 1.4, 10.0, 1.4),  # what did not move stays, even off the lattice
        (1.4, 1.3, 1.5, 1.0),
        (2.00001, 1.0, 10.0, 2.0),  # within rounding error of a point
    ],
)
def test_integers_snap_outwards(value, factual, upper, expected):
    assert snapped(Lattice(0), value, factual, upper=upper) == pytest.approx(expected, abs=1e-4)
    listed = Lattice(0, values=torch.arange(-10.0, 11.0))
    assert snapped(listed, value, factual, upper=upper) == pytest.approx(expected, abs=1e-4)


def test_no_point_inside_the_bounds_means_back_to_the_factual():
    assert snapped(Lattice(0), 1.4, 1.25, lower=1.2, upper=1.6) == 1.25


def test_offset_and_step():
    assert snapped(Lattice(0, offset=0.5, step=2.0), 3.0, 0.5) == pytest.approx(4.5)


def test_values_beyond_the_last_point_take_it():
    assert snapped(Lattice(0, values=torch.tensor([0.0, 1.0, 4.0])), 6.0, 1.0) == 4.0


@pytest.mark.parametrize(
    "values", [torch.tensor([]), torch.tensor([1.0, 1.0]), torch.tensor([2.0, 1.0])]
)
def test_allowed_values_ascend(values):
    with pytest.raises(ConstraintError, match="ascending"):
        Lattice(0, values=values)


def test_a_step_is_positive():
    with pytest.raises(ConstraintError, match="positive step"):
        Lattice(3, step=0.0)


@settings(max_examples=80, deadline=None)
@given(st.floats(-20, 20), st.floats(-20, 20), st.sampled_from([0.25, 1.0, 3.0]))
def test_snapping_twice_is_snapping_once(value, factual, step):
    lattice = Lattice(0, step=step)
    start = torch.tensor([round(factual / step) * step])
    once = lattice.snap(
        torch.tensor([value]), start, torch.tensor([-60.0]), torch.tensor([60.0])
    )
    twice = lattice.snap(once, start, torch.tensor([-60.0]), torch.tensor([60.0]))
    assert_close(once, twice, atol=1e-5, rtol=0)
    assert_close(once / step, (once / step).round(), atol=1e-3, rtol=0)


def test_the_next_lattice_points():
    v = torch.tensor([0.0, 0.25, 0.6])
    below, above = Lattice(0, step=0.5).beside(v)
    assert below.tolist() == [-0.5, 0.0, 0.5] and above.tolist() == [0.5, 0.5, 1.0]
    below, above = Lattice(0, values=torch.tensor([0.0, 0.5, 2.0])).beside(
        torch.tensor([0.0, 0.5, 1.0, 2.0])
    )
    assert below.tolist() == [0.0, 0.0, 0.5, 0.5] and above.tolist() == [0.5, 2.0, 2.0, 2.0]
