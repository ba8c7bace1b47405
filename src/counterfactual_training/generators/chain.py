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
from counterfactual_training.models.stack import StackedModel
from counterfactual_training.models.trace import hooked, named_layers

_aten: Any = torch.ops.aten


Pair = tuple[Tensor, Tensor | None]  # weight and bias


class Product(NamedTuple):
    """A linear layer; ``turned`` is its weight transposed."""

    weight: Tensor
    bias: Tensor | None
    turned: Tensor


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
    """The layers of a network that runs nothing but linear layers and known activations, one after
    the other, without identities.

    ``None`` if it has other layers, hooks of any kind, or a shared parameter.
    """
    layers = [layer for _, layer in named_layers(model) or [] if type(layer) is not nn.Identity]
    linear = [layer for layer in layers if type(layer) is nn.Linear]
    if not linear or not all(
        type(layer) is nn.Linear or activation(layer) is not None for layer in layers
    ):
        return None
    if _have_plain_weights(linear):
        return layers
    return None


def _have_plain_weights(linear: Sequence[nn.Linear]) -> bool:
    """Whether each weight and bias is a parameter of its own."""
    both = [weight for layer in linear for weight in (layer.weight, layer.bias)]
    weights = [weight for weight in both if weight is not None]
    # Parametrised layers recompute their weight at every access; only plain parameters can be read
    # once.
    if any(type(weight) is not nn.Parameter for weight in weights):
        return False
    # Tied weights would get one gradient each instead of their sum; empty tensors all have the
    # address 0.
    places = {(weight.device, weight.data_ptr() or id(weight)) for weight in weights}
    return len(places) == len(weights)


def chain_of(model: nn.Module) -> Chain | None:
    """A lone model as a chain, with its parameters themselves; ``None`` if it is none."""
    layers = chain_layers(model)
    if layers is None:
        return None
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    return Chain(layers, [(layer.weight, layer.bias) for layer in linear])


def stacked_chain_of(model: StackedModel, copied: bool = False) -> StackedChain | None:
    """The members of a stack as chains; ``None`` if they are none.

    With views of their weights, or with copies in one piece each, which are faster: the views are
    cut out of the long rows of all parameters.
    """
    layers = [named for named in model.layers or [] if type(named[1]) is not nn.Identity]
    linear = [name for name, layer in layers if type(layer) is nn.Linear]
    supported = all(
        type(layer) is nn.Linear or activation(layer) is not None for _, layer in layers
    )
    if not linear or not supported or hooked(model):
        return None
    pairs = _stacked_weights(model, linear, copied)
    return StackedChain([layer for _, layer in layers], pairs)


def _stacked_weights(model: StackedModel, linear: Sequence[str], copied: bool) -> list[Pair]:
    """Weight and bias of the linear layers with these names."""
    weights = {name: value.detach() for name, value in model.parameters_by_name().items()}
    pairs: list[Pair] = []
    for name in linear:
        weight = weights[f"{name}.weight"]
        bias = weights.get(f"{name}.bias")
        if bias is not None:
            bias = bias.unsqueeze(-1)
        if copied:
            weight = weight.contiguous()
        pairs.append((weight, bias))
    return pairs


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
    chain = None
    # Autocast would choose the precision layer by layer, which the chain does not imitate.
    if (
        plain
        and len(feature_shape) == 1
        and device is not None
        and not torch.is_autocast_enabled(device.type)
    ):
        if dims == 2:
            chain = chain_of(model)
        elif dims == 3 and type(model) is StackedModel:
            chain = stacked_chain_of(model, copied=True)
    if chain is not None:
        return chain
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
        (gradient,) = torch.autograd.grad(
            [self.output, *others],
            self.leaf,
            [grad, *(torch.ones_like(value) for value in others)],
        )
        return gradient


class Chain:
    """Linear layers and activations in a row; bit by bit the results of autograd.

    Works without a graph, and every call makes new tensors.
    """

    rows = -2  # dimension of rows
    classes = -1  # dimension of logits

    def __init__(self, layers: Sequence[nn.Module], weights: Sequence[Pair]) -> None:
        """``weights`` are those of the linear layers, in order."""
        self.weights = weights
        pairs = iter(weights)
        self.steps: list[Activation | Product] = []
        behind = None
        # Behind the last linear layer, the gradient is the caller's own tensor.
        last = max(i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear))
        for i, layer in enumerate(layers):
            step = activation(layer)
            if step is None:
                self.steps.append(_product(*next(pairs)))
            elif isinstance(behind, nn.Linear) and type(layer) in _IN_PLACE:
                # No one else holds the output of a linear layer: an activation that does not need
                # its input may overwrite it.
                backward = step.backward
                if type(layer) is nn.ReLU and i < last:
                    backward = _relu_back
                self.steps.append(Activation(_IN_PLACE[type(layer)], backward))
            else:
                self.steps.append(step)
            behind = layer
        self.seen: list[Tensor] = []  # the input of each layer at the last x, and the output

    def renew(self) -> None:
        """Read the weights again after they moved to other memory."""
        pairs = iter(self.weights)
        for i, step in enumerate(self.steps):
            if isinstance(step, Product):
                self.steps[i] = _product(*next(pairs))

    def logits(self, x: Tensor) -> Tensor:
        return at_least_single(self.forward(x))

    def pullback(self, grad: Tensor) -> Tensor:
        return self._backward(_cast(grad, self.seen[-1]))

    def forward(self, x: Tensor) -> Tensor:
        """The output at x."""
        self.seen = seen = [x]
        for step in self.steps:
            if isinstance(step, Product):
                x = self._product(step, x)
            else:
                x = step.forward(x)
            seen.append(x)
        return x

    def weight_gradients(self, grad: Tensor, lowest: int = 0) -> list[tuple[Tensor, Tensor]]:
        """∂/∂weight and ∂/∂bias of each linear layer, the last one first, given ∂/∂output.

        Below the step ``lowest`` nothing is differentiated.
        """
        gradients = []
        seen = self.seen
        for i in range(len(self.steps) - 1, lowest - 1, -1):
            step = self.steps[i]
            if isinstance(step, Product):
                gradients.append((self._weight_gradient(grad, seen[i]), grad.sum(self.rows)))
                if i > lowest:
                    grad = self._back(step, grad, seen[i])
            elif i > lowest:
                grad = step.backward(grad, seen[i], seen[i + 1])
        return gradients

    def _backward(self, grad: Tensor) -> Tensor:
        seen = self.seen
        i = len(self.steps)
        for step in reversed(self.steps):
            i -= 1
            if isinstance(step, Product):
                grad = self._back(step, grad, seen[i])
            else:
                grad = step.backward(grad, seen[i], seen[i + 1])
        return grad

    def _product(self, layer: Product, x: Tensor) -> Tensor:
        if layer.bias is None:
            return torch.mm(x, layer.turned)
        return torch.addmm(layer.bias, x, layer.turned)

    def _back(self, layer: Product, grad: Tensor, x: Tensor) -> Tensor:
        # Autograd follows the layout of the input, which decides the order of summation.
        if x.stride(0) == 1 and x.stride(1) == len(x):
            return torch.mm(layer.turned, grad.t()).t()
        return torch.mm(grad, layer.weight)

    def _weight_gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        return torch.mm(grad.t(), x)


class StackedChain(Chain):
    """Chains of M members, equal to autograd up to rounding.

    Works on ``(M, d, n)``, features before rows, and so does ``seen``: matrix products with few
    features are slow.
    """

    rows = -1
    classes = -2

    def logits(self, x: Tensor) -> Tensor:
        # Rows were laid out as (M, d, n) by the search, so x.mT is contiguous.
        return at_least_single(self.forward(x.mT).mT)

    def pullback(self, grad: Tensor) -> Tensor:
        return self._backward(_cast(grad, self.seen[-1]).mT).mT

    def _product(self, layer: Product, x: Tensor) -> Tensor:
        if layer.bias is None:
            return torch.bmm(layer.weight, x)
        return torch.baddbmm(layer.bias, layer.weight, x)

    def _back(self, layer: Product, grad: Tensor, x: Tensor) -> Tensor:
        return torch.bmm(layer.turned, grad)

    def _weight_gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        return torch.bmm(grad, x.mT)


def _product(weight: Tensor, bias: Tensor | None) -> Product:
    if bias is not None:
        bias = bias.detach()
    weight = weight.detach()
    return Product(weight, bias, weight.mT)


def _relu_back(grad: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """As autograd, but into the memory of ``grad``."""
    return _aten.threshold_backward.grad_input(grad, out, 0, grad_input=grad)


def _cast(values: Tensor, like: Tensor) -> Tensor:
    if values.dtype == like.dtype:
        return values
    return values.to(like.dtype)
