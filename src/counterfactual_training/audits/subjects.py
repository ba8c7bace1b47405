"""What an audit needs before it starts: models that can be trained again, and input that fits together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone

from counterfactual_training.audits.people import Predicts, Retrain, Subject
from counterfactual_training.errors import InputError, check_name


def make_subjects(classifier: Any, against: Any, trained_on: tuple[Any, Any] | None) -> list[Subject]:
    given = [(classifier, "this model"), (against, "the other model")]
    subjects = []
    for model, name in given:
        if model is None:
            continue
        subject = model if isinstance(model, Subject) else Subject(model, name)
        if subject.retrain is None and trained_on is not None and hasattr(subject.classifier, "fit"):
            subject = Subject(subject.classifier, subject.name, retrainer(subject.classifier, *trained_on))
        subjects.append(subject)
    return subjects


def retrainer(classifier: Any, frame: pd.DataFrame, labels: Any) -> Retrain:
    """Trains a classifier again: by another seed on all rows, or by its own seed without a random part of them."""
    y = np.asarray(labels)

    def retrain(seed: int, left_out: float) -> Predicts:
        rows = np.sort(np.random.default_rng(seed).permutation(len(frame))[round(left_out * len(frame)) :])
        # Rows or seed: what changes with both could not be told apart.
        own = seed if not left_out or classifier.random_state is None else classifier.random_state
        twin = clone(classifier).set_params(random_state=own, progress=False)
        fitted: Predicts = twin.fit(frame.iloc[rows], y[rows])
        return fitted

    return retrain


def checked_labels(subjects: Sequence[Subject], frame: pd.DataFrame, labels: Any, target: Any) -> np.ndarray | None:
    """The labels as an array; raises if something does not fit together."""
    mine = subjects[0]
    if len(frame) == 0:
        raise InputError("There are no rows to audit.")
    for subject in subjects:
        for name in subject.schema.names:
            check_name(f"data: {subject.name} needs the column", name, list(frame.columns))
    if target is None:
        raise InputError(f"Say which class people want, as target: one of {', '.join(map(repr, mine.classes))}.")
    check_name("class", target, mine.classes)
    for other in subjects[1:]:
        if set(map(str, other.classes)) != set(map(str, mine.classes)):
            raise InputError(
                f"{other.name} has classes {other.classes}, {mine.name} has {mine.classes}: compare models of one."
            )
        strange = sorted(set(other.schema.names) ^ set(mine.schema.names))
        if strange:
            raise InputError(
                f"{other.name} and {mine.name} do not have the same columns; in one of them only: {strange[:5]}."
            )
    if labels is None:
        return None
    y = np.asarray(labels, dtype=object)
    if y.shape != (len(frame),):
        raise InputError(f"Expected one label per row ({len(frame):,}), got an array of shape {y.shape}.")
    return y
