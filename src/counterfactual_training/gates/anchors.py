"""Counterfactuals from real rows, for factuals that no gradient leads to the target.

A density has a local maximum at every cluster, and a gradient may end in one that is too low. Real
rows of the target class are starting points that are known to be plausible.
"""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from counterfactual_training.constraints import Constraints
from counterfactual_training.constraints.stack_constraints import unstack_constraints
from counterfactual_training.core.broadcast import per_member
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.generators import Generator, SearchResult, Status
from counterfactual_training.models.stack import StackedModel

if TYPE_CHECKING:
    from counterfactual_training.gates.gated import Gated

# The nearest real rows, which are tried first.
_CANDIDATES = 50
_HALVINGS = 12
# Fields of a result that change when a real row replaces a counterfactual.
_LED = ("x_cf", "status", "confidence", "converged", "binding")
# Points evaluated at once, by the model and by the gate; bounds memory.
_TOGETHER = 50_000
_BLOCK = 2000


@torch.no_grad()
def mark_implausible(
    model: Gated, y_target: Tensor, result: SearchResult, generator: Generator
) -> SearchResult:
    """The result, with ``IMPLAUSIBLE`` for the rows ``(..., n)`` that only the gate keeps from
    τ.
    """
    missed = (result.status == int(Status.EXHAUSTED)) | (
        result.status == int(Status.INFEASIBLE)
    )
    if not bool(missed.any()):
        return result
    rows = y_target.dim() - 1
    # The same scale as the gated probability is made of, or another model would be judged.
    logits = torch.cat(
        [at_least_single(model.model(part)) for part in result.x_cf.split(_BLOCK, rows)], rows
    )
    reached = (logits * model.scale).softmax(-1).gather(-1, y_target.unsqueeze(-1)).squeeze(-1)
    beyond = missed & (reached >= per_member(generator.decision_threshold, 1))
    return replace(result, status=result.status.masked_fill(beyond, int(Status.IMPLAUSIBLE)))


def lead(
    model: Gated,
    x: Tensor,
    y_target: Tensor,
    result: SearchResult,
    generator: Generator,
    constraints: Constraints,
    held: Tensor | None,
) -> SearchResult:
    """Try anchors for rows ``(..., n, d)`` of one model or of a fleet."""
    if y_target.dim() == 1:
        threshold = float(generator.decision_threshold)
        return _anchor(model, x, y_target, result, threshold, constraints, held)
    if not isinstance(model.model, StackedModel):  # cannot be split into members
        return result
    thresholds = torch.as_tensor(generator.decision_threshold).flatten().expand(len(x))
    parts = []
    for i, threshold in enumerate(thresholds.tolist()):
        # The gate is shared: it depends on rows only.
        member = type(model)(model.model.unstack(i), model.gate, float(model.scale))
        mine = replace(result, **{name: getattr(result, name)[i] for name in _LED}, path=None)
        held_cells = None
        if held is not None:
            held_cells = held[i]
        rules = unstack_constraints(constraints, i)
        parts.append(_anchor(member, x[i], y_target[i], mine, threshold, rules, held_cells))
    stacked: dict[str, Any] = {
        name: torch.stack([getattr(part, name) for part in parts]) for name in _LED
    }
    return replace(result, **stacked, path=_path(result, stacked["x_cf"]))


def _anchor(
    model: Gated,
    x: Tensor,
    y_target: Tensor,
    result: SearchResult,
    threshold: float,
    constraints: Constraints,
    held: Tensor | None,
) -> SearchResult:
    """Try anchors for the rows ``(n, d)`` of a result that miss τ."""
    missed = (result.status == int(Status.EXHAUSTED)) | (
        result.status == int(Status.INFEASIBLE)
    )
    if not bool(missed.any()):
        return result
    held_cells = None
    if held is not None:
        held_cells = held[missed]
    rules = constraints.to(x)
    points = towards_real(model, x[missed], y_target[missed], rules, threshold, held_cells)
    with torch.no_grad():
        confidence = (
            model(points).softmax(-1).gather(-1, y_target[missed].unsqueeze(-1)).squeeze(-1)
        )
    # Also where τ is missed: the better of two best efforts.
    better = confidence > result.confidence[missed]
    rows = missed.nonzero().squeeze(-1)[better]
    arrived = torch.where(
        confidence[better] >= threshold, int(Status.CONVERGED), result.status[rows]
    )
    x_cf = result.x_cf.clone()
    status = result.status.clone()
    reached = result.confidence.clone()
    x_cf[rows] = points[better]
    status[rows] = arrived
    reached[rows] = confidence[better]
    # No constraint binds a row that reached τ.
    binding = result.binding.masked_fill((status == int(Status.CONVERGED)).unsqueeze(-1), 0)
    return replace(
        result,
        x_cf=x_cf,
        status=status,
        confidence=reached,
        converged=reached >= threshold,
        binding=binding,
        path=_path(result, x_cf),
    )


def _path(result: SearchResult, x_cf: Tensor) -> Tensor | None:
    """The iterates, if they were recorded, ending at x_cf."""
    if result.path is None:
        return None
    return torch.cat([result.path[:-1], x_cf.unsqueeze(0)])


@torch.no_grad()
def towards_real(
    gated: Gated,
    x: Tensor,
    y_target: Tensor,
    constraints: Constraints,
    threshold: float,
    held: Tensor | None = None,
) -> Tensor:
    """For each row x ``(n, d)``, the nearest real row of its target that the constraints allow and
    that reaches τ.

    Real rows are first projected into the bounds of x, so immutable features keep their values, and
    so do cells under the mask ``held`` ``(n, d)``. If one reaches τ, its numbers move back towards
    x as far as τ allows; otherwise the result is the one with the highest gated probability.

    Returns:
        ``(n, d)``; x itself if the ungated model gives the target τ at no projected row.
    """
    points = x.clone()
    remembered = gated.gate.real_rows
    if remembered is None:
        return points
    for target in y_target.unique().tolist():
        rows = remembered[target]
        rows = rows[~rows.isnan().any(-1)].to(x)
        if len(rows):
            # Every row meets every real row of its target, so rows are cut to bound their product.
            for part in (
                (y_target == target).nonzero().squeeze(-1).split(max(1, _TOGETHER // len(rows)))
            ):
                if held is None:
                    held_cells = None
                else:
                    held_cells = held[part]
                points[part] = _nearest(
                    gated, x[part], rows, target, constraints, threshold, held_cells
                )
    return points


def _nearest(
    gated: Gated,
    x: Tensor,
    rows: Tensor,
    target: int,
    constraints: Constraints,
    threshold: float,
    held: Tensor | None,
) -> Tensor:
    """:func:`towards_real` for rows x ``(n, d)`` with one target, from real rows ``(m, d)``."""
    n = len(x)
    m = len(rows)
    start = x.repeat_interleave(m, 0)
    if held is None:
        held_cells = None
    else:
        held_cells = held.repeat_interleave(m, 0)
    if constraints.relations is None:
        # What a person cannot change keeps its value; the rest is the real row's, as far as bounds
        # allow.
        points = rows.repeat(n, 1).clamp(*constraints.interval(start))
    else:
        points = constraints.confine(
            rows.repeat(n, 1), start, *constraints.interval(start, held_cells)
        )
    # Clamped numbers and categories may be no valid values any more.
    points = constraints.snap(points, start, held_cells)
    if held_cells is not None:
        points = torch.where(held_cells, start, points)
    # Last, because holding cells may have changed what others follow from.
    points = constraints.follow(points, start)
    # The gate is slow and can only lower the model's probability: skip rows that miss τ without it.
    of_class = functional.log_softmax(gated.model(points) * gated.scale, -1)[:, target]
    distance = (
        (points - start)
        .abs()
        .sum(-1)
        .masked_fill(of_class < log(threshold), torch.inf)
        .view(n, m)
    )
    order = distance.argsort(-1)
    points = points.view(n, m, -1)
    anchors = x.clone()
    best = torch.zeros_like(x[:, 0])
    missed = distance.isfinite().any(-1).nonzero().squeeze(-1)
    # Most rows succeed with a near one, and asking the gate about all would be many times slower.
    for tried in (order[:, :_CANDIDATES], order[:, _CANDIDATES:]):
        if len(missed) == 0 or tried.shape[1] == 0:
            break
        candidates = points[missed.unsqueeze(-1), tried[missed]]
        parts = candidates.flatten(0, 1).split(_BLOCK)
        confidence = torch.cat([_confidence(gated, part, target) for part in parts]).view(
            tried[missed].shape
        )
        arrives = confidence >= threshold
        # Candidates are sorted by distance, and argmax takes the first of equals: the nearest that
        # arrives.
        place = torch.where(
            arrives.any(-1), arrives.int().argmax(-1), confidence.argmax(-1)
        ).unsqueeze(-1)
        reached = confidence.gather(-1, place).squeeze(-1)
        better = reached > best[missed]
        anchors[missed[better]] = torch.take_along_dim(
            candidates, place.unsqueeze(-1), 1
        ).squeeze(1)[better]
        best[missed[better]] = reached[better]
        missed = missed[best[missed] < threshold]
    reached_threshold = best >= threshold
    anchors[reached_threshold] = _back(
        gated, anchors[reached_threshold], x[reached_threshold], target, threshold, constraints
    )
    return anchors


def _back(
    gated: Gated,
    points: Tensor,
    x: Tensor,
    target: int,
    threshold: float,
    constraints: Constraints,
) -> Tensor:
    """The points with their numbers as near to x as τ allows, by bisection; categories stay."""
    # Half of the way back is no category and no integer, so these stay as the real row has them.
    delta = torch.where(constraints.discrete, 0.0, points - x)
    share = torch.zeros_like(x[:, :1])  # of the way back that still reaches τ
    for halving in range(1, _HALVINGS + 1 if len(x) else 1):
        tried = share + 0.5**halving
        fine = (
            _confidence(gated, constraints.follow(points - tried * delta, x), target)
            >= threshold
        )
        share = torch.where(fine.unsqueeze(-1), tried, share)
    return constraints.follow(points - share * delta, x)


def _confidence(gated: Gated, points: Tensor, target: int) -> Tensor:
    return gated(points)[..., target].exp()
