"""What users pass to the classifier, checked and brought into one form: rows, labels, a schema, target classes."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data
from torch import Tensor, nn

from counterfactual_training.constraints.mutability import feature_index
from counterfactual_training.errors import ConstraintError, InputError, unknown
from counterfactual_training.tabular.encode import Encoder
from counterfactual_training.tabular.feature import show
from counterfactual_training.tabular.frame import as_frame, match_columns
from counterfactual_training.tabular.native import to_pandas
from counterfactual_training.tabular.schema import Schema

# Standard deviations beyond which a row itself may be why numbers overflow.
_FAR = 1e6


# ---- rows ------------------------------------------------------------------------------------------------------------


def training_rows(estimator: Any, x: Any, y: Any, reset: bool = True) -> tuple[pd.DataFrame, np.ndarray]:
    """Frame and labels for ``fit``; sets ``n_features_in_`` and, for a frame, ``feature_names_in_``.

    Without ``reset``, columns and classes are those that the estimator knows.
    """
    given = _without_missing(y)
    # validate_data forgets the names of the columns.
    labels = np.asarray(
        validate_data(estimator, X="no_validation", y=given) if reset else column_or_1d(given, warn=True)
    )
    frame = _table(estimator, x, reset=reset)
    check_classification_targets(labels)
    if len(labels) != len(frame):
        raise InputError(f"X has {len(frame)} rows but y has {len(labels)}; every row needs its class.")
    classes = np.unique(labels)
    if not reset:
        _must_be_known(classes.tolist(), estimator.classes_.tolist())
    if len(classes) < 2:
        found = classes[0].item() if isinstance(classes[0], np.generic) else classes[0]
        raise InputError(f"y holds one class only, {found!r}; a classifier needs at least two.")
    return frame, labels


def _must_be_known(found: list[Any], known: list[Any]) -> None:
    new, absent = [label for label in found if label not in known], [label for label in known if label not in found]
    if new:
        raise InputError(
            f"y holds class {new[0]!r}, which this classifier was not trained on ({show(known)}). A new class needs a "
            "new fit, with warm_start=False."
        )
    if absent:
        raise InputError(f"No row is of class {absent[0]!r}: to go on with training, rows of all classes are needed.")


def row_weights(given: Any, num_rows: int) -> np.ndarray | None:
    """The weights of the rows ``(n,)``; one number is the weight of all."""
    if given is None:
        return None
    try:
        weights = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"sample_weight must hold one number per row, got {given!r:.80}.") from None
    weights = np.full(num_rows, weights) if weights.ndim == 0 else weights
    if weights.shape != (num_rows,):
        raise InputError(f"sample_weight has shape {weights.shape}, but there are {num_rows} rows: one number per row.")
    if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise InputError("sample_weight must be finite, not negative, and not zero for all rows.")
    return weights


def frame_of(estimator: Any, x: Any) -> pd.DataFrame:
    """Frame for ``predict`` and ``explain``, its columns matched by name to those that ``fit`` saw."""
    return _table(estimator, x, reset=False)


def _table(estimator: Any, x: Any, reset: bool) -> pd.DataFrame:
    x = to_pandas(x)
    if isinstance(x, pd.Series):
        raise InputError("Expected rows × columns, got a Series. One row of a frame is frame.iloc[[i]].")
    if isinstance(x, Mapping) or (isinstance(x, list) and x and isinstance(x[0], Mapping)):
        return as_frame(x)  # raises, and says how to make a frame
    names = None if reset else estimator.encoder_.schema_.names
    if isinstance(x, pd.DataFrame):
        frame = _frame(estimator, x, names)
    else:
        array = validate_data(estimator, _mixed(x), "no_validation", reset=reset, dtype=None, ensure_all_finite=False)
        frame = as_frame(array, names)
    refuse_missing(frame, estimator.missing == "impute")
    return frame


def _frame(estimator: Any, x: pd.DataFrame, names: tuple[str, ...] | None) -> pd.DataFrame:
    """Columns by name where both this frame and the one of ``fit`` have names, else by position, as in scikit-learn."""
    if len(x) == 0:
        raise InputError("The frame has 0 rows, at least 1 is needed.")
    has_names = any(isinstance(name, str) for name in x.columns)
    x = as_frame(x) if has_names else x
    if names is not None and has_names and hasattr(estimator, "feature_names_in_"):
        x = match_columns(x, names)
    validate_data(estimator, x, "no_validation", reset=names is None, skip_check_array=True)
    if names is None and has_names:
        return x
    return as_frame(x.set_axis([str(name) for name in (names or x.columns)], axis=1))


def _mixed(x: Any) -> Any:
    """Rows as a list of lists; numpy would turn numbers beside text into text."""
    if isinstance(x, (list, tuple)) and np.asarray(x).dtype.kind in "US":
        return np.array(x, dtype=object)
    return x


def refuse_missing(frame: pd.DataFrame, impute: bool) -> None:
    """Raise for infinity and, unless they are imputed, for missing values."""
    bad = np.zeros(frame.shape, dtype=bool) if impute else frame.isna().to_numpy(copy=True)
    floats = np.flatnonzero([pd.api.types.is_float_dtype(dtype) for dtype in frame.dtypes])
    infinite = np.isinf(frame.iloc[:, floats].to_numpy(dtype=np.float64, na_value=np.nan))
    bad[:, floats] |= infinite
    found = [f"{name!r} ({count})" for name, count in zip(frame.columns, bad.sum(0), strict=True) if count]
    if not found:
        return
    what = "Infinity" if impute else "NaN, infinity or missing values"
    advice = "Drop these rows or columns, fill them in, or have missing ones filled by missing='impute'."
    if infinite.any():
        then = "" if impute else ", and fit with missing='impute'"
        advice = (
            f"Only missing values can be imputed: drop these rows, or make infinity missing{then}: "
            "frame.replace([np.inf, -np.inf], np.nan)."
        )
    raise InputError(f"{what} in {', '.join(found)}: {int(bad.any(axis=1).sum())} of {len(frame)} row(s). {advice}")


def _without_missing(y: Any) -> Any:
    if y is not None and not np.isscalar(y) and pd.isna(np.asarray(y, dtype=object)).any():
        raise InputError(f"y contains NaN or missing labels in {int(pd.isna(pd.Series(y)).sum())} row(s); drop them.")
    return y


def check_count(name: str, value: Any) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {value!r}.")
    return int(value)


def device_and_dtype(model: nn.Module) -> Tensor:
    """A tensor of the device and precision that a model expects."""
    parameter = next(model.parameters(), None)
    return parameter if parameter is not None else torch.empty(())


def encode_rows(encoder: Encoder, frame: pd.DataFrame, like: Tensor) -> Tensor:
    """Model space ``(n, d)``, with the device and precision of ``like``."""
    x = torch.as_tensor(encoder.transform(frame)).to(like)
    refuse_far(encoder, frame, x, x)
    return x


def refuse_far(encoder: Encoder, frame: pd.DataFrame, x: Tensor, computed: Tensor) -> None:
    """Refuse rows x ``(n, d)`` so far outside the training data that what was ``computed`` ``(n, ...)`` is not finite.

    Rows near the data are not to blame for numbers that are not finite; then the model is.
    """
    far = x.abs().nan_to_num(torch.inf)
    blamed = ~computed.isfinite().all(-1) & (far.amax(-1) > _FAR)
    if bool(blamed.any()):
        row = int(blamed.nonzero()[0])
        column = encoder.columns_[int(column_owner(encoder)[far[row].argmax().cpu()])].feature.name
        raise InputError(
            f"Row {frame.index[row]}: {column!r} is {frame[column].iloc[row]}, so far outside anything else seen in "
            f"training that the model cannot compute with it. This affects {int(blamed.sum())} of {len(frame)} row(s). "
            "Check the unit, or leave these rows out."
        )


def column_owner(encoder: Encoder) -> Tensor:
    """``(d,)`` the feature that each encoded column belongs to."""
    widths = torch.tensor([column.width for column in encoder.columns_])
    return torch.arange(len(widths)).repeat_interleave(widths)


# ---- schema ----------------------------------------------------------------------------------------------------------


def resolve_schema(
    frame: pd.DataFrame, schema: Any, mutability: Any, domain: Any, special: Any = None, relations: Any = None
) -> Schema:
    """The schema of a training frame: what the user states, and the rest inferred from the data.

    Args:
        schema: ``None``, a complete :class:`Schema`, a dict with a table per column (may be partial), or a TOML/JSON
            file.
        mutability, domain, special: win over the schema; see :func:`by_column`.
        relations: on top of those of the schema.
    """
    names = tuple(frame.columns)
    stated = {"mutability": mutability, "domain": domain, "special": special}
    rules: dict[str, Any] = {name: by_column(given, names) for name, given in stated.items()}
    rules["relations"] = relations
    if isinstance(schema, Schema):
        return schema.override(**rules)
    return Schema.infer(frame, schema, **rules)


def by_column(spec: Any, names: tuple[str, ...]) -> dict[str, Any] | None:
    """A dict from column name to value; given by name, by position, or one entry per column."""
    if spec is None:
        return None
    if isinstance(spec, Mapping):
        return {names[feature_index(key, len(names), names)]: value for key, value in spec.items()}
    if isinstance(spec, str) or not isinstance(spec, (list, tuple, np.ndarray)) or len(spec) != len(names):
        raise ConstraintError(
            f"Expected a dict by column such as {{{names[0]!r}: …}}, or {len(names)} entries, one per column; "
            f"got {spec!r}."
        )
    return dict(zip(names, list(spec), strict=True))


# ---- targets ---------------------------------------------------------------------------------------------------------


def target_classes(target: Any, classes: np.ndarray, probability: np.ndarray) -> np.ndarray:
    """Class index ``(n,)`` that each row should get.

    Args:
        target: one label for all rows, one per row, or ``None``: the most probable class that is not predicted.
        classes: labels ``(k,)``.
        probability: ``(n, k)`` of the rows as they are.
    """
    n = len(probability)
    if target is None:
        order = np.argsort(-probability, axis=1, kind="stable")
        return order[:, 1]
    positions = {label: index for index, label in enumerate(classes.tolist())}
    per_row = isinstance(target, (list, tuple, np.ndarray, pd.Series, pd.Index)) and np.ndim(target) > 0
    labels = list(np.asarray(target, dtype=object)) if per_row else [target] * n
    if len(labels) != n:
        raise InputError(f"{len(labels)} targets for {n} rows; give one label for all, or one per row.")
    for label in labels:
        if not _known(label, positions):
            raise InputError(unknown("class", _plain(label), positions))
    return np.array([positions[_plain(label)] for label in labels], dtype=np.int64)


def _known(label: Any, positions: dict[Any, int]) -> bool:
    try:
        return _plain(label) in positions
    except TypeError:  # not hashable, so not a label
        return False


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label
