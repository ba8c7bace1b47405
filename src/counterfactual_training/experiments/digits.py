"""What MNIST models show: counterfactual images, and which pixels they look at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from counterfactual_training.data.dataset import Dataset
from counterfactual_training.evaluation.attribution import integrated_gradients
from counterfactual_training.evaluation.performance import predict_logits
from counterfactual_training.evaluation.protocol import PUBLISHED
from counterfactual_training.search import ecco, search

LAMBDA_ENERGY = 5.0
NUM_BASELINES = 5


@dataclass(frozen=True, eq=False)
class Digits:
    """Images ``(…, 28, 28)`` of one model.

    Attributes:
        grid: ``(10, 10, 28, 28)``; row i holds the counterfactuals of a factual of class i, column j the target. The
            factual itself is on the diagonal.
        attributions: ``(10, 28, 28)`` mean absolute value of the class-conditional integrated gradients.
    """

    title: str
    grid: Tensor
    attributions: Tensor


def pick_factuals(models: list[nn.Module], data: Dataset, seed: int = 0) -> Tensor:
    """Row numbers ``(k,)``: of each class one test image, at random among those that all the models get right."""
    right = torch.ones_like(data.y_test, dtype=torch.bool)
    for model in models:
        right &= predict_logits(model, data.x_test).argmax(-1) == data.y_test
    rng = torch.Generator().manual_seed(seed)
    pools = [((data.y_test == k) & right).nonzero().flatten() for k in range(data.num_classes)]
    return torch.stack([pool[torch.randint(len(pool), (), generator=rng)] for pool in pools])


def digits(title: str, explained: nn.Module, attributed: nn.Module, data: Dataset, factuals: Tensor) -> Digits:
    """Counterfactuals of one model and attributions of another (the one trained with protected pixels)."""
    k = data.num_classes
    x = data.x_test[factuals].repeat_interleave(k, 0)  # (k·k, 784)
    y_target = torch.arange(k).repeat(k)
    generator = ecco(
        PUBLISHED.lambda_cost,
        LAMBDA_ENERGY,
        max_steps=PUBLISHED.max_steps,
        decision_threshold=PUBLISHED.decision_threshold,
    )
    # A factual already is of its own class, so the search leaves the diagonal alone.
    grid = search(explained, x, y_target, generator, data.constraints, diagnose=False).x_cf
    side = round(data.num_features**0.5)
    attributions = torch.stack([_attribution(attributed, data, label) for label in range(k)])
    return Digits(title, grid.reshape(k, k, side, side), attributions.reshape(k, side, side))


def _attribution(model: nn.Module, data: Dataset, label: int) -> Tensor:
    """Integrated gradients averaged over the test images of a class, then over random baselines: ``(784,)``."""
    rng = torch.Generator().manual_seed(2025)
    x = data.x_test[data.y_test == label]
    target = torch.full((len(x),), label)
    parts = []
    for _ in range(NUM_BASELINES):
        baseline = 2 * torch.rand(x.shape[1:], generator=rng) - 1
        parts.append(integrated_gradients(model, x, target, baseline, steps=20).mean(0).abs())
    return torch.stack(parts).mean(0)
