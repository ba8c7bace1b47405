"""Errors that state what was given, what was expected and how to fix it."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Collection, Iterable, Mapping
from numbers import Integral
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")


class CounterfactualTrainingError(Exception):
    """Root of every error this package raises on purpose.

    Examples:
        Catch whatever this package says is wrong:

        >>> import counterfactual_training as ct
        >>> try:
        ...     ct.CounterfactualClassifier.load("no-such-model.safetensors")
        ... except ct.CounterfactualTrainingError as error:
        ...     print(type(error).__name__, "-", error)
        FileError - There is no file 'no-such-model.safetensors'.
    """


class InputError(CounterfactualTrainingError, ValueError):
    """The data handed in does not fit: shapes, dtypes, missing values, unknown names. Also a
    :class:`ValueError`.

    Examples:
        >>> import counterfactual_training as ct
        >>> ct.Schema.infer(ct.loan(300).frame, mutability={"dept": "decrease"})
        Traceback (most recent call last):
            ...
        counterfactual_training.errors.InputError: Unknown column 'dept'. Did you mean 'debt'?
        Valid: 'age', 'debt'.
    """


class ConstraintError(InputError):
    """A constraint contradicts itself or the data.

    Examples:
        >>> import counterfactual_training as ct
        >>> ct.Feature("age", "integer", domain=(90, 18))
        Traceback (most recent call last):
            ...
        counterfactual_training.errors.ConstraintError: The domain of 'age' is empty: lower > upper
        in [90, 18].
    """


class ModelError(CounterfactualTrainingError, ValueError):
    """The model does not behave like a classifier that returns logits. Also a :class:`ValueError`.

    Examples:
        >>> import torch
        >>> import counterfactual_training as ct
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Softmax(-1))
        >>> x = torch.randn(4, 2)
        >>> ct.search(model, x, torch.tensor([0, 0, 0, 0]))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        counterfactual_training.errors.ModelError: The model's outputs are probabilities (...);
        return logits instead...
    """


class FileError(CounterfactualTrainingError, ValueError):
    """A file is missing, truncated, altered or not ours. Also a :class:`ValueError`.

    Examples:
        >>> import counterfactual_training as ct
        >>> ct.Schema.from_file("columns.txt")
        Traceback (most recent call last):
            ...
        counterfactual_training.errors.FileError: A schema file ends in .toml or .json, got
        'columns.txt'.
    """


class MissingExtraError(CounterfactualTrainingError, ImportError):
    """An optional package is needed; the message says which extra installs it. Also an
    :class:`ImportError`.

    Examples:
        >>> from unittest import mock
        >>> import counterfactual_training as ct
        >>> with mock.patch.dict("sys.modules", {"onnx": None}):  # as if it were not installed
        ...     ct.export_onnx(ct.CounterfactualClassifier(), "loan.onnx")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        counterfactual_training.errors.MissingExtraError: onnx is not installed. Install it with:
        pip install ...
    """


def unknown(what: str, given: object, valid: Iterable[object]) -> str:
    """A sentence for an unknown name: what came, the nearest valid one, all valid ones."""
    names = {str(name): repr(name) for name in valid}
    # Case alone is no reason to find nothing near.
    folded = {name.casefold(): text for name, text in names.items()}
    asked = str(given).casefold()
    # Eps is rather epsilon than steps.
    begun = [name for name in folded if len(asked) > 1 and name.startswith(asked)]
    close = begun or difflib.get_close_matches(asked, folded, n=1, cutoff=0.5)
    if close:
        hint = f" Did you mean {folded[close[0]]}?"
    else:
        hint = ""
    return f"Unknown {what} {given!r}.{hint} Valid: {', '.join(names.values()) or 'none'}."


def check_name(
    what: str, given: object, valid: Collection[Any], error: type[Exception] = InputError
) -> None:
    """Raise, with the nearest valid name, unless ``given`` is one of ``valid``."""
    if given not in valid:
        raise error(unknown(what, given, valid))


def check_count(name: str, value: Any, least: int = 1) -> int:
    """The value as an integer; raise unless it is a whole number that is large enough."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    return int(value)


def lookup(
    what: str, given: Any, table: Mapping[Any, T], error: type[Exception] = InputError
) -> T:
    """``table[given]``; the one way to look things up by a name that a user wrote."""
    check_name(what, given, table, error)
    return table[given]


def need_extra(module: str, extra: str) -> ModuleType:
    """Import a module of an optional package, or raise an error that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"{package} is not installed. Install it with: pip install "
            f'"counterfactual-training[{extra}]".'
        ) from error


def from_outside() -> int:
    """The ``stacklevel`` of a warning that is about what the caller of this package did: it names
    their line.
    """
    package = __name__.partition(".")[0]
    level = 0
    frame = inspect.currentframe()
    while (
        frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == package
    ):
        frame = frame.f_back
        level = level + 1
    return level
