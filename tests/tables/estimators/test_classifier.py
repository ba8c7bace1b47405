"""The scikit-learn interface: learning, and composition with scikit-learn's tools."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import counterfactual_training as ct
from counterfactual_training.models.classifiers import linear
from counterfactual_training.training.objective import Objective


def test_learning_a_frame_of_mixed_columns(loans, fitted):
    frame, y = loans
    assert fitted.score(frame, y) > 0.85
    assert fitted.classes_.tolist() == ["denied", "granted"]
    assert fitted.n_features_in_ == 5
    assert fitted.feature_names_in_.tolist() == list(frame.columns)
    assert len(fitted.history_.records) == 15
    assert {"granted", "denied"} == set(fitted.predict(frame))


@pytest.mark.parametrize(
    "labels", [("no", "yes"), (3, 7), (False, True), (-1.0, 1.0), (np.str_("a"), np.str_("b"))]
)
def test_classes_keep_their_labels(points, make_quick, labels):
    x, y = points
    given = np.array(labels)[y]
    classifier = make_quick(epochs=5).fit(x, given)
    predicted = classifier.predict(x)
    assert classifier.classes_.tolist() == sorted(labels)
    assert predicted.dtype == given.dtype
    assert set(predicted.tolist()) <= set(labels)
    assert set(classifier.explain(x[:3], target=labels[1]).target.tolist()) == {labels[1]}


def test_series_of_strings_and_categories_as_labels(loans, make_quick):
    frame, y = loans
    for series in (
        pd.Series(y, index=frame.index),
        pd.Series(y).astype("category"),
        pd.Series(y, dtype="string"),
    ):
        assert make_quick(epochs=1).fit(frame, series).classes_.tolist() == [
            "denied",
            "granted",
        ]


def test_more_than_two_classes(make_blobs, make_quick):
    x, y = make_blobs(num_classes=4, n=160)
    names = np.array(["a", "b", "c", "d"])[y]
    classifier = make_quick(epochs=40).fit(x.numpy(), names)
    probability, logits = (
        classifier.predict_proba(x.numpy()),
        classifier.decision_function(x.numpy()),
    )
    assert probability.shape == logits.shape == (160, 4)
    np.testing.assert_allclose(probability.sum(1), 1, atol=1e-5)
    assert (classifier.classes_[probability.argmax(1)] == classifier.predict(x.numpy())).all()
    assert classifier.score(x.numpy(), names) > 0.8


def test_decision_function_of_two_classes_is_a_margin(points, make_quick):
    x, y = points
    classifier = make_quick().fit(x, y)
    margin, probability = classifier.decision_function(x), classifier.predict_proba(x)
    assert margin.shape == (120,)
    np.testing.assert_allclose(probability[:, 1], 1 / (1 + np.exp(-margin)), atol=1e-5)


def test_rows_sorted_by_class_are_learned_too(points, make_quick):
    x, y = points
    order = np.argsort(y)
    assert make_quick(epochs=30).fit(x[order], y[order]).score(x, y) > 0.9


def test_same_random_state_same_weights_and_the_hosts_randomness_untouched(points, make_quick):
    x, y = points
    torch.manual_seed(5)
    before = torch.get_rng_state()
    a, b = make_quick(epochs=3).fit(x, y), make_quick(epochs=3).fit(x, y)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(a.predict_proba(x), b.predict_proba(x))
    other = make_quick(epochs=3, random_state=1).fit(x, y)
    assert not np.array_equal(other.predict_proba(x), a.predict_proba(x))


def test_methods_and_their_weights_reach_the_training(points, make_quick):
    x, y = points
    plain = make_quick(epochs=2).fit(x, y)
    assert np.isnan(plain.history_.last("share_mature"))  # nothing is searched
    searched = make_quick("ct_published(lambda_div=0, lambda_reg=0)", epochs=2).fit(x, y)
    assert np.isfinite(searched.history_.last("share_mature"))
    assert searched.history_.last("divergence") == 0.0
    own = ct.Method(objective=Objective(lambda_div=0.0, lambda_reg=0.0))
    assert make_quick(own, epochs=2).fit(x, y).history_.last("divergence") == 0.0


def test_a_model_of_ones_own(points, make_quick):
    x, y = points
    assert make_quick(model=linear, epochs=20).fit(x, y).score(x, y) > 0.9
    assert make_quick(model="linear", epochs=20).fit(x, y).score(x, y) > 0.9
    double = make_quick(model=lambda d, k: linear(d, k).double(), epochs=2).fit(x, y)
    assert double.predict_proba(x).dtype == np.float64
    assert double.explain(x[:4]).frame.shape == (4, 2)


def test_latent_search_of_revise(points, make_quick):
    x, y = points
    classifier = make_quick("ct_published(generator=revise)", epochs=3).fit(x, y)
    assert classifier.generator_.name == "revise"
    assert classifier.explain(x[:5]).converged.any()


def test_in_pipeline_search_and_cross_validation(points, make_quick):
    x, y = points
    pipeline = make_pipeline(StandardScaler(), make_quick(epochs=8))
    assert cross_val_score(pipeline, x, y, cv=3).mean() > 0.8
    search = GridSearchCV(
        make_quick("ct_published", epochs=4),
        {"method__lambda_div": [0.1, 0.5], "hidden": [(4,), (8, 4)]},
        cv=2,
    ).fit(x, y)
    assert search.best_estimator_.explain(x[:2]).frame.shape == (2, 2)


def test_frames_in_cross_validation(loans, make_quick, schema):
    frame, y = loans
    assert cross_val_score(make_quick(schema=schema), frame, y, cv=3).mean() > 0.75


@pytest.mark.check
def test_clones_copies_and_pickles(loans, fitted):
    frame, _ = loans
    fresh = clone(fitted)
    assert not hasattr(fresh, "model_")
    assert fresh.get_params()["mutability"] == {"age": "none", "debt": "decrease"}
    for twin in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):  # noqa: S301 - our own bytes
        np.testing.assert_array_equal(twin.predict_proba(frame), fitted.predict_proba(frame))
        assert twin.explain(frame.head(5)).frame.equals(fitted.explain(frame.head(5)).frame)
