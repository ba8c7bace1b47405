"""The last step of a search among categories: real ones, one against another.

A relaxed search raises the dummy of a better category without lowering the own one, so the nearest category may still
be the old one when the search arrives. Where that takes a row back below τ, categories are tried as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from counterfactual_training.constraints import Constraints

Confidence = Callable[[Tensor, Tensor], Tensor]


def swap_categories(
    x_cf: Tensor, x: Tensor, y_target: Tensor, constraints: Constraints, confidence: Confidence, threshold: float
) -> tuple[Tensor, Tensor]:
    """Greedily swap the one category that helps most, until a row reaches the threshold or nothing helps.

    Args:
        x_cf, x: ``(n, d)`` points with valid categories, and their factuals.
        y_target: ``(n,)``.
        confidence: of rows and targets, ``(n,)``.

    Returns:
        The points and their confidence ``(n,)``.
    """
    x_cf, current = x_cf.clone(), confidence(x_cf, y_target)
    for _ in constraints.groups:
        rows = (current < threshold).nonzero().squeeze(-1)
        if len(rows) == 0:
            break
        best, point = current[rows], x_cf[rows]
        for group in constraints.groups:
            allowed = constraints.categories(group, x[rows]) & ~group.own(x_cf[rows])
            for category in range(allowed.shape[-1]):
                here = allowed[:, category].nonzero().squeeze(-1)
                if len(here) == 0:
                    continue
                trial = x_cf[rows[here]]
                trial[:, list(group.columns)] = group.encode(here.new_full((), category), trial.dtype)
                gained = confidence(trial, y_target[rows[here]])
                better = gained > best[here] + 1e-6
                best[here[better]], point[here[better]] = gained[better], trial[better]
        if not bool((best > current[rows]).any()):
            break
        x_cf[rows], current[rows] = point, best
    return x_cf, current
