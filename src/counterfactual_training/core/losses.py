"""Losses of logits, and of numbers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from counterfactual_training.core.energy import mean_rows


def class_loss(logits: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean cross-entropy ``−log softmax(M(x))[y]`` over rows: ``(...)``.

    Args:
        logits: ``(..., n, k)``.
        y: ``(..., n)`` classes.
        weight: ``(..., n)`` weight of each row; see :func:`mean_rows`.

    Examples:
        >>> import torch
        >>> import counterfactual_training as ct
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 9.0]])  # one undecided, one certain of 1
        >>> y = torch.tensor([1, 1])
        >>> print(f"{ct.class_loss(logits, y):.3f}")
        0.347
        >>> print(f"{ct.class_loss(logits, y, weight=torch.tensor([0.0, 1.0])):.3f}")
        0.000
    """
    if _is_binary_fleet(logits):
        # log p₁ = logsigmoid(M₁ − M₀), log p₀ = logsigmoid(M₀ − M₁): one call for both classes.
        margin = logits[..., 1] - logits[..., 0]
        log_probability = functional.logsigmoid(torch.where(y == 1, margin, -margin))
    else:
        log_probability = torch.log_softmax(logits, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    return mean_rows(-log_probability, weight)


def value_loss(outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean squared error over rows ``(...)`` of outputs ``(..., n, 1)`` for numbers y ``(...,
    n)``.
    """
    return mean_rows((outputs.squeeze(-1) - y).square(), weight)


def softmax(logits: Tensor) -> Tensor:
    """Class probabilities ``(..., n, k)``."""
    if _is_binary_fleet(logits):
        return torch.sigmoid(logits - logits.flip(-1))
    return logits.softmax(-1)


def _is_binary_fleet(logits: Tensor) -> bool:
    """Whether these are two-class logits of a fleet.

    Torch's softmax over two columns is ten times slower than a sigmoid, which matters in a fleet. A
    lone model keeps torch's softmax, so its results stay the same bit by bit.
    """
    return logits.dim() > 2 and logits.shape[-1] == 2


def log_odds(logits: Tensor, y: Tensor) -> Tensor:
    """``M(x)[y] − log Σ_{k≠y} exp M(x)[k]`` ``(..., n)``: logit of the probability of y."""
    chosen = y.unsqueeze(-1)
    # exp(−∞) = 0 leaves y out of the sum. Unlike log p − log(1 − p), this keeps its digits where p
    # is near 0 or 1.
    others = logits.scatter(-1, chosen, -torch.inf).logsumexp(-1)
    return logits.gather(-1, chosen).squeeze(-1) - others


def class_loss_gradient(probability: Tensor, y: Tensor) -> Tensor:
    """Gradient of the summed cross-entropy in the logits ``(..., n, k)``: ``softmax(M(x)) −
    onehot(y)``.
    """
    # −1 is added at y alone; a one-hot would be another (..., n, k).
    return probability.scatter_add(
        -1, y.unsqueeze(-1), probability.new_full((1,), -1.0).expand(*y.shape, 1)
    )
