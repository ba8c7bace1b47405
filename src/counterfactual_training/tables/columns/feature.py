"""One column in the user's terms: kind, unit, and the changes that make sense."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from counterfactual_training.constraints import Direction, parse_direction
from counterfactual_training.errors import (
    Argument,
    ConstraintError,
    InputError,
    Part,
    Remedy,
    check_name,
)

Kind = Literal["numeric", "integer", "ordinal", "binary", "categorical", "pixel"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Share by which a stored number may differ from a code and still be it.
_SAME_CODE = 1e-7
CATEGORY_KINDS: tuple[Kind, ...] = ("ordinal", "binary", "categorical")
_NUMBER_KINDS: tuple[Kind, ...] = ("numeric", "integer", "pixel")
_UNORDERED: tuple[Kind, ...] = ("binary", "categorical")
# Kinds to which a field does not apply, and the explanation for users who state it.
_NOT_FOR: dict[str, tuple[tuple[Kind, ...], str]] = {
    "categories": (
        _NUMBER_KINDS,
        " and has no categories; make it categorical, ordinal or binary",
    ),
    "domain": (_UNORDERED, " and has no domain"),
    "forbidden": (
        _NUMBER_KINDS,
        ": forbidden changes are between categories; use mutability=, domain= or allowed= here",
    ),
    "step": (("pixel", *CATEGORY_KINDS), ": only numeric and integer columns have a step"),
    "max_change": (
        _UNORDERED,
        ": a change has no size. Use mutability 'none' to hold it, or allowed=",
    ),
}


@dataclass(frozen=True)
class Feature:
    """A feature with its rules in the user's units.

    Attributes:
        name: the column.
        unit: for reports, such as ``"years"``.
        kind, mutability, domain, categories, allowed, forbidden, step, max_change, difficulty,
            special: its rules, all described in :data:`RULES`. Categories are ``None`` until the
            data has been seen; means, ranges and decimals are learned from numbers that are no
            special codes.

    Examples:
        >>> import counterfactual_training as ct
        >>> income = ct.Feature(
        ...     "income",
        ...     "numeric",
        ...     unit="dollars",
        ...     domain=(0, None),
        ...     mutability="increase",
        ...     step=100,
        ... )
        >>> income.limits
        (0.0, inf)
        >>> jobs = ("clerk", "nurse", "pilot")
        >>> job = ct.Feature("job", "categorical", categories=jobs, forbidden=[("pilot", "clerk")])
        >>> job.is_category, job.levels
        (True, ('clerk', 'nurse', 'pilot'))
    """

    name: str
    kind: Kind
    unit: str | None = None
    mutability: Direction = "both"
    domain: tuple[Any, Any] | None = None
    categories: tuple[Any, ...] | None = None
    allowed: tuple[Any, ...] | None = None
    forbidden: tuple[tuple[Any, Any], ...] = ()
    step: float | None = None
    max_change: float | None = None
    difficulty: float = 1.0
    special: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"A feature needs a name that is text, got {self.name!r}.")
        check_name(f"kind of {self.name!r}", self.kind, KINDS)
        if self.unit is not None and not isinstance(self.unit, str):
            raise InputError(f"The unit of {self.name!r} must be text, got {self.unit!r}.")
        # In this order: domain, allowed and forbidden are checked against the categories, codes
        # against allowed.
        for field in (
            "mutability",
            "categories",
            "domain",
            "allowed",
            "forbidden",
            "step",
            "max_change",
            "difficulty",
            "special",
        ):
            default = getattr(Feature, field)
            if _is_empty(getattr(self, field), default):
                checked = default  # not stated
            elif field in _NOT_FOR and self.kind in _NOT_FOR[field][0]:
                raise self._not_for(field)
            else:
                checked = getattr(self, f"_{field}")()
            object.__setattr__(self, field, checked)

    def _not_for(self, field: str) -> ConstraintError:
        parts: tuple[Part, ...] = (f"{self.name!r} is {self.kind}{_NOT_FOR[field][1]}",)
        if field == "domain":
            parts = (*parts, "; ", Remedy("list_allowed", self.name))
        return ConstraintError(*parts, ".", field=f"{field}.{self.name}")

    # ---- questions -------------------------------------------------------------------------------

    @property
    def is_category(self) -> bool:
        """Whether its values are categories, with an order or without one."""
        return self.kind in CATEGORY_KINDS

    @property
    def levels(self) -> tuple[Any, ...]:
        """The categories; an error if they are not known yet."""
        if self.categories is None:
            raise InputError(
                f"The categories of {self.name!r} are not known yet; complete the schema with a "
                "frame."
            )
        return self.categories

    @property
    def limits(self) -> tuple[float, float]:
        """The stated domain as numbers (ranks for an ordinal, whole for an integer), infinite where
        open.
        """
        low, high = self.domain or (None, None)
        if self.kind == "ordinal":
            if low is None:
                low = 0
            else:
                low = self.levels.index(low)
            if high is None:
                high = len(self.levels) - 1
            else:
                high = self.levels.index(high)
        # The whole numbers within a domain of 17.5 to 90.2 are 18 to 90.
        if self.kind == "integer":
            if low is not None:
                low = math.ceil(low)
            if high is not None:
                high = math.floor(high)
        return (-math.inf if low is None else float(low)), (
            math.inf if high is None else float(high)
        )

    @property
    def reach(self) -> float:
        """The stated largest change, infinite without one."""
        if self.max_change is None:
            return math.inf
        return self.max_change

    @property
    def named(self) -> tuple[Any, ...] | None:
        """The numbers that advice may name, if they are listed: those allowed that are multiples of
        the step.
        """
        if self.allowed is None or self.step is None:
            return self.allowed
        return tuple(value for value in self.allowed if _is_multiple(value, self.step))

    def coded(self, numbers: np.ndarray) -> np.ndarray:
        """Mask ``(n, k)``: which of the k special codes each number is.

        Args:
            numbers: ``(n,)`` values of the column.
        """
        codes = np.array(self.special, dtype=np.float64)
        # Within float32, because a narrow column holds 0.1 as 0.10000000149.
        return np.abs(np.asarray(numbers)[:, None] - codes) <= _SAME_CODE * np.abs(codes)

    # ---- what the user wrote, checked ------------------------------------------------------------

    def _mutability(self) -> Direction:
        try:
            return parse_direction(self.mutability)
        except ConstraintError as error:
            raise ConstraintError(f"mutability of {self.name!r}: {error}") from None

    def _categories(self) -> tuple[Any, ...]:
        levels = _plain_tuple(self.categories, f"categories of {self.name!r}")
        if not levels or len(set(levels)) != len(levels):
            raise ConstraintError(
                f"The categories of {self.name!r} must be different and at least one: {levels!r}."
            )
        if any(pd.isna(level) for level in levels):
            raise ConstraintError(
                f"A missing value cannot be a category of {self.name!r}; name it, for example '?'."
            )
        if self.kind == "binary" and len(levels) != 2:
            raise ConstraintError(
                f"{self.name!r} is binary but has {len(levels)} categories: {show(levels)}."
            )
        return levels

    def _domain(self) -> tuple[Any, Any] | None:
        if (
            isinstance(self.domain, str)
            or not isinstance(self.domain, Iterable)
            or len(tuple(self.domain)) != 2
        ):
            raise self._bad_domain(f"must be (lower, upper), got {self.domain!r}")
        low, high = (plain(bound) for bound in self.domain)
        if self.kind == "ordinal":
            return self._ordinal_domain(low, high)
        low = self._bound(low)
        high = self._bound(high)
        if low is None and high is None:
            return None
        if low is not None and high is not None:
            self._check_ends(low, high)
        return (low, high)

    def _check_ends(self, low: float, high: float) -> None:
        """Raise if no number of the column lies between the ends of its domain."""
        if low > high:
            raise self._bad_domain(f"is empty: lower > upper in [{low:g}, {high:g}]")
        if self.kind == "integer" and math.ceil(low) > math.floor(high):
            raise self._bad_domain(f"is empty: no whole number lies in [{low:g}, {high:g}]")

    def _bound(self, bound: Any) -> float | None:
        if bound is None:
            return None
        if not _is_number(bound) or math.isnan(bound):
            raise self._bad_domain(f"must be numbers or None, got {bound!r}")
        if math.isinf(bound):
            return None
        return bound

    def _ordinal_domain(self, low: Any, high: Any) -> tuple[Any, Any] | None:
        # TOML has no null, so a file writes ±inf for an open side.
        low, high = (None if isinstance(b, float) and math.isinf(b) else b for b in (low, high))
        ends = [bound for bound in (low, high) if bound is not None]
        if self.categories is not None:
            self._must_be_categories(ends, "domain")
            if len(ends) == 2 and self.categories.index(low) > self.categories.index(high):
                raise self._bad_domain(f"is empty: {low!r} comes after {high!r}")
        if ends:
            return (low, high)
        return None

    def _bad_domain(self, problem: str) -> ConstraintError:
        return ConstraintError(
            "The ",
            Argument("domain"),
            f" of {self.name!r} {problem}.",
            field=f"domain.{self.name}",
        )

    def _allowed(self) -> tuple[Any, ...]:
        values = _plain_tuple(self.allowed, f"allowed values of {self.name!r}")
        if not values:
            raise ConstraintError(
                f"No value of {self.name!r} is allowed; to hold it fixed, set mutability 'none'."
            )
        if self.is_category:
            self._must_be_categories(values, "allowed values")
            return tuple(dict.fromkeys(values))
        bad = [
            v
            for v in values
            if not _is_number(v) or not math.isfinite(v) or (self.kind == "integer" and v % 1)
        ]
        if bad:
            raise ConstraintError(
                f"allowed values of {self.name!r} must be {self.kind} values, got {bad[0]!r}."
            )
        low, high = self.limits
        outside = [v for v in values if not low <= v <= high]
        if outside:
            raise ConstraintError(
                f"The allowed value {outside[0]!r} of {self.name!r} lies outside its ",
                Argument("domain"),
                ".",
                field=f"allowed.{self.name}",
            )
        return tuple(sorted(set(values)))

    def _forbidden(self) -> tuple[tuple[Any, Any], ...]:
        pairs = []
        for entry in self.forbidden:
            if isinstance(entry, str) or not isinstance(entry, Sequence) or len(entry) != 2:
                raise ConstraintError(
                    f"A forbidden change of {self.name!r} is a pair (from, to), got {entry!r}."
                )
            if isinstance(entry[1], list):
                targets = entry[1]
            else:
                targets = [entry[1]]
            pairs += [(plain(entry[0]), plain(target)) for target in targets]
        self._must_be_categories(
            [value for pair in pairs for value in pair], "forbidden changes"
        )
        same = [pair for pair in pairs if pair[0] == pair[1]]
        if same:
            raise ConstraintError(
                f"{self.name!r} may always stay {same[0][0]!r}; this cannot be forbidden."
            )
        return tuple(dict.fromkeys(pairs))

    def _step(self) -> float:
        step = self._positive("step")
        if self.kind == "integer" and step % 1:
            raise ConstraintError(
                f"{self.name!r} holds whole numbers, so its step must be one, got {step:g}."
            )
        low, high = self.limits
        if math.isfinite(low) and math.ceil(low / step - 1e-9) * step > high * (1 + 1e-12):
            raise ConstraintError(
                f"No multiple of the step {step:g} lies in the ",
                Argument("domain"),
                f" of {self.name!r}.",
                field=f"step.{self.name}",
            )
        if self.allowed is not None and not any(
            _is_multiple(value, step) for value in self.allowed
        ):
            raise ConstraintError(
                f"No allowed value of {self.name!r} is a multiple of its step {step:g}: "
                f"{show(self.allowed)}."
            )
        return step

    def _max_change(self) -> float:
        most = self._positive("max_change")
        # From one multiple of the step to the next is further: advice could only round what a row
        # holds.
        if self.step is not None and most < self.step * (1 - 1e-9):
            raise ConstraintError(
                f"The max_change {most:g} of {self.name!r} is smaller than its step "
                f"{self.step:g}, so no step fits: "
                f"state a smaller step, or a max_change of {self.step:g} or more; to hold the "
                "column, lock it."
            )
        return most

    def _difficulty(self) -> float:
        return self._positive("difficulty")

    def _special(self) -> tuple[float, ...]:
        # One code may stand without a list; a numpy scalar is one, too.
        stated = plain(self.special)
        if _is_number(stated):
            codes = (stated,)
        else:
            codes = _plain_tuple(stated, f"special codes of {self.name!r}")
        if self.is_category and codes:
            raise ConstraintError(
                f"{self.name!r} is {self.kind}: a code such as {codes[0]!r} is one of its "
                "categories; list it in "
                "categories=, and keep it out of allowed= if it is never to be advised."
            )
        if self.kind == "pixel":
            raise ConstraintError(
                f"{self.name!r} is a pixel: only numeric and integer columns have special codes."
            )
        for code in codes:
            self._check_code(code)
        return tuple(sorted({int(code) if code % 1 == 0 else code for code in codes}))

    def _check_code(self, code: Any) -> None:
        """Raise if something cannot be a special code of this column."""
        if isinstance(code, float) and math.isnan(code):
            raise ConstraintError(
                f"NaN is no special code of {self.name!r}: it is a missing value, see ",
                Argument("missing", "impute"),
                ".",
                field=f"special.{self.name}",
            )
        if (
            not _is_number(code)
            or not math.isfinite(code)
            or (self.kind == "integer" and code % 1)
        ):
            raise ConstraintError(
                f"special codes of {self.name!r} must be {self.kind} values, got {code!r}."
            )
        if self.allowed is not None and code in self.allowed:
            raise ConstraintError(
                f"{code!r} is a special code of {self.name!r}; it cannot be allowed as an aim."
            )

    def _positive(self, field: str) -> float:
        value = plain(getattr(self, field))
        if not _is_number(value) or not (math.isfinite(value) and value > 0):
            raise ConstraintError(
                f"The {field} of {self.name!r} must be a positive number, got {value!r}."
            )
        return float(value)

    def _must_be_categories(self, values: Iterable[Any], what: str) -> None:
        for value in values if self.categories is not None else ():
            check_name(
                f"category in the {what} of {self.name!r}:", value, self.levels, ConstraintError
            )


def show(values: Sequence[Any], limit: int = 8) -> str:
    """Some of the values, for a message."""
    shown = ", ".join(repr(value) for value in values[:limit])
    if len(values) <= limit:
        return shown
    return f"{shown}, … ({len(values)} in all)"


def plain(value: Any) -> Any:
    """A numpy scalar as the Python object it stands for."""
    if isinstance(value, np.generic):
        return value.item()
    return value


def _is_multiple(value: float, step: float) -> bool:
    # 0.3 / 0.1 is not 3 in binary.
    return abs(value - round(value / step) * step) <= 1e-12 * abs(value)


def _plain_tuple(values: Any, what: str) -> tuple[Any, ...]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise ConstraintError(f"{what} must be a list, got {values!r}.")
    entries = tuple(plain(value) for value in values)
    for value in entries:
        try:
            hash(value)
        except TypeError:
            raise ConstraintError(
                f"{what} must be text, numbers or booleans, got {value!r}."
            ) from None
    return entries


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_empty(value: Any, default: Any) -> bool:
    """Whether a value states no more than the default."""
    if value is None:
        return not default
    return default == () and isinstance(value, (list, tuple)) and not value


# ---- words ---------------------------------------------------------------------------------------


def stated_values(feature: Feature) -> str:
    """The values of a column, and every rule on them that was stated."""
    stated = (
        in_words(feature)
        for field, in_words in _IN_WORDS.items()
        if getattr(feature, field) != getattr(Feature, field)
    )
    return "; ".join(stated)


def show_domain(feature: Feature) -> str:
    """``[18, 90]``, with ∞ for an open side."""
    low, high = feature.domain or (None, None)
    return f"[{'-∞' if low is None else low}, {'∞' if high is None else high}]"


def _categories_in_words(feature: Feature) -> str:
    shown = [repr(level) for level in feature.levels[:6]]
    if len(feature.levels) > 6:
        shown.append(f"… ({len(feature.levels)})")
    return (" < " if feature.kind == "ordinal" else ", ").join(shown)


def _special_in_words(feature: Feature) -> str:
    codes = "code" if len(feature.special) == 1 else "codes"
    return f"{codes} {show(feature.special)}, never advised"


def _forbidden_in_words(feature: Feature) -> str:
    words = "never " + ", ".join(f"{a!r} → {b!r}" for a, b in feature.forbidden[:4])
    if len(feature.forbidden) > 4:
        words += " …"
    return words


def _max_change_in_words(feature: Feature) -> str:
    words = f"changes by at most {feature.max_change:.10g}"
    if feature.kind == "ordinal":
        words += " in rank"
    return words


# By field, in the order of a sentence.
_IN_WORDS: dict[str, Callable[[Feature], str]] = {
    "categories": _categories_in_words,
    "domain": lambda feature: f"in {show_domain(feature)}",
    "allowed": lambda feature: f"to {show(feature.allowed or ())} only",
    "special": _special_in_words,
    "forbidden": _forbidden_in_words,
    "step": lambda feature: f"in steps of {feature.step:.10g}",
    "max_change": _max_change_in_words,
    "difficulty": lambda feature: f"{feature.difficulty:.10g} times the usual cost",
}
