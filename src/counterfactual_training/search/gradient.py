"""The gradient of Eq. 1 with respect to the counterfactual."""

from __future__ import annotations

import torch
from torch import Tensor

from counterfactual_training.core.losses import class_loss_gradient
from counterfactual_training.search.generator import Generator
from counterfactual_training.search.penalties import SearchState


def search_gradient(
    generator: Generator, state: SearchState, x_leaf: Tensor, logits: Tensor, probability: Tensor
) -> Tensor:
    """∂/∂x′ of the class loss plus all penalties, summed over rows so that each row gets its own gradient.

    Args:
        generator: whose penalties.
        state: the rows, all detached.
        x_leaf: ``(..., n, d)`` the leaf that ``logits`` was computed from.
        logits: ``(..., n, k)`` with its graph.
        probability: ``(..., n, k)`` its softmax.

    Returns:
        ``(..., n, d)``, a fresh tensor the caller may overwrite.
    """
    by_logits, by_features, automatic = generator.gradients
    grad_logits = class_loss_gradient(probability, state.y_target)
    for add_logit_gradient in by_logits:
        add_logit_gradient(state, grad_logits)
    outputs, weights = [logits], [grad_logits]
    if automatic:
        with torch.enable_grad():
            leaf_state = state._replace(x_cf=x_leaf, delta=x_leaf - state.x, logits=logits)
            outputs += [penalty(leaf_state) for penalty in automatic]
        weights += [torch.ones_like(value) for value in outputs[1:]]
    (grad,) = torch.autograd.grad(outputs, x_leaf, weights)
    for add_gradient in by_features:
        add_gradient(state, grad)
    # A step that is not a number is no step.
    return grad if bool(torch.isfinite(grad.sum())) else grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
