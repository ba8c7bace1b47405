"""Numbers as several inputs each, so that a small network can bend along a single column (Gorishniy
et al. 2022).

Both kinds embed some of the columns and pass the others, such as one-hot ones, as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from counterfactual_training.errors import InputError, check_count
from counterfactual_training.models.classifiers import Asinh, mlp
from counterfactual_training.models.quantiles import knots


class Embedding(nn.Module):
    """``(..., d)`` → ``(..., d − c + c·e)``: the other columns, then e numbers for each of the c
    embedded ones.
    """

    def __init__(self, num_features: int, columns: Sequence[int] | None, size: int) -> None:
        super().__init__()
        if columns is None:
            columns = tuple(range(num_features))
        else:
            columns = tuple(columns)
        all_valid = all(
            type(column) is int and 0 <= column < num_features for column in columns
        )
        if not all_valid or len(set(columns)) < len(columns):
            raise InputError(
                f"columns to embed are different numbers from 0 to {num_features - 1}, got "
                f"{columns}."
            )
        self.columns = columns
        self.num_features = num_features
        self.others = tuple(sorted(set(range(num_features)) - set(columns)))
        self.width = len(self.others) + len(columns) * size

    def forward(self, x: Tensor) -> Tensor:
        others, categories = (
            x.index_select(-1, torch.tensor(columns, dtype=torch.long, device=x.device))
            for columns in (self.others, self.columns)
        )
        return torch.cat([others, self.embed(categories.unsqueeze(-1)).flatten(-2)], -1)

    def embed(self, numbers: Tensor) -> Tensor:
        """``(..., c, 1)`` → ``(..., c, e)``."""
        raise NotImplementedError

    def shape(self) -> dict[str, Any]:
        """Plain numbers from which its factory makes an embedding of this shape."""
        return {"columns": list(self.columns)}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.shape().items())


class Periodic(Embedding):
    """PLR: ``ReLU(A_j [sin 2πf_j x_j, cos 2πf_j x_j] + a_j)``, with f, A and a of its own for each
    column j.

    Attributes:
        frequencies: f, ``(c, K)``, drawn from a normal distribution with SD ``spread``.
        weight, bias: A, ``(c, 2K, e)``, and a, ``(c, e)``, uniform in ±1/√(2K).
    """

    def __init__(
        self,
        num_features: int,
        columns: Sequence[int] | None = None,
        num_frequencies: int = 16,
        size: int = 8,
        spread: float = 0.3,
    ) -> None:
        check_count("num_frequencies", num_frequencies)
        check_count("size", size)
        super().__init__(num_features, columns, size)
        many = len(self.columns)
        bound = (2 * num_frequencies) ** -0.5
        self.frequencies = nn.Parameter(torch.empty(many, num_frequencies).normal_(0, spread))
        self.weight = nn.Parameter(
            torch.empty(many, 2 * num_frequencies, size).uniform_(-bound, bound)
        )
        self.bias = nn.Parameter(torch.empty(many, size).uniform_(-bound, bound))

    def embed(self, numbers: Tensor) -> Tensor:
        turns = 2 * math.pi * self.frequencies * numbers
        waves = torch.cat([turns.sin(), turns.cos()], -1).unsqueeze(-2)
        return ((waves @ self.weight).squeeze(-2) + self.bias).relu()

    def shape(self) -> dict[str, Any]:
        num_frequencies = self.weight.shape[1] // 2
        size = self.weight.shape[2]
        return super().shape() | {"num_frequencies": num_frequencies, "size": size}


class PiecewiseLinear(Embedding):
    """PLE: how far a number has come through each of its bins, ``clamp((x_j − lower_b) / width_b,
    0, 1)``.

    Bins lie between quantiles of the training rows, so each holds about as many of them; where
    quantiles coincide there are fewer, and unused bins stay 0. The authors let the outer bins grow
    beyond 1. Here they end, so that nothing outside the training data looks better than its edge: a
    bin of width w has slope 1/w, and a search would follow the steepest one out of the data.

    Attributes:
        lower, rate: ``(c, B)`` lower ends of the bins, and 1/width; rate 0 for those unused.
    """

    lower: Tensor
    rate: Tensor

    def __init__(
        self, num_features: int, columns: Sequence[int] | None = None, num_bins: int = 32
    ) -> None:
        check_count("num_bins", num_bins)
        super().__init__(num_features, columns, num_bins)
        # Until rows are seen, equal bins over the range where scaled numbers mostly are.
        lower = torch.linspace(-3, 3, num_bins + 1)[:-1].repeat(len(self.columns), 1)
        self.register_buffer("lower", lower)
        self.register_buffer("rate", torch.full_like(lower, num_bins / 6))

    def embed(self, numbers: Tensor) -> Tensor:
        return ((numbers - self.lower) * self.rate).clamp(0, 1)

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """Take the bins from rows x ``(n, d)``."""
        for i, column in enumerate(self.columns):
            edges = knots(x[:, column], self.lower.shape[1])
            self.lower[i] = edges[0]
            self.rate[i] = 0.0
            self.lower[i, : len(edges) - 1] = edges[:-1]
            self.rate[i, : len(edges) - 1] = 1 / edges.diff()

    def shape(self) -> dict[str, Any]:
        return super().shape() | {"num_bins": self.lower.shape[1]}


def varied(x: Tensor) -> tuple[int, ...]:
    """The columns of rows x ``(n, d)`` with more than two values: of others, an embedding shows
    nothing new.
    """
    # A value strictly between the extremes exists only if there are three values or more.
    inside = (x > x.min(0).values) & (x < x.max(0).values)
    return tuple(inside.any(0).nonzero().flatten().tolist())


def mlp_plr(
    num_features: int,
    num_classes: int,
    hidden: Sequence[int] = (64, 64),
    activation: str = "relu",
    squash: bool = False,
    columns: Sequence[int] | None = None,
    num_frequencies: int = 16,
    size: int = 8,
) -> nn.Sequential:
    """An MLP on periodic embeddings of some columns, by default all; see :class:`Periodic`.

    Args:
        num_features: inputs, d.
        num_classes: outputs, k.
        hidden: widths of the hidden layers.
        activation: ``"relu"``, ``"swish"`` or ``"tanh"``.
        squash: puts :class:`Asinh` before the embeddings.
        columns: the columns to embed; others, such as one-hot ones, pass as they are.
        num_frequencies: waves per column, K.
        size: outputs per embedded column, e.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> model = ct.mlp_plr(2, 2, columns=[0], size=8)
        >>> model[0](data.x_test).shape  # the other column, and 8 inputs for the embedded one
        torch.Size([900, 9])
        >>> model(data.x_test).shape
        torch.Size([900, 2])
    """
    return _behind(
        Periodic(num_features, columns, num_frequencies, size),
        num_classes,
        hidden,
        activation,
        squash,
    )


def mlp_ple(
    num_features: int,
    num_classes: int,
    hidden: Sequence[int] = (64, 64),
    activation: str = "relu",
    squash: bool = False,
    columns: Sequence[int] | None = None,
    num_bins: int = 32,
    x: Tensor | None = None,
) -> nn.Sequential:
    """An MLP on piecewise-linear embeddings of some columns, by default all; see
    :class:`PiecewiseLinear`.

    Args:
        num_features: inputs, d.
        num_classes: outputs, k.
        hidden: widths of the hidden layers.
        activation: ``"relu"``, ``"swish"`` or ``"tanh"``.
        squash: puts :class:`Asinh` before the embeddings.
        columns: the columns to embed; others, such as one-hot ones, pass as they are.
        num_bins: bins per column.
        x: ``(n, d)`` training rows, whose quantiles the bins lie between; without them bins divide
            [−3, 3].

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> model = ct.mlp_ple(2, 2, num_bins=16, x=data.x_train)
        >>> model[0](data.x_test).shape  # 16 inputs for each of two columns
        torch.Size([900, 32])
        >>> model(data.x_test).shape
        torch.Size([900, 2])
    """
    embedding = PiecewiseLinear(num_features, columns, num_bins)
    if x is not None:
        embedding.fit(x.asinh() if squash else x)
    return _behind(embedding, num_classes, hidden, activation, squash)


def _behind(
    embedding: Embedding, num_classes: int, hidden: Sequence[int], activation: str, squash: bool
) -> nn.Sequential:
    network = mlp(embedding.width, num_classes, hidden, activation)
    return nn.Sequential(*([Asinh()] if squash else []), embedding, *network)
