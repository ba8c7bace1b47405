"""A model and its derivative by the input, which is all that a search asks of it.

Autograd gives that for every model. For chains of linear layers and activations it costs more than the arithmetic, so
these are walked by hand: forward keeping what each layer saw, and back with the very operations autograd would run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_module

from counterfactual_training.errors import ModelError
from counterfactual_training.models.stack import StackedModel

_aten: Any = torch.ops.aten


class Activation(NamedTuple):
    """A function of each value, and its derivative times ``grad``, given what it saw (x) and what it made (out)."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor, Tensor], Tensor]


# Activations without settings; the operations are those that autograd runs.
ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.Identity: Activation(lambda x: x, lambda grad, x, out: grad),
    nn.ReLU: Activation(torch.relu, lambda grad, x, out: _aten.threshold_backward.default(grad, out, 0)),
    nn.SiLU: Activation(functional.silu, lambda grad, x, out: _aten.silu_backward.default(grad, x)),
    nn.Tanh: Activation(torch.tanh, lambda grad, x, out: _aten.tanh_backward.default(grad, out)),
    nn.Sigmoid: Activation(torch.sigmoid, lambda grad, x, out: _aten.sigmoid_backward.default(grad, out)),
}
# Activations with settings: their derivative, given the layer, the gradient and what the layer saw.
_WITH_SETTINGS: dict[type[nn.Module], Callable[[Any, Tensor, Tensor], Tensor]] = {
    nn.GELU: lambda layer, grad, x: _aten.gelu_backward.default(grad, x, approximate=layer.approximate),
    nn.LeakyReLU: lambda layer, grad, x: _aten.leaky_relu_backward.default(grad, x, layer.negative_slope, False),
    nn.ELU: lambda layer, grad, x: _aten.elu_backward.default(grad, layer.alpha, 1, 1, False, x),
    nn.Softplus: lambda layer, grad, x: _aten.softplus_backward.default(grad, x, layer.beta, layer.threshold),
}
_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")


def activation(layer: nn.Module) -> Activation | None:
    """What an activation does, settings included; ``None`` for any other layer, and for one that works in place."""
    kind = type(layer)
    if getattr(layer, "inplace", False) or kind not in (*ACTIVATIONS, *_WITH_SETTINGS):
        return None
    if kind in ACTIVATIONS:
        return ACTIVATIONS[kind]
    return Activation(layer.forward, lambda grad, x, out: _WITH_SETTINGS[kind](layer, grad, x))


def chain_layers(model: nn.Module) -> list[nn.Module] | None:
    """The layers of a Sequential, where calling it does nothing but run linear layers and known activations.

    ``None`` otherwise: other layers, hooks of any kind, a parameter that serves twice. Identities are left out; an
    :func:`activation` may occur more than once.
    """
    if type(model) is not nn.Sequential or any(hooked(module) for module in model.modules()):
        return None
    layers = [layer for layer in model if type(layer) is not nn.Identity]
    linear = [layer for layer in layers if type(layer) is nn.Linear]
    if not linear or any(type(layer) is not nn.Linear and activation(layer) is None for layer in layers):
        return None
    weights = [weight for layer in linear for weight in (layer.weight, layer.bias) if weight is not None]
    if any(type(weight) is not nn.Parameter for weight in weights):
        return None
    places = {(weight.device, weight.data_ptr() or id(weight)) for weight in weights}
    return layers if len(places) == len(weights) else None


def hooked(module: nn.Module) -> bool:
    """Whether calling the module does more than its class says."""
    everywhere = any(getattr(torch_module, f"_global_{name}") for name in _HOOKS)
    return everywhere or "forward" in vars(module) or any(getattr(module, f"_{name}") for name in _HOOKS)


class Differentiable(Protocol):
    """A model at one input after the other, weights as they were when this was made."""

    def logits(self, x: Tensor) -> Tensor:
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
    device = next((parameter.device for parameter in model.parameters()), None)
    if plain and len(feature_shape) == 1 and device is not None and not torch.is_autocast_enabled(device.type):
        layers = chain_layers(model) if dims == 2 else None
        if layers is not None:
            return Chain(layers)
        if dims == 3 and type(model) is StackedModel and model.layers is not None and not hooked(model):
            named = [(name, layer) for name, layer in model.layers if type(layer) is not nn.Identity]
            if all(type(layer) is nn.Linear or activation(layer) is not None for _, layer in named):
                return StackedChain(named, model.parameters_by_name())
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

    def logits(self, x: Tensor) -> Tensor:
        self.leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            output = self.model(self.leaf)
            if not isinstance(output, Tensor):  # refused by whoever asked
                return output
            self.output = at_least_single(output)
        return self.output.detach()

    def pullback(self, grad: Tensor, *others: Tensor) -> Tensor:
        """As promised; the sums of other tensors computed from ``leaf`` and ``output`` are differentiated along."""
        if not self.output.requires_grad:
            raise ModelError("The model's output does not depend differentiably on its input, which a search needs.")
        (found,) = torch.autograd.grad(
            [self.output, *others], self.leaf, [grad, *(torch.ones_like(value) for value in others)]
        )
        return found


class Chain:
    """Linear layers and activations one after the other; bit by bit what autograd gives.

    Attributes:
        seen: what each layer saw at the last x, and the output at the end.
    """

    def __init__(self, layers: list[nn.Module]) -> None:
        self.layers = [activation(layer) or _linear(layer) for layer in layers]
        # What a linear layer has just made is nobody else's, so the most common activation may overwrite it.
        for i in range(1, len(layers)):
            if type(layers[i]) is nn.ReLU and type(layers[i - 1]) is nn.Linear:
                self.layers[i] = self.layers[i]._replace(forward=torch.relu_)
        self.seen: list[Tensor] = []

    def logits(self, x: Tensor) -> Tensor:
        self.seen = seen = [x]
        for forward, _ in self.layers:
            x = forward(x)
            seen.append(x)
        return at_least_single(x)

    def pullback(self, grad: Tensor) -> Tensor:
        seen = self.seen
        grad = grad.to(seen[-1].dtype)
        for i in range(len(self.layers) - 1, -1, -1):
            grad = self.layers[i].backward(grad, seen[i], seen[i + 1])
        return grad


class StackedChain:
    """Chains of M members side by side, with features before rows, ``(M, d, n)``: few features would leave the
    matrix product's kernels half empty. Equal to autograd up to rounding.

    Attributes:
        seen: what each layer saw at the last x, ``(M, width, n)``, and the output at the end.
    """

    def __init__(self, layers: list[tuple[str, nn.Module]], weights: dict[str, Tensor]) -> None:
        self.layers: list[Any] = []
        for name, layer in layers:
            if isinstance(layer, nn.Linear):
                bias = weights.get(f"{name}.bias")
                weight = weights[f"{name}.weight"].detach()
                self.layers.append((weight.contiguous(), None if bias is None else bias.detach().unsqueeze(-1)))
            else:
                self.layers.append(activation(layer))
        # What a linear layer has just made is nobody else's, so the most common activation may overwrite it.
        self.in_place = [
            i > 0 and type(layer) is nn.ReLU and isinstance(layers[i - 1][1], nn.Linear)
            for i, (_, layer) in enumerate(layers)
        ]
        self.seen: list[Tensor] = []

    def logits(self, x: Tensor) -> Tensor:
        x = x.transpose(-1, -2)
        self.seen = [x]
        for layer, in_place in zip(self.layers, self.in_place, strict=True):
            if isinstance(layer, Activation):
                x = x.relu_() if in_place else layer.forward(x)
            else:
                weight, bias = layer
                x = torch.bmm(weight, x) if bias is None else torch.baddbmm(bias, weight, x)
            self.seen.append(x)
        return at_least_single(x.transpose(-1, -2))

    def pullback(self, grad: Tensor) -> Tensor:
        grad = grad.to(self.seen[-1].dtype).transpose(-1, -2)
        for i in range(len(self.layers) - 1, -1, -1):
            layer, own = self.layers[i], i < len(self.layers) - 1
            if not isinstance(layer, Activation):
                grad = torch.bmm(layer[0].transpose(-1, -2), grad)
            elif self.in_place[i] and own:
                grad = _aten.threshold_backward.grad_input(grad, self.seen[i + 1], 0, grad_input=grad)
            else:
                grad = layer.backward(grad, self.seen[i], self.seen[i + 1])
        return grad.transpose(-1, -2)


def _linear(layer: Any) -> Activation:
    """A linear layer and its derivative by the input."""
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    transposed = weight.t()

    def forward(x: Tensor) -> Tensor:
        return torch.mm(x, transposed) if bias is None else torch.addmm(bias, x, transposed)

    def backward(grad: Tensor, x: Tensor, out: Tensor) -> Tensor:
        if x.stride(0) == 1 and x.stride(1) == x.shape[0]:  # autograd follows the layout of the input
            return torch.mm(transposed, grad.t()).t()
        return torch.mm(grad, weight)

    return Activation(forward, backward)


def at_least_single(values: Tensor) -> Tensor:
    """Half precision as float32: probabilities near τ need more digits than a model may choose to compute with."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
