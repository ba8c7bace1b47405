"""Proxies: can a group be guessed from the columns that people may change, or from advice?

Holding a column fixed does not hide it: other columns may stand in for it. Measured by the AUC of
predicting the group on rows that were not fitted, .5 for no better than chance, and by the mutual
information of each column with the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import normalized_mutual_info_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from counterfactual_training.tables.audits.groups import Grouping
from counterfactual_training.tables.audits.intervals import FEW, estimate
from counterfactual_training.tables.audits.people import ModelAdvice, Subject

# The judge is small: many groups, two models and five folds are many fits.
_MOST_ROWS = 3000
_MOST_RESAMPLES = 500
_FOLDS = 5
_TREES = 40
_LEAVES = 8
_RATE = 0.2
_BINS = 10
_MOST_SHOWN = 10


def of_features(
    subject: Subject, frame: pd.DataFrame, grouping: Grouping, draws: Draws
) -> dict[str, Any]:
    """Predict the group from the columns that people may change, without its own."""
    rows = np.sort(draws.rng().permutation(len(frame))[:_MOST_ROWS])
    names = free_columns(subject, grouping)
    table = frame.iloc[rows][subject.columns]
    x = np.asarray(subject.classifier.encoder_.transform(table), dtype=np.float64)
    return _measured(subject, x, grouping, rows, names, draws)


def of_advice(advice: ModelAdvice, grouping: Grouping, draws: Draws) -> dict[str, Any]:
    """Predict the group from Δ = x′ − x, what those who get advice should change."""
    subject = advice.subject
    explanation = advice.explanation
    names = free_columns(subject, grouping)
    helped = advice.helped[advice.chosen]
    if explanation is None or not helped.any():
        return _nothing("no person gets advice")
    encoder = subject.classifier.encoder_
    before, after = (
        np.asarray(encoder.transform(rows[helped]))
        for rows in (explanation.original, explanation.frame)
    )
    return _measured(
        subject,
        (after - before).astype(np.float64),
        grouping,
        advice.chosen[helped],
        names,
        draws,
    )


def free_columns(subject: Subject, grouping: Grouping) -> list[str]:
    """The columns that may change, without those that the grouping is made of."""
    return [
        f.name
        for f in subject.schema
        if f.mutability != "none" and f.name not in grouping.parts
    ]


class Draws:
    """Randomness and precision of the intervals; every measurement starts from the same seed."""

    def __init__(self, seed: int, resamples: int, level: float) -> None:
        self.seed = seed
        self.resamples = min(resamples, _MOST_RESAMPLES)
        self.level = level

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


def _measured(
    subject: Subject,
    x: np.ndarray,
    grouping: Grouping,
    rows: np.ndarray,
    names: Sequence[str],
    draws: Draws,
) -> dict[str, Any]:
    """AUC and mutual information of encoded rows ``(n, d)`` with their groups."""
    codes = grouping.codes[rows]
    slices = subject.classifier.encoder_.slices_
    in_large_groups = np.isin(codes, np.flatnonzero(np.bincount(codes) >= FEW))
    x = x[in_large_groups]
    codes = codes[in_large_groups]
    if len(np.unique(codes)) < 2:
        return _nothing("fewer than two groups have enough people")
    if not names:
        return _nothing("no other column may change")
    columns = np.concatenate(
        [np.arange(slices[name].start, slices[name].stop) for name in names]
    )
    # Advice leaves most columns alone; what never differs tells nothing and only takes time.
    columns = columns[np.ptp(x[:, columns], axis=0) > 0]
    if not len(columns):
        return _nothing("all get the same advice")
    scores, folds = out_of_fold(x[:, columns], codes, draws.seed)
    information = [(name, shared_information(x[:, slices[name]], codes)) for name in names]
    information.sort(key=lambda pair: -pair[1])
    largest = [{"feature": name, "value": value} for name, value in information[:_MOST_SHOWN]]
    return {
        "n": len(codes),
        **macro_auc(scores, codes, folds, draws),
        "reason": None,
        "information": largest,
    }


def _nothing(reason: str) -> dict[str, Any]:
    return {
        "n": 0,
        "value": np.nan,
        "low": np.nan,
        "high": np.nan,
        "reason": reason,
        "information": [],
    }


def out_of_fold(x: np.ndarray, codes: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities ``(n, g)`` of the groups that occur, of each row by a model that did not see
    it; and its fold.
    """
    judge = HistGradientBoostingClassifier(
        max_iter=_TREES,
        max_leaf_nodes=_LEAVES,
        learning_rate=_RATE,
        random_state=seed,
        early_stopping=False,
    )
    parts = list(StratifiedKFold(_FOLDS, shuffle=True, random_state=seed).split(x, codes))
    folds = np.zeros(len(codes), dtype=np.int64)
    for number, (_, held_out) in enumerate(parts):
        folds[held_out] = number
    return np.asarray(
        cross_val_predict(judge, x, codes, cv=parts, method="predict_proba")
    ), folds


def macro_auc(
    scores: np.ndarray, codes: np.ndarray, folds: np.ndarray, draws: Draws
) -> dict[str, float]:
    """Mean over groups of the AUC of one against the rest; of two groups, that of the second. With
    an interval.
    """
    groups = np.unique(codes)
    if len(groups) == 2:
        wanted = range(1, 2)
    else:
        wanted = range(len(groups))
    rng = draws.rng()
    times = rng.multinomial(
        len(codes), np.full(len(codes), 1 / len(codes)), size=draws.resamples
    ).astype(np.float64)
    every = np.concatenate([np.ones((1, len(codes))), times])
    mean = np.mean(
        [weighted_auc(scores[:, j], codes == groups[j], folds, every) for j in wanted], axis=0
    )
    return estimate(float(mean[0]), mean[1:], draws.level)


def weighted_auc(
    score: np.ndarray, positive: np.ndarray, folds: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """P(score of a positive > score of a negative) + ½ P(equal), for each row of weights ``(b,
    n)``.

    Only rows of one fold are compared: each fold's model has a level of its own, and a fold with
    more positives was judged by a model that saw fewer, which would push the AUC of pure noise
    below ½.
    """
    won = np.zeros(len(weight))
    total = np.zeros(len(weight))
    for fold in np.unique(folds):
        rows = np.flatnonzero(folds == fold)
        order = rows[np.argsort(score[rows], kind="stable")]
        # Rows with one score count as ties.
        starts = np.flatnonzero(np.diff(score[order], prepend=np.nan) != 0)
        up = np.add.reduceat(weight[:, order] * positive[order], starts, axis=1)
        down = np.add.reduceat(weight[:, order] * ~positive[order], starts, axis=1)
        below = np.cumsum(down, axis=1) - down
        won += (up * (below + down / 2)).sum(1)
        total += up.sum(1) * down.sum(1)
    return np.divide(won, total, out=np.full(len(weight), np.nan), where=total > 0)


def shared_information(x: np.ndarray, codes: np.ndarray) -> float:
    """Normalised mutual information of a column ``(n, width)`` with the groups, from 0 to 1;
    numbers in tenths.
    """
    if x.shape[1] == 1:
        edges = np.unique(np.quantile(x[:, 0], np.linspace(0, 1, _BINS + 1)[1:-1]))
        # Edges belong to the bin below: where most values are equal, the others still get a bin.
        values = np.searchsorted(edges, x[:, 0], side="left")
    else:
        values = np.unique(x, axis=0, return_inverse=True)[1].reshape(-1)
    return float(normalized_mutual_info_score(codes, values))
