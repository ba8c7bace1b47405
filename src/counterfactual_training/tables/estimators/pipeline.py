"""Explanations of whole pipelines, in the columns that go in at the front."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from counterfactual_training.errors import InputError
from counterfactual_training.rules import with_trait
from counterfactual_training.tables.advice.explains import Explains
from counterfactual_training.tables.advice.explanation import Explanation
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.columns.frame import as_frame, match_columns
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.explainer import Explainer

if TYPE_CHECKING:
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline

# What may be stated of a column besides its kind; categories and codes are told apart from it.
_RULES = tuple(
    part.name
    for part in fields(Feature)
    if part.name not in ("name", "kind", "categories", "special")
)
# Those in the units of their column.
_IN_UNITS = ("domain", "allowed", *with_trait("length"))
# How far a number may be off after it went back through a step and forth again, as a share of the
# column's range.
_OFF = 1e-3
# Kept rows are float32, so numbers led back hold this many digits.
_DIGITS = 6


def explain(model: Any, X: Any, target: Any = None, **question: Any) -> Explanation:
    """What would have to change for each row of X to get the target class, for a classifier or a
    pipeline.

    A pipeline that ends in a :class:`CounterfactualClassifier` is explained in the columns that it
    takes, if its earlier steps can be inverted: the rows that the classifier's gate keeps are led
    back through them and serve as background. Rules stated for the classifier hold if the steps
    keep the columns they concern. Everything else needs background rows: ``ct.Explainer(pipeline,
    frame).explain(X)``.

    Args:
        model: a fitted classifier that explains, or a pipeline with one as its last step.
        X: rows that the model takes.
        target: a label for all rows, or one per row; by default the most probable class that is not
            predicted.
        question: as in :meth:`CounterfactualClassifier.explain`; columns are those of X.

    Returns:
        An :class:`Explanation`, in the units of X.

    Examples:
        >>> import counterfactual_training as ct
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> people = ct.loan(300)
        >>> clf = ct.CounterfactualClassifier(mutability={"age": "none"}, epochs=10, random_state=0)
        >>> pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), clf)
        >>> told = ct.explain(pipeline.fit(people.frame, people.y), people.frame[:1], target=1)
        >>> print(told.changes()[0])  # doctest: +ELLIPSIS
        Row 0: with debt ... lower (from 46 to ...), the decision would be 1 (confidence ...
    """
    # Here, because these bring half of scikit-learn, and only pipelines need them.
    from sklearn.pipeline import Pipeline

    if isinstance(model, Explains):
        return model.explain(X, target, **question)
    if not isinstance(model, Pipeline) or not isinstance(
        model.steps[-1][1], CounterfactualClassifier
    ):
        shown = type(model.steps[-1][1] if isinstance(model, Pipeline) else model).__name__
        raise InputError(
            f"{shown} keeps no rows to find explanations by. Give some, such as the training "
            f"data: {_ELSE}."
        )
    return explainer_of(model, as_frame(X)).explain(X, target, **question)


_ELSE = "ct.Explainer(pipeline, frame).explain(rows)"


def explainer_of(pipeline: Pipeline, rows: pd.DataFrame) -> Explainer:
    """The explainer of a pipeline that ends in our classifier; ``rows`` tell how the original
    columns are stored.
    """
    classifier = pipeline.steps[-1][1]
    check_is_fitted(classifier, "model_")
    if classifier.gate_ is None:
        real_rows = None
    else:
        real_rows = classifier.gate_.real_rows
    if real_rows is None:
        raise InputError(
            "The pipeline's classifier keeps no rows to find explanations by, as it was fitted "
            "without a density gate. "
            f"Fit it with gate='density', or give rows: {_ELSE}."
        )
    # Without the padding, which is NaN.
    inner = classifier.encoder_.inverse_transform(
        real_rows.flatten(0, 1)[~real_rows.flatten(0, 1).isnan().any(-1)]
    )
    # Steps that were switched off change nothing.
    steps = [
        (name, step) for name, step in pipeline.steps[:-1] if step not in (None, "passthrough")
    ]
    names = list(getattr(pipeline, "feature_names_in_", rows.columns))
    frame = _led_back(steps, inner, names)
    frame = _stored_like(frame, match_columns(rows, list(frame.columns)))
    if steps:
        _check_round_trip(pipeline[:-1], frame, inner)
    if steps:
        origins = _origins(pipeline[:-1], list(frame.columns), len(inner.columns))
    else:
        origins = list(frame.columns)
    schema = {}
    # Rules of the classifier's columns, said of the original ones.
    for feature, origin in zip(classifier.schema_, origins, strict=True):
        rules = _rules(feature, origin, inner[feature.name], frame)
        if rules and origin is not None:
            schema[origin] = rules
    if steps:
        _check_return(pipeline[:-1], steps, frame)
    return Explainer(
        pipeline, frame, schema=schema, missing=classifier.missing, num_std=classifier.num_std_
    )


# ---- back through the steps ----------------------------------------------------------------------


def _led_back(
    steps: list[tuple[str, Any]], frame: pd.DataFrame, names: list[str]
) -> pd.DataFrame:
    """Rows that come out of the steps, as they went in."""
    for place, (name, step) in reversed(list(enumerate(steps))):
        # The first step's columns are the user's; names in between matter only if a step knows
        # them.
        before = list(getattr(step, "feature_names_in_", names if place == 0 else []))
        width = int(getattr(step, "n_features_in_", len(before) or frame.shape[1]))
        if len(before) != width:
            before = [f"x{j}" for j in range(width)]
        frame = _inverse(name, step, frame, [str(column) for column in before])
    return frame


def _inverse(name: str, step: Any, frame: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Rows before one step, whose columns were called ``names``."""
    from sklearn.compose import ColumnTransformer

    if isinstance(step, ColumnTransformer):
        return _inverse_by_part(name, step, frame, names)
    if not hasattr(step, "inverse_transform"):
        raise _cannot(name, f"{type(step).__name__} has no inverse_transform")
    names_of_output = getattr(step, "get_feature_names_out", None)
    # Some inverses want a frame with the names they wrote, others refuse one.
    named = (
        hasattr(step, "feature_names_in_")
        and names_of_output is not None
        and list(names_of_output()) == list(frame.columns)
    )
    try:
        back = step.inverse_transform(frame if named else frame.to_numpy())
    except Exception as error:  # users' steps may raise anything
        raise _cannot(
            name, f"its inverse_transform fails: {(str(error).splitlines() or [''])[0]}"
        ) from error
    return pd.DataFrame(np.asarray(back), columns=names).infer_objects()


def _inverse_by_part(
    name: str, step: ColumnTransformer, frame: pd.DataFrame, names: list[str]
) -> pd.DataFrame:
    """Rows before a column transformer; each of its parts is led back on its own."""
    parts: dict[str, Any] = {}
    for part, transformer, columns in step.transformers_:
        index = _positions(step, columns, names)
        # It writes its parts side by side.
        out = frame.iloc[:, step.output_indices_[part]]
        part_names = [names[j] for j in index]
        if isinstance(transformer, str) and transformer == "drop":
            if part_names:
                raise _cannot(name, f"its part {part!r} drops {', '.join(part_names)}")
            continue
        # "passthrough", or a part without columns.
        plain = isinstance(transformer, str) or not part_names
        if plain:
            back = out.set_axis(part_names, axis=1)
        else:
            back = _inverse(f"{name}: {part}", transformer, out, part_names)
        parts |= {column: back[column] for column in part_names}
    return pd.DataFrame({column: parts[column] for column in names})


def _positions(step: ColumnTransformer, columns: Any, names: list[str]) -> list[int]:
    """Which of the columns a part of a column transformer takes."""
    if isinstance(columns, slice):
        return list(range(len(names))[columns])
    if isinstance(columns, (str, int)):
        listed = [columns]
    else:
        listed = list(columns)
    if listed and all(isinstance(entry, (bool, np.bool_)) for entry in listed):
        return [j for j, taken in enumerate(listed) if taken]
    return [names.index(entry) if isinstance(entry, str) else int(entry) for entry in listed]


def _cannot(name: str, why: str) -> InputError:
    return InputError(
        f"The step {name!r} cannot be inverted, so explanations cannot speak of the columns "
        "before it: "
        f"{why.rstrip('.')}. Let the pipeline be asked as a whole, with some rows that it takes: "
        f"{_ELSE}."
    )


def _stored_like(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """The frame with the dtypes of the rows, as far as its values allow; numbers come back from a
    step almost whole.
    """
    columns = {}
    for name in frame.columns:
        column = frame[name]
        dtype = rows[name].dtype
        if pd.api.types.is_float_dtype(column.dtype):
            largest = float(column.abs().max())
            # So many significant digits of the largest value: what lies behind is noise of float32.
            if largest > 0:
                places = _DIGITS - 1 - int(np.floor(np.log10(largest)))
            else:
                places = 0
            column = column.round(places)
            # The rows asked about may be whole numbers by chance, while those kept are not.
            if pd.api.types.is_integer_dtype(dtype):
                integers = bool((column.round() - column).abs().max() <= _OFF)
                # Rounded, because 2.9996 as an integer would be 2.
                if integers:
                    column = column.round()
                else:
                    dtype = column.dtype
        columns[name] = column.astype(dtype)
    return pd.DataFrame(columns)


def _check_round_trip(steps: Pipeline, frame: pd.DataFrame, inner: pd.DataFrame) -> None:
    """Raise if the steps do not lead the rows back to what the classifier saw."""
    try:
        again = steps.transform(frame)
    except Exception as error:  # users' steps may raise anything
        raise _cannot(steps.steps[0][0], (str(error).splitlines() or [""])[0]) from error
    if not isinstance(again, pd.DataFrame):
        again = pd.DataFrame(np.asarray(again))
    for j, name in enumerate(inner.columns):
        seen = again.iloc[:, j]
        original = inner[name]
        if pd.api.types.is_numeric_dtype(original.dtype):
            values = original.to_numpy(np.float64)
            off = np.abs(seen.to_numpy(np.float64) - values).max()
            same = off <= _OFF * max(float(np.ptp(values)), 1e-6)
        else:
            same = seen.astype(object).tolist() == original.astype(object).tolist()
        if not same:
            raise _cannot(steps.steps[0][0], f"the column {name!r} comes back changed")


def _check_return(
    pipeline: Pipeline, steps: list[tuple[str, Any]], frame: pd.DataFrame
) -> None:
    """Raise if rows do not return from the steps: some, such as a projection, keep only part of
    what they are given.

    The kept rows were led back, so they do return; shuffled column by column, only what is really
    kept does.
    """
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {name: frame[name].to_numpy()[rng.permutation(len(frame))] for name in frame.columns}
    )
    rows = rows.astype(frame.dtypes.to_dict())
    out = pipeline.transform(rows)
    if not isinstance(out, pd.DataFrame):
        out = pd.DataFrame(np.asarray(out))
    back = _led_back(steps, out, list(map(str, rows.columns)))
    for j, name in enumerate(rows.columns):
        column = rows[name]
        seen = back.iloc[:, j]
        present = column.notna().to_numpy()  # what is missing is filled in
        if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(
            column.dtype
        ):
            values = column.to_numpy(np.float64, na_value=np.nan)
            off = np.abs(pd.to_numeric(seen, errors="coerce").to_numpy(np.float64) - values)
            same = off <= _OFF * np.maximum(np.abs(values), 1.0)
        else:
            same = (
                seen.astype(object).to_numpy() == column.astype(object).to_numpy()
            ) & present
        # A projection brings nearly no row back; clipping or binning loses some.
        if present.any() and same[present].mean() <= 0.5:
            raise _cannot(
                " and ".join(step for step, _ in steps),
                f"it does not give {name!r} back as it was",
            )


# ---- rules ---------------------------------------------------------------------------------------


def _origins(steps: Pipeline, names: list[str], width: int) -> list[str | None]:
    """The original column that each column behind the steps is; ``None`` if it is a mixture, or
    new.
    """
    try:
        after = [str(name) for name in steps.get_feature_names_out()]
    except (AttributeError, ValueError):  # a step without names for its columns
        after = []
    if len(after) != width:
        return [None] * width
    # Column transformers write the name of the part before the column.
    return [
        name if name in names else part if (part := name.partition("__")[2]) in names else None
        for name in after
    ]


def _rules(
    feature: Feature, name: str | None, inner: pd.Series, frame: pd.DataFrame
) -> dict[str, Any]:
    """The rules that the classifier has for one of its columns, in the units of its original column
    ``name``.
    """
    plain = Feature(feature.name, feature.kind, categories=feature.categories)
    rules = {
        field: getattr(feature, field)
        for field in _RULES
        if getattr(feature, field) != getattr(plain, field)
    }
    if not rules:
        return {}
    if name is None:
        raise InputError(
            f"The classifier was told rules about {feature.name!r}, which is not one of the "
            "original columns "
            f"({', '.join(map(str, frame.columns))}). State them to an explainer of the pipeline "
            "instead: "
            "ct.Explainer(pipeline, frame, schema=…)."
        )
    # The steps left this column alone, so rules hold as they are; an order of categories has to be
    # said again.
    if frame[name].astype(object).tolist() == inner.astype(object).tolist():
        if feature.categories:
            return {"kind": feature.kind, "categories": feature.categories, **rules}
        return rules
    return _in_other_units(feature, rules, inner, frame[name])


def _shifts(rules: dict[str, Any], slope: float, offset: float) -> bool:
    """Whether multiples of a stated step are none any more: they are only if the offset is one."""
    if "step" not in rules:
        return False
    shift = offset / (slope * rules["step"])
    return abs(shift - round(shift)) > _OFF


def _in_other_units(
    feature: Feature, rules: dict[str, Any], inner: pd.Series, frame: pd.Series
) -> dict[str, Any]:
    """Rules of a number that a step has rescaled, by a factor and an offset or at least without
    turning it round.
    """
    before = frame.to_numpy(np.float64)
    after = inner.to_numpy(np.float64)
    # From the classifier's units to the user's.
    slope, offset = np.polyfit(after, before, 1)
    off = _OFF * max(float(np.ptp(before)), 1e-6)
    straight = np.abs(slope * after + offset - before).max() <= off
    # Checked on sorted rows, because a step may bend without turning round.
    rises = slope > 0 and bool(
        (np.diff(before[np.argsort(after, kind="stable")]) >= -off).all()
    )
    bends = not straight or _shifts(rules, slope, offset)
    if not rises or (bends and not rules.keys().isdisjoint(_IN_UNITS)):
        raise InputError(
            f"The classifier was told rules about {feature.name!r}, which a step before bends, "
            "shifts or turns round, "
            "so they do not say what holds for the original column. State them to an explainer "
            "of the pipeline: "
            "ct.Explainer(pipeline, frame, schema=…)."
        )
    return rules | _rescaled(feature, rules, slope, offset)


def _rescaled(
    feature: Feature, rules: dict[str, Any], slope: float, offset: float
) -> dict[str, Any]:
    """The rules in the units of the column, by a factor and an offset."""
    converted = dict[str, Any]()
    if feature.domain is not None:
        converted["domain"] = tuple(
            None if end is None else float(slope * end + offset) for end in feature.domain
        )
    if feature.allowed is not None:
        converted["allowed"] = tuple(float(slope * value + offset) for value in feature.allowed)
    for name in with_trait("length"):
        if name in rules:
            converted[name] = float(slope * rules[name])
    return converted
