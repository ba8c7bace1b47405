"""Logits of a model and their derivative with respect to the input, which is all that a search
needs.

Autograd computes both for every model. For a chain of linear layers and activations its overhead
exceeds the arithmetic, so chains are differentiated by hand, with the same operations that autograd
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import ModelError
from counterfactual_training.models.classifiers import Asinh
from counterfactual_training.models.stack import StackedModel, hooked

_aten: Any = torch.ops.aten


class Activation(NamedTuple):
    """A layer's function, and its derivative times ``grad``, given its input x and output
    ``out``.
    """

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor, Tensor], Tensor]


# The derivative of each known activation, by the operations that autograd runs.
_DERIVATIVES: dict[type[nn.Module], Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    nn.Identity: lambda layer, grad, x, out: grad,
    nn.ReLU: lambda layer, grad, x, out: _aten.threshold_backward.default(grad, out, 0),
    nn.SiLU: lambda layer, grad, x, out: _aten.silu_backward.default(grad, x),
    nn.Tanh: lambda layer, grad, x, out: _aten.tanh_backward.default(grad, out),
    nn.Sigmoid: lambda layer, grad, x, out: _aten.sigmoid_backward.default(grad, out),
    Asinh: lambda layer, grad, x, out: grad * (x.pow(2) + 1).rsqrt(),
    nn.GELU: lambda layer, grad, x, out: _aten.gelu_backward.default(
        grad, x, approximate=layer.approximate
    ),
    nn.LeakyReLU: lambda layer, grad, x, out: _aten.leaky_relu_backward.default(
        grad, x, layer.negative_slope, False
    ),
    nn.ELU: lambda layer, grad, x, out: _aten.elu_backward.default(
        grad, layer.alpha, 1, 1, False, x
    ),
    nn.Softplus: lambda layer, grad, x, out: _aten.softplus_backward.default(
        grad, x, layer.beta, layer.threshold
    ),
}
# Their derivatives need the output only, so the input may be overwritten.
_IN_PLACE: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: torch.relu_,
    nn.Tanh: torch.tanh_,
    nn.Sigmoid: torch.sigmoid_,
}


def activation(layer: nn.Module) -> Activation | None:
    """The function of an activation, settings included; ``None`` for other layers and for those
    that work in place.
    """
    derivative = _DERIVATIVES.get(type(layer))
    # An in-place layer overwrites its input, which the derivative may need.
    if derivative is None or getattr(layer, "inplace", False):
        return None
    # forward itself, not the call of the module, which would look for hooks; chains have none.
    return Activation(layer.forward, partial(derivative, layer))


def chain_layers(model: nn.Module) -> list[nn.Module] | None:
    """The layers of a Sequential that runs nothing but linear layers and known activations, without
    identities.

    ``None`` if it has other layers, hooks of any kind, or a shared parameter.
    """
    # Exact types throughout: a subclass may compute anything.
    if type(model) is not nn.Sequential or any(hooked(module) for module in model.modules()):
        return None
    layers = [layer for layer in model if type(layer) is not nn.Identity]
    linear = [layer for layer in layers if type(layer) is nn.Linear]
    if not linear or any(
        type(layer) is not nn.Linear and activation(layer) is None for layer in layers
    ):
        return None
    weights = [
        weight
        for layer in linear
        for weight in (layer.weight, layer.bias)
        if weight is not None
    ]
    # Parametrised layers compute their weight anew at every access; only plain parameters can be
    # read once.
    if any(type(weight) is not nn.Parameter for weight in weights):
        return None
    # Tied weights would get one gradient each instead of their sum; empty tensors all have the
    # address 0.
    places = {(weight.device, weight.data_ptr() or id(weight)) for weight in weights}
    if len(places) == len(weights):
        return layers
    return None


class Differentiable(Protocol):
    """A model with the weights it had when this object was made."""

    def logits(self, x: Tensor) -> Tensor:
        """Logits ``(..., n, k)`` of rows x ``(..., n, d)``, without a graph."""
        ...

    def pullback(self, grad: Tensor) -> Tensor:
        """∂/∂x ``(..., n, d)`` at the last x, given ∂/∂logits ``(..., n, k)``; the caller may
        overwrite it.
        """
        ...


def differentiable(
    model: nn.Module, feature_shape: torch.Size, dims: int, plain: bool = True
) -> Differentiable:
    """The fastest implementation for a model of rows with ``dims`` dimensions: 2 for a lone model,
    3 for a fleet.

    Rows are passed flattened. Unless ``plain``, where logits and pullback suffice, it is a
    :class:`ByAutograd`.
    """
    device = next((parameter.device for parameter in model.parameters()), None)
    # Autocast would choose the precision layer by layer, which the chain does not imitate.
    if (
        plain
        and len(feature_shape) == 1
        and device is not None
        and not torch.is_autocast_enabled(device.type)
    ):
        if dims == 2:
            layers = chain_layers(model)
        else:
            layers = None
        if layers is not None:
            linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
            return Chain(
                layers,
                [
                    (w.weight.detach(), None if w.bias is None else w.bias.detach())
                    for w in linear
                ],
            )
        if (
            dims == 3
            and type(model) is StackedModel
            and model.layers is not None
            and not hooked(model)
        ):
            named = [
                (name, layer) for name, layer in model.layers if type(layer) is not nn.Identity
            ]
            if all(
                type(layer) is nn.Linear or activation(layer) is not None for _, layer in named
            ):
                weights = {
                    name: value.detach() for name, value in model.parameters_by_name().items()
                }
                names = [name for name, layer in named if type(layer) is nn.Linear]
                # Cut out of the long rows of all parameters: a copy in one piece is worth it for a
                # whole search.
                found = [
                    (weights[f"{name}.weight"].contiguous(), weights.get(f"{name}.bias"))
                    for name in names
                ]
                columns = [
                    (weight, None if bias is None else bias.unsqueeze(-1))
                    for weight, bias in found
                ]
                return StackedChain([layer for _, layer in named], columns)
    return ByAutograd(lambda rows: model(rows.reshape(*rows.shape[:-1], *feature_shape)))


class ByAutograd:
    """Any model."""

    leaf: Tensor  #: ``(..., n, d)`` the last x
    output: Tensor  #: ``(..., n, k)`` its logits, with their graph

    def __init__(self, model: Callable[[Tensor], Tensor]) -> None:
        self.model = model

    def logits(self, x: Tensor) -> Tensor:
        # Detached, so that the graph starts here and ends with this step.
        self.leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            output = self.model(self.leaf)
            if not isinstance(output, Tensor):  # the caller raises an error
                return output
            self.output = at_least_single(output)
        return self.output.detach()

    def pullback(self, grad: Tensor, *others: Tensor) -> Tensor:
        """As in :class:`Differentiable`, plus the derivative of the sums of ``others``, made of
        leaf and output.
        """
        # autograd's own message would not say what a user can do about it.
        if not self.output.requires_grad:
            raise ModelError(
                "The model's output does not depend differentiably on its input, which a search "
                "needs."
            )
        (found,) = torch.autograd.grad(
            [self.output, *others],
            self.leaf,
            [grad, *(torch.ones_like(value) for value in others)],
        )
        return found


class Chain:
    """Linear layers and activations in a row; bit by bit the results of autograd.

    Calls reuse the memory of earlier results, because allocating it would cost more than the
    arithmetic.
    """

    def __init__(
        self, layers: Sequence[nn.Module], weights: Sequence[tuple[Tensor, Tensor | None]]
    ) -> None:
        """``weights`` holds weight and bias of the linear layers, in order."""
        self.layers = layers
        self.weights = weights
        self.layout: Any = None
        self.steps: list[Activation] = []  # of all layers, for rows of this layout
        self.seen: list[Tensor] = []  # the input of each layer at the last x, and the output

    def logits(self, x: Tensor) -> Tensor:
        return at_least_single(self.forward(x))

    def pullback(self, grad: Tensor) -> Tensor:
        return self._backward(_cast(grad, self.seen[-1]))

    def forward(self, x: Tensor) -> Tensor:
        """The output at x, in memory that the next call reuses."""
        # A plan holds buffers of one shape. The working set shrinks seldom, so planning anew then
        # is cheap.
        layout = x.shape, x.stride()
        if layout != self.layout:
            self.layout, self.steps = layout, self._plan(x)
        self.seen = seen = [x]
        for forward, _ in self.steps:
            x = forward(x)
            seen.append(x)
        return x

    def _backward(self, grad: Tensor) -> Tensor:
        seen = self.seen
        i = len(self.steps)
        for _, backward in reversed(self.steps):
            i -= 1
            grad = backward(grad, seen[i], seen[i + 1])
        return grad

    @torch.inference_mode(False)  # the next caller may not be in inference_mode
    def _plan(self, x: Tensor) -> list[Activation]:
        """All layers with their own memory, for inputs laid out as x."""
        steps = list[Activation]()
        weights = iter(self.weights)
        behind = None
        # Behind the last linear layer, the gradient is the caller's own tensor and must not be
        # overwritten.
        last = max(i for i, layer in enumerate(self.layers) if isinstance(layer, nn.Linear))
        for i, layer in enumerate(self.layers):
            step = activation(layer)
            if step is None:
                x, step = self._product(*next(weights), x)
            elif isinstance(behind, nn.Linear) and type(layer) in _IN_PLACE:
                # No one else holds the output of a linear layer: an activation that does not need
                # it may overwrite it.
                backward = _relu_back if type(layer) is nn.ReLU and i < last else step.backward
                step = Activation(_IN_PLACE[type(layer)], backward)
            steps.append(step)
            behind = layer
        return steps

    def _product(
        self, weight: Tensor, bias: Tensor | None, x: Tensor
    ) -> tuple[Tensor, Activation]:
        """The output memory of a linear layer and its functions, for inputs laid out as x."""
        made = x.new_empty(len(x), len(weight))
        back = x.new_empty(x.shape)
        transposed = weight.t()
        by_columns = x.stride(0) == 1 and x.stride(1) == len(x)

        def forward(x: Tensor) -> Tensor:
            if bias is None:
                return torch.mm(x, transposed, out=made)
            return torch.addmm(bias, x, transposed, out=made)

        def backward(grad: Tensor, *_: Tensor) -> Tensor:
            # Autograd follows the layout of the input, which decides the order of summation.
            if by_columns:
                # Not into ``back``, whose layout is the other one.
                return torch.mm(transposed, grad.t()).t()
            return torch.mm(grad, weight, out=back)

        return made, Activation(forward, backward)


class StackedChain(Chain):
    """Chains of M members, equal to autograd up to rounding.

    Works on ``(M, d, n)``, features before rows, and so does ``seen``: matrix products with few
    features are slow.
    """

    def logits(self, x: Tensor) -> Tensor:
        # Rows were laid out as (M, d, n) by the search, so x.mT is contiguous.
        return at_least_single(self.forward(x.mT).mT)

    def pullback(self, grad: Tensor) -> Tensor:
        return self._backward(_cast(grad, self.seen[-1]).mT).mT

    def _product(
        self, weight: Tensor, bias: Tensor | None, x: Tensor
    ) -> tuple[Tensor, Activation]:
        made = x.new_empty(len(x), weight.shape[1], x.shape[-1])
        back = x.new_empty(x.shape)
        transposed = weight.mT

        def forward(x: Tensor) -> Tensor:
            if bias is None:
                return torch.bmm(weight, x, out=made)
            return torch.baddbmm(bias, weight, x, out=made)

        return made, Activation(
            forward, lambda grad, x, out: torch.bmm(transposed, grad, out=back)
        )


def _relu_back(grad: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """As autograd, but into the memory of ``grad``."""
    return _aten.threshold_backward.grad_input(grad, out, 0, grad_input=grad)


def _cast(values: Tensor, like: Tensor) -> Tensor:
    if values.dtype == like.dtype:
        return values
    return values.to(like.dtype)
