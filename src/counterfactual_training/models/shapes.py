"""Networks as plain numbers: what a file needs to make one of the same shape, without running
anything it says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from counterfactual_training.errors import ModelError, check_name
from counterfactual_training.models.classifiers import Asinh, mlp, shape_of
from counterfactual_training.models.counternet import CounterNet, counternet
from counterfactual_training.models.embeddings import (
    Embedding,
    Periodic,
    PiecewiseLinear,
    mlp_ple,
    mlp_plr,
)
from counterfactual_training.models.ensemble import Ensemble, make_ensemble
from counterfactual_training.models.neurotree import NeuroTrees, neurotree
from counterfactual_training.models.quantiles import Quantiles, behind_quantiles
from counterfactual_training.models.tabm import TabM, tabm

#: The networks that can be named, and what makes them of ``(num_features, num_classes)`` and
#: plain numbers.
NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "neurotree": neurotree,
    "mlp-plr": mlp_plr,
    "mlp-ple": mlp_ple,
    "tabm": tabm,
    "counternet": counternet,
}
# By the layer that makes the difference.
_KINDS: dict[type[nn.Module], str] = {
    NeuroTrees: "neurotree",
    Periodic: "mlp-plr",
    PiecewiseLinear: "mlp-ple",
    TabM: "tabm",
}


def describe(model: nn.Module) -> dict[str, Any]:
    """What :func:`make_network` needs to make a network of this shape; raises for a network of
    another kind.
    """
    if isinstance(model, Ensemble):
        return {
            "kind": "ensemble",
            "size": len(model.members),
            "member": describe(model.members[0]),
        }
    if isinstance(model, CounterNet):
        return {"kind": "counternet", **model.shape}
    if isinstance(model, nn.Sequential):
        layers = list(model)
    else:
        layers = [model]
    if isinstance(layers[0], Quantiles):
        return {"quantiles": layers[0].num_bins, **describe(nn.Sequential(*layers[1:]))}
    squash = isinstance(layers[0], Asinh)
    if len(layers) > squash:
        layer = layers[squash]
    else:
        layer = layers[0]
    kind = _KINDS.get(type(layer))
    if kind is None or not isinstance(layer, NeuroTrees | Embedding | TabM):
        return {"kind": "mlp", **shape_of(model)}
    behind = layers[squash + 1 :]
    return {
        "kind": kind,
        **(shape_of(nn.Sequential(*behind)) if behind else {}),
        **layer.shape(),
        "squash": squash,
    }


def make_network(shape: Mapping[str, Any], num_features: int, num_classes: int) -> nn.Module:
    """A network that :func:`describe` described, with weights of its own; without a kind, it is an
    MLP.
    """
    numbers = dict(shape)
    kind = numbers.pop("kind", "mlp")
    num_bins = numbers.pop("quantiles", None)
    if kind != "ensemble":
        check_name("network", kind, NETWORKS)
        network = NETWORKS[kind](num_features, num_classes, **numbers)
        if num_bins is None:
            return network
        return behind_quantiles(network, Quantiles(num_features, num_bins))
    member = numbers["member"]
    # Ensembles of ensembles are never made here; in a file they could be nested to any depth.
    if member.get("kind") == "ensemble":
        raise ModelError("Expected networks as members of an ensemble, got an ensemble.")
    return make_ensemble(
        partial(make_network, member), numbers["size"], num_features, num_classes
    )


def shape_in_words(shape: Mapping[str, Any]) -> str:
    """What :func:`describe` described, for people."""
    if shape["kind"] != "ensemble":
        noun, rest = _words(shape)
        return f"{noun}{rest}"
    noun, rest = _words(shape["member"])
    # Trees and networks that share weights are several already.
    if shape["member"]["kind"] in ("neurotree", "tabm"):
        return f"{shape['size']} times {noun}{rest}"
    return f"{shape['size']} {noun}s{rest}"


def _words(shape: Mapping[str, Any]) -> tuple[str, str]:
    """A noun for one network, and what follows it."""
    kind = shape["kind"]
    if kind == "neurotree":
        return f"{shape['num_trees']} smooth trees", f" of depth {shape['depth']}"
    if kind == "counternet":
        return "network", " with counterfactuals as a second output (CounterNet)"
    widths = " and ".join(str(width) for width in shape["hidden"])
    if kind == "mlp" and not widths:
        return "linear classifier", ""
    if widths:
        layers = f" with hidden layers of {widths} units"
    else:
        layers = " without hidden layers"
    if kind == "tabm":
        return f"{shape['num_members']} networks that share weights,", layers
    embedded = {
        "mlp-plr": " on periodic embeddings",
        "mlp-ple": " on piecewise-linear embeddings",
    }
    return "network", f"{embedded.get(kind, '')}{layers}"
