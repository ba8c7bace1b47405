"""Many models of one architecture as a single module, as a fleet trains them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from counterfactual_training.errors import ModelError
from counterfactual_training.models.trace import hooked, named_layers
from counterfactual_training.torch_internals import tensor_hooked


class UnstackableError(ModelError):
    """A valid model that would not give the same results in a stack as alone."""


class StackedModel(nn.Module):
    """M models of one architecture: ``(M, n, *features)`` → logits ``(M, n, k)``.

    Members do not interact: the gradient of a sum of member losses contains the gradient of each.

    Attributes:
        weights: ``(M, P)``, the flattened parameters of each member.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        check_stackable(models)
        # Parameters have the same order in all members, so places in ``weights`` need one list of
        # names.
        named = dict(models[0].named_parameters())
        self.names = tuple(named)
        self.shapes = [value.shape for value in named.values()]
        self.sizes = [value.numel() for value in named.values()]
        self.frozen = [not value.requires_grad for value in named.values()]
        rows = [
            torch.cat([value.detach().flatten() for value in model.parameters()])
            for model in models
        ]
        self.weights = nn.Parameter(torch.stack(rows))
        buffers_of_models = [dict(model.named_buffers()) for model in models]
        self.stacked_buffers = {
            name: torch.stack([buffers[name] for buffers in buffers_of_models])
            for name in buffers_of_models[0]
        }
        # The skeleton defines the computation; its own weights are never used. A tuple keeps torch
        # from registering it.
        self.skeleton = (copy.deepcopy(models[0]),)
        self.layers = _plain_layers(models[0], self.names)
        # In a model in training mode, parts in eval mode stay there; a model in eval mode is
        # trained whole.
        modules = list(self.skeleton[0].modules())
        self.trains = [module.training or not models[0].training for module in modules]

    @property
    def num_members(self) -> int:
        return len(self.weights)

    def forward(self, x: Tensor, **options: Any) -> Any:
        """Logits ``(M, n, k)``; options go to the members' own forward."""
        state = self.parameters_by_name()
        if self.layers is None:
            for module, trains in zip(self.skeleton[0].modules(), self.trains, strict=True):
                module.training = self.training and trains
            # Any architecture: vmap runs the first model's code with everyone's weights.
            alone = partial(functional_call, self.skeleton[0], kwargs=options)
            # Known layers that draw are refused beforehand; an unknown one must not draw otherwise
            # than alone.
            return vmap(alone, randomness="error")((state, self.stacked_buffers), (x,))
        fresh = False
        for name, layer in self.layers:  # one batched product each, without vmap's overhead
            if isinstance(layer, nn.Linear):
                weight = state[f"{name}.weight"].transpose(-1, -2)
                bias = state.get(f"{name}.bias")
                if bias is None:
                    x = torch.bmm(x, weight)
                else:
                    x = torch.baddbmm(bias.unsqueeze(-2), x, weight)
            else:
                # Nothing else uses the output of a linear layer, so the most common activation may
                # overwrite it.
                if fresh and type(layer) is nn.ReLU:
                    x = x.relu_()
                else:
                    x = layer(x)
            fresh = isinstance(layer, nn.Linear)
        return x

    def parameters_by_name(self) -> dict[str, Tensor]:
        """All members' parameters, each ``(M, *shape)``, as views of ``weights``."""
        parts = zip(
            self.names, self.weights.split(self.sizes, 1), self.shapes, self.frozen, strict=True
        )
        # Detached, a frozen part gets gradient zero, though all parameters of a member share one
        # tensor.
        return {
            name: (part.detach() if frozen else part).reshape(-1, *shape)
            for name, part, shape, frozen in parts
        }

    def keep(self, members: Tensor) -> None:
        """Keep these members ``(m,)`` only."""
        # A new parameter: optimisers that held the old one have to be made again, or cut alike.
        self.weights = nn.Parameter(self.weights.detach()[members])
        self.stacked_buffers = {
            name: value[members] for name, value in self.stacked_buffers.items()
        }

    def unstack(self, index: int, model: nn.Module | None = None) -> nn.Module:
        """Copy the weights of one member into a model of the same architecture, by default a new
        one.
        """
        if model is None:
            model = copy.deepcopy(self.skeleton[0])
        with torch.no_grad():
            parts = self.weights.detach()[index].split(self.sizes)
            for parameter, part in zip(model.parameters(), parts, strict=True):
                parameter.copy_(part.reshape(parameter.shape))
            for name, buffer in model.named_buffers():
                buffer.copy_(self.stacked_buffers[name][index])
        return model


def check_stackable(models: Sequence[nn.Module]) -> None:
    """Raise, with the reason, if models would not give the same results stacked as alone."""
    if not models:
        raise ModelError("A fleet needs at least one model.")
    _check_parameters(models)
    _check_modes(models)
    for model in models:
        for name, parameter in model.named_parameters():
            if tensor_hooked(parameter):
                raise UnstackableError(
                    f"parameter {name!r} has a hook, which a stack would not call."
                )
    for model in models:
        for name, module in model.named_modules():
            _check_module(name, module)


def _check_parameters(models: Sequence[nn.Module]) -> None:
    """Raise unless each model has its own, of one architecture, device and type."""
    parameters = [parameter for model in models for parameter in model.parameters()]
    if len(set(map(id, parameters))) < len(parameters):
        raise ModelError(
            "Members of a fleet must not share parameters; give each its own copy of the model."
        )
    # Shapes alone would not tell activations or their settings apart; repr() shows both.
    shapes = [
        str([(n, tuple(p.shape), p.dtype, p.device) for n, p in m.named_parameters()])
        for m in models
    ]
    if len(set(shapes)) > 1 or len({repr(model) for model in models}) > 1:
        raise ModelError("Models of a fleet must have the same architecture, on one device.")
    if (
        len({p.dtype for p in models[0].parameters()}) != 1
        or not next(models[0].parameters()).is_floating_point()
    ):
        raise ModelError(
            "Models of a fleet must have parameters, all of one floating-point type."
        )


def _check_modes(models: Sequence[nn.Module]) -> None:
    """Raise if some parts are in eval mode in one model and in training mode in another."""
    names = [name for name, _ in models[0].named_parameters()]
    # Plain layers know no modes.
    if _plain_layers(models[0], names) is not None:
        return
    if len({tuple(module.training for module in model.modules()) for model in models}) > 1:
        raise UnstackableError(
            "some models have parts in eval mode that others have in training mode."
        )


def _check_module(name: str, module: nn.Module) -> None:
    """Raise if a part of a model does what a stack would not do, or not alike."""
    what = f"{type(module).__name__} {name!r}"
    if hooked(module):
        raise UnstackableError(
            f"{what} has hooks or a forward of its own, which a stack would not call."
        )
    if getattr(module, "track_running_stats", False):
        raise UnstackableError(
            f"{what} keeps running statistics, which change with every forward pass."
        )
    # Dropout layers call their rate p, recurrent and attention layers call it dropout; at rate
    # 0 nothing is drawn.
    dropout = getattr(module, "p", getattr(module, "dropout", 0.0))
    drops = "Dropout" in type(module).__name__ or isinstance(
        module, nn.RNNBase | nn.MultiheadAttention
    )
    if isinstance(module, nn.RReLU) or (drops and dropout):
        raise UnstackableError(
            f"{what} draws random numbers; a stacked member would draw others than alone."
        )


def _plain_layers(model: nn.Module, names: Sequence[str]) -> list[tuple[str, nn.Module]] | None:
    """The layers of a chain of linear layers and elementwise ones; ``None`` for anything else."""
    layers = named_layers(model)
    if layers is None:
        return None
    linear = [name for name, layer in layers if type(layer) is nn.Linear]
    # A layer that occurs twice in a Sequential has its weights under one name only.
    if all(f"{name}.weight" in names for name in linear):
        return layers
    return None
