"""Whether groups can be guessed: a planted proxy, pure noise, ties, and AUC like scikit-learn's."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from counterfactual_training.tables.audits.groups import Grouping, everybody
from counterfactual_training.tables.audits.proxies import (
    Draws,
    free_columns,
    macro_auc,
    out_of_fold,
    shared_information,
    weighted_auc,
)

DRAWS = Draws(0, 200, 0.95)


def guessed(x, codes):
    scores, folds = out_of_fold(x, codes, seed=0)
    return macro_auc(scores, codes, folds, DRAWS)


def test_a_planted_proxy_is_found_and_noise_is_not():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, 600)
    noise = rng.normal(size=(600, 3))
    planted = np.c_[noise, codes + rng.normal(0, 0.1, 600)]
    assert guessed(planted, codes)["value"] > 0.98
    found = guessed(noise, codes)
    assert found["low"] < 0.5 < found["high"]
    assert abs(found["value"] - 0.5) < 0.08


def test_several_groups_are_averaged():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, 600)
    # Only the first group can be told from the others: about 1, and twice somewhat above chance.
    found = guessed(np.c_[(codes == 0) + rng.normal(0, 0.05, 600)], codes)
    assert 0.75 < found["value"] < 0.9


def test_auc_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    positive = rng.random(80) < 0.4
    score = np.round(rng.normal(size=80) + positive, 1)  # with ties
    weight = rng.integers(0, 4, (3, 80)).astype(float)
    one_fold = np.zeros(80, dtype=int)
    expected = [roc_auc_score(positive, score, sample_weight=row) for row in weight]
    assert weighted_auc(score, positive, one_fold, weight) == pytest.approx(expected)


def test_rows_of_different_folds_are_not_compared():
    positive = np.array([1, 0, 1, 0], dtype=bool)
    score, folds = np.array([0.2, 0.1, 0.9, 0.8]), np.array([0, 0, 1, 1])
    # Pooled, 0.2 of a positive loses against 0.8; within folds, both positives win.
    assert weighted_auc(score, positive, folds, np.ones((1, 4)))[0] == 1.0


def test_information_is_one_for_a_copy_and_near_zero_for_noise():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, 1000)
    assert shared_information(np.eye(2)[codes], codes) == pytest.approx(1.0)
    assert shared_information(rng.normal(size=(1000, 1)), codes) < 0.02
    # Nearly all rows are equal, as advice is: the rest still tells.
    rare = np.where(codes & (rng.random(1000) < 0.1), 3.0, 0.0)
    assert shared_information(rare[:, None], codes) > 0.02


def test_a_group_is_not_guessed_from_its_own_columns():
    features = [("age", "none"), ("sex", "both"), ("job", "both"), ("debt", "decrease")]
    schema = [
        SimpleNamespace(name=name, mutability=mutability) for name, mutability in features
    ]
    crossed = Grouping(
        "sex*job", "crossed", np.zeros(3, dtype=int), ("f, clerk",), ("sex", "job")
    )
    assert free_columns(SimpleNamespace(schema=schema), crossed) == ["debt"]
    assert free_columns(SimpleNamespace(schema=schema), everybody(3)) == ["sex", "job", "debt"]
