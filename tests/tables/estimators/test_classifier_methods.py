"""Every method trains the classifier, and what it makes can be asked, cloned and saved."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone

import counterfactual_training as ct
from counterfactual_training.defaults import METHODS as NAMES
from counterfactual_training.errors import InputError
from counterfactual_training.training.registry import METHODS, method_names
from covering import by_default

LOAN = ct.loan(400)
QUICK = {"epochs": 3, "random_state": 0, "progress": False, "mutability": {"age": "none"}}
OWN_LOSS = [name for name in METHODS if ct.make_method(name).loss is not None]


def fitted(method, **params):
    return ct.CounterfactualClassifier(method, **QUICK | params).fit(LOAN.frame, LOAN.labels)


class OwnNetwork(torch.nn.Linear):
    """Of a user."""


def test_the_names_that_help_shows_are_those_of_the_registry():
    assert set(NAMES) == set(method_names())


@pytest.mark.parametrize("name", by_default(NAMES, "pgd"))
def test_a_classifier_trains_by_any_method(name, tmp_path):
    model = clone(ct.CounterfactualClassifier(name, **QUICK)).fit(LOAN.frame, LOAN.labels)
    assert model.score(LOAN.frame, LOAN.labels) > 0.6
    withheld = LOAN.frame[model.predict(LOAN.frame) == "loan withheld"].head(5)
    told = model.explain(withheld, target="loan granted")
    assert (told.frame["age"] == withheld["age"]).all()
    model.save(tmp_path / "model.safetensors")
    again = ct.CounterfactualClassifier.load(tmp_path / "model.safetensors")
    assert again.method == name and again.trained_ == model.trained_
    assert model.trained_.startswith(f"Trained by {name}: ")
    expected = model.predict_proba(LOAN.frame)
    np.testing.assert_array_equal(again.predict_proba(LOAN.frame), expected)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301 - our own bytes
        np.testing.assert_array_equal(twin.predict_proba(LOAN.frame), expected)
        assert str(twin.method_) == str(model.method_)


@pytest.mark.parametrize("name", by_default(OWN_LOSS, "trades"))
def test_a_method_changes_the_network(name):
    """It is no name that is ignored; the first epochs of MISOB are conventional."""
    labels = np.where(
        np.arange(400) % 10 == 0, LOAN.labels[::-1], LOAN.labels
    )  # some people are wrongly denied
    params = {**QUICK, "mutability": {}, "epochs": 5}
    settings = "(burn_in=0, generator.max_steps=100)"
    plain, other = (
        ct.CounterfactualClassifier(method, **params)
        .fit(LOAN.frame, labels)
        .predict_proba(LOAN.frame)
        for method in ("conventional", name + settings)
    )
    assert np.abs(plain - other).max() > 1e-6


def test_the_method_changes_neither_network_nor_scaling_nor_gate():
    models = [fitted(name, epochs=1) for name in ("conventional", "ct_published", "pgd")]
    shapes = {
        tuple(tuple(part.shape) for part in model.model_.parameters()) for model in models
    }
    assert len(shapes) == 1
    assert len({str(model.encoder_.to_dict()) for model in models}) == 1
    assert all(model.gate_ is not None for model in models)


def test_a_method_with_settings_is_written_as_values(tmp_path):
    method = ct.methods.trades(beta=3.0, learning_rate=0.01)
    model = fitted(method)
    model.save(tmp_path / "model.safetensors")
    again = ct.CounterfactualClassifier.load(tmp_path / "model.safetensors")
    assert str(ct.make_method(again.method)) == "trades(beta=3.0, learning_rate=0.01)"
    assert again.method_.training.learning_rate == 0.01
    np.testing.assert_array_equal(again.predict(LOAN.frame), model.predict(LOAN.frame))


def test_a_method_of_ones_own_is_passed_again(tmp_path):
    trades = ct.methods.trades()
    own = ct.Method("smooth", loss=trades.loss, find=trades.find)
    model = fitted(own)
    model.save(tmp_path / "model.safetensors")
    with pytest.raises(ct.FileError, match="method of your own"):
        ct.CounterfactualClassifier.load(tmp_path / "model.safetensors")
    again = ct.CounterfactualClassifier.load(tmp_path / "model.safetensors", method=own)
    np.testing.assert_array_equal(again.predict(LOAN.frame), model.predict(LOAN.frame))


def test_a_registered_method_is_known_to_files_by_name(tmp_path, monkeypatch):
    @ct.register_method
    def noise(scale: float = 0.1):
        def find(now):
            return now.x + scale * now.normal()

        def loss(model, batch, noisy):
            logits = model(noisy)
            return ct.LossTerms.sum(logits, class_loss=ct.class_loss(logits, batch.y))

        return ct.Method(loss=loss, find=find)

    model = fitted("noise(scale=0.2)")
    assert model.method_.numbers == {"scale": 0.2}
    model.save(tmp_path / "model.safetensors")
    again = ct.CounterfactualClassifier.load(tmp_path / "model.safetensors")
    assert again.method == "noise(scale=0.2)"
    del METHODS["noise"]
    # Whoever only asks the model needs no loss.
    stranger = ct.CounterfactualClassifier.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(stranger.predict(LOAN.frame), model.predict(LOAN.frame))
    assert len(stranger.explain(LOAN.frame[:2])) == 2
    stranger.save(tmp_path / "again.safetensors")
    with pytest.raises(InputError, match="Unknown method 'noise'"):
        stranger.fit(LOAN.frame, LOAN.labels)


@pytest.mark.check
def test_an_ensemble_of_a_method_is_that_method_with_several_seeds(tmp_path):
    named = fitted("ensemble of pgd")
    assert isinstance(named.model_, ct.Ensemble) and len(named.model_.members) == 5
    expected = named.predict_proba(LOAN.frame)
    stated = fitted(ct.methods.ensemble("pgd", members=5))
    assert np.array_equal(stated.predict_proba(LOAN.frame), expected)
    named.save(tmp_path / "model.safetensors")
    again = ct.CounterfactualClassifier.load(tmp_path / "model.safetensors")
    assert again.method == "ensemble of pgd"
    assert np.array_equal(again.predict_proba(LOAN.frame), expected)
    fewer = clone(named).set_params(method__members=2).fit(LOAN.frame, LOAN.labels)
    assert len(fewer.model_.members) == 2


def test_restarts_of_a_method_train_as_one_fleet():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(one by one|trained alone)")
        model = fitted("pgd", n_restarts=2)
    assert model.history_.records[-1]["adversarial"] > 0


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("trade", "Did you mean 'trades'"),
        ("ensemble of trade", "Did you mean 'trades'"),
        ("pgd(lambda_div=0.3)", "lambda_div has no effect"),
        ("pgd(epsilom=0.2)", r"'epsilom'\. Did you mean 'epsilon'"),
        ({"name": "pgd", "epsilom": 0.2}, r"'epsilom'\. Did you mean 'epsilon'"),
        ({"epsilon": 0.2}, "needs a name"),
        (3, "Unknown method 3"),
        ("pgd(0.2)", "written name=value"),
        (ct.make_method("ct", values=True), "trains regressors"),
        ("ct_published(num_std=1)", "state the estimator's own num_std"),
        ("ct_published(seed=1)", "state the estimator's own random_state"),
        ("ct_published(lambda_adv=x)", "lambda_adv must be a finite number"),
        ("ct_published(budget=x)", "budget must be a share"),
    ],
)
def test_bad_input_is_named(method, message):
    with pytest.raises(InputError, match=message):
        fitted(method)


def test_what_was_trained_is_said_truly():
    trades = ct.methods.trades()
    own = fitted(ct.Method(loss=trades.loss, find=trades.find))
    assert own.trained_.startswith("Trained by own: ")
    beside = fitted("ct_published(epochs=2, lambda_adv=0)", epochs=1)
    assert beside.trained_.startswith("Trained by ct_published(lambda_adv=0, epochs=1): ")
    assert beside.trained_.endswith("density gate, 1 epoch on 400 rows")
    several = fitted("bag(members=2)", epochs=1, gate="none")
    layers = "with hidden layers of 64 and 64 units"
    assert several.trained_ == (
        f"Trained by bag(members=2): 2 networks {layers}, no gate, 1 epoch on 400 rows"
    )
    own = fitted("bag(members=2)", epochs=1, model=OwnNetwork)
    assert own.trained_.startswith("Trained by bag(members=2): 2 times OwnNetwork, ")
    again = beside.partial_fit(LOAN.frame, LOAN.labels)
    assert again.trained_.endswith("2 epochs on 400 rows")


def test_what_a_registered_method_states_is_honoured():
    def small():
        return ct.Method(training=ct.TrainConfig(batch_size=7, num_counterfactuals=50))

    ct.register_method(small)
    try:
        for method in ("small", ct.methods.ct_published(training=small().training)):
            used = fitted(method, epochs=1).method_.training
            assert (used.batch_size, used.num_counterfactuals) == (7, 50)
        assert fitted("bag of small(members=2)", epochs=1).method_.training.batch_size == 7
    finally:
        del METHODS["small"]
    with pytest.raises(InputError, match="epochs=0 would leave"):
        fitted("ct_published(epochs=0)", epochs=None)
    stated = ct.methods.ct_published(batch_size=30)
    assert ct.make_method(stated.to_dict()).states("training.batch_size")


def test_settings_of_the_method_are_nested_parameters():
    classifier = ct.CounterfactualClassifier("ct_published")
    deep = classifier.get_params()
    assert deep["method__objective__lambda_div"] == 0.5
    assert deep["method__generator__max_steps"] == 30
    assert deep["method__training__epochs"] == 100
    assert len(classifier.get_params(deep=False)) == 28
    classifier.set_params(method__lambda_div=0.3, method__generator__max_steps=7)
    assert str(classifier.method) == "ct_published(lambda_div=0.3, generator.max_steps=7)"
    classifier.set_params(method__steps=3, method="pgd")  # the method first
    assert classifier.method.numbers["steps"] == 3
    with pytest.raises(InputError, match="Did you mean 'epochs'"):
        classifier.set_params(method__epoch=3)


@pytest.mark.check
def test_the_numbers_of_a_method_are_tuned_and_saved(tmp_path):
    start = ct.CounterfactualClassifier("pgd(steps=2)", gate="none", **QUICK)
    space = {"epsilon": [0.1, 0.3], "learning_rate": "published"}
    best = start.tune(LOAN.frame, LOAN.labels, n_trials=3, space=space, at_most_lost=None)
    found = best.method.numbers
    assert set(best.tuning_["epsilon"]) <= {0.1, 0.3} and found["epsilon"] in (0.1, 0.3)
    assert found["steps"] == 2 and start.method == "pgd(steps=2)"
    by_hand = fitted(f"pgd(steps=2, epsilon={found['epsilon']})", gate="none")
    expected = by_hand.predict_proba(LOAN.frame)
    assert np.array_equal(best.predict_proba(LOAN.frame), expected)
    best.save(tmp_path / "model.safetensors")
    again = ct.CounterfactualClassifier.load(tmp_path / "model.safetensors")
    assert str(ct.make_method(again.method)) == str(best.method)
    assert np.array_equal(again.predict_proba(LOAN.frame), expected)
