"""Which values of a counterfactual break a constraint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from counterfactual_training.constraints.constraints import Constraints


def find_violations(
    constraints: Constraints, x_cf: Tensor, x: Tensor, tolerance: float
) -> Tensor:
    """Mask ``(..., n, d)`` of the values of x_cf that break a constraint of their factuals x."""
    delta = x_cf - x
    # Relative, because rounding errors grow with the values.
    slack = tolerance * (1 + torch.maximum(x.abs(), x_cf.abs()))
    up = constraints.may_increase.unsqueeze(-2)
    down = constraints.may_decrease.unsqueeze(-2)
    wrong = ((delta > slack) & ~up) | ((delta < -slack) & ~down)
    projected = constraints.category_projection != "never"
    # Even if categories are projected only at the end: here the end is judged.
    if projected:
        bounds = constraints._category_bounds(x)
    else:
        bounds = constraints.bounds(x)
    wrong |= (x_cf < bounds.lower - slack) | (x_cf > bounds.upper + slack)
    valid = x_cf.clone()
    if projected:
        bounds.settle(constraints.groups, valid)
        # An unchanged group is always valid, even if it is no clean category.
        for group in constraints.groups:
            columns = group.index
            changed = (delta.abs() > slack)[..., columns].any(-1, keepdim=True)
            valid[..., columns] = torch.where(changed, valid[..., columns], x_cf[..., columns])
    # What is valid stays where it is under all rounding, so any difference is a violation.
    constraints._round(valid, x)
    wrong |= (valid - x_cf).abs() > slack
    relations = constraints.relations
    if relations is not None:
        wrong[..., relations.following] = False  # they move by themselves
        wrong |= relations.broken(x_cf, x)
    return wrong
