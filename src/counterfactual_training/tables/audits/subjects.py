"""What an audit needs before it starts: models that can be trained again, input that fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone

from counterfactual_training.errors import InputError, check_name
from counterfactual_training.tables.audits.people import Predicts, Retrain, Subject


def make_subjects(
    classifier: Any, against: Any, trained_on: tuple[Any, Any] | None
) -> list[Subject]:
    models = [(classifier, "this model"), (against, "the other model")]
    subjects = []
    for model, name in models:
        if model is None:
            continue
        if isinstance(model, Subject):
            subject = model
        else:
            subject = Subject(model, name)
        _check_model(subject.classifier)
        if (
            subject.retrain is None
            and trained_on is not None
            and hasattr(subject.classifier, "fit")
        ):
            subject = Subject(
                subject.classifier, subject.name, retrainer(subject.classifier, *trained_on)
            )
        subjects.append(subject)
    return subjects


def _check_model(model: Any) -> None:
    """Raise unless this decides between classes, knows its columns and explains."""
    kind = type(model).__name__
    if not hasattr(model, "explain"):
        if hasattr(model, "predict"):
            hint = " Wrap it first: Explainer(model, frame, labels)."
        else:
            hint = ""
        raise InputError(
            f"An audit needs a CounterfactualClassifier or an Explainer, got {kind}.{hint}"
        )
    if not hasattr(model, "schema_"):
        raise InputError(f"This {kind} is not fitted: call fit first, then audit it.")
    if not hasattr(model, "classes_"):
        raise InputError(f"An audit needs a model that decides between classes, got {kind}.")


def retrainer(classifier: Any, frame: pd.DataFrame, labels: Any) -> Retrain:
    """Trains a classifier again: by another seed on all rows, or by its own seed without a random
    part of them.
    """
    y = np.asarray(labels)
    if not len(frame):
        raise InputError("There are no rows to train the model on again: trained_on is empty.")

    def retrain(seed: int, dropped_share: float) -> Predicts:
        rows = np.sort(
            np.random.default_rng(seed).permutation(len(frame))[
                round(dropped_share * len(frame)) :
            ]
        )
        # Rows or seed: what changes with both could not be told apart.
        if not dropped_share or classifier.random_state is None:
            random_state = seed
        else:
            random_state = classifier.random_state
        retrained = clone(classifier).set_params(random_state=random_state, progress=False)
        fitted: Predicts = retrained.fit(frame.iloc[rows], y[rows])
        return fitted

    return retrain


def checked_labels(
    subjects: Sequence[Subject], frame: pd.DataFrame, labels: Any, target: Any
) -> np.ndarray | None:
    """The labels as an array; raises if something does not fit together."""
    mine = subjects[0]
    if len(frame) == 0:
        raise InputError("There are no rows to audit.")
    _check_columns(subjects, frame)
    if target is None:
        raise InputError(
            f"Say which class people want, as target: one of {', '.join(map(repr, mine.classes))}."
        )
    check_name("class", target, mine.classes)
    for other in subjects[1:]:
        if set(map(str, other.classes)) != set(map(str, mine.classes)):
            raise InputError(
                f"{other.name} has classes {other.classes}, {mine.name} has {mine.classes}: "
                "compare models of one."
            )
    if labels is None:
        return None
    y = np.asarray(labels, dtype=object)
    if y.shape != (len(frame),):
        raise InputError(
            f"Expected one label per row ({len(frame):,}), got an array of shape {y.shape}."
        )
    _check_classes(y, mine)
    return y


def _check_columns(subjects: Sequence[Subject], frame: pd.DataFrame) -> None:
    mine = subjects[0]
    # First the models, then the rows: a model of other columns is not the fault of the data.
    for other in subjects[1:]:
        strange = sorted(set(other.schema.names) ^ set(mine.schema.names))
        if strange:
            raise InputError(
                f"{other.name} and {mine.name} do not have the same columns; in one of them "
                f"only: {strange[:5]}."
            )
    for name in mine.schema.names:
        check_name(f"data: {mine.name} needs the column", name, list(frame.columns))


def _check_classes(labels: np.ndarray, subject: Subject) -> None:
    """Raise unless every label is a class of the model; 1 is none of the classes '0' and '1'."""
    missing = int(pd.isna(labels).sum())
    if missing:
        raise InputError(
            f"{missing:,} of {len(labels):,} labels are missing: leave these rows out, or give "
            "no labels."
        )
    for label in dict.fromkeys(labels.tolist()):
        check_name(f"label: {subject.name} has no class", label, subject.classes)
