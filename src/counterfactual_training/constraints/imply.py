"""Categories that need others: points are changed until they keep such rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from counterfactual_training.constraints.constraints import Constraints


def imply(
    constraints: Constraints, x_cf: Tensor, x: Tensor, held: Tensor | None = None
) -> Tensor:
    """Points ``(..., n, d)`` that break no implication their factuals x keep.

    A category that is needed is taken if x may take it; otherwise the one that needs it is given
    up.

    Args:
        held: mask ``(..., n, d)`` of cells that keep their value.
    """
    rules = () if constraints.relations is None else constraints.relations.implications
    for _ in rules:  # what one rule asks for may concern the next
        before = x_cf
        for rule in rules:
            # Rows that broke the rule from the start may go on doing so.
            broken = rule.broken(x_cf) & ~rule.broken(x)
            if not bool(broken.any()):
                continue
            may = broken & may_take_code(constraints, rule.needed, rule.needed_code, x, held)
            # Only now: most calls find nothing broken and return the points they were given.
            x_cf = x_cf.clone()
            needed = list(rule.needed)
            condition_columns = list(rule.condition)
            code = x_cf.new_tensor(rule.needed_code)
            x_cf[..., needed] = torch.where(may.unsqueeze(-1), code, x_cf[..., needed])
            # Giving up means the factual's own category, which is always allowed.
            x_cf[..., condition_columns] = torch.where(
                (broken & ~may).unsqueeze(-1),
                x[..., condition_columns],
                x_cf[..., condition_columns],
            )
        # A full round without a change: no later round would make one. The loop bounds cycles of
        # rules.
        if torch.equal(before, x_cf):
            break
    return x_cf


def may_take_code(
    constraints: Constraints,
    columns: Sequence[int],
    code: Sequence[float],
    x: Tensor,
    held: Tensor | None = None,
) -> Tensor:
    """Mask ``(..., n)`` of the factuals x whose columns may take the code of a category, or have it
    already.
    """
    wanted = x.new_tensor(code)
    has_code = ((x[..., list(columns)] - wanted).abs() < 1e-3).all(-1)
    group = next(
        (group for group in constraints.groups if group.columns == tuple(columns)), None
    )
    if group is not None:
        # A single binary column holds its category as a number; wider groups mark it.
        if len(columns) > 1:
            place = int(wanted.argmax())
        else:
            place = int(wanted[0])
        may = constraints.categories(group, x)[..., place]
    else:
        lower, upper = (end.expand_as(x)[..., list(columns)] for end in constraints.interval(x))
        may = ((wanted >= lower - 1e-5) & (wanted <= upper + 1e-5)).all(-1)
        for lattice in constraints.lattices:
            if (lattice.column,) == tuple(columns):
                # The code of an ordinal level must be one of the values that the lattice leaves.
                snapped = lattice.snap(
                    wanted.expand_as(x[..., 0]),
                    x[..., lattice.column],
                    lower[..., 0],
                    upper[..., 0],
                )
                may = may & ((snapped - wanted).abs() < 1e-3)
    return has_code | (may if held is None else may & ~held[..., list(columns)].any(-1))
