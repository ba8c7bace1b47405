"""The gradient of Eq. 1 with respect to the counterfactual."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

from counterfactual_training.generators.chain import ByAutograd, Differentiable
from counterfactual_training.generators.generator import Generator
from counterfactual_training.generators.penalties import Penalty, SearchState


def search_gradient(
    generator: Generator, state: SearchState, network: Differentiable, grad_logits: Tensor
) -> Tensor:
    """∂/∂x′ ``(..., n, d)`` of the class loss plus all penalties, summed over rows so that each row
    gets its own.

    The last call of ``network`` must have been for the logits of ``state.x_cf``; penalties without
    a closed form need a :class:`ByAutograd`. ``grad_logits (..., n, k)``, softmax − one-hot, and
    the result may be overwritten.
    """
    by_logits, by_features, automatic = generator.gradients
    # First, because the pullback then carries class loss and these penalties through the model
    # together.
    for add_logit_gradient in by_logits:
        add_logit_gradient(state, grad_logits)
    if automatic and isinstance(network, ByAutograd):
        grad = network.pullback(grad_logits, *_values(automatic, state, network))
    else:
        grad = network.pullback(grad_logits)
    for add_gradient in by_features:
        add_gradient(state, grad)
    # A row whose gradient is not finite must not move. One sum is cheaper than isfinite() of all
    # values.
    if isfinite(grad.sum().item()):
        return grad
    return grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def _values(
    penalties: Sequence[Penalty], state: SearchState, network: ByAutograd
) -> list[Tensor]:
    """The penalties at the same numbers, tied to the graph that pullback differentiates."""
    leaf = network.leaf
    with torch.enable_grad():
        leaf_state = state._replace(x_cf=leaf, delta=leaf - state.x, logits=network.output)
        return [penalty(leaf_state) for penalty in penalties]
