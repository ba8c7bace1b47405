"""The classifier's flat parameters, translated into model, generator, objective and training settings.

``None`` always means what the preset says; each default stands where the setting is defined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError, ModelError, unknown
from counterfactual_training.estimator.presets import PRESETS, Preset, Scaling, usual_batch_size
from counterfactual_training.gates import KINDS as GATES
from counterfactual_training.models import VAE, linear, mlp
from counterfactual_training.search import GENERATORS, Generator, LatentSpace
from counterfactual_training.search.recipes import make_alike
from counterfactual_training.training import Objective, Setting, TrainConfig, make_objective
from counterfactual_training.training.setting import OF_OBJECTIVE, in_parts

MODELS = ("mlp", "linear")
Params = Mapping[str, Any]

# Of the generator: numbers of the search, and weights of penalties.
_SEARCH = ("max_steps", "decision_threshold", "epsilon", "search_learning_rate")
WEIGHTS = ("lambda_cost", "lambda_energy")


def make_preset(params: Params) -> Setting:
    """How to train where nothing is stated."""
    found = _preset(params).setting
    if found.constraints is not None:
        raise InputError("A preset's constraints have no effect: state mutability, domain or schema, column by column.")
    return found if params["num_std"] is None else replace(found, num_std=float(params["num_std"]))


def _preset(params: Params) -> Preset:
    """A setting of the user's own has the paper's network and rows."""
    given = params["preset"]
    if isinstance(given, Setting):
        return Preset(given)
    if given not in PRESETS:
        raise InputError(unknown("preset", given, PRESETS))
    return PRESETS[given]


def make_whole(params: Params) -> Preset:
    """The preset with what is stated of the network, the encoder and the rows to hold out."""
    found = replace(_preset(params), **_stated(params, [f.name for f in fields(Preset) if f.name in params]))
    if found.scaling not in get_args(Scaling):
        raise InputError(unknown("scaling", found.scaling, get_args(Scaling)))
    if found.gate not in (*GATES, "none"):
        raise InputError(unknown("gate", found.gate, [*GATES, "none"]))
    return found


def make_model(params: Params, num_features: int, num_classes: int) -> nn.Module:
    """A fresh classifier: one of :data:`MODELS`, or what the user's function makes."""
    spec, network = params["model"], make_whole(params)
    if isinstance(spec, nn.Module):
        raise ModelError(
            f"model is a {type(spec).__name__}, whose size is fixed; give a function (num_features, num_classes) that "
            "makes one, or train it with counterfactual_training.train."
        )
    if callable(spec):
        model = spec(num_features, num_classes)
        if not isinstance(model, nn.Module):
            raise ModelError(f"The function given as model returned {type(model).__name__}, not a torch.nn.Module.")
        return model
    if spec == "linear":
        return linear(num_features, num_classes)
    if spec == "mlp":
        if isinstance(network.hidden, str) or not hasattr(network.hidden, "__iter__"):
            raise InputError(f"hidden must list the widths of the layers, such as (32,), got {network.hidden!r}.")
        robust = network.scaling == "robust"
        return mlp(num_features, num_classes, tuple(network.hidden), network.activation, squash=robust)
    raise InputError(unknown("model", spec, [*MODELS, "or a function (num_features, num_classes) -> nn.Module"]))


def make_setting(params: Params, x_train: Tensor, constraints: Constraints, seed: int) -> Setting:
    """All that decides the training on these rows ``(n, d)``."""
    return replace(
        make_preset(params),
        generator=make_training_generator(params, x_train),
        constraints=constraints,
        objective=_objective(params),
        config=_config(params, len(x_train), seed),
    )


def make_training_generator(params: Params, x_train: Tensor | None = None, vae: VAE | None = None) -> Generator:
    """The generator of the counterfactuals in training; ``x_train`` or ``vae`` serve recipes that need a VAE."""
    spec, like = params["generator"], make_preset(params).generator
    stated = in_parts(_stated(params, (*_SEARCH, *WEIGHTS)))["generator"]
    if spec is None:
        return like.with_numbers({name: number for name, number in stated.items() if name in like.numbers()})
    if isinstance(spec, Generator):
        for name in WEIGHTS:
            if name in stated:
                raise InputError(f"{name} has no effect on a ready-made generator; state it when you make one.")
        return spec.with_numbers(stated)
    if vae is not None:
        stated["vae"] = vae
    return make_alike(spec, like, x_train, **stated)


def params_of(generator: Generator) -> dict[str, Any]:
    """The parameters that :func:`make_training_generator` makes this generator of; itself, if no others do."""
    numbers = Setting(generator).numbers()
    params = {name: numbers.get(name) for name in (*_SEARCH, *WEIGHTS)} | {"generator": generator.name}
    if generator.name in GENERATORS:
        again = make_training_generator({**params, "preset": "as_run", "num_std": None}, vae=vae_of(generator))
        if _content(again) == _content(generator):
            return params
    return {"generator": generator}


def _content(generator: Generator) -> tuple[Any, ...]:
    """What a generator does, comparable."""
    values = tuple(getattr(generator, f.name) for f in fields(Generator) if f.name not in ("penalties", "space"))
    penalties = tuple((type(penalty), vars(penalty)) for penalty in generator.penalties)
    return values, penalties, type(generator.space), vars(generator.space)


def vae_of(generator: Generator) -> VAE | None:
    """The VAE whose latent space a generator searches, if it does."""
    return generator.space.vae if isinstance(generator.space, LatentSpace) else None


def _objective(params: Params) -> Objective:
    weights, usual = _stated(params, OF_OBJECTIVE), make_preset(params).objective
    spec = usual if params["objective"] is None else params["objective"]
    if isinstance(spec, Objective):
        return replace(spec, **weights)
    # A term that the preset lacks has no weight there to pass on.
    used = {name: weight for name, weight in vars(usual).items() if torch.as_tensor(weight).any()}
    return make_objective(spec, **(used | weights))


def _config(params: Params, num_rows: int, seed: int) -> TrainConfig:
    return replace(
        make_preset(params).config,
        batch_size=_number(params, "batch_size", usual_batch_size(num_rows)),
        num_counterfactuals=_number(params, "num_counterfactuals", min(5000, max(100, num_rows // 4))),
        seed=seed,
        **_stated(params, ("epochs", "learning_rate", "burn_in", "shuffle")),
    )


def _stated(params: Params, names: Iterable[str]) -> dict[str, Any]:
    return {name: params[name] for name in names if params[name] is not None}


def _number(params: Params, name: str, automatic: int) -> int:
    value = params[name]
    if isinstance(value, str) and value != "auto":
        raise InputError(f"{name} is a whole number or 'auto', got {value!r}.")
    return automatic if isinstance(value, str) else value


def make_device(spec: Any) -> torch.device:
    try:
        return torch.empty(0, device="cpu" if spec is None else spec).device
    except (RuntimeError, TypeError, AssertionError) as error:
        raise InputError(f"device={spec!r} cannot be used here: {str(error).splitlines()[0]}") from None
