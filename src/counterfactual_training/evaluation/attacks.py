"""Accuracy under attack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.performance import accuracy, predict_logits
from counterfactual_training.generators.perturbations import fgsm


class Attack(Protocol):
    """Inputs near x, within ε, that the model should still get right; settings are bound with
    ``functools.partial``.
    """

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, epsilon: float | Tensor, /
    ) -> Tensor: ...


def robust_accuracy(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    epsilons: Sequence[float | Tensor],
    attack: Attack = fgsm,
    batch_size: int = 4096,
) -> Tensor:
    """Share of rows still classified as their label after the attack, for each ε: ``(len(epsilons),
    ...)``.

    Args:
        x: ``(..., n, *features)``; y: ``(..., n)``.
        epsilons: budgets, each a number or one value per feature; no attack is made for 0.
        attack: for example ``partial(pgd, rng=rng, constraints=constraints)``.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be positive, got {batch_size}.")
    if y.numel() == 0:
        raise InputError("There are no rows to attack.")
    row_dim = y.dim() - 1
    # Cut into batches once, so that all ε attack the same ones.
    batches = list(zip(x.split(batch_size, row_dim), y.split(batch_size, row_dim), strict=True))
    shares = []
    for epsilon in epsilons:
        # ε = 0 is plain accuracy, for which no gradient is needed.
        no_attack = not bool(torch.as_tensor(epsilon).any())
        attacked = (
            part if no_attack else attack(model, part, labels, epsilon)
            for part, labels in batches
        )
        logits = torch.cat(
            [predict_logits(model, part, batch_size, row_dim) for part in attacked], row_dim
        )
        shares.append(accuracy(logits, y))
    return torch.stack(shares)
