"""The same classifier again, on bootstrap samples: witnesses of how long advice lasts."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from counterfactual_training.errors import InputError, check_count
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.inputs import frame_and_labels, row_weights

# Draws of a sample until every class is in it.
_DRAWS = 100


def refits(
    classifier: CounterfactualClassifier,
    X: Any,
    y: Any,
    num: int = 10,
    *,
    sample_weight: Any = None,
    seed: int = 0,
) -> list[CounterfactualClassifier]:
    """So many classifiers with the same parameters, each fitted to a bootstrap sample of the rows.

    They train for as many epochs as the classifier did up to its best one: rows that a sample has
    twice, once to train on and once to stop by, would let them learn it by heart. They have no
    gate, because they are asked for decisions, not for advice.

    Args:
        classifier: fitted.
        X, y, sample_weight: the rows, classes and weights that it was fitted to.
        num: how many; :func:`lasting` needs at least four.
        seed: of the samples and of the trainings.

    Examples:
        >>> import counterfactual_training as ct
        >>> people = ct.loan(200)
        >>> clf = ct.CounterfactualClassifier(mutability={"age": "none"}, epochs=2)
        >>> clf = clf.fit(people.frame, people.labels)
        >>> len(ct.refits(clf, people.frame, people.labels, 4))
        4
    """
    if not isinstance(classifier, CounterfactualClassifier):
        raise InputError(
            f"refits are of a CounterfactualClassifier, got {type(classifier).__name__}; anything "
            "else with predict_proba can be a witness if you fit it again yourself."
        )
    check_is_fitted(classifier, "model_")
    check_count("num", num)
    frame, labels = frame_and_labels(clone(classifier), X, y)
    weight = row_weights(sample_weight, len(labels))
    rng = np.random.default_rng(seed)
    made = []
    for i in range(num):
        rows = _sample(labels, rng)
        again = clone(classifier).set_params(
            gate="none",
            progress=False,
            random_state=seed + 1000 + i,
            early_stopping=False,
            epochs=_best_epoch(classifier),
        )
        with warnings.catch_warnings():
            # Said when the classifier itself was fitted.
            warnings.simplefilter("ignore", UserWarning)
            own = None if weight is None else weight[rows]
            made.append(again.fit(frame.iloc[rows], labels[rows], sample_weight=own))
    return made


def _best_epoch(classifier: CounterfactualClassifier) -> int:
    """How many epochs it trained for, without those that brought nothing before it stopped."""
    history = classifier.history_.to_frame()
    if history["validation_loss"].isna().all():
        return len(history)
    return int(history["validation_loss"].to_numpy().argmin()) + 1


def _sample(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As many rows as there are, drawn with replacement, of every class at least one."""
    classes = np.unique(labels)
    for _ in range(_DRAWS):
        rows = rng.integers(len(labels), size=len(labels))
        if len(np.unique(labels[rows])) == len(classes):
            return rows
    # One row of each class that is so rare takes the place of the last that were drawn.
    for i, label in enumerate(classes):
        rows[-1 - i] = rng.choice(np.flatnonzero(labels == label))
    return rows
