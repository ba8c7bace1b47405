"""Accuracy under attack, over a range of budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.attacks import fgsm
from counterfactual_training.evaluation.performance import accuracy, predict_logits


class Attack(Protocol):
    """Inputs near x, within ε, that the model should still get right; settings are bound with ``functools.partial``."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, epsilon: float | Tensor, /) -> Tensor: ...


def robust_accuracy(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    epsilons: Sequence[float | Tensor],
    attack: Attack = fgsm,
    batch_size: int = 4096,
) -> Tensor:
    """Share of rows still classified as their label after the attack, for each ε; no attack is made for ε = 0.

    Args:
        model: any classifier that returns logits.
        x: ``(..., n, *features)``; y: ``(..., n)``.
        epsilons: budgets, each a number or one value per feature.
        attack: for example ``partial(pgd, rng=rng, constraints=constraints)``.
        batch_size: rows attacked at once.

    Returns:
        ``(len(epsilons), ...)``.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be positive, got {batch_size}.")
    if y.numel() == 0:
        raise InputError("There are no rows to attack.")
    row_dim = y.dim() - 1
    batches = list(zip(x.split(batch_size, row_dim), y.split(batch_size, row_dim), strict=True))

    def logits_under(epsilon: float | Tensor) -> Tensor:
        still = not bool(torch.as_tensor(epsilon).any())
        attacked = (part if still else attack(model, part, labels, epsilon) for part, labels in batches)
        return torch.cat([predict_logits(model, part, batch_size, row_dim) for part in attacked], row_dim)

    return torch.stack([accuracy(logits_under(epsilon), y) for epsilon in epsilons])
