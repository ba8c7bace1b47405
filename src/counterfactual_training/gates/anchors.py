"""A way to the target by real rows, for those whom no gradient leads there.

A density has a summit at every cluster, and the nearest may be too low. A real row of the class is a summit that is
known to be high enough.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.gates.density import Density
from counterfactual_training.gates.gated import Both, Gate, Gated
from counterfactual_training.search import Generator, SearchResult, Status, search

_HALVINGS = 12


def search_gated(
    model: nn.Module,
    x: Tensor,
    y_target: Tensor,
    generator: Generator | None = None,
    constraints: Constraints | None = None,
    *,
    diagnose: bool = True,
) -> SearchResult:
    """As :func:`search`; rows x ``(n, *features)`` that it does not bring through a gate are led by real rows.

    Of a model without a gate, or with one that remembers no rows, it is :func:`search`.
    """
    found = search(model, x, y_target, generator, constraints, diagnose=diagnose)
    missed = (found.status == int(Status.EXHAUSTED)) | (found.status == int(Status.INFEASIBLE))
    if generator is None or not isinstance(model, Gated) or not bool(missed.any()) or real_rows(model.gate) is None:
        return found
    threshold = float(generator.decision_threshold)
    rules = (constraints if constraints is not None else Constraints.build(x[0].numel())).to(x)
    points = towards_real(model, x[missed].flatten(1), y_target[missed], rules, threshold)
    with torch.no_grad():
        confidence = model(points.unflatten(-1, x.shape[1:])).softmax(-1)
    confidence = confidence.gather(-1, y_target[missed].unsqueeze(-1)).squeeze(-1)
    better = confidence > found.confidence[missed]
    rows = missed.nonzero().squeeze(-1)[better]
    arrived = torch.where(confidence[better] >= threshold, int(Status.CONVERGED), found.status[rows])
    x_cf, status, reached = found.x_cf.clone(), found.status.clone(), found.confidence.clone()
    x_cf[rows], status[rows] = points[better].unflatten(-1, x.shape[1:]), arrived
    reached[rows] = confidence[better]
    return replace(found, x_cf=x_cf, status=status, confidence=reached, converged=reached >= threshold)


def real_rows(gate: Gate) -> Tensor | None:
    """Rows ``(k, m, d)`` that a gate remembers, NaN where a class has fewer; ``None`` if it remembers none."""
    for part in gate.parts if isinstance(gate, Both) else (gate,):
        if isinstance(part, Density):
            return part.centres.masked_fill((part.width == 0).unsqueeze(-1), torch.nan)
    return None


@torch.no_grad()
def towards_real(gated: Gated, x: Tensor, y_target: Tensor, constraints: Constraints, threshold: float) -> Tensor:
    """For each row x ``(n, d)`` the nearest real row of its target that the rules allow and that reaches τ.

    Real rows are brought into the bounds of x first: what may not change stays. Where one reaches τ, its numbers come
    back towards x as far as τ lets; where none does, the result is the one with the highest gated probability, the most
    plausible point that is known to be within reach.

    Returns:
        ``(n, d)``; x itself where the gate remembers no row of the target.
    """
    remembered = real_rows(gated.gate)
    if remembered is None:
        return x.clone()
    found = x.clone()
    for i, (row, target) in enumerate(zip(x, y_target.tolist(), strict=True)):
        rows = remembered[target]
        rows = rows[~rows.isnan().any(-1)].to(row)
        if len(rows) == 0:
            continue
        points = _within(rows, row, constraints)
        points = points[(points - row).abs().sum(-1).argsort()]
        confidence = _confidence(gated, points, target)
        arrives = (confidence >= threshold).nonzero().squeeze(-1)
        best = int(arrives[0]) if len(arrives) else int(confidence.argmax())
        found[i] = _back(gated, points[best], row, target, threshold, constraints) if len(arrives) else points[best]
    return found


def _within(rows: Tensor, x: Tensor, constraints: Constraints) -> Tensor:
    """Real rows ``(m, d)``, changed where a counterfactual of x ``(d,)`` may not be as they are."""
    start = x.expand_as(rows)
    bounds = constraints.bounds(start)
    points = rows.clamp(bounds.lower, bounds.upper)
    points = torch.where(constraints.may_increase, points, torch.minimum(points, start))
    points = torch.where(constraints.may_decrease, points, torch.maximum(points, start))
    return constraints.snap(points, start)


def _back(gated: Gated, point: Tensor, x: Tensor, target: int, threshold: float, constraints: Constraints) -> Tensor:
    """The point with its numbers as near to x as τ lets, by bisection; categories stay."""
    delta = torch.where(constraints.discrete, 0.0, point - x)
    low, high = 0.0, 1.0  # share of the way back that is known to be fine, and not
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fine = float(_confidence(gated, (point - middle * delta).unsqueeze(0), target)) >= threshold
        low, high = (middle, high) if fine else (low, middle)
    return point - low * delta


def _confidence(gated: Gated, points: Tensor, target: int) -> Tensor:
    return gated(points)[..., target].exp()
