"""Classification losses on logits (the first term of Eq. 2, and Eq. 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from counterfactual_training.core.energy import mean_rows


def class_loss(logits: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean cross-entropy ``−log softmax(M(x))[y]`` over rows.

    Args:
        logits: ``(..., n, k)``.
        y: ``(..., n)`` class indices.
        weight: ``(..., n)``, see :func:`mean_rows`.

    Returns:
        ``(...)``.
    """
    log_probability = torch.log_softmax(logits, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    return mean_rows(-log_probability, weight)


def adversarial_loss(logits_adv: Tensor, y_adv: Tensor, weight: Tensor | None = None) -> Tensor:
    """Eq. 4: the class loss at nascent counterfactuals, which carry their factual's label."""
    return class_loss(logits_adv, y_adv, weight)


def class_loss_gradient(probability: Tensor, y: Tensor) -> Tensor:
    """Gradient of the summed cross-entropy with respect to the logits: ``softmax(M(x)) − onehot(y)``.

    Args:
        probability: ``(..., n, k)`` softmax of the logits.
        y: ``(..., n)``.
    """
    return probability.scatter_add(-1, y.unsqueeze(-1), probability.new_full((1,), -1.0).expand(*y.shape, 1))
