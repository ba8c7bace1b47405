"""Why a row missed its target: which changes would help, and which rules forbid them.

:func:`diagnose_rows` asks this at the end of a search, column by column, about the next step of Eq.
1. :func:`diagnose_points` asks it of any point, about the target's probability alone, and treats
categories as jumps. Both answer only for this point and this model; neither proves that no
counterfactual exists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from counterfactual_training.constraints import Constraints, OneHotGroup
from counterfactual_training.constraints.relations import Relations
from counterfactual_training.core.broadcast import per_member
from counterfactual_training.core.losses import class_loss_gradient
from counterfactual_training.generators.chain import ByAutograd, Differentiable
from counterfactual_training.generators.generator import Generator
from counterfactual_training.generators.gradient import search_gradient
from counterfactual_training.generators.penalties import SearchState
from counterfactual_training.generators.relation_obstacles import binding_limits, needs_in_vain
from counterfactual_training.generators.result import Binding, SearchResult, Status

# Changes that help less than this share of the most helpful one are not reported …
_WORTH_TELLING = 0.05
# … and below this share they do not count as a way out.
_WORTH_TRYING = 1e-3
# Step lengths, in standard deviations, that show whether numbers can still help.
_STEPS = (0.01, 0.03, 0.1, 0.3, 1.0)


# Which way each column of points (n, d) would help their targets (n,), and how much, of a model:
# (n, d).
Slope = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Obstacle(IntEnum):
    """Why a feature cannot move the way that would help."""

    NONE = 0
    FIXED = 1  #: may not change at all
    ONLY_RISES = 2
    ONLY_FALLS = 3
    LIMIT = 4  #: at the end of its domain
    CATEGORY = 5  #: may not become the category that would help
    #: A relation to other features leaves no room; codes 6 + i stand for the i-th of ``all_texts``.
    RELATION = 6


# The coarser words of a SearchResult, by Obstacle.
_BINDING = (Binding.NOTHING, *(Binding.MUTABILITY,) * 3, *(Binding.DOMAIN,) * 2)


class Diagnosis(NamedTuple):
    """Rows ``(n, d)`` that missed their target; the columns of a one-hot group share one answer.

    Attributes:
        stuck: ``(n,)`` whether every change worth trying is forbidden.
        gain: ``(n, d)`` how much each column would help: by unit of model space, or by the best
            category.
        obstacle: ``(n, d)`` values of :class:`Obstacle` worth reporting (the i-th relation is
            ``RELATION + i``); all ``NONE`` for rows that are not stuck.
        hindered: ``(n, d)`` the same of all rows.
    """

    stuck: Tensor
    gain: Tensor
    obstacle: Tensor
    hindered: Tensor


def forbidding_rules(wish: Tensor, at_end: Tensor, constraints: Constraints) -> Tensor:
    """The rule against each column's move in the direction of ``wish``: values of
    :class:`Obstacle`.

    Args:
        wish: ``(..., n, d)``.
        at_end: mask ``(..., n, d)`` of columns whose domain leaves no room that way.
    """
    up = constraints.may_increase.unsqueeze(-2)
    down = constraints.may_decrease.unsqueeze(-2)
    one_way = torch.where(up, int(Obstacle.ONLY_RISES), int(Obstacle.ONLY_FALLS))
    against = torch.where(up | down, one_way, int(Obstacle.FIXED))
    along = torch.where(at_end, int(Obstacle.LIMIT), int(Obstacle.NONE))
    # What the direction forbids comes before the edge of the domain: it would hold inside, too.
    return torch.where(torch.where(wish > 0, up, down), along, against)


# ---- at the end of a search ----------------------------------------------------------------------


def diagnose_rows(
    result: SearchResult,
    network: Differentiable,
    x: Tensor,
    y_target: Tensor,
    generator: Generator,
    constraints: Constraints,
) -> SearchResult:
    """Fill in ``binding``, and separate rows that are stuck (infeasible) from rows that ran out of
    steps (exhausted).

    At the last iterate, a feature *wants* to move if the gradient of Eq. 1 says so, and is
    *blocked* if mutability and domain leave nothing of that step. A row whose wishes are all
    blocked is infeasible.
    """
    late = result.status == int(Status.EXHAUSTED)
    binding = torch.zeros(x.shape, dtype=torch.int8, device=x.device)
    if not bool(late.any()):
        return replace(result, binding=binding)
    # A lone model looks at the late rows only; a fleet needs its rectangular batch.
    rows = late.nonzero().squeeze(-1) if late.dim() == 1 else slice(None)
    x_cf = result.x_cf[rows]
    x = x[rows]
    y_target = y_target[rows]
    logits = network.logits(x_cf)
    # A model without a gradient does not say what it wishes for.
    if (
        isinstance(network, ByAutograd)
        and generator.is_gradient_free
        and not network.output.requires_grad
    ):
        return replace(result, binding=binding)
    steps = generator.max_steps
    # As after the last step, so that a decaying penalty has the weight it had then.
    limit = steps.unsqueeze(-1) if isinstance(steps, Tensor) else steps
    threshold = generator.decision_threshold
    state = SearchState(x, x_cf, x_cf - x, logits, y_target, limit, limit, threshold=threshold)
    wish = search_gradient(
        generator, state, network, class_loss_gradient(logits.softmax(-1), y_target)
    )
    wish = constraints.through(wish, x_cf)
    # In units of a step, because projection is asked about the very step that comes next.
    wish.mul_(per_member(generator.learning_rate, 2)).neg_()
    size = wish.abs()
    # Where the model is flat, no feature wants to move, so none is blocked.
    wants = size > torch.maximum(1e-6 * size.amax(-1, keepdim=True), size.new_full((), 1e-12))
    step = constraints.mask_step(wish.clone())
    # Less than a thousandth of the step counts as nothing; rounding alone can leave a little.
    at_end = (
        constraints.project(x_cf + step, constraints.bounds(x)) - x_cf
    ).abs() <= 1e-3 * size
    blocked = wants & at_end
    # A row without any wish is not stuck but flat: nothing forbids it anything.
    stuck = wants.any(-1) & (blocked == wants).all(-1)
    reason = torch.tensor(_BINDING, dtype=torch.int8, device=x.device)[
        forbidding_rules(wish, at_end, constraints)
    ]
    binding[rows] = reason * (blocked & late[rows].unsqueeze(-1))
    status = result.status.clone()
    status[rows] = torch.where(stuck & late[rows], int(Status.INFEASIBLE), status[rows])
    return replace(result, status=status, binding=binding)


# ---- at any point --------------------------------------------------------------------------------


def diagnose_points(
    model: nn.Module,
    x: Tensor,
    x_cf: Tensor,
    y_target: Tensor,
    constraints: Constraints,
    doubted: Tensor | None = None,
    slope: Slope | None = None,
) -> Diagnosis:
    """What would raise the target's probability at x_cf, and which rules forbid it.

    Args:
        model: a classifier in eval mode.
        x, x_cf: ``(n, d)`` factuals and the points they reached.
        y_target: ``(n,)``.
        doubted: mask ``(d,)`` of numbers whose slope is not trusted: they are a way out only if a
            step along it helps. Near the most plausible point of a gated model, slopes promise more
            than any step gives.
        slope: stands for the gradient of a model that has none.
    """
    constraints = constraints.to(x)
    wish = constraints.through((slope or _slope)(model, x_cf, y_target), x_cf)
    # A copy, because jumps of binary columns are written into the wish and _in_reach needs the
    # slope.
    gain, obstacle = _gains(model, x, x_cf, y_target, constraints, wish.clone())
    most = gain.amax(-1, keepdim=True)
    hindered = (obstacle != int(Obstacle.NONE)) & (gain > _WORTH_TELLING * most)
    way_out = (obstacle == int(Obstacle.NONE)) & (gain > _WORTH_TRYING * most)
    if doubted is not None:
        in_vain = hindered.any(-1) & (
            _in_reach(model, x, x_cf, y_target, constraints, wish) < _WORTH_TELLING
        )
        way_out &= ~(doubted & in_vain.unsqueeze(-1))
    stuck = ~way_out.any(-1)
    # Where nothing at all may move, that is the reason, even if nothing would have helped either.
    reasons = hindered | (obstacle == int(Obstacle.FIXED)).all(-1, keepdim=True)
    hindrance = torch.where(reasons, obstacle, int(Obstacle.NONE))
    binding = torch.where(stuck.unsqueeze(-1), hindrance, int(Obstacle.NONE))
    return Diagnosis(stuck, gain, binding, hindrance)


def _gains(
    model: nn.Module,
    x: Tensor,
    x_cf: Tensor,
    y_target: Tensor,
    constraints: Constraints,
    wish: Tensor,
) -> tuple[Tensor, Tensor]:
    """How much each column would help ``(n, d)``, and what forbids it: values of :class:`Obstacle`
    ``(n, d)``.

    ``wish`` ``(n, d)`` is the slope at x_cf.
    """
    relations = constraints.relations
    bounds = constraints.bounds(x)
    end = torch.where(wish > 0, bounds.upper, bounds.lower)
    # A column without a bound has no furthest value; one standard deviation more is as good as any.
    # Rounded: a column may stand at the last integer before a bound that is no integer. Relations
    # follow below.
    furthest = replace(constraints, relations=None).snap(
        torch.where(end.isfinite(), end, x_cf + wish.sign()), x
    )
    at_end = (furthest - x_cf).abs() <= 1e-4 * (1 + x_cf.abs())
    # Categories first: binaries enter the wish, so that the same rules judge them and numbers.
    jumps = [_jumps(model, x_cf, y_target, group) for group in constraints.groups]
    for group, jump in zip(constraints.groups, jumps, strict=True):
        if len(group.columns) == 1:  # what the jump gains, with the sign of its direction
            rise = jump[:, 1]
            fall = jump[:, 0]
            wish[:, group.columns[0]] = torch.where(
                rise > fall, rise.clamp_min(0), -fall.clamp_min(0)
            )
    gain = wish.abs()
    obstacle = forbidding_rules(wish, at_end, constraints)
    if relations is not None:
        binding = binding_limits(constraints, relations, x, x_cf, wish)
        obstacle = torch.where(
            (obstacle == 0) & (binding >= 0), int(Obstacle.RELATION) + binding, obstacle
        )
        gain[:, relations.following] = 0.0  # their inputs speak for them
        obstacle[:, relations.following] = int(Obstacle.NONE)
    for group, jump in zip(constraints.groups, jumps, strict=True):
        columns = list(group.columns)
        # Already the better of two categories: not a limit, there is nothing to gain.
        if len(columns) == 1:
            done = obstacle[:, columns] == int(Obstacle.LIMIT)
            gain[:, columns] = gain[:, columns].masked_fill(done, 0.0)
            obstacle[:, columns] = obstacle[:, columns].masked_fill(done, int(Obstacle.NONE))
        else:
            fixed = bool(constraints.immutable[columns].all())
            # A box without 1 in a column is how constraints say that a category is out of reach.
            best, why = _best_category(jump, bounds.upper.expand_as(x)[:, columns], fixed)
            gain[:, columns] = best.unsqueeze(-1)
            obstacle[:, columns] = why.unsqueeze(-1)
        if relations is not None and relations.implications:
            _need_others(constraints, relations, group, x, x_cf, jump, gain, obstacle)
    return gain, obstacle


def _need_others(
    constraints: Constraints,
    relations: Relations,
    group: OneHotGroup,
    x: Tensor,
    x_cf: Tensor,
    jump: Tensor,
    gain: Tensor,
    obstacle: Tensor,
) -> None:
    """Where all categories that help need others which a row may not take, the rule that says so is
    the obstacle.
    """
    vain, rule = needs_in_vain(constraints, relations, group, x, x_cf)
    columns = list(group.columns)
    reachable = constraints.categories(group, x)
    best, place = jump.masked_fill(~reachable, 0.0).max(-1)
    free = jump.masked_fill(~reachable | vain, 0.0).amax(-1)
    # Only where the group is free otherwise: what forbids it directly is the simpler reason.
    stopped = (best > 0) & (free <= 0) & (obstacle[:, columns[0]] == int(Obstacle.NONE))
    # Implications are numbered behind the linear relations, as in ``all_texts``.
    code = int(Obstacle.RELATION) + len(relations.texts) + rule.gather(-1, place.unsqueeze(-1))
    obstacle[:, columns] = torch.where(stopped.unsqueeze(-1), code, obstacle[:, columns])
    gain[:, columns] = torch.where(stopped.unsqueeze(-1), best.unsqueeze(-1), gain[:, columns])


def _best_category(jump: Tensor, upper: Tensor, fixed: bool) -> tuple[Tensor, Tensor]:
    """The gain ``(n,)`` of the best allowed category, or of the best one if no allowed one helps;
    and the obstacle.
    """
    best = jump.amax(-1).clamp_min(0.0)
    if fixed:
        return best, torch.full_like(best, int(Obstacle.FIXED), dtype=torch.long)
    allowed = jump.masked_fill(upper < 0.5, 0.0).amax(-1).clamp_min(0.0)
    forbidden = (best > 0) & (allowed <= 0)
    return torch.where(forbidden, best, allowed), torch.where(
        forbidden, int(Obstacle.CATEGORY), int(Obstacle.NONE)
    )


def _slope(model: nn.Module, x_cf: Tensor, y_target: Tensor) -> Tensor:
    """``∂ log p(target) / ∂x′`` ``(n, d)``: which way each column would help."""
    with torch.enable_grad():
        leaf = x_cf.detach().requires_grad_()
        return torch.autograd.grad(_log_probability(model, leaf, y_target).sum(), leaf)[0]


@torch.no_grad()
def _jumps(model: nn.Module, x_cf: Tensor, y_target: Tensor, group: OneHotGroup) -> Tensor:
    """What log p(target) gains by each category of a group, ``(n, max(k, 2))``.

    Categories are few, so each is tried: a slope says little about the other end of a jump.
    """
    # In log p, the unit of the slope, so that categories and numbers can be compared.
    now = _log_probability(model, x_cf, y_target)
    gained = []
    for category in range(group.num_categories):
        point = x_cf.clone()
        point[:, list(group.columns)] = group.encode(
            torch.tensor(category, device=x_cf.device), x_cf.dtype
        )
        gained.append(_log_probability(model, point, y_target) - now)
    return torch.stack(gained, -1)


def _in_reach(
    model: nn.Module,
    x: Tensor,
    x_cf: Tensor,
    y_target: Tensor,
    constraints: Constraints,
    slope: Tensor,
) -> Tensor:
    """The largest share ``(n,)`` of what log p(target) lacks to 0 that a step of the numbers along
    the slope gains.
    """
    slope = slope.clone()
    for group in constraints.groups:
        # A small step of a category is none.
        slope[:, list(group.columns)] = 0.0
    direction = functional.normalize(constraints.mask_step(slope), dim=-1)
    bounds = constraints.bounds(x)
    ends = (bounds.lower, bounds.upper)
    points = [
        x_cf,
        *(constraints.confine(x_cf + step * direction, x, *ends, x_cf) for step in _STEPS),
    ]
    with torch.no_grad():
        now, *then = (_log_probability(model, point, y_target) for point in points)
    # Near p = 1 there is nothing to gain; the clamp keeps the share finite.
    return (torch.stack(then).amax(0) - now) / -now.clamp_max(-1e-6)


def _log_probability(model: nn.Module, x: Tensor, y_target: Tensor) -> Tensor:
    """``(n,)``."""
    return model(x).log_softmax(-1).gather(-1, y_target.unsqueeze(-1)).squeeze(-1)
