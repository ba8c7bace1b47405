"""What users pass to the estimators, checked and brought into one form: rows, labels, a schema,
rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, column_or_1d, validate_data

from counterfactual_training.constraints.mutability import feature_index
from counterfactual_training.errors import (
    Argument,
    ConstraintError,
    InputError,
    Part,
    check_count,
)
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.feature import Feature, show
from counterfactual_training.tables.columns.frame import as_frame, match_columns
from counterfactual_training.tables.columns.native import to_pandas
from counterfactual_training.tables.columns.plain import all_present
from counterfactual_training.tables.columns.schema import Schema
from counterfactual_training.tables.columns.schema_file import read_features
from counterfactual_training.tables.estimators import parameters

# ---- rows ----------------------------------------------------------------------------------------


def frame_and_labels(
    estimator: Any, x: Any, y: Any, reset: bool = True
) -> tuple[pd.DataFrame, np.ndarray]:
    """Frame and labels for ``fit``; sets ``n_features_in_`` and, for a frame,
    ``feature_names_in_``.

    Without ``reset``, columns and classes are those that the estimator knows.
    """
    complete = _without_missing(y)
    # validate_data forgets the names of the columns.
    labels = np.asarray(
        validate_data(estimator, X="no_validation", y=complete)
        if reset
        else column_or_1d(complete, warn=True)
    )
    frame = _table(estimator, x, reset=reset)
    check_classification_targets(labels)
    if len(labels) != len(frame):
        raise InputError(
            f"X has {len(frame)} rows but y has {len(labels)}; every row needs its class."
        )
    classes = np.unique(labels)
    # The model's outputs are fixed: a new class has no place among them.
    if not reset:
        _must_be_known(classes.tolist(), estimator.classes_.tolist())
    if len(classes) < 2:
        if isinstance(classes[0], np.generic):
            only = classes[0].item()
        else:
            only = classes[0]
        raise InputError(f"y holds one class only, {only!r}; a classifier needs at least two.")
    return frame, labels


def numeric_rows(estimator: Any, x: Any, y: Any) -> tuple[pd.DataFrame, np.ndarray, str]:
    """Frame, numbers ``(n,)`` and their name for ``fit`` of a regressor; sets ``n_features_in_``
    and the like.
    """
    values, name = numbers_of(y)
    frame = _table(estimator, x, reset=True)
    if len(values) != len(frame):
        raise InputError(
            f"X has {len(frame)} rows but y has {len(values)}; every row needs its number."
        )
    if len(values) < 2:
        raise InputError("There is one sample only; a regressor needs at least two rows.")
    if not values.std() > 1e-12 * np.abs(values).max():
        raise InputError(
            f"All y are {values[0]:g}: there is nothing to predict, and no other value to explain."
        )
    return frame, values, name


def numbers_of(y: Any) -> tuple[np.ndarray, str]:
    """The numbers ``(n,)`` of a regressor's y, checked, and what they are called."""
    if y is None:
        raise InputError("This regressor requires y to be passed, but the target y is None.")
    # A Series has a name; a frame of one column names it.
    if not hasattr(y, "columns"):
        name = getattr(y, "name", None)
    elif len(y.columns) == 1:
        name = y.columns[0]
    else:
        name = None
    numbers = column_or_1d(_without_missing(y, "numbers"), warn=True)
    # Objects may be numbers, such as those of pandas' nullable types.
    strange = [v for v in numbers.tolist() if not isinstance(v, Real) or isinstance(v, bool)]
    if numbers.dtype.kind not in "iufO" or strange:
        if strange:
            first = strange[0]
        else:
            first = numbers[0]
        raise InputError(
            f"y must hold numbers, got {first!r:.60}. Classes are for CounterfactualClassifier."
        )
    values = numbers.astype(np.float64)
    assert_all_finite(values, input_name="y")
    return values, name if isinstance(name, str) and name else "value"


def _must_be_known(labels: list[Any], classes: list[Any]) -> None:
    new = [label for label in labels if label not in classes]
    absent = [label for label in classes if label not in labels]
    if new:
        raise InputError(
            f"y holds class {new[0]!r}, which this classifier was not trained on "
            f"({show(classes)}). A new class needs a "
            "new fit, with warm_start=False."
        )
    if absent:
        raise InputError(
            f"No row is of class {absent[0]!r}, and rows of all classes are needed."
        )


def seed_of(random_state: Any) -> int:
    """The seed of one fit. Of a RandomState, each fit draws another one, as scikit-learn's
    estimators do.
    """
    if isinstance(random_state, Integral):
        random_state = check_count("random_state", random_state, least=0)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def row_weights(sample_weight: Any, num_rows: int) -> np.ndarray | None:
    """The weights of the rows ``(n,)``; one number is the weight of all."""
    if sample_weight is None:
        return None
    try:
        weights = np.array(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"sample_weight must hold one number per row, got {sample_weight!r:.80}."
        ) from None
    if weights.ndim == 0:
        weights = np.full(num_rows, weights)
    if weights.shape != (num_rows,):
        raise InputError(
            f"sample_weight has shape {weights.shape}, but there are {num_rows} rows: one number "
            "per row."
        )
    if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise InputError(
            "sample_weight must be finite, not negative, and not zero for all rows."
        )
    return weights


def frame_of(estimator: Any, x: Any, empty: bool = False) -> pd.DataFrame:
    """Frame for ``predict`` and ``explain``, its columns matched by name to those that ``fit`` saw.

    A frame without rows is refused, as scikit-learn does, unless it may be ``empty``.
    """
    return _table(estimator, x, reset=False, least=0 if empty else 1)


def _table(estimator: Any, x: Any, reset: bool, least: int = 1) -> pd.DataFrame:
    """Rows as a frame, checked; at ``least`` so many."""
    # Frames of other libraries first, so that everything below sees pandas or arrays.
    x = to_pandas(x)
    if isinstance(x, pd.Series):
        raise InputError(
            "Expected rows × columns, got a Series. One row of a frame is frame.iloc[[i]]."
        )
    if isinstance(x, Mapping) or (isinstance(x, list) and x and isinstance(x[0], Mapping)):
        return as_frame(x)  # raises, and says how to make a frame
    if reset:
        names = None
    else:
        names = estimator.encoder_.schema_.names
    if isinstance(x, pd.DataFrame):
        if len(x) < least:
            raise InputError("There are 0 rows; at least 1 is needed.", code="no_rows")
        frame = _frame(estimator, x, names)
    else:
        # Finite or not is checked below, where messages name columns and remedies.
        checks = {"dtype": None, "ensure_all_finite": False, "ensure_min_samples": least}
        array = validate_data(estimator, _mixed(x), "no_validation", reset=reset, **checks)
        frame = as_frame(array, names)
    refuse_missing(frame, estimator.missing == "impute")
    return frame


def _frame(estimator: Any, x: pd.DataFrame, names: tuple[str, ...] | None) -> pd.DataFrame:
    """Columns by name where both this frame and the one of ``fit`` have names, else by position, as
    in scikit-learn.
    """
    # What fit named; none, if it saw an array.
    fitted = names if hasattr(estimator, "feature_names_in_") else None
    if fitted is not None and _has_names_of_fit(x, fitted):
        return as_frame(x)
    # Columns called 0, 1, 2 are positions, as in a frame made of an array.
    has_names = any(isinstance(name, str) for name in x.columns)
    if has_names:
        x = as_frame(x)
    if fitted is not None and has_names:
        x = match_columns(x, fitted)
    # Only for n_features_in_ and feature_names_in_; the content is ours to check.
    validate_data(estimator, x, "no_validation", reset=names is None, skip_check_array=True)
    if names is None and has_names:
        return x
    return as_frame(x.set_axis([str(name) for name in (names or x.columns)], axis=1))


def _has_names_of_fit(x: pd.DataFrame, names: tuple[str, ...]) -> bool:
    """Whether the columns are called and ordered as in ``fit``, and no more is to be done."""
    columns = x.columns
    return (
        type(columns) is pd.Index
        and columns.name is None
        and columns.dtype == "str"
        and tuple(columns) == names
    )


def _mixed(x: Any) -> Any:
    """Rows as a list of lists; numpy would turn numbers beside text into text."""
    if isinstance(x, (list, tuple)) and np.asarray(x).dtype.kind in "US":
        return np.array(x, dtype=object)
    return x


def refuse_missing(frame: pd.DataFrame, impute: bool) -> None:
    """Raise for infinity and, unless they are imputed, for missing values."""
    if all_present(frame, finite=True):
        return
    if impute:
        bad = np.zeros(frame.shape, dtype=bool)
    else:
        bad = frame.isna().to_numpy(copy=True)
    # Only floats can hold infinity.
    floats = np.flatnonzero([pd.api.types.is_float_dtype(dtype) for dtype in frame.dtypes])
    infinite = np.isinf(frame.iloc[:, floats].to_numpy(dtype=np.float64, na_value=np.nan))
    bad[:, floats] |= infinite
    columns = [
        f"{name!r} ({count})"
        for name, count in zip(frame.columns, bad.sum(0), strict=True)
        if count
    ]
    if not columns:
        return
    if impute:
        what = "Infinity"
    else:
        what = "NaN, infinity or missing values"
    fill = Argument("missing", "impute")
    advice: tuple[Part, ...] = (
        "Drop these rows or columns, fill them in, or have missing ones filled by ",
        fill,
        ".",
    )
    if infinite.any():
        if impute:
            then: tuple[Part, ...] = ()
        else:
            then = (", and fit with ", fill)
        advice = (
            "Only missing values can be imputed: drop these rows, or make infinity missing",
            *then,
            ": frame.replace([np.inf, -np.inf], np.nan).",
        )
    raise InputError(
        f"{what} in {', '.join(columns)}: {int(bad.any(axis=1).sum())} of {len(frame)} row(s). ",
        *advice,
        code="missing_values",
        field="missing",
    )


def _without_missing(y: Any, what: str = "labels") -> Any:
    # Whole numbers of numpy are never missing, and as objects they would take much memory.
    if isinstance(y, np.ndarray) and y.dtype.kind in "biu":
        return y
    # Checked before scikit-learn, whose message would not say how many.
    if y is not None and not np.isscalar(y):
        missing = pd.isna(np.asarray(y, dtype=object))
    else:
        missing = np.zeros(0, dtype=bool)
    if missing.any():
        rows = int(missing.reshape(len(missing), -1).any(1).sum())
        raise InputError(f"y contains NaN or missing {what} in {rows} row(s); drop them.")
    return y


# ---- schema --------------------------------------------------------------------------------------


def resolve_schema(
    frame: pd.DataFrame,
    schema: Any,
    mutability: Any,
    domain: Any,
    special: Any = None,
    relations: Any = None,
) -> Schema:
    """The schema of a training frame: what the user states, and the rest inferred from the data.

    Args:
        schema: ``None``, a complete :class:`Schema`, a dict with a table per column (may be
            partial), or a TOML/JSON file.
        mutability, domain, special: win over the schema; see :func:`by_column`.
        relations: on top of those of the schema.
    """
    names = tuple(frame.columns)
    stated = {"mutability": mutability, "domain": domain, "special": special}
    try:
        rules: dict[str, Any] = {
            name: by_column(statement, names) for name, statement in stated.items()
        }
    except ConstraintError as error:
        if names != tuple(f"x{j}" for j in range(len(names))):
            raise
        hint = (
            "The rows came without names; a scikit-learn step keeps them after "
            ".set_output(transform='pandas')."
        )
        raise ConstraintError(f"{error} {hint}") from None
    rules["relations"] = relations
    # A complete schema is not inferred anew; only rules are laid over it.
    if isinstance(schema, Schema):
        return schema.override(**rules)
    return Schema.infer(frame, schema, **rules)


def by_column(spec: Any, names: tuple[str, ...]) -> dict[str, Any] | None:
    """A dict from column name to value; given by name, by position, or one entry per column."""
    if spec is None:
        return None
    if isinstance(spec, Mapping):
        return {
            names[feature_index(key, len(names), names)]: value for key, value in spec.items()
        }
    if (
        isinstance(spec, str)
        or not isinstance(spec, (list, tuple, np.ndarray))
        or len(spec) != len(names)
    ):
        raise ConstraintError(
            f"Expected a dict by column such as {{{names[0]!r}: …}}, or {len(names)} entries, "
            "one per column; "
            f"got {spec!r}."
        )
    return dict(zip(names, list(spec), strict=True))


# ---- rules that changed after fit: followed if that needs no training, refused otherwise ---------

# Rules of advice alone, and rules that the encoding was learned with.
_OF_ADVICE = ("mutability", "domain", "num_std")
_LEARNED = ("schema", "special", "relations", "gate")


def stated_rules(params: Mapping[str, Any]) -> dict[str, str]:
    """The rules among a classifier's parameters, in a form that can be compared later."""
    return {name: repr(_plain(params[name])) for name in (*_OF_ADVICE, *_LEARNED)}


def restate(
    params: Mapping[str, Any], before: Mapping[str, str], encoder: Encoder, num_std: float
) -> tuple[Encoder, float]:
    """The encoder under the rules as they are now, and n_σ.

    Args:
        before: the rules that the encoder has, as :func:`stated_rules` told them.
        num_std: n_σ of the method, where none is stated.
    """
    now = stated_rules(params)
    # Codes, kinds and relations shaped the encoding, so weights would not fit another one.
    learned = [name for name in _LEARNED if now[name] != before[name]]
    if learned:
        raise InputError(
            f"{' and '.join(learned)} changed after fit, which learned by the old one: fit "
            "again. Rules of "
            "one question, such as vary=, lock= and domain=, are arguments of explain."
        )
    stated = _stated_fields(params["schema"])
    names = encoder.schema_.names
    rules = {name: by_column(params[name], names) for name in ("mutability", "domain")}
    # An order that was stated once need not be stated again.
    levels = {feature.name: {"categories": feature.categories} for feature in encoder.schema_}
    ordered = {name: levels[name] for name, fields in stated.items() if "categories" in fields}
    # Back to what the schema alone says, then the present rules on top: rules taken away must not
    # linger.
    features = tuple(
        _without_rules(feature, stated.get(feature.name, {})) for feature in encoder.schema_
    )
    schema = Schema(features, encoder.schema_.relations)
    schema = schema.override(ordered, mutability=rules["mutability"], domain=rules["domain"])
    for feature in schema:
        if feature.kind == "pixel" and feature.domain != encoder.schema_[feature.name].domain:
            raise InputError(
                f"The domain of the pixel {feature.name!r} scales it, so fit again to change it."
            )
    return encoder.with_schema(schema), parameters.num_std_of(params, num_std)


def _without_rules(feature: Feature, stated: Mapping[str, Any]) -> Feature:
    """The feature as the schema states it, without the classifier's own mutability and domain."""
    # A pixel's domain is its scale.
    if feature.kind == "pixel":
        domain = feature.domain
    else:
        domain = stated.get("domain")
    return replace(feature, mutability=stated.get("mutability", "both"), domain=domain)


def _stated_fields(schema: Any) -> Mapping[str, Mapping[str, Any]]:
    if isinstance(schema, Schema):
        return {
            feature.name: {"mutability": feature.mutability, "domain": feature.domain}
            for feature in schema
        }
    if isinstance(schema, (str, Path)):
        return read_features(schema)
    return schema or {}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):  # its repr is abbreviated
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value
