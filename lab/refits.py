"""The same classifier again, on bootstrap samples, one fit after the other: judges of advice.

The library's own witnesses share an encoding and a fleet. These share nothing with the classifier
that they judge, as a model that is trained again next year would.
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from sklearn.base import clone

from counterfactual_training import CounterfactualClassifier
from counterfactual_training.training.callbacks import EpochsOfMembers

# Draws of a sample until every class is in it.
_DRAWS = 100


def refits(
    classifier: CounterfactualClassifier,
    frame: pd.DataFrame,
    labels: np.ndarray,
    num: int,
    seed: int,
) -> list[CounterfactualClassifier]:
    """So many classifiers with the same parameters, each fitted to a bootstrap sample of the rows.

    Each network trains for as many epochs as that of the classifier did up to its best one, the
    first of a bag like the first of the classifier's: rows that a sample has
    twice, once to train on and once to stop by, would let them learn it by heart. They have no
    gate, because they are asked for decisions, not for advice.

    Args:
        classifier: fitted.
        frame, labels: the rows and classes that it was fitted to.
        num: how many.
        seed: of the samples and of the trainings.
    """
    rng = np.random.default_rng(seed)
    epochs = [network.best for network in classifier.epochs_]
    made = []
    for i in range(num):
        rows = _sample(labels, rng)
        again = clone(classifier).set_params(
            gate="none",
            progress=False,
            random_state=seed + 1000 + i,
            early_stopping=False,
            epochs=max(epochs),
            callbacks=[EpochsOfMembers(epochs)],
        )
        with warnings.catch_warnings():
            # Said when the classifier itself was fitted.
            warnings.simplefilter("ignore", UserWarning)
            made.append(again.fit(frame.iloc[rows], labels[rows]))
    return made


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
