"""TabM: an ensemble of MLPs that share nearly all of their weights (Gorishniy et al. 2025)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from counterfactual_training.errors import InputError, check_count, lookup
from counterfactual_training.models.classifiers import ACTIVATIONS, Asinh


class SharedLinear(nn.Module):
    """A linear layer of K members: ``s_m ⊙ W(r_m ⊙ x) + b_m``, ``(..., K, d)`` → ``(..., K, h)``; W
    is shared.

    Attributes:
        weight: W, ``(h, d)``, Glorot-uniform.
        before, behind: r, ``(K, d)``, and s, ``(K, h)``: one at first. In a ``first`` layer r is ±1
            at random, so that members differ.
        bias: b, ``(K, h)``, zero at first.
    """

    def __init__(
        self, fan_in: int, fan_out: int, num_members: int, first: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(fan_out, fan_in)))
        signs = torch.empty(num_members, fan_in).bernoulli_() * 2 - 1
        self.before = nn.Parameter(signs if first else torch.ones(num_members, fan_in))
        self.behind = nn.Parameter(torch.ones(num_members, fan_out))
        self.bias = nn.Parameter(torch.zeros(num_members, fan_out))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x * self.before, self.weight) * self.behind + self.bias


class TabM(nn.Module):
    """K MLPs with shared weight matrices, adapters and output layers of their own; ``(..., d)`` →
    logits ``(..., k)``.

    Logits are the mean over members, in training as in evaluation. **A departure**: the authors
    train by the mean of the members' losses. Every loss, method and search here takes one set of
    logits per row; with the mean of logits the members learn to complete each other rather than to
    be right alone. Their dropout is left out as well, because layers that draw random numbers
    cannot be stacked.

    Attributes:
        layers: a :class:`SharedLinear` per hidden layer.
        head, bias: ``(K, h, k)`` and ``(K, k)``, the output layers, without anything shared.
    """

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        hidden: Sequence[int] = (64, 64),
        activation: str = "relu",
        num_members: int = 16,
    ) -> None:
        super().__init__()
        check_count("num_members", num_members)
        make_activation: Callable[[], nn.Module] = lookup("activation", activation, ACTIVATIONS)
        widths = [num_features, *hidden]
        if len(widths) < 2 or any(width < 1 for width in (*widths, num_classes)):
            raise InputError(
                "TabM needs hidden layers of positive widths, such as (64, 64), got "
                f"{tuple(hidden)}."
            )
        self.hidden = tuple(hidden)
        self.activation = activation
        self.num_members = num_members
        sizes = enumerate(pairwise(widths))
        self.layers = nn.ModuleList(
            [SharedLinear(a, b, num_members, first=i == 0) for i, (a, b) in sizes]
        )
        self.between = make_activation()
        bound = (6 / (widths[-1] + num_classes)) ** 0.5  # Glorot's, of each member's own matrix
        self.head = nn.Parameter(
            torch.empty(num_members, widths[-1], num_classes).uniform_(-bound, bound)
        )
        self.bias = nn.Parameter(torch.zeros(num_members, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(-2)
        for layer in self.layers:
            x = self.between(layer(x))
        # The mean of K products is one product with all members' units side by side.
        return x.flatten(-2) @ self.head.flatten(0, 1) / self.num_members + self.bias.mean(0)

    def shape(self) -> dict[str, Any]:
        """What :func:`tabm` needs to make a network of this shape."""
        return {
            "hidden": list(self.hidden),
            "activation": self.activation,
            "num_members": self.num_members,
        }

    def extra_repr(self) -> str:
        return f"hidden={self.hidden}, num_members={self.num_members}"


def tabm(
    num_features: int,
    num_classes: int,
    hidden: Sequence[int] = (64, 64),
    activation: str = "relu",
    squash: bool = False,
    num_members: int = 16,
) -> nn.Sequential:
    """Several MLPs that share their weight matrices, see :class:`TabM`.

    Args:
        num_features: inputs, d.
        num_classes: outputs, k.
        hidden: widths of the hidden layers.
        activation: ``"relu"``, ``"swish"`` or ``"tanh"``.
        squash: puts :class:`Asinh` before them.
        num_members: how many MLPs, K.

    Examples:
        >>> import counterfactual_training as ct
        >>> model = ct.tabm(2, 2, num_members=8)
        >>> one = sum(p.numel() for p in ct.mlp(2, 2, (64, 64)).parameters())
        >>> eight = sum(p.numel() for p in model.parameters())
        >>> round(eight / one, 1)  # parameters, of eight networks and of one
        1.7
        >>> data = ct.load_dataset("moons")
        >>> model(data.x_test).shape
        torch.Size([900, 2])
    """
    network = TabM(num_features, num_classes, hidden, activation, num_members)
    if squash:
        return nn.Sequential(Asinh(), network)
    return nn.Sequential(network)
