"""What a counterfactual asks of a person, and whether it delivers: one value per row.

Counterfactuals and factuals are ``(..., n, d)``, results ``(..., n)``.
"""

from __future__ import annotations

from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.core.distances import l1

# Changes smaller than this count as none.
_TOLERANCE = 1e-5


def validity(logits_cf: Tensor, y_target: Tensor) -> Tensor:
    """Mask ``(..., n)``: the arg-max of the logits ``(..., n, k)`` at x′ is the target, whatever τ
    was.
    """
    return logits_cf.argmax(-1) == y_target


def validity_strict(logits_cf: Tensor, y_target: Tensor, decision_threshold: float) -> Tensor:
    """Mask ``(..., n)``: the target's probability at x′ is at least τ."""
    probability = logits_cf.softmax(-1).gather(-1, y_target.unsqueeze(-1)).squeeze(-1)
    return probability >= decision_threshold


def cost(x_cf: Tensor, x: Tensor) -> Tensor:
    """``‖x′ − x‖₁``."""
    return l1(x_cf - x)


def redundancy(x_cf: Tensor, x: Tensor) -> Tensor:
    """Share of features that did not change."""
    return ((x_cf - x).abs() < _TOLERANCE).to(x.dtype).mean(-1)


def sparsity(x_cf: Tensor, x: Tensor, constraints: Constraints | None = None) -> Tensor:
    """Number of features that changed; given the constraints, a one-hot group counts as the one
    feature it encodes.
    """
    changed = (x_cf - x).abs() >= _TOLERANCE
    count = changed.sum(-1)
    for group in constraints.groups if constraints is not None else ():
        part = changed[..., list(group.columns)]
        # A change of category moves two columns, but is one change.
        count = count - part.sum(-1) + part.any(-1)
    return count
