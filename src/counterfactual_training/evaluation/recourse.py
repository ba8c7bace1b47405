"""What a counterfactual asks of a person, and whether it delivers: one value per row.

Counterfactuals and factuals are ``(..., n, d)``, results ``(..., n)``.
"""

from __future__ import annotations

from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.core.distances import l1
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.performance import check_labels

# Changes smaller than this count as none.
_TOLERANCE = 1e-5


def validity(logits_cf: Tensor, y_target: Tensor) -> Tensor:
    """Mask ``(..., n)``: the arg-max of the logits ``(..., n, k)`` at x′ is the target, whatever τ was."""
    check_labels(logits_cf, y_target)
    return logits_cf.argmax(-1) == y_target


def validity_strict(logits_cf: Tensor, y_target: Tensor, decision_threshold: float) -> Tensor:
    """Mask ``(..., n)``: the target's probability at x′ is at least τ."""
    check_labels(logits_cf, y_target)
    if not 0 <= decision_threshold <= 1:
        raise InputError(f"decision_threshold is a probability, got {decision_threshold}.")
    probability = logits_cf.softmax(-1).gather(-1, y_target.unsqueeze(-1)).squeeze(-1)
    return probability >= decision_threshold


def cost(x_cf: Tensor, x: Tensor) -> Tensor:
    """``‖x′ − x‖₁``."""
    return l1(_difference(x_cf, x))


def redundancy(x_cf: Tensor, x: Tensor, tolerance: float = _TOLERANCE) -> Tensor:
    """Share of features that did not change."""
    return (_difference(x_cf, x).abs() < tolerance).to(x.dtype).mean(-1)


def sparsity(x_cf: Tensor, x: Tensor, constraints: Constraints | None = None, tolerance: float = _TOLERANCE) -> Tensor:
    """Number of features that changed; given the constraints, a one-hot group counts as the one feature it encodes."""
    changed = _difference(x_cf, x).abs() >= tolerance
    count = changed.sum(-1)
    for group in constraints.groups if constraints is not None else ():
        part = changed[..., list(group.columns)]
        count = count - part.sum(-1) + part.any(-1)
    return count


def _difference(x_cf: Tensor, x: Tensor) -> Tensor:
    if x_cf.shape != x.shape or x.dim() < 2 or x_cf.dtype != x.dtype or x_cf.device != x.device:
        raise InputError(
            f"Counterfactuals {x_cf.dtype} {tuple(x_cf.shape)} on {x_cf.device} do not pair with factuals {x.dtype} "
            f"{tuple(x.shape)} on {x.device}; expected the same (..., n, d). Flatten images first."
        )
    return x_cf - x
