"""Calls that differ between the versions compared, each in one place; and networks out of
arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import counterfactual_training as ct

Numbers = Mapping[str, Any]
CONVENTIONAL = ct.Objective(lambda_div=0.0, lambda_reg=0.0, lambda_adv=0.0)


def member(
    model: nn.Module,
    generator: ct.Generator,
    constraints: ct.Constraints,
    objective: ct.Objective,
    config: ct.TrainConfig,
) -> ct.Member:
    """A member of a fleet."""
    settings = (generator, constraints, objective, config)
    make: Any = ct.Member
    if hasattr(ct, "Method"):
        return make(model, method_of(*settings))
    before: Any = getattr(ct, "Setting", None)
    if before is not None:
        return make(model, before(*settings))
    return make(model, *settings)


def method_of(
    generator: ct.Generator,
    constraints: ct.Constraints,
    objective: ct.Objective,
    config: ct.TrainConfig,
) -> Any:
    return ct.Method(
        generator=generator, constraints=constraints, objective=objective, training=config
    )


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    generator: ct.Generator,
    constraints: ct.Constraints,
    objective: ct.Objective,
    config: ct.TrainConfig,
    **options: Any,
) -> None:
    """Train one model in place, silently."""
    settings = (generator, constraints, objective, config)
    call: Any = ct.train
    if hasattr(ct, "Method"):
        call(model, x, y, method_of(*settings), progress=False, **options)
    else:
        call(model, x, y, *settings, progress=False, **options)


def train_fleet(
    members: Sequence[ct.Member],
    x: Tensor,
    y: Tensor,
    listener: ct.Callback | None = None,
) -> None:
    """Train in place, silently; the listener hears of the end of every epoch."""
    options: dict[str, Any] = {}
    if listener is not None:
        if hasattr(ct, "Method") or hasattr(ct, "Setting"):
            options |= {"callbacks": [listener]}
        else:
            options |= {"on_epoch": listener.on_epoch_end}
    train: Any = ct.Fleet(members).train
    train(x, y, progress=False, **options)


def network(arrays: Numbers, index: int | None = None) -> nn.Sequential:
    """The MLP whose layers are ``w0, b0, w1, b1, …``; of a stack the one at the index."""
    layers: list[list[Tensor]] = []
    while f"w{len(layers)}" in arrays:
        pair = (arrays[f"w{len(layers)}"], arrays[f"b{len(layers)}"])
        layers.append(
            [torch.as_tensor(values if index is None else values[index]) for values in pair]
        )
    widths = [len(bias) for _, bias in layers]
    model = ct.mlp(layers[0][0].shape[1], widths[-1], widths[:-1])
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for layer, (weight, bias) in zip(linear, layers, strict=True):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    return model


def layers_of(models: Sequence[nn.Module]) -> dict[str, Any]:
    """The inverse of :func:`network`: arrays ``w0, b0, …``, stacked over the models."""
    pairs = [
        [layer for layer in model.modules() if isinstance(layer, nn.Linear)] for model in models
    ]
    arrays = {}
    for i in range(len(pairs[0])):
        arrays[f"w{i}"] = torch.stack([layers[i].weight.detach() for layers in pairs]).numpy()
        arrays[f"b{i}"] = torch.stack([layers[i].bias.detach() for layers in pairs]).numpy()
    return arrays


def settings_of(
    arrays: Numbers, i: int, job: Numbers
) -> tuple[ct.Generator, ct.Objective, ct.TrainConfig]:
    """Row i of a file of weights λ, for a training as the job says; without counterfactuals a
    conventional one.
    """
    num = job["num_counterfactuals"]
    weights = {name: float(arrays[name][i]) for name in ("lambda_div", "lambda_reg")}
    if num:
        objective = ct.Objective(**weights)
    else:
        objective = CONVENTIONAL
    cost, energy = (float(arrays[name][i]) for name in ("lambda_cost", "lambda_energy"))
    seed = int(arrays["seed"][i])
    config = ct.TrainConfig(
        job["epochs"], job["batch_size"], num_counterfactuals=max(num, 1), seed=seed, threads=1
    )
    return ct.ecco(cost, energy, decision_threshold=job["threshold"]), objective, config
