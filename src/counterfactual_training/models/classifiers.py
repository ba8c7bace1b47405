"""Classifiers that return logits. Any ``nn.Module`` that does so works as well; these are the paper's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import TypeVar

import torch
from torch import Tensor, nn

from counterfactual_training.errors import InputError, unknown

_Module = TypeVar("_Module", bound=nn.Module)

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "swish": nn.SiLU, "tanh": nn.Tanh}


class Asinh(nn.Module):
    """``asinh(x)``: x itself near 0 and its logarithm far away, so that no outlier outweighs all other inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.asinh(x)


def linear(num_features: int, num_classes: int) -> nn.Module:
    """Multinomial logistic regression: ``M(x) = Θx + b``."""
    return mlp(num_features, num_classes, hidden=())


def mlp(
    num_features: int,
    num_classes: int,
    hidden: Sequence[int] = (32,),
    activation: str = "relu",
    squash: bool = False,
) -> nn.Sequential:
    """Multilayer perceptron, Glorot-uniform weights and zero biases; the default is the paper's.

    ``squash`` puts :class:`Asinh` before the first layer.
    """
    if activation not in ACTIVATIONS:
        raise InputError(unknown("activation", activation, ACTIVATIONS))
    widths = [num_features, *hidden, num_classes]
    if any(width < 1 for width in widths):
        raise InputError(f"Layer widths must be positive, got {widths}.")
    layers: list[nn.Module] = [Asinh()] if squash else []
    for i, (fan_in, fan_out) in enumerate(pairwise(widths)):
        layers += [ACTIVATIONS[activation]()] if i else []
        layers.append(nn.Linear(fan_in, fan_out))
    return _glorot(nn.Sequential(*layers))


class CNN(nn.Module):
    """LeNet-5 for images; takes ``(n, C·H·W)`` rows or ``(n, C, H, W)`` images."""

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int] = (1, 28, 28)) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.image_shape = image_shape
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        flat = 16 * (height // 4) * (width // 4)
        self.head = nn.Sequential(
            nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, num_classes)
        )
        _glorot(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.convolutions(x.reshape(-1, *self.image_shape)))


def cnn(num_features: int, num_classes: int, image_shape: tuple[int, int, int] = (1, 28, 28)) -> nn.Module:
    """LeNet-5, see :class:`CNN`."""
    if prod(image_shape) != num_features:
        raise InputError(f"image_shape {image_shape} has {prod(image_shape)} pixels, the data {num_features} features.")
    return CNN(num_classes, image_shape)


def _glorot(module: _Module) -> _Module:
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, (nn.Linear, nn.Conv2d)):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    layer.bias.zero_()
    return module
