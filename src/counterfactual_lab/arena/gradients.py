"""The number of input gradients of a method, which is what attacks, samples and counterfactuals
cost, and its limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from counterfactual_lab.truth.entrants import Fit
from counterfactual_training.training.method import Method
from counterfactual_training.training.registry import kind_and_method, make_method

# Numbers of a method at K input gradients per row and epoch, T of them per counterfactual.
_AT: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "pgd": lambda k, t: {"steps": k},
    "trades": lambda k, t: {"steps": k},
    "jem": lambda k, t: {"steps": k},
    "dat": lambda k, t: {"steps": max(1, k // 2), "most": max(1, k - k // 2)},
    "cat": lambda k, t: {"share": min(1.0, k / t)},
}
# Gradients per row and epoch of methods with a loss of their own.
_TAKEN: dict[str, Callable[[Method], float]] = {
    "pgd": lambda method: method.numbers["steps"],
    "trades": lambda method: method.numbers["steps"],
    "jem": lambda method: method.numbers["steps"],
    "dat": lambda method: method.numbers["steps"] + method.numbers["most"],
    "cat": lambda method: method.numbers["share"] * _steps(method),
    "ross": lambda method: 1,
    "gradient_supervision": lambda method: 1,
    "counternet": lambda method: 0,
}


def capped(fit: Fit, method: Method, gradients: int) -> Method:
    """The method with at most so many input gradients per row and epoch, unless its text states
    other numbers. A registered method with a loss of its own is not limited.
    """
    steps = _steps(method)
    if method.loss is None:
        # A row is searched once per epoch at most: short searches leave some of the budget.
        count = max(1, min(len(fit.x), round(gradients * len(fit.x) / steps)))
        changes: dict[str, Any] = {"training.num_counterfactuals": count}
    else:
        changes = _AT.get(_one(method), lambda k, t: {})(gradients, steps)
    return method.replace(changes)


def cap_unless_stated(text: str, gradients: int) -> Callable[[Fit, Method], Method]:
    """:func:`capped`, for methods whose text does not state how much they search."""
    stated = make_method(text).stated
    limits = {"steps", "most", "share", "training.num_counterfactuals", "generator.max_steps"}
    if stated & limits:
        return lambda fit, method: method
    return lambda fit, method: capped(fit, method, gradients)


def input_gradients(fit: Fit, text: str, gradients: int) -> float:
    """The most that are taken per row and epoch to find what a batch is trained on; NaN where a
    registered method finds it by code of its own.
    """
    method = cap_unless_stated(text, gradients)(fit, fit.method(text))
    one = _one(method)
    if one in _TAKEN:
        taken = float(_TAKEN[one](method))
    elif method.loss is None and not method.needs_counterfactuals:
        taken = 0.0
    elif method.loss is None:
        taken = method.training.num_counterfactuals / len(fit.x) * _steps(method)
    elif method.searches:
        taken = float(_steps(method))
    elif method.find is None:
        taken = 0.0
    else:
        taken = math.nan
    return round(make_method(text).members * taken, 1)


def _steps(method: Method) -> int:
    return int(method.searcher.max_steps)


def _one(method: Method) -> str:
    """The name of the method that trains each network."""
    return kind_and_method(method.name)[1]
