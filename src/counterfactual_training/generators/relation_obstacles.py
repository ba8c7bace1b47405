"""Which relation between features leaves no room for a change that would help."""

from __future__ import annotations

import torch
from torch import Tensor

from counterfactual_training.constraints import (
    Constraints,
    OneHotGroup,
    may_take_code,
)
from counterfactual_training.constraints.relations import Relations

# Room below this share of (1 + |z|) is none.
_NO_ROOM = 1e-4
# Another column makes room if it loses less than this share of what the room is worth.
_WORTHWHILE = 0.95


def binding_limits(
    constraints: Constraints, relations: Relations, x: Tensor, x_cf: Tensor, wish: Tensor
) -> Tensor:
    """The relation ``(n, d)`` that stops each column on the way of its wish ``(n, d)``; −1 where
    none does.

    A relation stops a column that has no room left, if no other column of it can make room without
    losing as much as is gained. Relations are numbered as in :attr:`Relations.all_texts`.
    """
    binding = torch.full(x.shape, -1, dtype=torch.long, device=x.device)
    bounds = constraints.bounds(x)
    free = [
        end > _NO_ROOM * (1 + x_cf.abs()) for end in (bounds.upper - x_cf, x_cf - bounds.lower)
    ]
    least = _next_step(constraints, x_cf, wish)
    low, high = relations.limits(x, 0.0)
    value = x_cf @ relations.normals.mT
    limits = [
        (i, normal, (high - value)[:, i], (value - low)[:, i], 0.0)
        for i, normal in enumerate(relations.normals)
    ]
    behind = len(relations.texts) + len(relations.implications)
    for i, follower in enumerate(relations.followers, behind):
        # What may not change itself stops its inputs. Near x_cf it is as good as linear.
        only = torch.zeros_like(x_cf).index_fill_(
            -1, torch.tensor([follower.column], device=x.device), 1.0
        )
        least_value, most_value = follower.limits(x)
        value = x_cf[:, follower.column]
        # A change that rounding hides is none.
        hidden = 2 * follower.rounding / follower.scale
        limits.append(
            (i, relations.through(only, x_cf), most_value - value, value - least_value, hidden)
        )
    for i, normal, above, below, hidden in limits:
        # The first relation that stops a column is named; one is enough to explain it.
        stopped = _stopped(
            normal, wish, above.unsqueeze(-1), below.unsqueeze(-1), least, hidden, *free
        )
        binding = torch.where(stopped & (binding < 0), i, binding)
    return binding


def _stopped(
    normal: Tensor,
    wish: Tensor,
    above: Tensor,
    below: Tensor,
    least: Tensor,
    hidden: float,
    up: Tensor,
    down: Tensor,
) -> Tensor:
    """Mask ``(n, d)`` of the columns that a limit on ``normal · z`` keeps from their wish.

    Args:
        normal: ``(d,)``, or one per row.
        above, below: ``(n, 1)`` room to the upper and to the lower limit, in units of ``normal ·
            z``.
        least: ``(n, d)`` the smallest change of each column.
        hidden: room that is no room, in units of ``normal · z``.
        up, down: masks ``(n, d)`` of the columns that may still rise and fall.
    """
    way = (normal * wish).sign()  # which limit a wish leads to
    room = torch.where(way > 0, above, below)
    full = (normal != 0) & (way != 0) & (room < least * normal.abs() + hidden)
    # Other columns could move the value away from its upper limit or its lower one, each at a loss
    # of its own. Gain per unit of room, so that gains and losses of different columns can be
    # compared.
    rate = wish / normal.where(normal != 0, 1.0)
    from_high = torch.where(normal > 0, down, up) & (normal != 0)
    from_low = torch.where(normal > 0, up, down) & (normal != 0)
    loss = torch.where(
        way > 0,
        _least_of_others(rate.masked_fill(~from_high, torch.inf)),
        _least_of_others((-rate).masked_fill(~from_low, torch.inf)),
    )
    return full & ~(loss < _WORTHWHILE * rate.abs())


def _least_of_others(values: Tensor) -> Tensor:
    """The smallest value among the other columns of each row ``(n, d)``."""
    if values.shape[-1] == 1:
        return torch.full_like(values, torch.inf)
    # The least of the others is the smallest of all, except for that one itself, which gets the
    # second smallest.
    (first, second), place = (
        values.topk(2, -1, largest=False)[0].unbind(-1),
        values.argmin(-1, keepdim=True),
    )
    is_least = torch.zeros_like(values, dtype=torch.bool).scatter_(-1, place, True)
    return torch.where(is_least, second.unsqueeze(-1), first.unsqueeze(-1))


def _next_step(constraints: Constraints, x_cf: Tensor, wish: Tensor) -> Tensor:
    """The smallest change of each column ``(n, d)`` along its wish: to the next value it may
    have.
    """
    least = _NO_ROOM * (1 + x_cf.abs())
    for lattice in constraints.lattices:
        j = lattice.column
        below, above = lattice.beside(x_cf[:, j])
        # A little less than the distance, or rounding would make the next value look out of reach.
        least[:, j] = torch.where(wish[:, j] > 0, above - x_cf[:, j], x_cf[:, j] - below) * (
            1 - _NO_ROOM
        )
    return least


def needs_in_vain(
    constraints: Constraints, relations: Relations, group: OneHotGroup, x: Tensor, x_cf: Tensor
) -> tuple[Tensor, Tensor]:
    """Mask ``(n, max(k, 2))`` of categories that need another one which x_cf lacks and x may not
    take; by which rule.

    The rules are numbered as :attr:`Relations.implications`.
    """
    vain = torch.zeros(len(x), group.num_categories, dtype=torch.bool, device=x.device)
    rule_of = torch.full_like(vain, -1, dtype=torch.long)
    for i, rule in enumerate(relations.implications):
        if rule.condition != group.columns:
            continue
        code = x.new_tensor(rule.code)
        if len(rule.condition) > 1:
            place = int(code.argmax())
        else:
            place = int(code[0])
        point = x_cf.clone()
        # The point as it would be in that category: does it have what the rule needs?
        point[:, list(rule.condition)] = code
        lacks = rule.broken(point) & ~may_take_code(
            constraints, rule.needed, rule.needed_code, x
        )
        vain[:, place] |= lacks
        rule_of[:, place] = torch.where(lacks, i, rule_of[:, place])
    return vain, rule_of
