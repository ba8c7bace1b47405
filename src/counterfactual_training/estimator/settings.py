"""The classifier's flat parameters, translated into model, generator, objective and training settings.

``None`` always means what the preset says; each default stands where the setting is defined.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from counterfactual_training.errors import InputError, ModelError, unknown
from counterfactual_training.models import VAE, linear, mlp
from counterfactual_training.search import GENERATORS, Distance, Energy, Generator, LatentSpace, make_generator
from counterfactual_training.training import Objective, Setting, TrainConfig, make_objective, preset

MODELS = ("mlp", "linear")
Params = Mapping[str, Any]


def make_preset(params: Params) -> Setting:
    given = params["preset"]
    return given if isinstance(given, Setting) else preset(given)


def make_model(spec: Any, hidden: Any, num_features: int, num_classes: int) -> nn.Module:
    """A fresh classifier: one of :data:`MODELS`, or what the user's function makes."""
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
        if isinstance(hidden, str) or not hasattr(hidden, "__iter__"):
            raise InputError(f"hidden must list the widths of the layers, such as (32,), got {hidden!r}.")
        return mlp(num_features, num_classes, tuple(hidden))
    raise InputError(unknown("model", spec, [*MODELS, "or a function (num_features, num_classes) -> nn.Module"]))


def make_training_generator(params: Params, x_train: Tensor | None = None, vae: VAE | None = None) -> Generator:
    """The generator of the counterfactuals in training; ``x_train`` or ``vae`` serve recipes that need a VAE."""
    spec = params["generator"]
    names = {"search_learning_rate": "learning_rate"}
    search = ("max_steps", "decision_threshold", "epsilon", "search_learning_rate")
    settings = {names.get(name, name): params[name] for name in search if params[name] is not None}
    weights = {name: params[name] for name in ("lambda_cost", "lambda_energy") if params[name] is not None}
    if isinstance(spec, Generator):
        if weights:
            raise InputError(
                f"{next(iter(weights))} has no effect on a ready-made generator; state it when you make one."
            )
        return spec.replace(**settings)
    base = make_preset(params).generator
    if spec in GENERATORS:
        takes = inspect.signature(GENERATORS[spec]).parameters
        energy = next((penalty for penalty in base.penalties if isinstance(penalty, Energy)), None)
        distance = next((penalty for penalty in base.penalties if isinstance(penalty, Distance)), None)
        recipe: dict[str, Any] = {} if distance is None else {"lambda_cost": distance.weight}
        if energy is not None:
            recipe |= {"lambda_energy": energy.weight, "decay": energy.decay, "energy_ridge": energy.ridge}
        recipe |= weights | ({} if vae is None else {"vae": vae})
        made = make_generator(spec, x_train, **{name: value for name, value in recipe.items() if name in takes})
        return made.replace(**{**_unusual(base), **settings})
    return make_generator(spec)  # says which names there are


def params_of(generator: Generator) -> dict[str, Any]:
    """The parameters that :func:`make_training_generator` makes this generator of; itself, if no others do."""
    names = {"search_learning_rate": "learning_rate"}
    search = ("max_steps", "decision_threshold", "epsilon", "search_learning_rate")
    params = {name: getattr(generator, names.get(name, name)) for name in search}
    weights: dict[str, Any] = {"lambda_cost": None, "lambda_energy": None}
    for penalty in generator.penalties:
        if isinstance(penalty, (Distance, Energy)):
            weights["lambda_cost" if isinstance(penalty, Distance) else "lambda_energy"] = penalty.weight
    params |= {"generator": generator.name, **weights}
    if generator.name in GENERATORS:
        again = make_training_generator({**params, "preset": "as_run"}, vae=vae_of(generator))
        if _content(again) == _content(generator):
            return params
    return {"generator": generator}


def _content(generator: Generator) -> tuple[Any, ...]:
    """What a generator does, comparable."""
    values = tuple(getattr(generator, f.name) for f in fields(Generator) if f.name not in ("penalties", "space"))
    penalties = tuple((type(penalty), vars(penalty)) for penalty in generator.penalties)
    return values, penalties, type(generator.space), vars(generator.space)


def _unusual(base: Generator) -> dict[str, Any]:
    """The search settings in which a preset differs from a plain generator."""
    plain = {field.name: field.default for field in fields(Generator)}
    names = ("learning_rate", "max_steps", "decision_threshold", "epsilon", "strict_epsilon")
    return {name: getattr(base, name) for name in names if getattr(base, name) != plain[name]}


def vae_of(generator: Generator) -> VAE | None:
    """The VAE whose latent space a generator searches, if it does."""
    return generator.space.vae if isinstance(generator.space, LatentSpace) else None


def make_training_objective(params: Params) -> Objective:
    names = ("lambda_div", "lambda_reg", "lambda_adv")
    weights = {name: params[name] for name in names if params[name] is not None}
    spec = params["objective"]
    if isinstance(spec, Objective):
        return replace(spec, **weights)
    return make_objective(spec, **(vars(make_preset(params).objective) | weights))


def make_config(params: Params, num_rows: int, seed: int) -> TrainConfig:
    """Training settings for so many rows."""
    names = ("epochs", "learning_rate", "burn_in", "shuffle")
    return replace(
        make_preset(params).config,
        batch_size=_number(params, "batch_size", min(1000, max(30, num_rows // 100))),
        num_counterfactuals=_number(params, "num_counterfactuals", min(5000, max(100, num_rows // 4))),
        seed=seed,
        **{name: params[name] for name in names if params[name] is not None},
    )


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
