"""The untrained networks behind the classifier's ``model``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from counterfactual_training.errors import InputError, ModelError, bad_value, check_name
from counterfactual_training.models.classifiers import bend, linear, mlp
from counterfactual_training.models.embeddings import varied
from counterfactual_training.models.quantiles import Quantiles, behind_quantiles
from counterfactual_training.models.shapes import NETWORKS
from counterfactual_training.tables.estimators.parameters import BENT, Params, method_of
from counterfactual_training.torch_modes import single_precision
from counterfactual_training.training.methods import METHODS_WITH_NETWORK
from counterfactual_training.training.registry import kind_and_method

MODELS = ("linear", *NETWORKS)
# Of the networks that have hidden layers.
HIDDEN = (64, 64)
ACTIVATION = "swish"
# What a network is made of beside its inputs and outputs, as far as the classifier has parameters
# for it.
_LEARNED_ARGUMENTS = {"mlp-plr": ("columns",), "mlp-ple": ("columns", "x")}


def make_model(
    params: Mapping[str, Any], num_features: int, num_classes: int, x: Tensor | None = None
) -> nn.Module:
    """An untrained classifier: one of :data:`MODELS`, or what the user's function returns.

    ``x`` are the training rows ``(n, d)``, which say where bends and bins lie; without them, only
    the type is right.
    """
    spec = meant_model(params)
    # Encoding decides the number of inputs, so a module of fixed size would rarely fit.
    if isinstance(spec, nn.Module):
        raise ModelError(
            f"model is a {type(spec).__name__}, whose size is fixed; give a function "
            "(num_features, num_classes) that "
            "makes one, or train it with counterfactual_training.train."
        )
    if callable(spec):
        model = spec(num_features, num_classes)
        if not isinstance(model, nn.Module):
            raise ModelError(
                f"The function given as model returned {type(model).__name__}, not a "
                "torch.nn.Module."
            )
        return model
    check_name(
        "model", spec, (*MODELS, "or a function (num_features, num_classes) -> nn.Module")
    )
    # One's own function follows torch's default; of our networks, users see neither weights nor
    # precision.
    with single_precision():
        if spec == "linear":
            return linear(num_features, num_classes)
        return _named(spec, params, num_features, num_classes, x)


def meant_model(params: Mapping[str, Any]) -> Any:
    """The ``model`` that is meant: the one stated or, for a method with a network of its own, that
    network.
    """
    spec = params["model"]
    name = kind_and_method(method_of(params).name)[1]
    if (
        name not in METHODS_WITH_NETWORK
        or spec == name
        or callable(spec)
        or isinstance(spec, nn.Module)
    ):
        return spec
    # What stands there if nothing is stated.
    usual = {"model": "mlp", "hidden": HIDDEN, "activation": ACTIVATION}
    stated = [name for name in usual if params[name] != usual[name]]
    if stated:
        raise InputError(
            f"{stated[0]}={params[stated[0]]!r} has no effect: the method {name!r} has a network "
            "of its own."
        )
    return name


def _named(
    spec: str, params: Params, num_features: int, num_classes: int, x: Tensor | None
) -> nn.Module:
    if params["scaling"] == "quantile":
        # It answers in the space of its inputs, which ranks would not be.
        if spec == "counternet":
            raise InputError("CounterNet takes scaling='robust' or 'standard', not 'quantile'.")
        return _ranked(spec, params, num_features, num_classes, x)
    # Robust scaling leaves outliers far out; without their logarithm they would dominate.
    squash = params["scaling"] == "robust"
    if spec in ("neurotree", "counternet"):
        return NETWORKS[spec](num_features, num_classes, squash=squash)
    # A word has letters to iterate over, too.
    if isinstance(params["hidden"], str) or not hasattr(params["hidden"], "__iter__"):
        raise bad_value(
            "hidden", "a list of the widths of the layers, such as (32,)", params["hidden"]
        )
    layers = tuple(params["hidden"]), params["activation"], squash
    if spec == "mlp":
        model = mlp(num_features, num_classes, *layers)
        # The plain network of the paper goes with plain scaling.
        if x is not None and layers[0] and params["scaling"] != "standard":
            bend(model, x, BENT)
        return model
    learned = {"columns": None if x is None else varied(x), "x": x}
    return NETWORKS[spec](
        num_features,
        num_classes,
        *layers,
        **{name: learned[name] for name in _LEARNED_ARGUMENTS.get(spec, ())},
    )


def _ranked(
    spec: str, params: Params, num_features: int, num_classes: int, x: Tensor | None
) -> nn.Module:
    """A named network behind :class:`Quantiles`; its own bends and bins lie in their scores."""
    if x is None:
        quantiles = Quantiles(num_features)
    else:
        quantiles = Quantiles(num_features).to(x.dtype).fit(x)
    if x is None:
        scores = None
    else:
        scores = quantiles(x)
    network = _named(spec, {**params, "scaling": "ranks"}, num_features, num_classes, scores)
    return behind_quantiles(network, quantiles)


def seeded_model(
    params: Mapping[str, Any], num_features: int, num_classes: int, x: Tensor | None, seed: int
) -> nn.Module:
    """As :func:`make_model`, on its device, with weights drawn by the seed."""
    with torch.random.fork_rng(devices=[]):  # leaves the caller's randomness alone
        torch.default_generator.manual_seed(seed)
        # Weights are drawn on the CPU, so rows have to be there, too.
        model = make_model(params, num_features, num_classes, None if x is None else x.cpu())
    return model.to(make_device(params["device"]))


def make_device(spec: Any) -> torch.device:
    """The device to use; the CPU if none is stated."""
    try:
        # torch accepts any known name; only a tensor shows whether the device is there.
        return torch.empty(0, device="cpu" if spec is None else spec).device
    except (RuntimeError, TypeError, AssertionError) as error:
        raise InputError(
            f"device={spec!r} cannot be used here: {str(error).splitlines()[0]}"
        ) from None
