"""A network in training as two functions: rows → logits, and ∂/∂logits → ∂/∂parameters.

Any module runs by autograd. A chain of linear layers and activations, whatever its class, is walked
by hand: for small networks, autograd's overhead is several times the arithmetic. It runs the
operations that autograd would run, so one model gets the same bits, a stack the same numbers up to
rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from counterfactual_training.core.eq2 import Rows
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import ModelError
from counterfactual_training.generators.chain import (
    Chain,
    Product,
    StackedChain,
    chain_of,
    stacked_chain_of,
)
from counterfactual_training.models.stack import StackedModel
from counterfactual_training.torch_internals import tensor_hooked

Gradients = Sequence[Tensor | None]  # one per parameter; None where a parameter has none


class Network:
    """Any module, by autograd.

    Attributes:
        classes: their dimension in logits.
        parameters: those that train.
    """

    classes = -1

    def __init__(self, model: nn.Module, parameters: Sequence[Tensor]) -> None:
        self.model = model
        self.parameters = parameters

    def laid(self, batches: Sequence[Sequence[Rows]]) -> Iterable[Tensor]:
        """The rows of every batch as one tensor, laid out as this network likes them."""
        return (self._joined(batch) for batch in batches)

    def _joined(self, batch: Sequence[Rows]) -> Tensor:
        if len(batch) == 1:
            return batch[0].x
        # One forward pass for all roles: cheaper, and batch statistics see all rows.
        return torch.cat([part.x for part in batch], batch[0].label.dim() - 1)

    def logits(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            self.output = at_least_single(self.model(x))
        return self.output.detach()

    def gradients(self, grad: Tensor) -> Gradients:
        """∂/∂parameters, in their order, given ∂/∂logits at the last rows."""
        if not self.output.requires_grad:
            raise ModelError("The loss does not depend on any parameter that may be trained.")
        for parameter in self.parameters:
            parameter.grad = None
        # Not autograd.grad, which would not call all hooks, such as those of torch's wrappers.
        self.output.backward(grad)
        return [parameter.grad for parameter in self.parameters]


class ChainNetwork(Network):
    """A chain on rows ``(n, d)``."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[Tensor],
        chain: Chain,
        places: Sequence[int | None],
    ) -> None:
        """``places``: of weight and bias of all linear layers, in order, among the parameters."""
        super().__init__(model, parameters)
        self.chain = chain
        self.classes = chain.classes
        pairs = list(zip(places[::2], places[1::2], strict=True))
        steps = [i for i, step in enumerate(chain.steps) if isinstance(step, Product)]
        # Below the lowest trainable layer no gradient is needed.
        self.lowest = min(
            i for i, pair in zip(steps, pairs, strict=True) if pair != (None, None)
        )
        self.pairs = pairs[::-1]
        self.memory = self._memory()

    def logits(self, x: Tensor) -> Tensor:
        memory = self._memory()
        # An optimizer may give a parameter new memory; the chain holds views of the old.
        if memory != self.memory:
            self.memory = memory
            self.chain.renew()
        return self.chain.forward(x)

    def gradients(self, grad: Tensor) -> Gradients:
        gradients: list[Tensor | None] = [None] * len(self.parameters)
        layers = self.chain.weight_gradients(grad, self.lowest)
        # Frozen layers below the lowest one have no gradient.
        for (weight, bias), (by_weight, by_bias) in zip(self.pairs, layers, strict=False):
            if weight is not None:
                gradients[weight] = by_weight
            if bias is not None:
                gradients[bias] = by_bias
        return gradients

    def _memory(self) -> list[int]:
        return [
            parameter.data_ptr()
            for pair in self.chain.weights
            for parameter in pair
            if parameter is not None
        ]


class StackedNetwork(ChainNetwork):
    """The chains of M members on ``(M, d, n)``. The gradient is one tensor ``(M, P)``, like the
    weights.

    Rows come last because matrix kernels are fast along a long last dimension, and tables have few
    features.
    """

    def __init__(self, model: StackedModel, chain: StackedChain, places: Sequence[int | None]):
        named = list(model.parameters_by_name().values())
        super().__init__(model, named, chain, places)
        # Frozen parameters have a place in (M, P), where their gradient is zero.
        self.none = [torch.zeros_like(parameter.detach().flatten(1)) for parameter in named]

    def laid(self, batches: Sequence[Sequence[Rows]]) -> Iterable[Tensor]:
        rows = torch.cat([part.x.mT for parts in batches for part in parts], -1)
        return rows.split([sum(part.x.shape[-2] for part in parts) for parts in batches], -1)

    def gradients(self, grad: Tensor) -> Gradients:
        columns = []
        for gradient, none in zip(super().gradients(grad), self.none, strict=True):
            if gradient is None:
                columns.append(none)
            else:
                columns.append(gradient.flatten(1))
        return [torch.cat(columns, 1)]


def network_of(model: nn.Module, parameters: Sequence[Tensor]) -> Network:
    """A chain wherever the model is one; otherwise by autograd."""
    all_parameters = list(model.parameters())
    # Hooks on parameters fire in autograd only.
    plain = all(
        parameter.dtype in (torch.float32, torch.float64) and not tensor_hooked(parameter)
        for parameter in all_parameters
    )
    # Autocast would choose the precision layer by layer, which the chain does not imitate.
    if not plain or torch.is_autocast_enabled(all_parameters[0].device.type):
        return Network(model, parameters)
    if isinstance(model, StackedModel):
        return _stacked(model) or Network(model, parameters)
    return _lone(model, parameters) or Network(model, parameters)


def _lone(model: nn.Module, parameters: Sequence[Tensor]) -> ChainNetwork | None:
    chain = chain_of(model)
    if chain is None:
        return None
    numbers = {id(parameter): i for i, parameter in enumerate(parameters)}
    chain_parameters = [parameter for pair in chain.weights for parameter in pair]
    places = [numbers.get(id(parameter)) for parameter in chain_parameters]
    if all(place is None for place in places):
        return None
    return ChainNetwork(model, parameters, chain, places)


def _stacked(model: StackedModel) -> StackedNetwork | None:
    chain = stacked_chain_of(model)
    if chain is None:
        return None
    linear = [name for name, layer in model.layers or [] if type(layer) is nn.Linear]
    # A layer that is used twice would need the sum of two gradients.
    if len(set(linear)) < len(linear):
        return None
    trains = dict(zip(model.names, model.frozen, strict=True))
    named = {name: i for i, name in enumerate(model.names)}
    wanted = [f"{name}.{kind}" for name in linear for kind in ("weight", "bias")]
    places = [None if trains.get(name, True) else named[name] for name in wanted]
    if not any(place is not None for place in places):
        return None
    return StackedNetwork(model, chain, places)
