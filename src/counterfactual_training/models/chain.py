"""A model and its derivative by the input, which is all that a search asks of it.

Autograd gives that for every model. For chains of linear layers and activations it costs more than the arithmetic, so
these are walked by hand: forward keeping what each layer saw, and back with the very operations autograd would run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from counterfactual_training.errors import ModelError
from counterfactual_training.models.stack import StackedModel

_aten: Any = torch.ops.aten

# Activations with their derivative: of the gradient behind them, what they saw, and what they made of it.
_ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    nn.ReLU: (torch.relu, lambda grad, x, out: _aten.threshold_backward.default(grad, out, 0)),
    nn.SiLU: (functional.silu, lambda grad, x, out: _aten.silu_backward.default(grad, x)),
    nn.Tanh: (torch.tanh, lambda grad, x, out: _aten.tanh_backward.default(grad, out)),
    nn.Sigmoid: (torch.sigmoid, lambda grad, x, out: _aten.sigmoid_backward.default(grad, out)),
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Differentiable(Protocol):
    """A model at one input after the other, weights as they were when this was made."""

    def logits(self, x: Tensor, differentiate: bool = True) -> Tensor:
        """Logits ``(..., n, k)`` of rows x ``(..., n, d)``, without a graph."""
        ...

    def pullback(self, grad: Tensor) -> Tensor:
        """∂/∂x ``(..., n, d)`` at the last x, given ∂/∂logits ``(..., n, k)``; a tensor of the caller's own."""
        ...


def differentiable(model: nn.Module, feature_shape: torch.Size, dims: int, plain: bool = True) -> Differentiable:
    """The quickest implementation for rows of that shape, with ``dims`` dimensions in all.

    Args:
        model: maps ``(..., n, *feature_shape)`` to logits.
        feature_shape: of one row; the rows come flattened.
        dims: 2 for the rows of a lone model, 3 for those of a fleet.
        plain: whether logits and pullback suffice; otherwise it is :class:`ByAutograd`.
    """
    if (
        plain
        and len(feature_shape) == 1
        and not torch.is_autocast_enabled("cpu")
        and not torch.is_autocast_enabled("cuda")
    ):
        if dims == 2 and type(model) is nn.Sequential and _is_plain_chain(model):
            return Chain(list(model))
        if dims == 3 and type(model) is StackedModel and model.layers is not None and not _hooked(model):
            layers = [(name, layer) for name, layer in model.layers if type(layer) is not nn.Identity]
            if all(type(layer) in (nn.Linear, *_ACTIVATIONS) for _, layer in layers):
                return StackedChain(layers, model.parameters_by_name())
    return ByAutograd(lambda rows: model(rows.reshape(*rows.shape[:-1], *feature_shape)))


class ByAutograd:
    """Any model.

    Attributes:
        leaf: ``(..., n, d)`` the last x.
        output: ``(..., n, k)`` its logits, with their graph.
    """

    leaf: Tensor
    output: Tensor

    def __init__(self, model: Callable[[Tensor], Tensor]) -> None:
        self.model = model

    def logits(self, x: Tensor, differentiate: bool = True) -> Tensor:
        self.leaf = x.detach().requires_grad_(differentiate)
        with torch.set_grad_enabled(differentiate):
            self.output = self.model(self.leaf)
        return self.output.detach() if isinstance(self.output, Tensor) else self.output

    def pullback(self, grad: Tensor, *others: Tensor) -> Tensor:
        """As promised; the sums of other tensors computed from ``leaf`` and ``output`` are differentiated along."""
        if not self.output.requires_grad:
            raise ModelError("The model's output does not depend differentiably on its input, which a search needs.")
        (found,) = torch.autograd.grad(
            [self.output, *others], self.leaf, [grad, *(torch.ones_like(value) for value in others)]
        )
        return found


class Chain:
    """Linear layers and activations one after the other; bit by bit what autograd gives."""

    def __init__(self, layers: list[nn.Module]) -> None:
        self.layers = [_step(layer) for layer in layers]
        self.seen: list[Tensor] = []

    def logits(self, x: Tensor, differentiate: bool = True) -> Tensor:
        self.seen = [x]
        for forward, _ in self.layers:
            x = forward(x)
            self.seen.append(x)
        return x

    def pullback(self, grad: Tensor) -> Tensor:
        for i in range(len(self.layers) - 1, -1, -1):
            grad = self.layers[i][1](grad, self.seen[i], self.seen[i + 1])
        return grad


class StackedChain:
    """Chains of M members side by side, with features before rows, ``(M, d, n)``: few features would leave the
    matrix product's kernels half empty. Equal to autograd up to rounding."""

    def __init__(self, layers: list[tuple[str, nn.Module]], weights: dict[str, Tensor]) -> None:
        self.layers: list[Any] = []
        for name, layer in layers:
            if isinstance(layer, nn.Linear):
                bias = weights.get(f"{name}.bias")
                weight = weights[f"{name}.weight"].detach()
                self.layers.append((weight.contiguous(), None if bias is None else bias.detach().unsqueeze(-1)))
            else:
                self.layers.append(type(layer))
        self.seen: list[Tensor] = []

    def logits(self, x: Tensor, differentiate: bool = True) -> Tensor:
        x = x.transpose(-1, -2)
        self.seen = [x]
        for i, layer in enumerate(self.layers):
            if isinstance(layer, tuple):
                weight, bias = layer
                x = torch.bmm(weight, x) if bias is None else torch.baddbmm(bias, weight, x)
            elif layer is nn.ReLU and i:
                x = x.relu_()  # its derivative asks only for what it made
            else:
                x = _ACTIVATIONS[layer][0](x)
            self.seen.append(x)
        return x.transpose(-1, -2)

    def pullback(self, grad: Tensor) -> Tensor:
        grad = grad.transpose(-1, -2)
        for i in range(len(self.layers) - 1, -1, -1):
            layer, own = self.layers[i], i < len(self.layers) - 1
            if isinstance(layer, tuple):
                grad = torch.bmm(layer[0].transpose(-1, -2), grad)
            elif layer is nn.ReLU and own:
                grad = _aten.threshold_backward.grad_input(grad, self.seen[i + 1], 0, grad_input=grad)
            else:
                grad = _ACTIVATIONS[layer][1](grad, self.seen[i], self.seen[i + 1])
        return grad.transpose(-1, -2)


Step = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor, Tensor], Tensor]]


def _step(layer: nn.Module) -> Step:
    """A layer and its derivative by the input."""
    if not isinstance(layer, nn.Linear):
        return _ACTIVATIONS[type(layer)]
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()

    def backward(grad: Tensor, x: Tensor, out: Tensor) -> Tensor:
        if x.stride(0) == 1 and x.stride(1) == x.shape[0]:  # autograd follows the layout of the input
            return weight.t().mm(grad.t()).t()
        return grad.mm(weight)

    return lambda x: functional.linear(x, weight, bias), backward


def _is_plain_chain(model: nn.Sequential) -> bool:
    """Whether nothing but linear layers and known activations happens when the model is called."""
    known = (nn.Linear, *_ACTIVATIONS)
    plain = all(type(layer) in known and not getattr(layer, "inplace", False) for layer in model)
    has_linear = any(type(layer) is nn.Linear for layer in model)
    return plain and has_linear and not any(_hooked(module) for module in model.modules())


def _hooked(module: nn.Module) -> bool:
    """Whether calling the module does more than its class says."""
    return "forward" in vars(module) or any(getattr(module, name, None) for name in _HOOKS)
