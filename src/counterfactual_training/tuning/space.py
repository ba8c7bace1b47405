"""What may be tuned, and between which values."""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from counterfactual_training.errors import FileError, InputError, unknown
from counterfactual_training.gates import KINDS
from counterfactual_training.training import Setting
from counterfactual_training.training.setting import OF_CONFIG, OF_OBJECTIVE, WHOLE, Value

# The one thing to tune that is no number, and that no training knows: what is fitted to the trained model.
GATE, GATES = "gate", ("none", *KINDS)
# A number of a setting, or the kind of a gate.
Choice = Value | str
# What there is to tune; a generator of one's own may add to it.
TUNABLE = (
    GATE,
    "decision_threshold", "max_steps", "search_learning_rate", "epsilon", "lambda_cost", "lambda_energy", *OF_OBJECTIVE,
    *OF_CONFIG,
)  # fmt: skip
# Said of a setting instead of a range: it stays as it is.
FIXED = "published"


@dataclass(frozen=True)
class Range:
    """All numbers from ``low`` to ``high``, the ends included.

    Attributes:
        log: small numbers are as likely as large ones.
        whole: integers only.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InputError(f"A range goes from a finite number to a larger one, got {self.low} to {self.high}.")
        if self.log and self.low <= 0:
            raise InputError(f"A range with log = true starts above 0, got {self.low}.")
        if self.whole and (self.low != round(self.low) or self.high != round(self.high)):
            raise InputError(f"A range of whole numbers has whole ends, got {self.low} to {self.high}.")

    def holds(self, value: Value) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def near(self, value: Value, rng: random.Random) -> Value:
        """A value of the range about a sixth of its width away, in its own scale."""
        scale, back = (math.log, math.exp) if self.log else (float, float)
        low, high = scale(self.low), scale(self.high)
        moved = back(min(high, max(low, rng.gauss(scale(value), (high - low) / 6))))
        moved = min(self.high, max(self.low, moved))
        return round(moved) if self.whole else moved

    def including(self, value: Value) -> Range:
        """The same range, wide enough for a value; where its logarithm is none, evenly spread."""
        return replace(
            self, low=min(self.low, value), high=max(self.high, value), log=self.log and min(self.low, value) > 0
        )


@dataclass(frozen=True)
class Choices:
    """One of a few values."""

    values: tuple[Choice, ...]

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) < len(self.values):
            raise InputError(f"Choices are one or more different values, got {list(self.values)}.")

    def holds(self, value: Choice) -> bool:
        return value in self.values

    def near(self, value: Choice, rng: random.Random) -> Choice:
        return rng.choice(self.values)

    def including(self, value: Choice) -> Choices:
        return self if self.holds(value) else Choices((value, *self.values))


Domain = Range | Choices
Space = Mapping[str, Domain]

# From the smallest to the largest value that the paper's grids tried (Appendix D and E), and a little beyond where the
# best one stood at the end. num_counterfactuals gives tensors another shape, so that such trials could not train
# together: it is tuned only where asked for.
RANGES: Space = {
    "decision_threshold": Range(0.5, 0.95),
    "lambda_div": Range(0.01, 2.0, log=True),
    "lambda_reg": Range(0.005, 1.0, log=True),
    "lambda_adv": Range(0.01, 1.0, log=True),
    "lambda_energy": Range(0.1, 20.0, log=True),
    "max_steps": Range(5, 50, whole=True),
    "search_learning_rate": Range(0.03, 1.0, log=True),
    "epsilon": Range(0.05, 0.5),
    "burn_in": Range(0.0, 0.5),
    "learning_rate": Range(3e-4, 1e-2, log=True),
}


def make_space(
    start: Setting, changes: Mapping[str, Any] | str | Path | None = None, gate: str = "none"
) -> dict[str, Domain]:
    """The ranges to search: :data:`RANGES`, those of them that this setting has, with the given ones changed.

    Args:
        start: the setting that is to be improved; every range is made wide enough for it.
        changes: by name, a pair ``(low, high)``, a list of choices, a table with ``low``, ``high`` and ``log`` or with
            ``choices``, or :data:`FIXED`; or a TOML file with the same. The gate has choices only.
        gate: that the setting to be improved has.
    """
    values: dict[str, Any] = {**start.numbers(), GATE: gate}
    wanted: dict[str, Any] = {name: domain for name, domain in RANGES.items() if name in values}
    for name, given in (_read(changes) if isinstance(changes, str | Path) else changes or {}).items():
        if name not in {*TUNABLE, *values}:
            raise InputError(unknown("setting to tune", name, dict.fromkeys([*TUNABLE, *values])))
        if name not in values:
            raise InputError(f"{name!r} cannot be tuned here: this generator or objective does not use it.")
        if given == FIXED:
            wanted.pop(name, None)
        else:
            wanted[name] = _domain(name, given)
    if not wanted:
        raise InputError("There is nothing to tune: every setting is fixed.")
    return {name: domain.including(values[name]) for name, domain in wanted.items()}


def neighbours(space: Space, start: Mapping[str, Any], num: int, seed: int) -> list[dict[str, Choice]]:
    """Settings that differ from the start in a third of the numbers, and not by much."""
    rng = random.Random(seed)  # noqa: S311 - nobody must not guess them
    found: list[dict[str, Choice]] = []
    for _ in range(num):
        moved = set(rng.sample(sorted(space), -(-len(space) // 3)))
        found.append(
            {name: domain.near(start[name], rng) if name in moved else start[name] for name, domain in space.items()}
        )
    return found


def _domain(name: str, given: Any) -> Domain:
    whole = name in WHOLE
    if name == GATE:
        return _gates(given)
    if isinstance(given, Range | Choices):
        return given
    if isinstance(given, Mapping):
        return _of_table(name, given, whole)
    if isinstance(given, tuple) and len(given) == 2 and all(_is_number(value) for value in given):
        return Range(*given, log=_usual_log(name, given[0]), whole=whole)
    if isinstance(given, Sequence) and not isinstance(given, str):
        return Choices(tuple(_number(name, value) for value in given))
    raise InputError(f"{name} = {given!r} is no range: give (low, high), a list of choices, or {FIXED!r}.")


def _gates(given: Any) -> Choices:
    kinds = given.values if isinstance(given, Choices) else given
    kinds = kinds["choices"] if isinstance(kinds, Mapping) and set(kinds) == {"choices"} else kinds
    if not isinstance(kinds, list | tuple):
        raise InputError(f"{GATE} = {given!r} is no list of choices, such as {list(GATES)}.")
    for kind in kinds:
        if kind not in GATES:
            raise InputError(unknown("gate", str(kind), GATES))
    return Choices(tuple(kinds))


def _of_table(name: str, table: Mapping[str, Any], whole: bool) -> Domain:
    valid = ("low", "high", "log", "choices")
    for key in table:
        if key not in valid:
            raise InputError(unknown(f"key in the range of {name}:", key, valid))
    if "choices" in table:
        if len(table) > 1:
            raise InputError(f"{name}: choices stand alone, without low, high and log.")
        return _domain(name, list(table["choices"]))
    if not {"low", "high"} <= set(table):
        raise InputError(f"{name}: a range needs low and high, or choices; got {dict(table)}.")
    low, high = (_number(name, table[key]) for key in ("low", "high"))
    return Range(low, high, log=bool(table.get("log", _usual_log(name, low))), whole=whole)


def _usual_log(name: str, low: float) -> bool:
    usual = RANGES.get(name)
    return isinstance(usual, Range) and usual.log and low > 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(name: str, value: Any) -> Value:
    if not _is_number(value):
        raise InputError(f"{name}: expected a number, got {value!r}.")
    if name in WHOLE and value != round(value):
        raise InputError(f"{name} is a whole number, got {value!r}.")
    return int(value) if name in WHOLE else float(value)


def _read(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"The file of ranges {str(path)!r} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{str(path)!r} is no TOML file: {error}.") from error
