"""What all recipes of regimes share: checked numbers, and one regime for equal numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, wraps
from math import inf, isfinite
from numbers import Real
from typing import Any, NamedTuple, ParamSpec

from counterfactual_training.errors import InputError, check_name
from counterfactual_training.training.regime import Regime

P = ParamSpec("P")


class _Kind(NamedTuple):
    valid: str
    least: float
    most: float = inf
    whole: bool = False
    above: bool = False  # least itself is not allowed


_POSITIVE = _Kind("must be positive and finite", 0, above=True)
_WEIGHT = _Kind("must be a finite number of at least 0", 0)
_COUNT = _Kind("must be a whole number of at least 1", 1, whole=True)
_KINDS = {
    **dict.fromkeys(
        ("epsilon", "step_size", "beta", "weight", "clip", "sample_size", "reach", "strength"),
        _POSITIVE,
    ),
    **dict.fromkeys(
        ("ridge", "noise", "fit", "cost", "validity", "lambda_div", "lambda_reg", "lambda_adv"),
        _WEIGHT,
    ),
    **dict.fromkeys(("steps", "buffer", "most"), _COUNT),
    **dict.fromkeys(("restart", "auc"), _Kind("must lie in [0, 1]", 0, 1)),
    "share": _Kind("is a share of the rows in (0, 1]", 0, 1, above=True),
    "warm_up": _Kind("must be a whole number of at least 0", 0, whole=True),
    "bins": _Kind("must be a whole number of at least 2", 2, whole=True),
    "target": _Kind(
        "is the index of the class wanted, a whole number of at least 0", 0, whole=True
    ),
}


def recipe(make: Callable[P, Regime]) -> Callable[P, Regime]:
    """A recipe whose numbers are checked by name; equal numbers make one regime.

    So members of a fleet with the same numbers share a regime, and train as one.
    """
    made = cache(make)
    takes = inspect.signature(make)

    @wraps(make)
    def checked(*args: P.args, **kwargs: P.kwargs) -> Regime:
        for name in kwargs:
            check_name(f"number of {make.__name__!r}:", name, takes.parameters)
        given = takes.bind(*args, **kwargs)
        given.apply_defaults()
        return made(
            **{
                name: _checked(name, value, takes.parameters[name])
                for name, value in given.arguments.items()
            }
        )

    return checked


def _checked(name: str, value: Any, parameter: inspect.Parameter) -> Any:
    """The value as a plain number; other arguments as they are."""
    kind = _KINDS.get(name)
    if kind is None or (value is None and parameter.default is None):
        return value
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
    else:
        number = inf
    inside = (
        isfinite(number)
        and kind.least <= number <= kind.most
        and not (kind.above and number == kind.least)
    )
    if not inside or (kind.whole and not number.is_integer()):
        raise InputError(f"{name} {kind.valid}, got {value!r}.")
    if kind.whole:
        return int(number)
    # NumPy's numbers cannot be written as JSON
    return value if type(value) in (int, float) else number
