"""The settings of a grid by dotted name: types, published values, and the method they make."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

from counterfactual_training.datasets.dataset import PaperSettings
from counterfactual_training.defaults import GATES
from counterfactual_training.errors import InputError, check_name
from counterfactual_training.generators import GENERATORS, Generator, ecco
from counterfactual_training.generators.generator import NUMBERS
from counterfactual_training.models.classifiers import ACTIVATIONS, mlp
from counterfactual_training.training.method import Method
from counterfactual_training.training.objective import Objective
from counterfactual_training.training.registry import make_method
from counterfactual_training.training.train_config import TrainConfig

Settings = dict[str, Any]

CONVENTIONAL = "conventional"
# Settings of a run that are no settings of its method: who trains it, and what comes after.
OF_RUN = ("protected", "alone", "gate", "model.hidden", "model.activation")
_PENALTIES = tuple(name for name in ecco().numbers() if name not in NUMBERS)
_WEIGHTS = tuple(weight.name for weight in fields(Objective))
# The seed belongs to the run; threads change no number.
_TRAINING = tuple(
    setting.name for setting in fields(TrainConfig) if setting.name not in ("seed", "threads")
)
# Of a training without counterfactuals, these have no effect.
_OF_COUNTERFACTUALS = (
    "num_counterfactuals",
    "burn_in",
    "refresh",
    "target_rule",
    "adversarial_label",
    "immature",
    "positives",
)
_DEFAULT = TrainConfig()
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


def typed(value: Any, name: str, kind: type) -> Any:
    """The value if it is of the kind; whole numbers also serve as numbers, and lists of them as
    widths.
    """
    if (
        kind is tuple
        and isinstance(value, (list, tuple))
        and all(type(width) is int for width in value)
    ):
        return tuple(value)
    if kind is float and type(value) is int:
        return float(value)
    # Not isinstance: to Python, true is a whole number.
    if type(value) is not kind or kind is tuple:
        raise InputError(
            f"{name} is {TYPES[kind]}, got {value!r} ({type(value).__name__}).",
            code="bad_value",
            field=name,
            expected=TYPES[kind],
        )
    return value


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
    """The check by the class that has the setting: limits are written once, there."""
    return lambda value: make(**{name: value})


def _kind_of(name: str) -> type:
    if name == "max_steps":
        return int
    return float


KEYS: dict[str, Key] = {
    "protected": Key(bool),
    "alone": Key(bool),
    "gate": Key(str, _among("gate", ["none", *GATES])),
    "method": Key(str, make_method),
    "model.hidden": Key(tuple, _widths),
    "model.activation": Key(str, _among("activation", ACTIVATIONS)),
    "generator.name": Key(str, _among("generator", GENERATORS)),
    **{f"generator.{name}": Key(float, _weight) for name in _PENALTIES},
    **{f"objective.{name}": Key(float, _accepted_by(Objective, name)) for name in _WEIGHTS},
    **{
        f"generator.{name}": Key(_kind_of(name), _accepted_by(partial(Generator, ""), name))
        for name in NUMBERS
    },
    **{
        f"training.{name}": Key(type(getattr(_DEFAULT, name)), _accepted_by(TrainConfig, name))
        for name in _TRAINING
    },
}


def usual(values: Settings) -> Settings:
    """What a grid says of a run, with the defaults of what is not its method's."""
    network = inspect.signature(mlp).parameters
    return {
        "protected": False,
        "alone": False,
        "gate": "none",
        "model.hidden": network["hidden"].default,
        "model.activation": network["activation"].default,
        "method": "ct_published",
        **values,
    }


def published(method: str | Method, paper: PaperSettings) -> Method:
    """The method with the paper's numbers for a data set, where it has the paper's general ones.

    Settings that the method's text states, and those of other methods than CT, stay as they are:
    ``ct_published(lambda_reg=0)`` and ``cheap_recourse`` keep their ridge.
    """
    base = make_method(method)
    # The paper's general numbers are the defaults of CT.
    general = Method().settings()
    settings = base.settings()
    numbers = {
        "training.batch_size": paper.batch_size,
        "training.num_counterfactuals": paper.num_counterfactuals,
        "generator.decision_threshold": paper.decision_threshold,
        "objective.lambda_reg": paper.lambda_reg,
    }
    # A generator that learns from rows lists only the numbers that were stated.
    values = {path: settings.get(path, general[path]) for path in numbers}
    return base.replace(
        {
            path: number
            for path, number in _effective(base, numbers).items()
            if path not in base.stated and values[path] == general[path]
        }
    )


def grid_method(values: Settings, paper: PaperSettings) -> Method:
    """The method of a grid's values for a data set: its text first, then the values by dotted
    name, then what is published for the data set.

    Values without an effect on this method, such as an energy penalty of a generator that has
    none, are left out.
    """
    stated = make_method(values["method"])
    changes = {
        name: value
        for name, value in values.items()
        if name not in (*OF_RUN, "method") and name not in stated.stated
    }
    generator = changes.pop("generator.name", None)
    if generator is not None and "generator" not in stated.stated:
        stated = stated.replace("generator", generator)
    return published(stated.replace(_effective(stated, changes)), paper)


def conventional_of(values: Settings, paper: PaperSettings) -> Method:
    """The conventional training that these values are compared with: of the same epochs, batches
    and learning rate.
    """
    stated = make_method(values["method"])
    training = {
        path: value for path, value in stated.settings().items() if path in stated.stated
    }
    others = {path: value for path, value in training.items() if path.startswith("training.")}
    return grid_method({**values, **others, "method": CONVENTIONAL}, paper)


def _effective(method: Method, changes: Settings) -> Settings:
    """The changes of settings that this method has."""
    searches = method.needs_counterfactuals
    weights: tuple[str, ...] = ()
    if method.loss is None and searches:
        weights = _WEIGHTS
    elif method.loss is None:
        # Conventional training leaves out the other terms, whatever a grid says of their weights.
        weights = ("lambda_class",)
    effective = {}
    for path, value in changes.items():
        part, _, name = path.partition(".")
        if part == "objective" and name not in weights:
            continue
        if part == "generator" and not (searches and _has(method, name)):
            continue
        effective[path] = value
    return effective


def _has(method: Method, name: str) -> bool:
    """Whether the method's generator has a number of this name."""
    if isinstance(method.generator, Generator):
        return name in method.generator.numbers()
    takes = inspect.signature(GENERATORS[method.generator.name]).parameters
    return name in NUMBERS or name in takes


def canonical(method: Method) -> Settings:
    """The method as plain values by dotted name, without those that have no effect, so that equal
    training runs look equal.
    """
    if method.loss is None and not method.needs_counterfactuals:
        usual_ones = {name: getattr(_DEFAULT, name) for name in _OF_COUNTERFACTUALS}
        training = replace(method.training, **usual_ones)
        name = method.name
        if method.members == 1:
            name = CONVENTIONAL
        method = replace(method.conventional(), name=name, training=training)
    settings = method.settings()
    for name in ("training.seed", "training.threads"):
        settings.pop(name)
    # A generator of the method's own, as that of ct, has no recipe by its name.
    if method.needs_counterfactuals and method.generator.name in GENERATORS:
        settings["generator"] = method.generator.name
    if method.members == 1:
        settings.pop("members")
    # Weights may be written as whole numbers.
    weights = {
        path: float(value)
        for path, value in settings.items()
        if path.startswith("objective.") and value is not None
    }
    return {"method": method.name, **settings, **weights}


def method_from(values: Mapping[str, Any]) -> Method:
    """The inverse of :func:`canonical`; settings of a run are left out."""
    settings = {name: value for name, value in values.items() if name not in OF_RUN}
    name = settings.pop("method")
    return make_method({"name": name, **settings})
