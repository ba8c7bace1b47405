"""Errors that state what was given, what was expected and how to fix it.

An error is data: its ``code``, the ``field`` that is wrong, what was ``expected``, and the
``remedies``. Its message is made of parts: text, and an ``Argument`` or a ``Remedy`` wherever the
words depend on who reads them. ``str(error)`` words them for Python; ``error.worded(say)`` takes
the words of another face, such as the command line.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from types import ModuleType
from typing import Any, Literal, TypeVar

T = TypeVar("T")
# The packages of this distribution.
_OURS = ("counterfactual_training", "counterfactual_lab", "counterfactual_serve")


@dataclass(frozen=True)
class Argument:
    """An argument, perhaps with its value: ``epochs``, ``missing='impute'``."""

    name: str
    value: Any = None

    def __str__(self) -> str:
        if self.value is None:
            return self.name
        return f"{self.name}={self.value!r}"


Action = Literal[
    "drop", "write_numbers", "convert", "list_allowed", "describe", "state_codes", "hold"
]


@dataclass(frozen=True)
class Remedy:
    """Something to do about an error.

    Attributes:
        action: what to do.
        value: what to do it with. ``drop``, ``write_numbers`` and ``list_allowed`` take a column,
            ``convert`` a line of pandas code, ``describe`` a column, a rule and its value as text,
            ``state_codes`` the codes by column, ``hold`` a list of columns.
    """

    action: Action
    value: Any

    def __str__(self) -> str:
        return _IN_PYTHON[self.action](self.value)


def _describe(value: tuple[str, str, str]) -> str:
    column, rule, text = value
    return f"state schema={{{column!r}: {{{rule!r}: {text}}}}}"


def _state_codes(codes: Mapping[str, Iterable[int]]) -> str:
    stated = ", ".join(f"{_quoted(name)}: {list(values)}" for name, values in codes.items())
    return f"state special={{{stated}}}"


def _hold(columns: Iterable[str]) -> str:
    rules = ", ".join(f'{_quoted(name)}: "none"' for name in columns)
    return f"state mutability={{{rules}}}, or mutability={{}} if all columns may change"


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


_IN_PYTHON: dict[Action, Callable[[Any], str]] = {
    "drop": lambda column: "drop it",
    "write_numbers": lambda column: "convert it with pd.to_numeric",
    "convert": lambda line: f"turn it into numbers: `{line}`",
    "list_allowed": lambda column: "use allowed= to list categories",
    "describe": _describe,
    "state_codes": _state_codes,
    "hold": _hold,
}

# A piece of a message.
Part = str | Argument | Remedy


class Worded:
    """A message in parts, which each face says in its own words."""

    args: tuple[Any, ...]

    def worded(self, say: Callable[[Argument | Remedy], str] = str) -> str:
        """The message, its arguments and remedies as ``say`` words them."""
        return "".join(
            say(part) if isinstance(part, Argument | Remedy) else str(part)
            for part in self.args
        )

    def __str__(self) -> str:
        return self.worded()

    @property
    def remedies(self) -> tuple[Argument | Remedy, ...]:
        """What to do about it: remedies, and arguments that come with a value."""
        return tuple(
            part
            for part in self.args
            if isinstance(part, Remedy)
            or (isinstance(part, Argument) and part.value is not None)
        )


class InputWarning(Worded, UserWarning):
    """Something about the data that a user may want to correct."""


class StoppedWarning(UserWarning):
    """The training of a model stopped early; the weights of its last sound epoch are kept."""


class CounterfactualTrainingError(Worded, Exception):
    """Root of every error this package raises on purpose.

    Args:
        *parts: the message: text, and an ``Argument`` or a ``Remedy`` of
            ``counterfactual_training.errors`` wherever its words depend on who reads them.
        code: what went wrong, for programs; by default the one of the class.
        field: the argument or the column that is wrong; ``domain.age`` is about one column.
        expected: what is valid there.

    Examples:
        Catch whatever this package says is wrong:

        >>> import counterfactual_training as ct
        >>> try:
        ...     ct.CounterfactualClassifier.load("no-such-model.safetensors")
        ... except ct.CounterfactualTrainingError as error:
        ...     print(type(error).__name__, "-", error)
        FileError - There is no file 'no-such-model.safetensors'.

        Programs read what is wrong from attributes:

        >>> try:
        ...     ct.TrainConfig(batch_size=0)
        ... except ct.InputError as error:
        ...     print(error.code, error.field, error.expected, sep=" | ")
        bad_value | batch_size | a whole number of at least 1
    """

    code = "failed"

    def __init__(
        self,
        *parts: Part,
        code: str | None = None,
        field: str | None = None,
        expected: str | None = None,
    ) -> None:
        super().__init__(*parts)
        if code is not None:
            self.code = code
        self.field = field
        self.expected = expected

    @property
    def clause(self) -> tuple[Part, ...]:
        """The parts without the full stop at the end, to stand inside another message."""
        *first, last = self.args
        if isinstance(last, str):
            last = last.rstrip(".")
        return (*first, last)


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

    code = "bad_input"


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

    code = "bad_constraint"


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

    code = "bad_model"


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

    code = "bad_file"


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

    code = "missing_extra"


def unknown(what: str, value: object, valid: Iterable[object]) -> str:
    """A sentence for an unknown name: what came, the nearest valid one, all valid ones."""
    return f"Unknown {what} {_suggestion(value, valid)}"


def _suggestion(value: object, valid: Iterable[object]) -> str:
    names = {str(name): repr(name) for name in valid}
    # Case alone is no reason to find nothing near.
    folded = {name.casefold(): text for name, text in names.items()}
    written = str(value).casefold()
    # Eps is rather epsilon than steps.
    begun = [name for name in folded if len(written) > 1 and name.startswith(written)]
    close = begun or difflib.get_close_matches(written, folded, n=1, cutoff=0.5)
    if close:
        hint = f" Did you mean {folded[close[0]]}?"
    else:
        hint = ""
    return f"{value!r}.{hint} Valid: {', '.join(names.values()) or 'none'}."


def check_name(
    what: str,
    value: object,
    valid: Collection[Any],
    error: type[CounterfactualTrainingError] = InputError,
    argument: str | None = None,
) -> None:
    """Raise, with the nearest valid name, unless ``value`` is one of ``valid``.

    Args:
        what: what the name stands for, such as ``"column"``.
        argument: the one that lists it, if it does not say so itself.
    """
    if value in valid:
        return
    parts: tuple[Part, ...] = (unknown(what, value, valid),)
    if argument is not None:
        parts = (f"Unknown {what} in ", Argument(argument), f": {_suggestion(value, valid)}")
    field = argument or what.rstrip(":")
    expected = f"one of {', '.join(map(repr, valid))}"
    raise error(*parts, code="unknown_name", field=field, expected=expected)


def check_count(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """The value as an integer; raise unless it is a whole number that is large enough, and not
    larger than ``most``.
    """
    if most is None:
        expected = f"a whole number of at least {least}"
    else:
        expected = f"a whole number from {least} to {most}"
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise bad_value(name, expected, value)
    if most is not None and int(value) > most:
        raise bad_value(name, expected, value)
    return int(value)


def bad_value(argument: str, expected: str, value: object) -> InputError:
    """The error for an argument that has a wrong value."""
    return InputError(
        Argument(argument),
        f" must be {expected}, got {value!r}.",
        code="bad_value",
        field=argument,
        expected=expected,
    )


def lookup(
    what: str,
    value: Any,
    table: Mapping[Any, T],
    error: type[CounterfactualTrainingError] = InputError,
) -> T:
    """``table[value]``; the one way to look things up by a name that a user wrote."""
    check_name(what, value, table, error)
    return table[value]


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
    """The ``stacklevel`` of a warning that is about what the caller of these packages did: it names
    their line.
    """
    level = 0
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _OURS:
        frame = frame.f_back
        level = level + 1
    return level
