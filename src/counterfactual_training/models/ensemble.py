"""Several classifiers as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from counterfactual_training.errors import ModelError
from counterfactual_training.models.trace import hooked, named_layers

# More members than anyone trains; limits the work that loading a file can cause.
_MOST_MEMBERS = 1000


class Ensemble(nn.Module):
    """The mean of its members' logits, ``(..., d)`` → ``(..., k)``.

    Of logits, not of probabilities: logarithms of mean probabilities have a logsumexp of 0
    everywhere, which would remove the scale of the energy −LSE and with it what an energy says of
    how plausible a row is.

    Args:
        members: the classifiers, all with the same inputs and outputs.

    Attributes:
        members: the classifiers.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> model = ct.Ensemble([ct.mlp(2, 2) for _ in range(3)])
        >>> method = "ensemble(epochs=1)"
        >>> _ = ct.train(model, data.x_train, data.y_train, method)
        >>> len(model.members), model(data.x_test).shape
        (3, torch.Size([900, 2]))
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        if not members:
            raise ModelError("An ensemble needs at least one member, got none.")
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """Mean logits ``(..., k)`` of rows ``(..., d)``."""
        total = self.members[0](x)
        for member in list(self.members)[1:]:
            total = total + member(x)
        return total / len(self.members)


class SideBySide(nn.Module):
    """M linear layers, each of its own part of the columns: ``(n, M·d)`` → ``(n, M·h)``.

    Args:
        layers: linear layers of one shape.
    """

    weight: Tensor  # (M, d, h)
    bias: Tensor  # (M, 1, h)

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.register_buffer("weight", torch.stack([layer.weight.T for layer in layers]))
        bias = torch.stack([_bias(layer) for layer in layers])
        self.register_buffer("bias", bias.unsqueeze(1))

    def forward(self, x: Tensor) -> Tensor:
        parts = x.unflatten(-1, (len(self.weight), -1)).transpose(0, 1)
        return torch.baddbmm(self.bias, parts, self.weight).transpose(0, 1).flatten(1)


@torch.no_grad()
def joined_layers(model: nn.Module) -> list[nn.Module] | None:
    """The layers of one network of rows ``(n, d)`` that computes what an ensemble does, with copies
    of its weights: its first layer has the columns of every member's, its last one adds them up.

    ``None`` unless the members are chains of linear layers and elementwise ones, all alike, whose
    last layer is linear.
    """
    if type(model) is not Ensemble or hooked(model) or hooked(model.members):
        return None
    return _joined_chains(list(model.members), mean=True)


@torch.no_grad()
def adjoining_layers(models: Sequence[nn.Module]) -> list[nn.Module] | None:
    """The same with the outputs of all M models side by side, ``(n, M·k)``."""
    return _joined_chains(models, mean=False)


def _joined_chains(models: Sequence[nn.Module], mean: bool) -> list[nn.Module] | None:
    chains = [[layer for _, layer in named_layers(model) or []] for model in models]
    if len({repr(chain) for chain in chains}) > 1:
        return None
    linear = [i for i, layer in enumerate(chains[0]) if isinstance(layer, nn.Linear)]
    # Activations behind the last layer would be of the mean, not of each member.
    if not linear or linear[-1] < len(chains[0]) - 1:
        return None
    last = linear[-1] if mean else -1
    places = enumerate(zip(*chains, strict=True))
    return [_joined(layers, i == linear[0], i == last) for i, layers in places]


def _joined(layers: Sequence[Any], first: bool, last: bool) -> nn.Module:
    """One layer for the same layer of all members."""
    if not isinstance(layers[0], nn.Linear):
        return layers[0]
    if last:
        return _mean(layers, shared=first)
    if first:
        weight = torch.cat([layer.weight for layer in layers])
        return _linear(weight, torch.cat([_bias(layer) for layer in layers]))
    return SideBySide(layers)


def _mean(layers: Sequence[nn.Linear], shared: bool) -> nn.Linear:
    """The mean of what the members' last layers compute, each of its own columns, or all of the
    same if these are shared.
    """
    bias = torch.stack([_bias(layer) for layer in layers]).mean(0)
    if shared:
        return _linear(torch.stack([layer.weight for layer in layers]).mean(0), bias)
    return _linear(torch.cat([layer.weight for layer in layers], 1) / len(layers), bias)


def _bias(layer: nn.Linear) -> Tensor:
    if layer.bias is None:
        return layer.weight.new_zeros(layer.out_features)
    return layer.bias


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """The layer with this weight ``(h, d)`` and bias ``(h,)``."""
    layer = nn.utils.skip_init(
        nn.Linear, weight.shape[1], weight.shape[0], device=weight.device, dtype=weight.dtype
    )
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)
    return layer.requires_grad_(False)


def make_ensemble(
    make: Callable[[int, int], nn.Module], size: int, num_features: int, num_classes: int
) -> Ensemble:
    """An ensemble of so many new models."""
    if not 1 <= size <= _MOST_MEMBERS:
        raise ModelError(f"An ensemble has from 1 to {_MOST_MEMBERS} members, got {size}.")
    return Ensemble([make(num_features, num_classes) for _ in range(size)])
