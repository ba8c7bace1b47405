"""A model and its derivative by the input, which is all that a search asks of it.

Autograd gives that for every model. For chains of linear layers and activations it costs more than the arithmetic, so
these are walked by hand: forward keeping what each layer saw, and back with the very operations autograd would run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_module

from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import ModelError
from counterfactual_training.models.classifiers import Asinh
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
    Asinh: Activation(torch.asinh, lambda grad, x, out: grad * (x.pow(2) + 1).rsqrt()),
}
# Activations with settings: their derivative, given the layer, the gradient and what the layer saw.
_WITH_SETTINGS: dict[type[nn.Module], Callable[[Any, Tensor, Tensor], Tensor]] = {
    nn.GELU: lambda layer, grad, x: _aten.gelu_backward.default(grad, x, approximate=layer.approximate),
    nn.LeakyReLU: lambda layer, grad, x: _aten.leaky_relu_backward.default(grad, x, layer.negative_slope, False),
    nn.ELU: lambda layer, grad, x: _aten.elu_backward.default(grad, layer.alpha, 1, 1, False, x),
    nn.Softplus: lambda layer, grad, x: _aten.softplus_backward.default(grad, x, layer.beta, layer.threshold),
}
# The derivatives of these ask only for what they made.
_IN_PLACE: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: torch.relu_,
    nn.Tanh: torch.tanh_,
    nn.Sigmoid: torch.sigmoid_,
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
            linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
            pairs = [(one.weight.detach(), None if one.bias is None else one.bias.detach()) for one in linear]
            return Chain(layers, pairs)
        if dims == 3 and type(model) is StackedModel and model.layers is not None and not hooked(model):
            named = [(name, layer) for name, layer in model.layers if type(layer) is not nn.Identity]
            if all(type(layer) is nn.Linear or activation(layer) is not None for _, layer in named):
                weights = {name: value.detach() for name, value in model.parameters_by_name().items()}
                names = [name for name, layer in named if type(layer) is nn.Linear]
                found = [(weights[f"{name}.weight"].contiguous(), weights.get(f"{name}.bias")) for name in names]
                columns = [(weight, None if bias is None else bias.unsqueeze(-1)) for weight, bias in found]
                return StackedChain([layer for _, layer in named], columns)
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


class Product(NamedTuple):
    """A linear layer, or those of M members ``(M, out, in)`` with biases ``(M, out, 1)``."""

    weight: Tensor
    bias: Tensor | None
    transposed: Tensor


class Chain:
    """Linear layers and activations one after the other; bit by bit what autograd gives.

    What a call returns lies in memory that the next one uses again: fresh memory would cost more than the arithmetic.

    Attributes:
        seen: what each layer saw at the last x, and the output at the end.
    """

    def __init__(self, layers: Sequence[nn.Module], weights: Sequence[tuple[Tensor, Tensor | None]]) -> None:
        """``weights`` holds weight and bias of the linear layers, in order."""
        products = iter([Product(weight, bias, weight.mT) for weight, bias in weights])
        self.layers: list[Any] = [activation(layer) or next(products) for layer in layers]
        # What a linear layer has just made is nobody else's: an activation that can do without it may overwrite it.
        behind = [None, *layers]
        self.overwrite = [
            _IN_PLACE.get(type(layer)) if isinstance(behind[i], nn.Linear) else None for i, layer in enumerate(layers)
        ]
        self.seen: list[Tensor] = []
        self.shape: torch.Size | None = None
        self.rooms: list[tuple[Tensor, Tensor] | None] = []  # of each product, forward and back

    def logits(self, x: Tensor) -> Tensor:
        return at_least_single(self._forward(x))

    def pullback(self, grad: Tensor) -> Tensor:
        return self._backward(_cast(grad, self.seen[-1]))

    def _forward(self, x: Tensor) -> Tensor:
        if x.shape != self.shape:
            self.shape, self.rooms = x.shape, [self._room(layer, x) for layer in self.layers]
        self.seen = seen = [x]
        for layer, room, overwrite in zip(self.layers, self.rooms, self.overwrite, strict=True):
            if room is not None:
                x = self._product(layer, x, room[0])
            else:
                x = layer.forward(x) if overwrite is None else overwrite(x)
            seen.append(x)
        return x

    def _backward(self, grad: Tensor) -> Tensor:
        seen, own = self.seen, False
        for i in range(len(self.layers) - 1, -1, -1):
            layer, room = self.layers[i], self.rooms[i]
            if room is not None:
                grad, own = self._product_back(layer, grad, seen[i], room[1]), True
            elif own and self.overwrite[i] is torch.relu_:
                _aten.threshold_backward.grad_input(grad, seen[i + 1], 0, grad_input=grad)
            else:
                grad = layer.backward(grad, seen[i], seen[i + 1])
        return grad

    def _room(self, layer: Any, x: Tensor) -> tuple[Tensor, Tensor] | None:
        if not isinstance(layer, Product):
            return None
        return x.new_empty(len(x), layer.weight.shape[0]), x.new_empty(len(x), layer.weight.shape[1])

    def _product(self, layer: Any, x: Tensor, room: Tensor) -> Tensor:
        if layer.bias is None:
            return torch.mm(x, layer.transposed, out=room)
        return torch.addmm(layer.bias, x, layer.transposed, out=room)

    def _product_back(self, layer: Any, grad: Tensor, x: Tensor, room: Tensor) -> Tensor:
        if x.stride(0) == 1 and x.stride(1) == x.shape[0]:  # autograd follows the layout of the input
            return torch.mm(layer.transposed, grad.t()).t()
        return torch.mm(grad, layer.weight, out=room)


class StackedChain(Chain):
    """Chains of M members side by side, with features before rows, ``(M, d, n)``: few features would leave the
    matrix product's kernels half empty. Equal to autograd up to rounding. ``seen`` is laid out the same way."""

    def logits(self, x: Tensor) -> Tensor:
        return at_least_single(self._forward(x.mT).mT)

    def pullback(self, grad: Tensor) -> Tensor:
        return self._backward(_cast(grad, self.seen[-1]).mT).mT

    def _room(self, layer: Any, x: Tensor) -> tuple[Tensor, Tensor] | None:
        if not isinstance(layer, Product):
            return None
        wide, narrow = layer.weight.shape[1:]
        return x.new_empty(len(x), wide, x.shape[-1]), x.new_empty(len(x), narrow, x.shape[-1])

    def _product(self, layer: Any, x: Tensor, room: Tensor) -> Tensor:
        if layer.bias is None:
            return torch.bmm(layer.weight, x, out=room)
        return torch.baddbmm(layer.bias, layer.weight, x, out=room)

    def _product_back(self, layer: Any, grad: Tensor, x: Tensor, room: Tensor) -> Tensor:
        return torch.bmm(layer.transposed, grad, out=room)


def _cast(values: Tensor, like: Tensor) -> Tensor:
    return values if values.dtype == like.dtype else values.to(like.dtype)
