"""MAPIE's sets of classes (split conformal, LAC) from probabilities of a problem file. Run in its
own environment.
"""

from __future__ import annotations

import sys
from typing import Any

from turns import serve  # isort: skip  (before NumPy)

import numpy as np
from mapie.classification import SplitConformalClassifier
from sklearn.base import BaseEstimator, ClassifierMixin

problem = np.load(sys.argv[1])


class GivenProbabilities(ClassifierMixin, BaseEstimator):
    """A classifier whose rows are its probabilities."""

    def __init__(self, num_classes: int = 2) -> None:
        self.num_classes = num_classes
        self.classes_ = np.arange(num_classes)
        self.n_features_in_ = num_classes

    def fit(self, x: np.ndarray, y: np.ndarray) -> GivenProbabilities:
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return x

    def predict(self, x: np.ndarray) -> np.ndarray:
        return x.argmax(1)


def turn(case: str, coverage: float, out: str) -> dict[str, Any]:
    """The quantile at a coverage; the sets ``(n, k)`` of the test rows go to a file."""
    calibration, labels, test = (
        problem[f"{case}-{part}"] for part in ("calibration", "labels", "test")
    )
    conformal = SplitConformalClassifier(
        GivenProbabilities(test.shape[1]),
        confidence_level=coverage,
        conformity_score="lac",
        prefit=True,
    ).conformalize(calibration, labels)
    np.save(out, conformal.predict_set(test)[1][..., 0])
    score = conformal._mapie_classifier.conformity_score_function_
    return {"quantile": float(np.ravel(score.quantiles_)[0])}


serve(turn, "mapie")
