"""A fitted classifier as one file: weights as tensors, everything else as JSON. Loading never executes anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from counterfactual_training.errors import FileError, InputError
from counterfactual_training.estimator.origin import Origin
from counterfactual_training.estimator.parameters import MODELS, make_model, make_training_generator, vae_of
from counterfactual_training.gates import Gate, make_gate
from counterfactual_training.models import VAE
from counterfactual_training.persistence import load_file, load_weights, save_file
from counterfactual_training.search import GENERATORS
from counterfactual_training.tabular.encode import Encoder
from counterfactual_training.training import OBJECTIVES, History

_KIND = "counterfactual classifier"
_MODEL, _VAE, _GATE, _ORIGIN = "model.", "vae.", "gate.", "origin."
_CLASS_KINDS = "biufUO"
# Parameters that may hold a user's own object, which has to be passed to load() again.
_NAMED: Mapping[str, tuple[str, ...] | Mapping[str, Any]] = {
    "model": MODELS,
    "generator": GENERATORS,
    "objective": OBJECTIVES,
    "preset": (),
}


def save_classifier(path: str | Path, classifier: Any, origin: Origin | None = None) -> None:
    """Write a fitted classifier and, if given, where its rows came from."""
    vae = vae_of(classifier.generator_)
    tensors = {_MODEL + name: value for name, value in classifier.model_.state_dict().items()}
    if vae is not None:
        tensors |= {_VAE + name: value for name, value in vae.state_dict().items()}
    gate = classifier.gate_
    if gate is not None:
        tensors |= {_GATE + name: value for name, value in gate.state_dict().items()}
    content = {
        "params": {name: _to_json(name, value) for name, value in classifier.get_params(deep=False).items()},
        "classes": {"dtype": str(classifier.classes_.dtype), "labels": classifier.classes_.tolist()},
        "named_columns": hasattr(classifier, "feature_names_in_"),
        "encoder": classifier.encoder_.to_dict(),
        "history": {"records": classifier.history_.records, "stopped": classifier.history_.stopped},
        "num_std": classifier.num_std_,
        "vae": None if vae is None else {"latent_dim": vae.latent_dim, "hidden_dim": vae.trunk[0].out_features},
    }
    if gate is not None:
        content["gate"] = gate.describe()
    if origin is not None:
        marks, content["origin"] = origin.to_file()
        tensors |= {_ORIGIN + name: value for name, value in marks.items()}
    _must_be_json(content)
    save_file(path, _KIND, tensors, content)


def load_classifier(path: str | Path, cls: type, objects: Mapping[str, Any]) -> Any:
    """Read a classifier; ``objects`` are the parameters that a file cannot hold, passed by the caller."""
    tensors, content = load_file(path, _KIND)
    try:
        return _assembled(tensors, content, cls, objects, str(path))
    except FileError:
        raise
    except (InputError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise FileError(f"{str(path)!r} is damaged or was altered: {error}") from error


def load_origin(path: str | Path) -> Origin | None:
    """Where the rows of a saved classifier came from, if its file says so."""
    tensors, content = load_file(path, _KIND)
    try:
        return None if "origin" not in content else Origin.from_file(_under(_ORIGIN, tensors), content["origin"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"{str(path)!r} is damaged or was altered: {error}") from error


def _assembled(
    tensors: dict[str, Tensor], content: dict[str, Any], cls: type, objects: Mapping[str, Any], source: str
) -> Any:
    _need_objects(content["params"], objects, source)
    params = {name: _from_json(name, value) for name, value in content["params"].items()}
    params |= {name: value for name, value in objects.items() if value is not None}
    classifier = cls(**params)
    classes = _classes(content["classes"])
    encoder = Encoder.from_dict(content["encoder"])
    if params.get("schema") is not None:
        classifier.set_params(schema=encoder.schema_)
    params = classifier.get_params(deep=False)  # with those an older file lacks
    model = _model(params, len(encoder.names_), len(classes), _under(_MODEL, tensors), source)
    vae = None if content["vae"] is None else _vae(content["vae"], len(encoder.names_), _under(_VAE, tensors), source)
    history = History(list(content["history"]["records"]), content["history"]["stopped"])
    num_std = float(content["num_std"])
    if not 0 <= num_std < float("inf"):
        raise ValueError(f"num_std is {num_std}")
    generator = make_training_generator(classifier.get_params(deep=False), vae=vae)
    spec = content.get("gate")  # older files have no gate
    sizes = (len(encoder.names_), len(classes))
    gate = None if spec is None else _gate(spec, *sizes, _under(_GATE, tensors), source)
    classifier._adopt(encoder, classes, model, history, num_std, generator, gate)
    classifier.n_features_in_ = encoder.n_features_in_
    if content["named_columns"]:
        classifier.feature_names_in_ = encoder.feature_names_in_
    return classifier


def _model(
    params: dict[str, Any], num_features: int, num_classes: int, state: dict[str, Tensor], source: str
) -> nn.Module:
    if callable(params["model"]):
        model = make_model(params, num_features, num_classes)
    else:
        # Shapes first, memory afterwards: a file with absurd widths must not allocate any.
        with torch.device("meta"):
            model = make_model(params, num_features, num_classes)
        model = _allocated(model, state, source)
    load_weights(model, state, source)
    return model.eval()


def _vae(spec: dict[str, Any], num_features: int, state: dict[str, Tensor], source: str) -> VAE:
    with torch.device("meta"):
        vae = VAE(num_features, int(spec["latent_dim"]), int(spec["hidden_dim"]))
    _allocated(vae, state, source)
    load_weights(vae, state, source)
    return vae.eval().requires_grad_(False)


def _gate(
    spec: list[dict[str, Any]], num_features: int, num_classes: int, state: dict[str, Tensor], source: str
) -> Gate:
    try:
        with torch.device("meta"):
            gate = make_gate(spec)
        _allocated(gate, state, source)
        load_weights(gate, state, source)
        judged = gate(torch.zeros(1, num_features, dtype=next(iter(state.values())).dtype)).shape[-1]
    except RuntimeError as error:
        raise ValueError("its gate does not fit the columns") from error
    if judged != num_classes:
        raise ValueError("its gate does not fit the classes")
    return gate.eval().requires_grad_(False)


def _allocated(module: nn.Module, state: dict[str, Tensor], source: str) -> nn.Module:
    wanted = {name: value.shape for name, value in module.state_dict().items()}
    if wanted != {name: value.shape for name, value in state.items()}:
        raise FileError(f"{source!r} is damaged or was altered: its weights do not fit the model it describes.")
    dtype = next(iter(state.values())).dtype
    if not dtype.is_floating_point or not all(bool(torch.isfinite(value).all()) for value in state.values()):
        raise FileError(f"{source!r} is damaged or was altered: its weights are not finite numbers.")
    return module.to(dtype).to_empty(device="cpu")


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _classes(spec: dict[str, Any]) -> np.ndarray:
    dtype = np.dtype(spec["dtype"])
    if dtype.kind not in _CLASS_KINDS:
        raise ValueError(f"labels cannot be of type {dtype}")
    # The width of a text type comes from the labels: the file could claim gigabytes.
    classes = np.array(spec["labels"], dtype=str if dtype.kind == "U" else dtype)
    if classes.ndim != 1 or len(classes) < 2:
        raise ValueError("there are no class labels")
    return classes


def _to_json(name: str, value: Any) -> Any:
    if name in _NAMED:
        return {"name": value} if isinstance(value, str | None) else {"object": type(value).__name__}
    if name == "schema":
        return value is not None  # the encoder holds the complete one
    if name == "random_state" and not isinstance(value, (int, np.integer, type(None))):
        return None
    if name in ("device", "callbacks"):
        return None  # the machine that loads may have other devices; callbacks are done
    return _plain(value)


def _need_objects(params: dict[str, Any], objects: Mapping[str, Any], source: str) -> None:
    own = {name: params[name]["object"] for name in _NAMED if "object" in params[name]}
    absent = [name for name in own if objects.get(name) is None]
    if absent:
        said = " and ".join(f"a {name} of your own ({own[name]})" for name in absent)
        call = ", ".join(f"{name}=…" for name in absent)
        raise FileError(
            f"{source!r} was trained with {said}, which a file cannot hold; pass it again, as to the constructor: "
            f"load(path, {call})."
        )


def _from_json(name: str, value: Any) -> Any:
    if name in _NAMED:
        return value.get("name")  # without a name, the caller passes the object
    if name == "schema":
        return True if value else None  # replaced by the encoder's
    if name == "hidden" and value is not None:
        return tuple(int(width) for width in value)
    if isinstance(value, dict):
        return {key: tuple(entry) if isinstance(entry, list) else entry for key, entry in value["pairs"]}
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):  # as pairs: JSON would turn column numbers into text
        return {"pairs": [[_plain(key), _plain(entry)] for key, entry in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value


def _must_be_json(content: dict[str, Any]) -> None:
    try:
        json.dumps(content)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"This classifier cannot be saved: {error}. Parameters must be text, numbers, lists or dicts."
        ) from None
