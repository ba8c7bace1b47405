"""A column in model space: the numbers fitted to it, and its values there and back."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from counterfactual_training.errors import FileError, InputError, Remedy
from counterfactual_training.tables.columns.dtypes import (
    dtype_from_dict,
    dtype_to_dict,
    holds_numbers,
    value_range,
)
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.columns.frame import UNSEEN
from counterfactual_training.tables.columns.labels import is_label
from counterfactual_training.tables.columns.limits import precision_of, too_far
from counterfactual_training.tables.columns.ranked import Ranked
from counterfactual_training.tables.columns.rounding import (
    round_to,
    seen_decimals,
    seen_spacing,
    tidy,
)

# A change below this share of (1 + |z|) is float32 noise, not a change.
UNCHANGED = 1e-6
# How far a projection in float32 may overshoot a bound.
_OVERSHOOT = 2e-5
# A robust scale clips values to these quantiles.
_TAILS = (0.01, 0.99)
# Advice leads to values between these quantiles, unless a domain is stated.
BULK = (0.005, 0.995)
# A column of numbers has few values if it has at most so many different ones, each of them repeated
# so often on average.
_MOST_VALUES = 12
_REPEATED = 20
# So many values are checked first; all of them only if these leave it open.
_FIRST_LOOK = 256
# Kinds whose center and scale are a mean and a standard deviation.
_Z_SCORED = ("numeric", "integer", "ordinal")
# Decimals that a column is rounded to, at most.
_MOST_DECIMALS = 15
# Larger numbers overflow as soon as they are squared.
_LARGEST = 1e150


@dataclass(frozen=True)
class Column:
    """How a feature is written in model space.

    One number v per row (the value, the rank of an ordinal) becomes ``z = (v − center) / scale``; a
    binary feature is its position 0 or 1; a categorical one a one-hot vector, or all zeros for an
    unseen category. Each special code of a number adds a column, 1 in the rows that hold it; their
    number is then the median.
    """

    feature: Feature
    dtype: Any  #: the pandas dtype to restore
    center: float  #: of the z-score, like ``scale``; 0 and 1 where there is none
    scale: float
    mean: float  #: of v in the training data, like the three below, for Eq. 12
    std: float
    low: float
    high: float
    decimals: int | None  #: to round values to; ``None`` keeps every digit
    fill: float  #: v of a missing value: the (lower) median, or the most frequent category
    #: Positions of the categories in the training data, the only ones to recommend, because the
    #: model knows nothing about others. ``None`` for numbers; in old files, all categories.
    seen: tuple[int, ...] | None = None
    #: The range that holds 99 % of the training values; ``None`` in old files.
    bulk: tuple[float, float] | None = None
    #: The values of a column of numbers that takes few, and a number above 1 that nearly all values
    #: are multiples of.
    values: tuple[float, ...] | None = None
    spacing: float | None = None

    @classmethod
    def fit(
        cls, feature: Feature, dtype: Any, numbers: np.ndarray, scale: bool | str
    ) -> Column:
        """Learn from the training column, read as numbers ``(n,)`` with NaN for missing; ``scale``
        as in Encoder.
        """
        if feature.special:
            numbers = numbers[~feature.coded(numbers).any(1)]
        missing = np.isnan(numbers)
        # Contiguous: a column of a frame made from an array is a strided view.
        if missing.any():
            present = numbers[~missing]
        else:
            present = np.ascontiguousarray(numbers)
        _check_any(feature, present)
        # A median between two categories would be none of them; numbers, too, take a value that
        # occurs.
        ranked = Ranked(present, (*BULK, *_TAILS, 0.5))
        if feature.kind in ("binary", "categorical", "ordinal"):
            often = np.bincount(present.astype(int))
            fill = float(often.argmax())
            seen = tuple(np.flatnonzero(often).tolist())
            spacing = None
        else:
            fill = ranked.lower(0.5)
            seen = None
            spacing = seen_spacing(present)
        if len(present) < len(numbers):
            v = np.where(missing, fill, numbers)
        else:
            v = present
        low = float(v.min())
        high = float(v.max())
        mean, std = _moments(feature, v, low, high)
        inner = None
        if scale == "robust" and feature.kind in _Z_SCORED:
            inner = _bulk(v, ranked if v is present else Ranked(v, _TAILS))
        if scale:
            center, spread = _affine(feature, *(inner or (mean, std)))
        else:
            center = 0.0
            spread = 1.0
        decimals = _decimals(feature, dtype, present, std)
        first, last = BULK
        return cls(
            feature,
            dtype,
            center,
            spread,
            mean,
            std,
            low,
            high,
            decimals,
            fill,
            seen,
            (ranked.lower(first), ranked.higher(last)),
            _few_values(feature, present),
            spacing,
        )

    @property
    def one_hot(self) -> bool:
        return self.feature.kind == "categorical"

    @property
    def affine(self) -> bool:
        """Whether numbers become z-scores and nothing else."""
        return not self.feature.is_category and not self.feature.special

    @property
    def width(self) -> int:
        """Columns in model space."""
        if self.one_hot:
            return len(self.feature.levels)
        return 1 + len(self.feature.special)

    @property
    def names(self) -> list[str]:
        """Names of those columns, such as ``education=Masters``; a yes-or-no column keeps its
        own.
        """
        name = self.feature.name
        if self.one_hot:
            return [f"{name}={level}" for level in self.feature.levels]
        if self.feature.kind == "binary" and self.feature.levels != (0, 1):
            return [f"{name}={self.feature.levels[1]}"]
        return [name, *(f"{name}={code}" for code in self.feature.special)]

    @property
    def constant(self) -> bool:
        """Whether the training data holds only one value, special codes aside; such a column never
        moves.
        """
        return self.low == self.high

    @property
    def grid(self) -> float | None:
        """Distance between neighbouring values of advice, in the user's units; ``None`` if they are
        not rounded.
        """
        return self.feature.step or self._resolution or None

    @property
    def advised(self) -> tuple[float, ...] | None:
        """The only values that advice may name, if there are such: those allowed, or the few that
        were seen.

        Bounds leave some of them out, but add none: a narrower question must not be freer.
        """
        if self.feature.step is not None:
            return self.feature.named
        return self.feature.named or self.values

    @property
    def advised_grid(self) -> float | None:
        """Distance between neighbouring values of advice, inferred from the training data; see
        ``spacing``.
        """
        if self.feature.step is None and self.spacing is not None:
            return self.spacing
        return self.grid

    @property
    def _resolution(self) -> float:
        """Distance between neighbouring values that can be written; 0 if there is no limit."""
        if self.decimals is None:
            return 0.0
        return 10.0**-self.decimals

    @property
    def grouped(self) -> bool:
        """Whether large numbers are written with thousands separators; those of years and codes
        are not.
        """
        whole = self.decimals == 0 or bool(np.isfinite(value_range(self.dtype)[0]))
        if self.feature.is_category or not whole:
            return True
        return not is_label(self.feature.name, *(self.bulk or (self.low, self.high)))

    @property
    def alike(self) -> Hashable:
        """Columns with the same key differ in center, scale and fill only, as far as decoding
        goes.
        """
        f = self.feature
        plain = self.scale == 1.0 and self.center == 0.0
        if f.kind != "numeric" or f.special or self.advised is not None:
            return f.name
        return str(self.dtype), self.decimals, f.step, f.limits, f.mutability, plain

    def encode(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers ``(n,)``, as read, to model space ``(n, width)``."""
        v = np.where(np.isnan(numbers), self.fill, numbers)
        if self.one_hot:
            return (v[:, None] == np.arange(self.width)).astype(np.float64)
        # Halfway: neither of the two categories.
        if self.feature.kind == "binary":
            return np.where(v == UNSEEN, 0.5, v)[:, None]
        if self.feature.kind == "ordinal":
            v = np.where(v == UNSEEN, self.mean, v)
        if not self.feature.special:
            return ((v - self.center) / self.scale)[:, None]
        coded = self.feature.coded(numbers)
        v = np.where(coded.any(1), self.fill, v)
        return np.column_stack([(v - self.center) / self.scale, coded])

    def decode(self, z: np.ndarray, precision: float, unseen: bool = False) -> np.ndarray:
        """Model space ``(n, width)``, exact to the given relative precision, to numbers ``(n,)``.

        With ``unseen``, the code of an unseen category stays unseen; otherwise it becomes the
        nearest category.
        """
        if self.one_hot:
            return np.where((z == 0).all(1) & unseen, UNSEEN, z.argmax(1))
        number = z[:, 0]
        if self.feature.kind == "binary":
            return np.where(
                (number == 0.5) & unseen, UNSEEN, (number >= 0.5).astype(np.float64)
            )
        v, error = self._affine_back(number, precision)
        return self._with_codes(self._round(v, error, slack=error), z, self.fill)

    def decode_like(
        self, z: np.ndarray, precision: float, factual: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`decode`, for counterfactuals of people whose numbers are ``factual`` ``(n,)``.

        Returns the numbers and a mask ``(n,)`` of the cells that did not change. Rounding and
        float32 noise never move a value out of its domain or against its direction.
        """
        same = self.is_unchanged(z, factual)
        if self.feature.kind in ("binary", "categorical"):
            numbers = self.decode(z, precision, unseen=True)
            return numbers, same | (numbers == factual)
        v, error = self._affine_back(z[:, 0], precision)
        slack = error + self.scale * _OVERSHOOT * (1 + np.abs(z[:, 0])) + self._resolution
        v = self._round(v, error, slack)
        coded = self.feature.coded(factual).any(1)
        base = np.where(np.isnan(factual) | coded, self.fill, factual)
        if self.feature.kind == "ordinal":  # an unseen category has no rank to compare with
            base = np.where(base == UNSEEN, np.nan, base)
        # A change within the slack and against the direction is an artefact of rounding: undo it.
        rose = (v > base) & (v - base <= slack)
        fell = (v < base) & (base - v <= slack)
        may = self.feature.mutability
        v = np.where(rose & (may not in ("both", "increase")), base, v)
        v = np.where(fell & (may not in ("both", "decrease")), base, v)
        v = self._within_reach(self._with_codes(v, z, base), base, slack)
        return v, same | (v == np.where(coded, factual, base))

    def _within_reach(self, v: np.ndarray, base: np.ndarray, slack: np.ndarray) -> np.ndarray:
        """Numbers ``(n,)`` that rounding took a little further from ``base`` than they may change;
        one step nearer.
        """
        most = self.feature.reach
        if np.isinf(most) or self.feature.is_category:
            return v
        far = too_far(most, base, v, precision_of(self.dtype)) & (
            np.abs(v - base) - most <= slack
        )
        way = np.sign(v - base)
        nearer = base + way * most
        if self.advised_grid is not None:
            nearer = v - way * self.advised_grid
            if self.decimals is not None:
                nearer = round_to(nearer, self.decimals)
        if self.advised is not None:
            nearer = base  # the next value on the list may be anywhere
        passed = way * (nearer - base) <= 0
        return np.where(far, np.where(passed, base, nearer), v)

    def _with_codes(self, v: np.ndarray, z: np.ndarray, base: np.ndarray | float) -> np.ndarray:
        """Numbers ``(n,)`` decoded from z ``(n, width)``, with the special codes that z encodes.

        Any other number that happens to be a code moves off it, one step of the grid back towards
        ``base`` ``(n,)``.
        """
        feature = self.feature
        if not feature.special:
            return v
        step = self.advised_grid or 1e-3 * self.scale
        for _ in feature.special:  # the next number may be a code too
            lands = feature.coded(v).any(1)
            back = v + step * np.sign(base - v)
            if self.decimals is not None:
                back = round_to(back, self.decimals)
            v = np.where(lands, np.where(np.abs(base - v) > step, back, base), v)
        flags = z[:, 1:]
        return np.where(
            (flags >= 0.5).any(1),
            np.array(feature.special, dtype=np.float64)[flags.argmax(1)],
            v,
        )

    def is_unchanged(self, z: np.ndarray, factual: np.ndarray) -> np.ndarray:
        """Mask ``(n,)`` of the points ``(n, width)`` that encode the numbers ``factual``
        ``(n,)``, up to float32.
        """
        z_factual = self.encode(factual)
        return (np.abs(z - z_factual) <= UNCHANGED * (1 + np.abs(z_factual))).all(1)

    def _affine_back(self, z: np.ndarray, precision: float) -> tuple[np.ndarray, np.ndarray]:
        """v and a bound on its rounding error."""
        z = z.astype(np.float64)
        v = z * self.scale + self.center
        double = float(np.finfo(np.float64).eps)
        if np.all(self.scale == 1.0) and np.all(self.center == 0.0):
            return v, np.abs(v) * (4 * precision if precision > double else 0.0)
        return v, 4 * (
            precision * np.abs(z * self.scale) + double * (abs(self.center) + np.abs(v))
        )

    def _round(self, v: np.ndarray, error: np.ndarray, slack: np.ndarray) -> np.ndarray:
        """The value that a user would have written; values within ``slack`` of the domain stay
        inside it.
        """
        if self.feature.kind == "ordinal":
            return np.clip(np.rint(v), 0, len(self.feature.levels) - 1)
        if self.feature.kind == "integer":
            rounded = np.rint(v)
        elif self.feature.kind == "pixel" and self.decimals is not None:
            rounded = round_to(v, self.decimals)
        else:
            rounded = tidy(v, error, self.decimals, self.dtype)
            # Whole numbers by storage, though the user allows others.
            if np.isfinite(value_range(self.dtype)[0]):
                rounded = np.where(np.abs(np.rint(v) - v) <= error, np.rint(v), rounded)
        if self.advised is not None and not self.feature.is_category:
            values = np.array(self.advised, dtype=np.float64)
            nearest = values[np.abs(v[:, None] - values).argmin(1)]
            rounded = np.where(np.abs(nearest - v) <= error, nearest, rounded)
        if self.feature.step is not None:
            near = np.rint(v / self.feature.step)
            nearest = round_to(
                near * self.feature.step,
                seen_decimals(np.array([self.feature.step]), np.float64) or 0,
            )
            rounded = np.where(
                np.abs(nearest - v) <= np.maximum(error, 1e-4 * self.feature.step),
                nearest,
                rounded,
            )
        low, high = self.feature.limits
        inside = (v >= low - slack) & (v <= high + slack)
        return np.where(inside, np.clip(rounded, low, high), rounded)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, without the feature: the schema holds it."""
        plain = {
            name: value
            for name, value in asdict(self).items()
            if name not in ("feature", "dtype")
        }
        return {"dtype": dtype_to_dict(self.dtype), **plain}

    @classmethod
    def from_dict(cls, feature: Feature, spec: dict[str, Any]) -> Column:
        try:
            # JSON has no tuples
            listed = {
                name: tuple(value) for name, value in spec.items() if isinstance(value, list)
            }
            column = cls(
                **{
                    **spec,
                    **listed,
                    "feature": feature,
                    "dtype": dtype_from_dict(spec["dtype"]),
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(
                f"The encoding of {feature.name!r} in the file is not complete: {error}."
            ) from None
        wrong = column._wrong()
        if wrong is not None:
            raise FileError(
                f"The encoding of {feature.name!r} in the file is damaged: its {wrong} cannot be "
                f"{spec[wrong]!r:.80}."
            )
        return column

    def _wrong(self) -> str | None:
        """The first field with a value that no fit produces; ``None`` if all are valid."""
        for name in ("center", "scale", "mean", "std", "low", "high", "fill"):
            if not _is_finite(getattr(self, name)):
                return name
        if self.feature.is_category:
            k = len(self.feature.levels)
        else:
            k = 0
        fine = {
            "dtype": self.feature.is_category or holds_numbers(self.dtype),
            "scale": self.scale > 0,
            "std": self.std >= 0,
            "high": self.high >= self.low,
            "fill": not k or self.fill in range(k),
            # What follows may be None, where nothing was learned.
            "decimals": self.decimals is None or _is_place(self.decimals, _MOST_DECIMALS + 1),
            "seen": self.seen is None or _are_places(self.seen, k),
            "bulk": self.bulk is None or _is_interval(self.bulk),
            "values": self.values is None or _ascends(self.values),
            "spacing": self.spacing is None or _is_positive(self.spacing),
        }
        return next((name for name, is_fine in fine.items() if not is_fine), None)


def _is_finite(value: Any) -> bool:
    """Whether a value from a file is a usable number."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and abs(value) < _LARGEST
    )


def _are_finite(values: Any) -> bool:
    return isinstance(values, tuple) and len(values) > 0 and all(map(_is_finite, values))


def _is_place(value: Any, number: int) -> bool:
    """Whether a value from a file is a whole number from 0 to below another."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < number


def _are_places(values: Any, number: int) -> bool:
    return _ascends(values) and all(_is_place(value, number) for value in values)


def _is_interval(values: Any) -> bool:
    return _are_finite(values) and len(values) == 2 and values[0] <= values[1]


def _is_positive(value: Any) -> bool:
    return _is_finite(value) and value > 0


def _ascends(values: Any) -> bool:
    if not _are_finite(values):
        return False
    return all(before < after for before, after in itertools.pairwise(values))


def _check_any(feature: Feature, present: np.ndarray) -> None:
    """Raise if no value of a column is left to learn from."""
    if len(present):
        return
    if feature.special:
        beside = " but special codes; state kind 'categorical' or "
    else:
        beside = "; "
    raise InputError(
        f"{feature.name!r} holds no value to learn from{beside}",
        Remedy("drop", feature.name),
        code="unusable_column",
        field=feature.name,
    )


def _moments(feature: Feature, v: np.ndarray, low: float, high: float) -> tuple[float, float]:
    """Mean and standard deviation of values between ``low`` and ``high``."""
    if high <= low:
        return low, 0.0
    # Sums of numbers near 1e308 overflow; an error below says so.
    with np.errstate(over="ignore"):
        mean = float(v.mean())
        std = float(v.std(ddof=1))
    if not (np.isfinite(mean) and np.isfinite(std) and std > 0):
        raise InputError(
            f"{feature.name!r} spans [{low:g}, {high:g}], too much or too little for "
            "float64; rescale it"
        )
    return mean, std


def _affine(feature: Feature, mean: float, std: float) -> tuple[float, float]:
    if feature.kind in ("binary", "categorical"):
        return 0.0, 1.0
    if feature.kind == "pixel":  # onto [−1, 1]
        low, high = feature.limits
        return (low + high) / 2, (high - low) / 2
    return mean, std or 1.0


def _bulk(v: np.ndarray, ranked: Ranked) -> tuple[float, float] | None:
    """Mean and SD of values ``(n,)`` clipped to their quantiles; ``None`` if all are equal then."""
    first, last = _TAILS
    inside = v.clip(ranked.between(first), ranked.between(last))
    mean = float(inside.mean())
    if len(v) > 1:
        std = float(inside.std(ddof=1))
    else:
        std = 0.0
    if std > 0:
        return (mean, std)
    return None


def _few_values(feature: Feature, present: np.ndarray) -> tuple[float, ...] | None:
    """The different values ``(n,)`` of a column of numbers, if few and repeated: 36 or 60
    months.
    """
    if feature.kind not in ("numeric", "integer") or len(present) < _REPEATED:
        return None
    # A few values first: most columns take many different ones, and sorting them all is slow.
    if len(np.unique(present[:_FIRST_LOOK])) > _MOST_VALUES:
        return None
    values = np.unique(present)
    if len(present) >= _REPEATED * len(values) and len(values) <= _MOST_VALUES:
        return tuple(values.tolist())
    return None


def _decimals(feature: Feature, dtype: Any, present: np.ndarray, std: float) -> int | None:
    """Decimals to round to: those of the data, but at least enough to resolve a tenth of σ.

    A column of whole floats stays whole: 2.0 children do not become 2.3.
    """
    stored_as_integers = np.isfinite(value_range(dtype)[0])
    if feature.kind in ("integer", "ordinal") or (
        feature.kind == "pixel" and stored_as_integers
    ):
        return 0
    if feature.kind != "numeric" or stored_as_integers:
        return None
    seen = seen_decimals(present, dtype)
    if not seen or std == 0:
        return seen
    needed = int(np.ceil(1 - np.log10(std)))
    return max(seen, min(needed, _MOST_DECIMALS))


def unchanged_numbers(
    columns: Sequence[Column], z: np.ndarray, factual: np.ndarray
) -> np.ndarray:
    """Mask ``(n, m)`` of points ``(n, m)`` of m affine columns that encode the numbers ``factual``
    ``(n, m)``.

    What :meth:`Column.is_unchanged` says, of all columns at once.
    """
    fill, center, scale = (
        np.array([getattr(column, name) for column in columns])
        for name in ("fill", "center", "scale")
    )
    z_factual = (np.where(np.isnan(factual), fill, factual) - center) / scale
    return np.abs(z - z_factual) <= UNCHANGED * (1 + np.abs(z_factual))


def stack_columns(columns: Sequence[Column], which: np.ndarray) -> Column:
    """One column that decodes n cells, each of another of these columns ``which`` ``(n,)``; all of
    them are alike.
    """
    fields: dict[str, Any] = {
        name: np.array([getattr(column, name) for column in columns])[which]
        for name in ("center", "scale", "fill")
    }
    return replace(columns[0], **fields)


def unique_names(columns: Sequence[Column]) -> list[str]:
    """Names of all encoded columns; a second ``a=x``, level x of a after a column of that name, is
    ``a=x (2)``.
    """
    names: dict[str, None] = {}
    for name in (name for column in columns for name in column.names):
        copies = (f"{name} ({count})" for count in itertools.count(2))
        names[
            next(unique for unique in itertools.chain([name], copies) if unique not in names)
        ] = None
    return list(names)
