"""What models of MNIST show: counterfactual images, and which pixels models look at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.evaluation.attribution import (
    ATTRIBUTION_STEPS,
    integrated_gradients,
    standardise,
)
from counterfactual_training.evaluation.performance import predict_logits
from counterfactual_training.evaluation.protocol import PUBLISHED
from counterfactual_training.generators import ecco, search

_LAMBDA_ENERGY = 5.0


@dataclass(frozen=True, eq=False)
class Digits:
    """Images ``(…, 28, 28)`` of one model.

    Attributes:
        grid: ``(10, 10, 28, 28)``; row i holds the counterfactuals of a factual of class i, column
            j the target. The factual itself is on the diagonal.
        attributions: ``(10, 28, 28)`` class-conditional integrated gradients, standardised as in
            the table: 0 … 1.
    """

    title: str
    grid: Tensor
    attributions: Tensor


def pick_factuals(models: list[nn.Module], data: Dataset, seed: int = 0) -> Tensor:
    """Row numbers ``(k,)``: of each class one test image, at random among those that all the models
    get right.
    """
    right = torch.ones_like(data.y_test, dtype=torch.bool)
    for model in models:
        right &= predict_logits(model, data.x_test).argmax(-1) == data.y_test
    rng = torch.Generator().manual_seed(seed)
    pools = [((data.y_test == k) & right).nonzero().flatten() for k in range(data.num_classes)]
    return torch.stack([pool[torch.randint(len(pool), (), generator=rng)] for pool in pools])


def digits(
    title: str, explained: nn.Module, attributed: nn.Module, data: Dataset, factuals: Tensor
) -> Digits:
    """Counterfactuals of one model and attributions of another (the one trained with protected
    pixels).
    """
    k = data.num_classes
    x = data.x_test[factuals].repeat_interleave(k, 0)  # (k·k, 784)
    y_target = torch.arange(k).repeat(k)
    generator = ecco(
        PUBLISHED.lambda_cost,
        _LAMBDA_ENERGY,
        max_steps=PUBLISHED.max_steps,
        decision_threshold=PUBLISHED.decision_threshold,
    )
    # A factual already is of its own class, so the search leaves the diagonal alone.
    grid = search(explained, x, y_target, generator, data.constraints, diagnose=False).x_cf
    side = round(data.num_features**0.5)
    attributions = torch.stack([_attribution(attributed, data, label) for label in range(k)])
    return Digits(title, grid.reshape(k, k, side, side), attributions.reshape(k, side, side))


def _attribution(model: nn.Module, data: Dataset, label: int) -> Tensor:
    """Mean integrated gradients of a class, each test image from a random image of its own:
    ``(784,)`` in [0, 1].
    """
    rng = torch.Generator().manual_seed(2025)
    x = data.x_test[data.y_test == label]
    baseline = 2 * torch.rand(x.shape, generator=rng, dtype=torch.float32) - 1
    target = torch.full((len(x),), label)
    return standardise(
        integrated_gradients(model, x, target, baseline, ATTRIBUTION_STEPS).mean(0), "range"
    )
