"""What may be tuned, and in which ranges."""

from __future__ import annotations

import inspect
import math
import random
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from counterfactual_training.errors import Argument, FileError, InputError, check_name
from counterfactual_training.gates import KINDS
from counterfactual_training.training.method import Method
from counterfactual_training.training.objective import Objective
from counterfactual_training.training.train_config import TrainConfig

Number = float | int
# The only choice that is not a number. Training ignores it: the gate is fitted to the trained
# model.
GATE = "gate"
GATES = ("none", *KINDS)
Choice = Number | str  # a number of a method, or the kind of gate
# What can be tuned of every method that has it, by dotted name, beside its own numbers.
TUNABLE = (
    *(
        f"objective.{weight.name}"
        for weight in fields(Objective)
        if weight.name != "lambda_class"
    ),
    "training.learning_rate",
    "training.burn_in",
    "training.num_counterfactuals",
)
# Given instead of a range: the setting is not tuned.
FIXED = "published"


@dataclass(frozen=True)
class Range:
    """All numbers from ``low`` to ``high``, both included.

    Attributes:
        log: search on a logarithmic scale.
        integer: whole numbers only.
    """

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InputError(
                f"A range goes from a finite number to a larger one, got {self.low} to {self.high}."
            )
        if self.log and self.low <= 0:
            raise InputError(f"A range with log = true starts above 0, got {self.low}.")
        if self.integer and (self.low != round(self.low) or self.high != round(self.high)):
            raise InputError(
                f"A range of whole numbers has whole ends, got {self.low} to {self.high}."
            )

    def near(self, value: Number, rng: random.Random) -> Number:
        """A random value about a sixth of the range away."""
        scale: Callable[[float], float] = float
        back: Callable[[float], float] = float
        if self.log:
            scale = math.log
            back = math.exp
        low = scale(self.low)
        high = scale(self.high)
        moved = back(min(high, max(low, rng.gauss(scale(value), (high - low) / 6))))
        # Again: exp(log(high)) may exceed high by a rounding error.
        moved = min(self.high, max(self.low, moved))
        if self.integer:
            return round(moved)
        return moved

    def including(self, value: Number) -> Range:
        """The range widened to hold a value; linear if that includes 0."""
        low = min(self.low, value)
        return replace(self, low=low, high=max(self.high, value), log=self.log and low > 0)


@dataclass(frozen=True)
class Choices:
    """One of a few values."""

    values: tuple[Choice, ...]

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) < len(self.values):
            raise InputError(
                f"Choices are one or more different values, got {list(self.values)}."
            )

    def near(self, value: Choice, rng: random.Random) -> Choice:
        return rng.choice(self.values)

    def including(self, value: Choice) -> Choices:
        if value in self.values:
            return self
        return Choices((value, *self.values))


Values = Range | Choices
Space = Mapping[str, Values]

# From the smallest to the largest value of the paper's grids (Appendix D and E), and a little
# beyond where the best value was the last. num_counterfactuals changes the shape of tensors, so
# such trials cannot train as one fleet: it is tuned only on request.
RANGES: Space = {
    "generator.decision_threshold": Range(0.5, 0.95),
    "objective.lambda_div": Range(0.01, 2.0, log=True),
    "objective.lambda_reg": Range(0.005, 1.0, log=True),
    "objective.lambda_adv": Range(0.01, 1.0, log=True),
    "generator.lambda_energy": Range(0.1, 20.0, log=True),
    "generator.max_steps": Range(5, 50, integer=True),
    "generator.learning_rate": Range(0.03, 1.0, log=True),
    "generator.epsilon": Range(0.05, 0.5),
    "training.burn_in": Range(0.0, 0.5),
    "training.learning_rate": Range(3e-4, 1e-2, log=True),
}

# Of methods with a loss of their own, beside the learning rate: about a tenth to ten times the
# usual weight, and changes from small ones to those that cross most of a column. Steps change the
# time of a trial, so they are not tuned.
_WEIGHT = Range(0.1, 10.0, log=True)
_REACH = Range(0.01, 0.5, log=True)
OF_METHODS: Mapping[str, Space] = {
    "pgd": {"epsilon": _REACH},
    "trades": {"beta": _WEIGHT, "epsilon": _REACH},
    "jem": {"weight": _WEIGHT, "ridge": Range(0.01, 1.0, log=True), "clip": _REACH},
    "dat": {"epsilon": _REACH, "sample_size": _REACH},
    "ross": {"weight": _WEIGHT, "reach": Range(0.1, 2.0, log=True)},
    "gradient_supervision": {"weight": _WEIGHT},
    "cat": {"weight": _WEIGHT, "share": Range(0.05, 1.0)},
    "misob": {"strength": Range(0.02, 2.0, log=True)},
    "counternet": {"cost": Range(1e-3, 1.0, log=True), "validity": Range(0.02, 2.0, log=True)},
}


def tunable_numbers(method: Method) -> dict[str, Number]:
    """The numbers of a method that can be tuned, by dotted name."""
    numbers: dict[str, Number] = {}
    for path, value in method.settings().items():
        can_be_tuned = (
            path in TUNABLE or path in method.numbers or path.startswith("generator.")
        )
        if can_be_tuned and isinstance(value, int | float) and not isinstance(value, bool):
            numbers[path] = value
    return numbers


def make_space(
    start: Method, changes: Mapping[str, Any] | str | Path | None = None, gate: str = "none"
) -> dict[str, Values]:
    """The ranges to search, by dotted name: those of :data:`RANGES` and :data:`OF_METHODS` that the
    method has.

    Args:
        start: the method to improve; every range is widened to hold its numbers.
        changes: by name, dotted or short, a pair ``(low, high)``, a list of choices, a table with
            ``low``, ``high`` and ``log`` or with ``choices``, or :data:`FIXED`; or a TOML file with
            the same. The gate has choices only.
        gate: of the classifier to improve.
    """
    check_tunable(start)
    values: dict[str, Any] = {**tunable_numbers(start), GATE: gate}
    domains = _read(changes) if isinstance(changes, str | Path) else dict(changes or {})
    ranges = OF_METHODS.get(start.name, {})
    if start.loss is not None and not ranges and not domains:
        raise InputError(
            f"No ranges are known for the method {start.name!r}: give those to search, such as "
            f"{{{_example(start)!r}: (low, high)}}."
        )
    wanted = _usual_ranges(values, {**RANGES, **ranges})
    for name, domain in _by_path(start, domains).items():
        if name not in values:
            raise InputError(
                f"{name!r} cannot be tuned here: choose among "
                f"{', '.join(path for path in values)}."
            )
        if domain == FIXED:
            wanted.pop(name, None)
        else:
            wanted[name] = _domain(start, name, domain)
    if not wanted:
        raise InputError("There is nothing to tune: every setting is fixed.")
    return {name: domain.including(values[name]) for name, domain in wanted.items()}


def _usual_ranges(values: Mapping[str, Any], ranges: Mapping[str, Any]) -> dict[str, Any]:
    """The ranges of these settings, without terms of Eq. 2 with a weight of 0: those were left out
    on purpose.
    """
    off = {
        path for path, value in values.items() if path.startswith("objective.") and not value
    }
    return {
        name: domain for name, domain in ranges.items() if name in values and name not in off
    }


def check_tunable(method: Method) -> None:
    """Raise if a method has nothing to tune."""
    if method.loss is None and not method.needs_counterfactuals:
        raise InputError(
            "This trains without counterfactuals, so there is nothing to tune: ",
            Argument("method", "ct_published"),
            " trains with counterfactuals.",
        )


def _example(method: Method) -> str:
    """A name to show in a message."""
    return next(iter(tunable_numbers(method)))


def _by_path(start: Method, domains: Mapping[str, Any]) -> dict[str, Any]:
    """What was given by dotted or short name, and in a file also by tables, by dotted name."""
    by_path: dict[str, Any] = {}
    for name, domain in domains.items():
        if name in ("objective", "generator", "training") and isinstance(domain, Mapping):
            inner = {f"{name}.{key}": value for key, value in domain.items()}
            by_path |= _by_path(start, inner)
        elif name == GATE:
            by_path[name] = domain
        else:
            by_path[start.path(name)] = domain
    return by_path


def _is_integer(start: Method, path: str) -> bool:
    """Whether a setting is a whole number, by its declaration: users may write 1 for 1.0."""
    part, _, name = path.partition(".")
    if path in start.numbers and start.make is not None:
        declared = inspect.signature(start.make).parameters[path]
        return type(declared.default) is int and "float" not in str(declared.annotation)
    if part == "training":
        return type(getattr(TrainConfig(), name)) is int
    return path == "generator.max_steps"


def neighbours(
    space: Space, start: Mapping[str, Any], num: int, seed: int
) -> list[dict[str, Choice]]:
    """Settings near the start: each differs in a third of the values, by a little."""
    rng = random.Random(seed)  # noqa: S311 - not security-sensitive

    def neighbour() -> dict[str, Choice]:
        moved = rng.sample(sorted(space), -(-len(space) // 3))
        return {
            name: choice.near(start[name], rng) if name in moved else start[name]
            for name, choice in space.items()
        }

    return [neighbour() for _ in range(num)]


def _domain(start: Method, name: str, domain: Any) -> Values:
    """A range or choices, from what a user wrote."""
    if isinstance(domain, Range) and name != GATE:
        return domain
    choices = _as_table(domain)
    if isinstance(choices, Mapping):
        _check_keys(name, choices)
        if "low" in choices and name != GATE:
            return _range(start, name, choices)
        choices = choices.get("choices")
    if not isinstance(choices, list | tuple):
        expected = f"a list of choices, such as {list(GATES)}."
        if name != GATE:
            expected = f"a range: give (low, high), a list of choices, or {FIXED!r}."
        raise InputError(f"{name} = {domain!r} is not {expected}")
    if name == GATE:
        for kind in choices:
            check_name("gate", kind, GATES)
        return Choices(tuple(choices))
    integer = _is_integer(start, name)
    return Choices(tuple(_number(name, value, integer) for value in choices))


def _as_table(value: Any) -> Any:
    """Two numbers as a table of low and high, choices as a list; anything else as it is."""
    if isinstance(value, Choices):
        return list(value.values)
    if isinstance(value, tuple) and len(value) == 2 and all(map(_is_number, value)):
        return {"low": value[0], "high": value[1]}
    return value


def _range(start: Method, name: str, table: Mapping[str, Any]) -> Range:
    """From low to high; logarithmic if the usual range is, unless the table says otherwise."""
    integer = _is_integer(start, name)
    low, high = (_number(name, table[key], integer) for key in ("low", "high"))
    usual = {**RANGES, **OF_METHODS.get(start.name, {})}.get(name)
    usual_log = isinstance(usual, Range) and usual.log and low > 0
    return Range(low, high, log=bool(table.get("log", usual_log)), integer=integer)


def _check_keys(name: str, table: Mapping[str, Any]) -> None:
    """Raise unless a table has choices, or low and high, and no other keys."""
    for key in table:
        check_name(f"key in the range of {name}:", key, ("low", "high", "log", "choices"))
    if "choices" in table and len(table) > 1:
        raise InputError(f"{name}: give either choices, or low, high and log.")
    if "choices" not in table and not {"low", "high"} <= set(table):
        raise InputError(f"{name}: a range needs low and high, or choices; got {dict(table)}.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(name: str, value: Any, integer: bool) -> Number:
    if not _is_number(value):
        raise InputError(f"{name}: expected a number, got {value!r}.")
    if integer and not float(value).is_integer():
        raise InputError(f"{name} is a whole number, got {value!r}.")
    if integer:
        return int(value)
    return float(value)


def _read(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(
            f"The file of ranges {str(path)!r} cannot be read: {error.strerror}."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{str(path)!r} is not a TOML file: {error}.") from error
