"""Neuro-trees: decision trees whose splits are smooth, so that gradients train them and a search
can follow them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from counterfactual_training.errors import InputError, check_count
from counterfactual_training.models.classifiers import Asinh

# A tree of this depth has 65,536 leaves; deeper trees are a mistake, or a file made to exhaust
# memory.
_DEEPEST = 16
# softplus of this is 1: at first every split is as steep as a plain logistic function.
_STEEPNESS = 0.5413248546129181  # log(e − 1)


class NeuroTrees(nn.Module):
    """The mean of T smooth trees, ``(..., d)`` → logits ``(..., k)``.

    A node goes one way with probability ``g = σ(softplus(s) · (ŵ·x + b))`` and the other with ``1 −
    g``, where ``ŵ = tanh w / ‖tanh w‖₁``: a weighted mean of the inputs, so that no node grows by
    large weights, only by its steepness s. A leaf's weight is the product of these down the tree,
    and ``logits = mean_t Σ_leaf weight · p_leaf``.

    Initial values follow NeuroTreeModels.jl: s = log(e − 1), w and b uniform in ±⅛, p normal with
    SD 0.1. Its batch norm of the inputs is left out: rows are scaled before, and running statistics
    cannot be stacked.

    Attributes:
        weight, bias, steepness: ``(T, 2^depth − 1, d)``, ``(T, 2^depth − 1)`` twice: of the nodes,
            level by level.
        leaves: p, ``(T, 2^depth, k)``.
    """

    def __init__(
        self, num_features: int, num_classes: int, num_trees: int = 64, depth: int = 4
    ) -> None:
        super().__init__()
        sizes = {
            "num_features": num_features,
            "num_classes": num_classes,
            "num_trees": num_trees,
            "depth": depth,
        }
        for name, size in sizes.items():
            check_count(name, size)
        if depth > _DEEPEST:
            raise InputError(
                f"depth is from 1 to {_DEEPEST}, got {depth}; each level doubles the leaves of "
                "all trees."
            )
        self.num_trees = num_trees
        self.depth = depth
        nodes = 2**depth - 1
        self.weight = nn.Parameter(
            torch.empty(num_trees, nodes, num_features).uniform_(-0.125, 0.125)
        )
        self.bias = nn.Parameter(torch.empty(num_trees, nodes).uniform_(-0.125, 0.125))
        self.steepness = nn.Parameter(torch.full((num_trees, nodes), _STEEPNESS))
        self.leaves = nn.Parameter(
            torch.empty(num_trees, nodes + 1, num_classes).normal_(0, 0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.tanh()
        # Weights that are all zero see nothing, instead of dividing by zero.
        total = weight.abs().sum(-1, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
        steep = functional.softplus(self.steepness)
        # One product for the nodes of all trees; steepness goes into the weights, which are fewer
        # than the rows.
        slopes = (weight / total * steep.unsqueeze(-1)).flatten(0, 1)
        gates = (
            functional.linear(x, slopes, (self.bias * steep).flatten())
            .sigmoid()
            .unflatten(-1, steep.shape)
        )
        reached = torch.ones_like(gates[..., :1])
        for level in range(self.depth):
            first = 2**level - 1
            gate = gates[..., first : 2 * first + 1]
            reached = torch.stack([reached * gate, reached * (1 - gate)], -1).flatten(-2)
        return reached.flatten(-2) @ self.leaves.flatten(0, 1) / self.num_trees

    def shape(self) -> dict[str, Any]:
        """What :func:`neurotree` needs to make trees of this shape."""
        return {"num_trees": self.num_trees, "depth": self.depth}

    def extra_repr(self) -> str:
        return f"num_trees={self.num_trees}, depth={self.depth}"


def neurotree(
    num_features: int,
    num_classes: int,
    num_trees: int = 64,
    depth: int = 4,
    squash: bool = False,
) -> nn.Sequential:
    """Smooth decision trees, see :class:`NeuroTrees`.

    They want a larger learning rate than an MLP: their authors' is 0.01, with batches of 2,048
        rows.

    Args:
        num_features: inputs, d.
        num_classes: outputs, k.
        num_trees: how many trees, T.
        depth: levels of each tree.
        squash: puts :class:`Asinh` before them.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> model = ct.neurotree(2, 2, num_trees=16, depth=3)
        >>> method = ct.methods.conventional(epochs=1, learning_rate=0.01, batch_size=200)
        >>> _ = ct.train(model, data.x_train, data.y_train, method)
        >>> model(data.x_test).shape, model[0].leaves.shape
        (torch.Size([900, 2]), torch.Size([16, 8, 2]))
    """
    trees = NeuroTrees(num_features, num_classes, num_trees, depth)
    if squash:
        return nn.Sequential(Asinh(), trees)
    return nn.Sequential(trees)
