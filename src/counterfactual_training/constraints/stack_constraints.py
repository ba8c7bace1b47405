"""Join the constraints of several models into one object with a leading dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from counterfactual_training.constraints.constraints import Constraints
from counterfactual_training.constraints.domain import Domain
from counterfactual_training.errors import ConstraintError


def constraint_structure(constraints: Constraints) -> str:
    """Equal for constraints that :func:`stack_constraints` can join: those that differ in masks and
    boxes only.
    """
    groups = [(group.columns, _listed(group.transitions)) for group in constraints.groups]
    lattices = [
        [_listed(value) for value in vars(lattice).values()] for lattice in constraints.lattices
    ]
    # The class too: a subclass may override any of the verbs.
    kind = (
        type(constraints),
        constraints.num_features,
        constraints.category_projection,
        constraints.keep_outside,
    )
    rules = constraints.relations
    if rules is None:
        related = None
    else:
        related = [_listed(value) for value in vars(rules).values()]
    boxes = _listed(constraints.domain.inferred), _listed(constraints.reach), constraints.coded
    return repr((*kind, groups, lattices, *boxes, related))


def stack_constraints(members: Sequence[Constraints]) -> Constraints:
    """Stack the masks and boxes ``(d,)`` of M members to ``(M, d)``; what all members share stays
    ``(d,)``.
    """
    if len({constraint_structure(member) for member in members}) != 1:
        raise ConstraintError(
            "Only constraints with the same groups, lattices and kind of domain can be stacked."
        )
    first = members[0]
    up = [member.may_increase for member in members]
    down = [member.may_decrease for member in members]
    lower = [member.domain.lower for member in members]
    upper = [member.domain.upper for member in members]
    domain = first.domain
    if not (_same(lower) and _same(upper)):
        domain = Domain(torch.stack(lower), torch.stack(upper), domain.inferred)
    up_all, down_all = (
        masks[0] if _same(masks) else torch.stack(masks) for masks in (up, down)
    )
    return replace(first, may_increase=up_all, may_decrease=down_all, domain=domain)


def unstack_constraints(constraints: Constraints, index: int) -> Constraints:
    """The constraints of one member; inverse of :func:`stack_constraints`."""
    domain = constraints.domain
    if domain.lower.dim() > 1:
        domain = Domain(domain.lower[index], domain.upper[index], domain.inferred)
    masks = constraints.may_increase, constraints.may_decrease
    up, down = (mask[index] if mask.dim() > 1 else mask for mask in masks)
    return replace(constraints, domain=domain, may_increase=up, may_decrease=down)


def _listed(value: Any) -> Any:
    # All values: repr() of a large tensor is abbreviated, so different tensors may print alike.
    if isinstance(value, Tensor):
        return value.tolist()
    return value


def _same(values: Sequence[Tensor]) -> bool:
    return all(value is values[0] or torch.equal(value, values[0]) for value in values[1:])
