"""A fitted classifier as one file: weights as tensors, everything else as JSON. Loading never
executes anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pandas.api import types
from torch import Tensor, nn

from counterfactual_training.errors import FileError, InputError, check_name
from counterfactual_training.gates import Gate, make_gate
from counterfactual_training.models.ensemble import Ensemble, make_ensemble
from counterfactual_training.models.shapes import describe, make_network
from counterfactual_training.models.vae import VAE
from counterfactual_training.persistence import blaming_file, load_file, load_weights, save_file
from counterfactual_training.tables.advice.testimony import check_enough
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.estimators.fit import Epochs
from counterfactual_training.tables.estimators.networks import MODELS
from counterfactual_training.tables.estimators.parameters import learned_by, method_of
from counterfactual_training.tables.estimators.witnesses import Refits
from counterfactual_training.training.method import FromRows, Method
from counterfactual_training.training.registry import is_known
from counterfactual_training.training.run import History

_KIND = "counterfactual classifier"
_MODEL = "model."
_VAE = "vae."
_LEARNED = "learned."
_GATE = "gate."
_ORIGIN = "origin."
_WITNESS = "witness"
_CLASS_KINDS = "biufUO"
# Parameters that may hold a user's own object, which has to be passed to load() again.
OWN_OBJECTS = ("model", "method")


def save_classifier(path: str | Path, classifier: Any) -> None:
    """Write a fitted classifier and, if that is known, where its rows came from."""
    # Such as the VAE in whose space REVISE searches.
    learned = learned_by(classifier.generator_)
    vae = learned.pop("vae", None)
    gate = classifier.gate_
    tensors = _weights(_MODEL, classifier.model_) | _weights(_VAE, vae) | _weights(_GATE, gate)
    # A ready-made generator has to be passed to load() again, and brings its own.
    params = classifier.get_params(deep=False)
    learns = is_known(params["method"]) and isinstance(method_of(params).generator, FromRows)
    if learns:
        tensors |= {_LEARNED + name: value.contiguous() for name, value in learned.items()}
    # Gate, witnesses and origin are written only if they exist.
    content = {
        "params": {
            name: to_json(name, value)
            for name, value in classifier.get_params(deep=False).items()
        },
        "classes": {
            "dtype": str(classifier.classes_.dtype),
            "labels": classifier.classes_.tolist(),
        },
        "named_columns": hasattr(classifier, "feature_names_in_"),
        "encoder": classifier.encoder_.to_dict(),
        "history": {
            "records": without_seconds(classifier.history_),
            "stopped": classifier.history_.stopped,
        },
        "epochs": classifier.epochs_,
        "num_std": classifier.num_std_,
        "trained": getattr(classifier, "trained_", None),
        "vae": None
        if vae is None
        else {"latent_dim": vae.latent_dim, "hidden_dim": vae.trunk[0].out_features},
    }
    by_function = callable(params["model"])
    content |= _shape(classifier.model_, by_function)
    witnesses = classifier.witnesses_
    if witnesses is not None:
        content["witnesses"] = [_shape(model, by_function) for model in witnesses.models]
        for i, model in enumerate(witnesses.models):
            tensors |= _weights(_of_witness(i), model)
    if gate is not None:
        content["gate"] = gate.describe()
    if classifier.origin_ is not None:  # one mark per row: in a tensor, eight bytes each
        marks, content["origin"] = classifier.origin_.to_file()
        tensors |= {_ORIGIN + name: value for name, value in marks.items()}
    must_be_json(content)
    save_file(path, _KIND, tensors, content)


def _shape(model: nn.Module, by_function: bool) -> dict[str, Any]:
    """What a file says of a network as it was trained: parameters may have been set anew since
    then. Of one made ``by_function`` of a user, only the number of members.
    """
    if not by_function:
        return {"network": describe(model)}
    if isinstance(model, Ensemble):
        return {"members": len(model.members)}
    return {}


def _of_witness(i: int) -> str:
    return f"{_WITNESS}{i}."


def _weights(start: str, module: Any) -> dict[str, Tensor]:
    """The tensors of a network, VAE or gate, their names beginning with ``start``; none of
    ``None``.
    """
    if module is None:
        return {}
    return {start + name: value for name, value in module.state_dict().items()}


def load_classifier(path: str | Path, cls: type, objects: Mapping[str, Any]) -> Any:
    """Read a classifier; ``objects`` are the parameters that a file cannot hold, passed by the
    caller.
    """
    tensors, content = load_file(path, _KIND)
    with blaming_file(path):
        return _assembled(tensors, content, cls, objects, str(path))


def _assembled(
    tensors: dict[str, Tensor],
    content: dict[str, Any],
    cls: type,
    objects: Mapping[str, Any],
    source: str,
) -> Any:
    need_objects(content["params"], objects, source)
    params = {name: from_json(name, value) for name, value in content["params"].items()}
    params |= {name: value for name, value in objects.items() if value is not None}
    classifier = cls(**params)
    classes = _classes(content["classes"])
    encoder = Encoder.from_dict(content["encoder"])
    if params.get("schema") is not None:  # not written a second time: the encoder's is complete
        classifier.set_params(schema=encoder.schema_)
    params = classifier.get_params(deep=False)
    own_model = callable(params["model"])
    if not own_model:
        check_name("model", params["model"], MODELS)
    sizes = (len(encoder.names_), len(classes))
    make = _maker(params["model"], content)
    model = load_model(make, *sizes, own_model, under(_MODEL, tensors), source)
    if content["vae"] is None:
        vae = None
    else:
        vae = _vae(content["vae"], len(encoder.names_), under(_VAE, tensors), source)
    history = History(list(content["history"]["records"]), content["history"]["stopped"])
    num_std = checked_num_std(content)
    learned = _learned(under(_LEARNED, tensors), len(encoder.names_)) | (
        {} if vae is None else {"vae": vae}
    )
    method = _method(classifier.get_params(deep=False), learned, source)
    spec = content.get("gate")
    if spec is None:
        gate = None
    else:
        gate = _gate(spec, *sizes, under(_GATE, tensors), source)
    epochs = epochs_from_file(content["epochs"])
    method = replace(method, num_std=num_std)
    classifier._adopt(encoder, classes, model, history, epochs, method, gate)
    _take_witnesses(classifier, content, sizes, own_model, tensors, source)
    if "origin" in content:
        classifier.origin_ = Origin.from_file(under(_ORIGIN, tensors), content["origin"])
    if content["trained"] is not None:
        classifier.trained_ = str(content["trained"])
    classifier.n_features_in_ = encoder.n_features_in_
    if content["named_columns"]:
        classifier.feature_names_in_ = encoder.feature_names_in_
    return classifier


def _take_witnesses(
    classifier: Any,
    content: dict[str, Any],
    sizes: tuple[int, int],
    own_model: bool,
    tensors: dict[str, Tensor],
    source: str,
) -> None:
    """Give a classifier the witnesses of a file, if there are any."""
    shapes = content.get("witnesses")
    if shapes is None:
        return
    check_enough(len(shapes))
    kind = classifier.get_params(deep=False)["model"]
    models = [
        load_model(
            _maker(kind, shape), *sizes, own_model, under(_of_witness(i), tensors), source
        )
        for i, shape in enumerate(shapes)
    ]
    classifier.witnesses_ = Refits(models, classifier.encoder_, classifier.classes_)


def load_model(
    make: Callable[[int, int], nn.Module],
    num_features: int,
    num_classes: int,
    own_model: bool,
    state: dict[str, Tensor],
    source: str,
) -> nn.Module:
    """The trained network; ``own`` if a user's function makes it."""
    if own_model:
        model = make(num_features, num_classes)
        load_weights(model, state, source)
    else:
        # Shapes first, memory afterwards: a file with absurd widths must not allocate any.
        try:
            with torch.device("meta"):
                model = make(num_features, num_classes)
        except RuntimeError as error:  # even the number of bytes is too large
            raise ValueError("its network is absurdly large") from error
        _fill(model, state, source)
    return model.eval()


def _vae(spec: dict[str, Any], num_features: int, state: dict[str, Tensor], source: str) -> VAE:
    with torch.device("meta"):
        vae = VAE(num_features, int(spec["latent_dim"]), int(spec["hidden_dim"]))
    _fill(vae, state, source)
    return vae.eval().requires_grad_(False)


def checked_num_std(content: Mapping[str, Any]) -> float:
    """n_σ of the advice: JSON, by us or by anyone, can hold NaN and infinity."""
    num_std = float(content["num_std"])
    if not 0 <= num_std < float("inf"):
        raise ValueError(f"num_std is {num_std}")
    return num_std


def _method(params: Mapping[str, Any], learned: Mapping[str, Any], source: str) -> Method:
    """The method of the training. One of the user's own, or its generator, may be unknown here."""
    if not is_known(params["method"]):
        # Advice needs no loss; only more training needs the method to be registered.
        return Method(str(params["method"]))
    try:
        return method_of(params).with_rows(None, None, **learned)
    except (InputError, TypeError) as error:
        raise FileError(
            f"{source!r} was trained by the method {params['method']!r}, which cannot be made "
            f"here ({error}): register it, or pass it, as in load({source!r}, method=...)."
        ) from error


def _learned(tensors: dict[str, Tensor], num_features: int) -> dict[str, Any]:
    """What the generator learned, checked: numbers per feature, or classes."""
    for name, value in tensors.items():
        if value.is_floating_point():
            fits = value.shape[-1:] == (num_features,)
        else:
            fits = bool((value >= 0).all())
        if not fits or not value.numel() or not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} of its generator does not fit the columns")
    return dict(tensors)


def _gate(
    spec: list[dict[str, Any]],
    num_features: int,
    num_classes: int,
    state: dict[str, Tensor],
    source: str,
) -> Gate:
    try:
        with torch.device("meta"):
            gate = make_gate(spec)
        _fill(gate, state, source)
        # One row shows whether shapes fit, before a user's rows do.
        judged = gate(
            torch.zeros(1, num_features, dtype=next(iter(state.values())).dtype)
        ).shape[-1]
    except RuntimeError as error:
        raise ValueError("its gate does not fit the columns") from error
    if judged != num_classes:
        raise ValueError("its gate does not fit the classes")
    return gate.eval().requires_grad_(False)


def _fill(module: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Give a module without memory the tensors of a file; names and shapes must agree."""
    wanted = {name: value.shape for name, value in module.state_dict().items()}
    if wanted != {name: value.shape for name, value in state.items()}:
        raise FileError(
            f"{source!r} is damaged or was altered: its weights do not fit the model it describes."
        )
    dtype = next(iter(state.values())).dtype
    if not dtype.is_floating_point or not all(
        bool(torch.isfinite(value).all()) for value in state.values()
    ):
        raise FileError(
            f"{source!r} is damaged or was altered: its weights are not finite numbers."
        )
    # Assigned, because `to_empty` imports sympy, which takes longer than all the rest.
    dtypes = module.to(dtype).state_dict()
    module.load_state_dict(
        {name: value.to(dtypes[name].dtype) for name, value in state.items()}, assign=True
    )


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _classes(spec: dict[str, Any]) -> np.ndarray:
    dtype = np.dtype(spec["dtype"])
    if dtype.kind not in _CLASS_KINDS:
        raise ValueError(f"labels cannot be of type {dtype}")
    # The width of a text type comes from the labels: the file could claim gigabytes.
    classes = np.array(spec["labels"], dtype=str if dtype.kind == "U" else dtype)
    if classes.ndim != 1 or len(classes) < 2:
        raise ValueError("there are no class labels")
    return classes


def to_json(name: str, value: Any) -> Any:
    if name in OWN_OBJECTS:
        return _named(value)
    if name == "schema":
        return value is not None  # the encoder holds the complete one
    # JSON can hold a seed, but not the state of a RandomState.
    if name == "random_state" and not isinstance(value, (int, np.integer, type(None))):
        return None
    if name in ("device", "callbacks"):
        return None  # the machine that loads may have other devices; callbacks are done
    return _plain(value)


def without_seconds(history: History) -> list[dict[str, Any]]:
    """The records of a history but for the time that they took, so that equal trainings give equal
    files.
    """
    return [
        {name: value for name, value in record.items() if name != "seconds"}
        for record in history.records
    ]


def epochs_from_file(content: Sequence[Sequence[int]]) -> list[Epochs]:
    """How long each network trained."""
    made = [Epochs(int(run), int(best)) for run, best in content]
    if any(not 0 <= one.best <= one.run for one in made):
        raise ValueError("it does not say how long its networks trained")
    return made


def _named(value: Any) -> dict[str, Any]:
    """A name or plain values; of an object that has none, its class."""
    if isinstance(value, str | dict | None):
        return {"name": value}
    if isinstance(value, Method):
        try:
            return {"name": value.to_dict()}
        except InputError:
            return {"object": type(value).__name__}
    return {"object": type(value).__name__}


def need_objects(params: dict[str, Any], objects: Mapping[str, Any], source: str) -> None:
    needed = {name: params[name]["object"] for name in OWN_OBJECTS if "object" in params[name]}
    absent = [name for name in needed if objects.get(name) is None]
    if absent:
        listed = " and ".join(f"a {name} of your own ({needed[name]})" for name in absent)
        advice = (
            "pass it again, as to the constructor: load(path, "
            f"{', '.join(f'{name}=…' for name in absent)})"
        )
        raise FileError(
            f"{source!r} was trained with {listed}, which a file cannot hold; {advice}.",
            code="needs_objects",
            field=absent[0],
        )


def from_json(name: str, value: Any) -> Any:
    if name in OWN_OBJECTS:
        return value.get("name")  # without a name, the caller passes the object
    if name == "schema":
        return True if value else None  # replaced by the encoder's
    if name == "hidden" and value is not None:
        return tuple(int(width) for width in value)
    if isinstance(value, dict):
        # JSON knows no tuples, but a domain is one.
        return {
            key: tuple(entry) if isinstance(entry, list) else entry
            for key, entry in value["pairs"]
        }
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


def must_be_json(content: dict[str, Any]) -> None:
    try:
        json.dumps(content)
    except (TypeError, ValueError) as error:
        advice = "Parameters must be text, numbers, lists or dicts."
        raise InputError(f"This classifier cannot be saved: {error}. {advice}") from None


# ---- where the rows of a saved classifier came from ----------------------------------------------

_ODD = np.uint64(0x9E3779B97F4A7C15)
_EMPTY = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Origin:
    """What a model file remembers of the table it was trained on.

    Attributes:
        target: the column of the class.
        positive: the class that people want; ``None`` if that was not said.
        reading: how the file was read, as JSON.
        trained, held_out: a mark per row, see :func:`row_marks`; ``(n,)`` and ``(m,)``.
    """

    target: str
    positive: Any = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    trained: np.ndarray = field(default_factory=_EMPTY.copy)
    held_out: np.ndarray = field(default_factory=_EMPTY.copy)

    def to_file(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As tensors and JSON."""
        tensors = {
            "trained": torch.from_numpy(self.trained),
            "held_out": torch.from_numpy(self.held_out),
        }
        return tensors, {
            "target": self.target,
            "positive": self.positive,
            "reading": dict(self.reading),
        }

    @classmethod
    def from_file(cls, tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> Origin:
        marks = {
            name: tensors[name].to(torch.int64).numpy() for name in ("trained", "held_out")
        }
        target = content["target"]
        positive = content["positive"]
        reading = content["reading"]
        if (
            not isinstance(target, str)
            or isinstance(positive, (list, dict))
            or not isinstance(reading, dict)
        ):
            raise ValueError("it does not say where its rows came from")
        if any(mark.ndim != 1 for mark in marks.values()):
            raise ValueError("the marks of its rows are no list")
        return cls(target, positive, reading, **marks)

    def seen(self, marks: np.ndarray) -> np.ndarray:
        """For each row of a table ``(n,)``, whether the model was trained on it.

        Rows of the same content cannot be told apart. As many of them as were held out count as
        held out.
        """
        # A row both trained on and held out occurs twice in the table; which copy is which cannot
        # be told.
        trained = np.isin(marks, self.trained)
        spare = np.isin(marks, self.held_out)
        num_held_out = dict(zip(*np.unique(self.held_out, return_counts=True), strict=True))
        for row in np.flatnonzero(trained & spare).tolist():
            if num_held_out[marks[row]] > 0:
                num_held_out[marks[row]] -= 1
                trained[row] = False
        return trained

    def held(self, marks: np.ndarray) -> np.ndarray:
        """For each row of a table ``(n,)``, whether it was held out when the model was trained."""
        return ~self.seen(marks) & np.isin(marks, self.held_out)


def row_marks(frame: pd.DataFrame, labels: pd.Series) -> np.ndarray:
    """A number ``(n,)`` for the content of each row and its class.

    It depends neither on the order of rows nor on how numbers are stored or written: 1 and 1.0 are
        the same.
    """
    marks = np.zeros(len(frame), dtype=np.uint64)
    # Multiplied and shifted between columns, so that swapping the values of two columns gives
    # another mark.
    for column in (*(frame[name] for name in frame.columns), labels):
        marks = (marks ^ _cell_marks(column)) * _ODD
        marks ^= marks >> np.uint64(29)
    # The same bits as signed numbers, because torch hardly supports unsigned ones.
    return marks.view(np.int64)


def _cell_marks(column: pd.Series) -> np.ndarray:
    if types.is_numeric_dtype(column.dtype) or types.is_bool_dtype(column.dtype):
        return _number_marks(column.to_numpy(dtype=np.float64, na_value=np.nan))
    # A part of a column of texts may hold numbers only and be read as numbers.
    text = column.astype(object)
    numbers = pd.to_numeric(text, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    words = pd.util.hash_array(
        text.where(text.notna(), "").astype(str).to_numpy(dtype=object), categorize=True
    )
    return np.where(np.isnan(numbers) & text.notna().to_numpy(), words, _number_marks(numbers))


def _number_marks(numbers: np.ndarray) -> np.ndarray:
    # One NaN, and no negative zero.
    return pd.util.hash_array(np.where(np.isnan(numbers), np.nan, numbers + 0.0))


def _maker(model: Any, content: Mapping[str, Any]) -> Callable[[int, int], nn.Module]:
    """What makes the network of a file, given the parameter ``model``."""
    make: Callable[[int, int], nn.Module]
    if not callable(model):
        make = partial(make_network, content["network"])
    elif "members" in content:  # an ensemble of a user's own networks
        make = partial(make_ensemble, model, content["members"])
    else:
        make = model
    return make
