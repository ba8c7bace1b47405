"""The settings of a grid by dotted name: types, published values, and what they build."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.dataset import PaperSettings
from counterfactual_training.errors import InputError, check_name
from counterfactual_training.gates import KINDS as GATES
from counterfactual_training.generators import GENERATORS, Generator, ecco, make_generator
from counterfactual_training.generators.generator import NUMBERS
from counterfactual_training.models import mlp
from counterfactual_training.models.classifiers import ACTIVATIONS
from counterfactual_training.models.vae import VAE
from counterfactual_training.training import (
    OBJECTIVES,
    Objective,
    Setting,
    TrainConfig,
    make_objective,
)
from counterfactual_training.training.regimes import RECIPES

Settings = dict[str, Any]

# The regime whose loss is Eq. 2; conventional training is Eq. 2 too, with weights of 0.
CT = "ct"

_PENALTIES = tuple(name for name in ecco().numbers() if name not in NUMBERS)
# Of TrainConfig. They are part of every cell's identity, so no name may be added here: stored
# results would be lost.
_TRAINING = (
    "epochs",
    "batch_size",
    "learning_rate",
    "num_counterfactuals",
    "burn_in",
    "refresh",
    "shuffle",
    "target_rule",
    "adversarial_label",
    "immature",
    "max_bad_updates",
)
# Also of TrainConfig, but part of the identity only where they differ from the default.
_LATER = ("threads", "accumulate", "positives")
_DEFAULT = TrainConfig()
# Of Objective, those of Eq. 2; fixed for the same reason.
_WEIGHTS = ("lambda_class", "lambda_div", "lambda_reg", "lambda_adv")
TYPES: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    tuple: "a list of whole numbers, one per hidden layer",
}


class Key(NamedTuple):
    """The type of a setting (``tuple``: widths of layers), and a check that raises if a value is
    wrong.
    """

    kind: type
    check: Callable[[Any], object] = lambda value: None


def typed(given: Any, name: str, kind: type) -> Any:
    """The value if it is of the kind; whole numbers also serve as numbers, and lists of them as
    widths.
    """
    if (
        kind is tuple
        and isinstance(given, (list, tuple))
        and all(type(width) is int for width in given)
    ):
        return tuple(given)
    if kind is float and type(given) is int:
        return float(given)
    # Not isinstance: to Python, true is a whole number.
    if type(given) is not kind or kind is tuple:
        raise InputError(f"{name} is {TYPES[kind]}, got {given!r} ({type(given).__name__}).")
    return given


def _among(what: str, valid: Collection[str]) -> Callable[[Any], None]:
    return lambda value: check_name(what, value, valid)


def _weight(value: float) -> None:
    if not 0 <= value < float("inf"):
        raise InputError(
            f"the weight of a penalty is a finite number of at least 0, got {value}."
        )


def _widths(value: tuple[int, ...]) -> None:
    if any(width < 1 for width in value):
        raise InputError(f"widths of hidden layers must be positive, got {list(value)}.")


def _accepted_by(make: Callable[..., object], name: str) -> Callable[[Any], object]:
    """The check that whoever uses the setting makes; its limits are written once, there."""
    return lambda value: make(**{name: value})


KEYS: dict[str, Key] = {
    "protected": Key(bool),
    "alone": Key(bool),
    "gate": Key(str, _among("gate", ["none", *GATES])),
    "regime": Key(str, _among("regime", [CT, *RECIPES])),
    "model.hidden": Key(tuple, _widths),
    "model.activation": Key(str, _among("activation", ACTIVATIONS)),
    "generator.name": Key(str, _among("generator", GENERATORS)),
    **{f"generator.{name}": Key(float, _weight) for name in _PENALTIES},
    "objective.name": Key(str, _among("objective", OBJECTIVES)),
    **{f"objective.{name}": Key(float, _accepted_by(Objective, name)) for name in _WEIGHTS},
    **{
        f"generator.{name}": Key(
            int if name == "max_steps" else float, _accepted_by(partial(Generator, ""), name)
        )
        for name in NUMBERS
    },
    **{
        f"training.{n}": Key(type(getattr(_DEFAULT, n)), _accepted_by(TrainConfig, n))
        for n in (*_TRAINING, *_LATER)
    },
}


def published(paper: PaperSettings) -> Settings:
    """Every setting as published for a data set, without a gate."""
    generator = ecco(decision_threshold=paper.decision_threshold)
    config = TrainConfig(
        batch_size=paper.batch_size, num_counterfactuals=paper.num_counterfactuals
    )
    return {
        "protected": False,
        "gate": "none",
        "model.hidden": inspect.signature(mlp).parameters["hidden"].default,
        "model.activation": inspect.signature(mlp).parameters["activation"].default,
        "generator.name": "ecco",
        **{f"generator.{name}": number for name, number in generator.numbers().items()},
        "objective.name": "full",
        **{
            f"objective.{name}": getattr(Objective(lambda_reg=paper.lambda_reg), name)
            for name in _WEIGHTS
        },
        **{f"training.{name}": getattr(config, name) for name in _TRAINING},
    }


def canonical(settings: Settings) -> Settings:
    """The same settings without those that have no effect, so that equal training runs look equal.

    An objective is its weights. A conventional model has no counterfactuals; only ECCo has an
    energy penalty. Settings that came later (gates, models trained alone, a few of
    :class:`TrainConfig`) are left out at their default, so that results stored before are still
    found.
    """
    later = {
        "gate": "none",
        "alone": False,
        "regime": CT,
        **{f"training.{name}": getattr(_DEFAULT, name) for name in _LATER},
    }
    out = {
        name: value
        for name, value in settings.items()
        if name not in later or value != later[name]
    }
    own_loss = settings.get("regime", CT) != CT
    # Which has no effect on a loss of its own.
    objective = Objective() if own_loss else _objective(settings)
    out.pop("objective.name", None)
    out |= {f"objective.{name}": float(getattr(objective, name)) for name in _WEIGHTS}
    if not objective.needs_counterfactuals:
        out.pop("training.positives", None)
        for name in (
            "num_counterfactuals",
            "burn_in",
            "refresh",
            "target_rule",
            "adversarial_label",
            "immature",
        ):
            out[f"training.{name}"] = getattr(_DEFAULT, name)
        return {
            key: value for key, value in out.items() if not key.startswith("generator.")
        } | {"protected": False}
    known = inspect.signature(GENERATORS[settings["generator.name"]]).parameters
    foreign = {f"generator.{name}" for name in _PENALTIES if name not in known}
    return {name: value for name, value in out.items() if name not in foreign}


def is_conventional(settings: Settings) -> bool:
    """Whether the model is trained without counterfactuals."""
    return settings.get("regime", CT) == CT and not _objective(settings).needs_counterfactuals


def setting_of(
    settings: Settings,
    seed: int = TrainConfig.seed,
    constraints: Constraints | None = None,
    x_train: Tensor | None = None,
    vae: VAE | None = None,
    y_train: Tensor | None = None,
) -> Setting:
    """What these settings mean for :func:`train`; rows, or a ``vae``, serve generators that learn
    from data first.
    """
    given = {
        name: settings[f"training.{name}"]
        for name in (*_TRAINING, *_LATER)
        if f"training.{name}" in settings
    }
    config = TrainConfig(**given, seed=seed)
    name = settings.get("regime", CT)
    if name == CT:
        regime = None
    else:
        regime = RECIPES[name]()
    generator = _generator(settings, x_train, vae, y_train)
    return Setting(generator, constraints, _objective(settings), config, regime=regime)


def describe(settings: Settings, seed: int) -> dict[str, Any]:
    """:meth:`Setting.describe` of :func:`setting_of`, also where the generator could be made from
    rows only.
    """
    name = settings.get("generator.name")
    if name is None or "x_train" not in inspect.signature(GENERATORS[name]).parameters:
        return setting_of(settings, seed).describe()
    others = {key: value for key, value in settings.items() if not key.startswith("generator.")}
    own = {
        key.removeprefix("generator."): value
        for key, value in settings.items()
        if key not in others
    }
    return setting_of(others, seed).describe() | {"generator": own}


def _objective(settings: Settings) -> Objective:
    weights = {name: settings[f"objective.{name}"] for name in _WEIGHTS}
    if "objective.name" not in settings:
        return Objective(**weights)
    return make_objective(settings["objective.name"], **weights)


def _generator(
    settings: Settings, x_train: Tensor | None, vae: VAE | None, y_train: Tensor | None = None
) -> Generator:
    """A conventional model, which never uses one, gets the default."""
    if "generator.name" not in settings:
        return ecco()
    options = {
        k.removeprefix("generator."): v
        for k, v in settings.items()
        if k.startswith("generator.")
    }
    name = options.pop("name")
    if vae is not None and "vae" in inspect.signature(GENERATORS[name]).parameters:
        options["vae"] = vae
    return make_generator(name, x_train, y_train, **options)
