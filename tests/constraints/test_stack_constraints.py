"""Constraints of several models as one object."""

import pytest
import torch

from counterfactual_training import Constraints
from counterfactual_training.constraints import Lattice, OneHotGroup
from counterfactual_training.constraints.stack_constraints import stack_constraints
from counterfactual_training.errors import ConstraintError


def test_masks_and_boxes_get_a_leading_dimension_only_where_members_differ():
    free = Constraints.build(3, domain=(-1.0, 1.0))
    held = Constraints.build(3, {0: "none"}, (-1.0, 1.0))
    both = stack_constraints([free, held])
    assert both.may_increase.tolist() == [[True, True, True], [False, True, True]]
    assert both.domain.lower.shape == (3,)
    wider = stack_constraints([free, Constraints.build(3, domain=(-2.0, 1.0))])
    assert wider.domain.lower.tolist() == [
        [-1.0] * 3,
        [-2.0] * 3,
    ] and wider.may_decrease.shape == (3,)
    assert torch.equal(stack_constraints([free, free]).may_increase, free.may_increase)


def test_constraints_that_differ_in_structure_are_refused():
    tables = [torch.ones(60, 60, dtype=torch.bool) for _ in range(2)]
    tables[1][30, 31] = False  # where a tensor's print is abbreviated
    with pytest.raises(ConstraintError, match="same groups"):
        stack_constraints(
            [
                Constraints.build(60, groups=[OneHotGroup(tuple(range(60)), table)])
                for table in tables
            ]
        )
    with pytest.raises(ConstraintError, match="same groups"):
        stack_constraints([Constraints.build(3), Constraints.build(3, lattices=[Lattice(0)])])
    with pytest.raises(ConstraintError, match="same groups"):
        stack_constraints(
            [Constraints.build(3, domain=(-9.0, 9.0)), Constraints.infer(torch.randn(9, 3))]
        )
