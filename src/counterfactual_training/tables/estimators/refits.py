"""The same classifier again, on bootstrap samples: witnesses of how long advice lasts."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import clone

from counterfactual_training.errors import InputError, check_count
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.inputs import frame_and_labels

# Draws of a sample until every class is in it.
_DRAWS = 100


def refits(
    classifier: CounterfactualClassifier,
    X: Any,
    y: Any,
    num: int = 10,
    *,
    seed: int = 0,
) -> list[CounterfactualClassifier]:
    """So many classifiers with the same parameters, each fitted to a bootstrap sample of the rows.

    They have no gate: they are asked for decisions, not for advice.

    Args:
        classifier: fitted or not.
        X, y: the rows and classes that it was fitted to.
        num: how many.
        seed: of the samples and of the trainings.

    Examples:
        >>> import counterfactual_training as ct
        >>> people = ct.loan(200)
        >>> clf = ct.CounterfactualClassifier(mutability={"age": "none"}, epochs=2)
        >>> len(ct.refits(clf, people.frame, people.labels, 3))
        3
    """
    check_count("num", num)
    frame, labels = frame_and_labels(clone(classifier), X, y)
    rng = np.random.default_rng(seed)
    made = []
    for i in range(num):
        rows = _sample(labels, rng)
        again = clone(classifier).set_params(
            gate="none", progress=False, random_state=seed + 1000 + i
        )
        with warnings.catch_warnings():
            # Told when the classifier itself was fitted.
            warnings.simplefilter("ignore", UserWarning)
            made.append(again.fit(frame.iloc[rows], labels[rows]))
    return made


def _sample(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As many rows as there are, drawn with replacement, of every class at least two."""
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() < 2:
        rare = classes[counts.argmin()]
        raise InputError(
            f"Only one row is of class {rare!r}, which most samples would miss; refits need more."
        )
    for _ in range(_DRAWS):
        rows = rng.integers(len(labels), size=len(labels))
        drawn, times = np.unique(labels[rows], return_counts=True)
        if len(drawn) == len(classes) and times.min() >= 2:
            return rows
    # Of a class so rare, two rows take the places of the last that were drawn.
    for i, label in enumerate(classes):
        own = np.flatnonzero(labels == label)
        rows[-2 * i - 1] = rng.choice(own)
        rows[-2 * i - 2] = rng.choice(own)
    return rows
