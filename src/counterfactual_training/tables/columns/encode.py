"""A frame to model space and back, as a scikit-learn transformer that knows its schema."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from counterfactual_training.constraints import CategoryProjection, Constraints
from counterfactual_training.errors import (
    Argument,
    FileError,
    InputError,
    InputWarning,
    check_name,
    from_outside,
)
from counterfactual_training.tables.columns.column import (
    Column,
    unchanged_numbers,
    unique_names,
)
from counterfactual_training.tables.columns.constrain import build_constraints
from counterfactual_training.tables.columns.dtypes import (
    object_array,
    restore_categories,
    restore_numbers,
)
from counterfactual_training.tables.columns.feature import show
from counterfactual_training.tables.columns.frame import (
    UNSEEN,
    as_frame,
    match_columns,
    to_float,
    unseen_categories,
)
from counterfactual_training.tables.columns.infer import read_columns, report
from counterfactual_training.tables.columns.plain import all_present, number_blocks
from counterfactual_training.tables.columns.relate import breaks
from counterfactual_training.tables.columns.rounding import narrow_type
from counterfactual_training.tables.columns.schema import Schema

Unseen = Literal["error", "unknown", "warn"]
Missing = Literal["error", "impute"]
Scale = bool | Literal["robust"]
# Decoded columns up to this many are put into a copy of the rows; with more, a new frame is made
# faster. Values that are scaled at a time: few enough for the processor's cache.
_VALUES = 2**16
_FEW_CHANGED = 16


class Encoder(TransformerMixin, BaseEstimator):
    """Features in their units ↔ numbers for a model.

    Numbers are z-scored with the sample SD of the training data; an ordinal is its rank, z-scored;
    a binary feature is one column of {0, 1}; a categorical one is one-hot, no level dropped; a
    pixel's range becomes [−1, 1]. Each special code of a number is one more column of {0, 1}.
    Columns are matched by name and keep their order.

    **Exactness.** ``inverse_transform(transform(frame), like=frame)`` always returns the frame:
    every value, dtype and index, also from float32 points. Without ``like``, float64 points return
    every integer, category, ordinal and boolean exactly, and every other number with the decimals
    of the training data or up to 11 digits, counted from the first digit of the column's largest
    value. A longer float is off by at most a few units of the 16th such digit, because several of
    them share one z-score in float64. Dtypes are those of the training frame; the index is that of
    the points, or counts from 0. A missing value returns as imputed, −0.0 as 0.0, ``Decimal``
    objects as floats.

    Args:
        schema: kinds and rules of the columns; what is not stated is learned from the training
            data.
        unseen: how to treat a category not seen in training: as an ``"error"``, or as
            ``"unknown"``, no category at all: zeros, and 0.5 for a binary feature, which decode to
            a missing value; the mean rank for an ordinal, which decodes to the nearest. With
            ``like`` it decodes to itself. ``"warn"`` is ``"unknown"``, and says so.
        missing: how to treat a missing value: as an ``"error"``, or ``"impute"``, replaced by the
            training column's (lower) median or most frequent category. With ``like``, an imputed
            cell that did not change decodes to missing.
        scale: whether to z-score; otherwise numbers stay as they are, an ordinal its rank, a pixel
            its value. ``"robust"`` clips the training values to their 1 % and 99 % quantiles before
            taking mean and SD, so that a few outliers do not squeeze all other values together.

    Attributes:
        schema_: the complete schema.
        columns_: the fitted arithmetic of each feature.
        slices_: the encoded columns of each feature by name.
        names_: of the encoded columns.
        n_features_in_, feature_names_in_: columns of the frame.

    Examples:
        >>> import pandas as pd
        >>> import counterfactual_training as ct
        >>> frame = pd.DataFrame({"age": [31, 47, 58], "degree": ["BSc", "none", "MSc"]})
        >>> encoder = ct.Encoder().fit(frame)
        >>> encoder.names_
        ['age', 'degree=BSc', 'degree=MSc', 'degree=none']
        >>> z = encoder.transform(frame)
        >>> z.shape, encoder.inverse_transform(z).equals(frame)
        ((3, 4), True)
    """

    def __init__(
        self,
        schema: Schema | None = None,
        unseen: Unseen = "error",
        missing: Missing = "error",
        scale: Scale = True,
    ) -> None:
        self.schema = schema
        self.unseen = unseen
        self.missing = missing
        self.scale = scale

    # ---- scikit-learn ----------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Encoder:
        """Learn categories, means and deviations from the training data.

        Args:
            X: a pandas or polars frame, or an array.
            y: ignored; here for pipelines.
        """
        self._check_settings()
        if self.schema is not None and not isinstance(self.schema, Schema):
            raise InputError(
                f"schema must be a Schema, got {type(self.schema).__name__}; use "
                "Schema.from_file or infer."
            )
        if self.schema is None:
            names = None
        else:
            names = self.schema.names
        frame = as_frame(X, names)
        if len(frame) == 0:
            raise InputError("There are no rows to learn from.", code="no_rows")
        if names is not None:
            frame = match_columns(frame, names, stated=True)
        self._check_missing(frame)
        if self.schema is None:
            schema = Schema.infer(frame)
        else:
            schema = self.schema.complete(frame)
        arrays = read_columns(schema.features, frame, "The data contradicts the schema")
        read = zip(schema.features, frame.dtypes, arrays, strict=True)
        self._adopt(
            schema,
            [
                Column.fit(feature, dtype, numbers, self.scale)
                for feature, dtype, numbers in read
            ],
        )
        # Beside special codes, one number still tells rows with a code from the others.
        constant = [
            column.feature.name
            for column in self.columns_
            if column.constant and not column.feature.special
        ]
        if constant:
            if len(constant) == 1:
                are = "is"
                them = "it"
            else:
                are = "are"
                them = "them"
            message = (
                f"{show(constant)} {are} constant in the training data, so advice will not "
                f"change {them}."
            )
            warnings.warn(message, stacklevel=from_outside())
        return self

    def transform(self, X: Any, dtype: Any = np.float64) -> np.ndarray:
        """Rows X in model space ``(n, d)``.

        Args:
            X: a pandas or polars frame, or an array.
            dtype: of the result; all is computed in float64.
        """
        check_is_fitted(self, "columns_")
        # Columns come by name, so a frame in another order, or an array, is encoded alike.
        frame = self._accept(X)
        arrays = self._read(frame)
        return self._encode(frame, arrays, dtype)

    def read_and_transform(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Rows X as numbers ``(n, m)``, one column per feature, and in model space ``(n, d)``."""
        frame = self._accept(X)
        arrays = self._read(frame)
        return np.stack(arrays, 1), self._encode(frame, arrays, np.float64)

    def _encode(
        self, frame: pd.DataFrame, arrays: Sequence[np.ndarray], dtype: Any
    ) -> np.ndarray:
        """Rows that were read, in model space ``(n, d)``."""
        points = np.empty((len(arrays[0]), len(self.names_)), dtype)
        # A number that single precision does not hold becomes infinite there.
        with np.errstate(over="ignore"):
            if self._all_at_once(frame, points):
                return points
            for column, part, numbers in zip(
                self.columns_, self.slices_.values(), arrays, strict=True
            ):
                points[:, part] = column.encode(numbers)
        return points

    def inverse_transform(self, X: Any, like: Any = None) -> pd.DataFrame:
        """The frame of encoded points ``(n, d)``.

        Args:
            X: float32 or float64 points: an array, a tensor or a frame.
            like: the factuals of these points, row by row. A cell with the same encoding, up to
                float32, is copied from here to the last digit, and so are index and missing values.
                With ``like``, rounding never leaves the domain or goes against a direction.
        """
        check_is_fitted(self, "columns_")
        z, precision, index = _as_points(X)
        if z.ndim != 2 or z.shape[1] != len(self.names_):
            raise InputError(
                f"Expected encoded points of shape (n, {len(self.names_)}), got {z.shape}."
            )
        if not np.isfinite(z).all():
            bad = [self.names_[j] for j in np.flatnonzero(~np.isfinite(z).all(0))]
            raise InputError(f"Encoded points hold NaN or infinity in {show(bad)}.")
        if like is None:
            parts = zip(self.columns_, self.slices_.items(), strict=True)
            frame = pd.DataFrame(
                {
                    name: self._decode(column, z[:, part], precision, None)
                    for column, (name, part) in parts
                }
            )
            if index is None:
                frame.index = pd.RangeIndex(len(z))
            else:
                frame.index = index
            return frame
        factuals = self._accept(like)
        if len(factuals) != len(z):
            raise InputError(f"like has {len(factuals)} rows for {len(z)} points.")
        # Encoding them already gave the warning.
        return self.with_changes(X, factuals, self._read(factuals, warn=False))

    def with_changes(
        self, X: Any, factuals: pd.DataFrame, arrays: Sequence[np.ndarray]
    ) -> pd.DataFrame:
        """``inverse_transform(X, like=factuals)``, given the factuals' columns as numbers ``(n,)``
        each.
        """
        return self.put(factuals, self.decoded(X, factuals, arrays))

    def decoded(
        self, X: Any, factuals: pd.DataFrame, arrays: Sequence[np.ndarray]
    ) -> dict[str, pd.Series]:
        """The columns, by name, that points X do not have as the factuals have them; all others
        stay as they are.
        """
        z, precision, _ = _as_points(X)
        kept = self._unchanged(z, arrays)
        kept &= [
            dtype == column.dtype
            for dtype, column in zip(factuals.dtypes, self.columns_, strict=True)
        ]
        cells = {}
        for j in np.flatnonzero(~kept).tolist():
            column = self.columns_[j]
            name = column.feature.name
            cells[name] = self._decode(
                column, z[:, self.slices_[name]], precision, (factuals[name], arrays[j])
            )
        return cells

    def put(self, factuals: pd.DataFrame, cells: Mapping[str, pd.Series]) -> pd.DataFrame:
        """The factuals with some columns replaced."""
        if len(cells) <= min(_FEW_CHANGED, len(self.columns_) - 1):
            frame = _with_columns(factuals, cells)
        else:
            all_columns: dict[str, Any] = dict(cells)
            # Without an index, because pandas would align thousands of them; but of bare objects it
            # would guess the dtype.
            for name in self.slices_:
                if name in cells:
                    continue
                original = factuals[name]
                if original.dtype == object:
                    all_columns[name] = original.reset_index(drop=True)
                else:
                    all_columns[name] = original.array
            frame = pd.DataFrame({name: all_columns[name] for name in self.slices_})
        frame.index = factuals.index
        return frame

    def _unchanged(self, z: np.ndarray, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Mask ``(m,)`` of the columns in which points ``(n, d)`` all encode the numbers that were
        read.
        """
        kept = np.ones(len(self.columns_), dtype=bool)
        # Plain numbers all at once: a frame may have thousands of columns.
        plain = [j for j, column in enumerate(self.columns_) if column.affine]
        if plain:
            columns = [self.columns_[j] for j in plain]
            originals = np.stack([arrays[j] for j in plain], 1)
            places = [self.slices_[column.feature.name].start for column in columns]
            kept[plain] = unchanged_numbers(columns, z[:, places], originals).all(0)
        for j, column in enumerate(self.columns_):
            if not column.affine:
                kept[j] = column.is_unchanged(
                    z[:, self.slices_[column.feature.name]], arrays[j]
                ).all()
        return kept

    def broken_relations(self, X: Any) -> dict[str, float]:
        """By relation, the share of the rows X that break it, among those without a blank in its
        columns; if any do.
        """
        frame = self._accept(X)
        values = dict(zip(self.schema_.names, self._read(frame, warn=False), strict=True))
        columns = {column.feature.name: column for column in self.columns_}
        shares = {}
        for text, names, broken in breaks(self.schema_.book, columns, values):
            complete = ~np.any([np.isnan(values[name]) for name in names], 0)
            if complete.any():
                shares[text] = float(broken[complete].mean())
            else:
                shares[text] = 0.0
        return {text: share for text, share in shares.items() if share > 0}

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> np.ndarray:
        """Names of the encoded columns, such as ``education=Masters``; ``input_features`` is
        ignored.
        """
        check_is_fitted(self, "columns_")
        return np.array(self.names_, dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.categorical = True
        tags.input_tags.allow_nan = self.missing == "impute"
        tags.transformer_tags.preserves_dtype = []
        return tags

    # ---- beyond scikit-learn ---------------------------------------------------------------------

    def constraints(
        self,
        num_std: float = 2.0,
        category_projection: CategoryProjection = "end",
        keep_sign: bool = False,
        keep_outside: bool = False,
        bulk: bool = False,
    ) -> Constraints:
        """The schema's rules in model space.

        Args:
            num_std: n_σ of Eq. 12, which infers the domain where none is stated; an ordinal has all
                its ranks, a one-hot column [0, 1].
            category_projection: see :class:`Constraints`.
            keep_sign: whether a number that is never negative in the training data must stay so,
                and likewise for positive ones. Eq. 12 alone would allow negative incomes.
            keep_outside: see :class:`Constraints`.
            bulk: with ``num_std=0``, a number without a stated domain stays where 99 % of the
                training values lie, instead of between their extremes, and takes values as these
                do: multiples of a common number, or one of a few.
        """
        check_is_fitted(self, "columns_")
        return build_constraints(
            self.columns_,
            self.schema_.book,
            num_std,
            category_projection,
            keep_sign,
            keep_outside,
            bulk,
        )

    def with_schema(self, schema: Schema) -> Encoder:
        """The same encoding under other rules: a schema of the same columns, kinds and
        categories.
        """
        check_is_fitted(self, "columns_")
        other = Encoder(schema, self.unseen, self.missing, self.scale)
        columns = {column.feature.name: column for column in self.columns_}
        other._adopt(
            schema, [replace(columns[feature.name], feature=feature) for feature in schema]
        )
        return other

    def to_dict(self) -> dict[str, Any]:
        """Settings, schema and fitted numbers as JSON."""
        check_is_fitted(self, "columns_")
        return {
            "settings": {"unseen": self.unseen, "missing": self.missing, "scale": self.scale},
            "schema": self.schema_.to_dict(),
            "columns": {column.feature.name: column.to_dict() for column in self.columns_},
        }

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> Encoder:
        """The inverse of :meth:`to_dict`: a fitted encoder from ``spec``."""
        try:
            schema = Schema.from_dict(spec["schema"])
            # Files of older versions call ``unseen`` ``unknown``.
            settings = {
                "unseen" if name == "unknown" else name: value
                for name, value in spec["settings"].items()
            }
            encoder = cls(schema, **settings)
            encoder._check_settings()
            columns = [
                Column.from_dict(feature, spec["columns"][feature.name])
                for feature in schema.features
            ]
        except (KeyError, TypeError) as error:
            raise FileError(f"This is not a saved encoder: {error}.") from None
        encoder._adopt(schema, columns)
        return encoder

    # ---- inside ----------------------------------------------------------------------------------

    def _adopt(self, schema: Schema, columns: list[Column]) -> None:
        names = unique_names(columns)
        ends = np.cumsum([column.width for column in columns])
        self.schema_ = schema
        self.columns_ = columns
        self.names_ = names
        self.slices_ = {
            column.feature.name: slice(int(end) - column.width, int(end))
            for column, end in zip(columns, ends, strict=True)
        }
        self.n_features_in_ = len(columns)
        self.feature_names_in_ = np.array(schema.names, dtype=object)

    def _check_settings(self) -> None:
        check_name("unseen", self.unseen, get_args(Unseen))
        check_name("missing", self.missing, get_args(Missing))
        if not isinstance(self.scale, bool | np.bool_) and self.scale != "robust":
            raise InputError(f"scale is True, False or 'robust', got {self.scale!r}.")

    def _accept(self, x: Any) -> pd.DataFrame:
        frame = match_columns(as_frame(x, self.schema_.names), self.schema_.names)
        self._check_missing(frame)
        return frame

    def _check_missing(self, frame: pd.DataFrame) -> None:
        if self.missing == "impute" or all_present(frame):
            return
        counts = frame.isna().sum()
        gaps = [f"{name!r} ({count})" for name, count in counts.items() if count]
        if gaps:
            raise InputError(
                f"Missing values (NaN) in {', '.join(gaps)} of {len(frame)} rows. Drop these "
                "rows or columns, or fill them in: ",
                Argument("missing", "impute"),
                " uses the training median or most frequent category.",
                code="missing_values",
                field="missing",
            )

    def _read(self, frame: pd.DataFrame, warn: bool = True) -> list[np.ndarray]:
        """Each column as numbers ``(n,)``; one error reports everything that is wrong."""
        opening = "The data does not fit the columns learned from"
        arrays = read_columns(
            self.schema_.features, frame, opening, unseen=self.unseen != "error", strict=False
        )
        if self.unseen == "warn" and warn:
            read = zip(self.schema_, arrays, strict=True)
            reports = [
                unseen_categories(f, frame[f.name], v)
                for f, v in read
                if f.is_category and (v == UNSEEN).any()
            ]
            if problems := [problem for problem in reports if problem is not None]:
                head = "Categories that training never saw count as no category"
                warnings.warn(InputWarning(*report(problems, head)), stacklevel=from_outside())
        return arrays

    def _all_at_once(self, frame: pd.DataFrame, points: np.ndarray) -> bool:
        """Write rows that were read to ``points`` ``(n, d)``, if all columns are plain numbers of
        one dtype.
        """
        if not all(column.affine for column in self.columns_):
            return False
        names, block = next(iter(number_blocks(frame)), ((), None))
        if block is None or len(names) < len(self.columns_):
            return False
        center = np.array([column.center for column in self.columns_])
        scale = np.array([column.scale for column in self.columns_])
        size = max(1, _VALUES // len(center))
        for start in range(0, len(block), size):
            part = np.subtract(block[start : start + size], center, order="C")
            part /= scale
            points[start : start + size] = part
        # Missing values are filled in column by column.
        return bool(np.isfinite(points.sum()))

    def _decode(
        self,
        column: Column,
        z: np.ndarray,
        precision: float,
        factual: tuple[pd.Series, np.ndarray] | None,
    ) -> Any:
        """The column of points ``(n, width)``; ``factual`` is that of their factuals, as given
        and as numbers.
        """
        if factual is None:
            numbers = column.decode(z, precision, unseen=self.unseen != "error")
            same = np.zeros(len(z), dtype=bool)
        else:
            numbers, same = column.decode_like(z, precision, factual[1])
        if not column.feature.is_category:
            if factual is not None:
                numbers = np.where(same, factual[1], numbers)
            restored = restore_numbers(
                numbers, column.dtype, integers=column.feature.kind == "integer"
            )
            if factual is None or narrow_type(column.dtype) is None:
                return restored
            # Rows may come in more digits than those of the training; a cell that did not change
            # keeps them.
            held = to_float(restored)
            kept = np.where(same, factual[1], held)
            if np.array_equal(held, kept, equal_nan=True):
                return restored
            return pd.Series(kept)
        # The unseen category is missing.
        levels = object_array([*column.feature.levels, np.nan])
        values = levels[np.where(numbers == UNSEEN, len(levels) - 1, numbers).astype(int)]
        if factual is not None:
            values[same] = factual[0].to_numpy(dtype=object)[same]
        return restore_categories(values, column.dtype)


def _with_columns(frame: pd.DataFrame, columns: Mapping[str, pd.Series]) -> pd.DataFrame:
    """A copy of the frame, its index counting from 0, with a few of the columns replaced.

    Making a new frame takes pandas much longer, even for a single row.
    """
    copy = pd.DataFrame(frame.copy())  # of pandas' own class
    copy.index = pd.RangeIndex(len(frame))
    copy.columns = pd.Index(list(frame.columns))  # without a name
    copy.attrs = {}
    for name, cells in columns.items():
        copy[name] = cells
    return copy


def _as_points(x: Any) -> tuple[np.ndarray, float, pd.Index | None]:
    """Points as an array, their relative precision, and their index if they have one."""
    if isinstance(x, torch.Tensor):
        if x.is_floating_point():
            precision = torch.finfo(x.dtype).eps
        else:
            precision = 0.0
        return x.detach().cpu().double().numpy(), precision, None
    if isinstance(x, pd.DataFrame):
        return x.to_numpy(dtype=np.float64), float(np.finfo(np.float64).eps), x.index
    z = np.asarray(x)
    kind = z.dtype if np.issubdtype(z.dtype, np.floating) else np.float64
    return z.astype(np.float64), float(np.finfo(kind).eps), None
