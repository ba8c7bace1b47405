"""Every regime trains the classifier, and what it makes can be asked, cloned and saved."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.base import clone

import counterfactual_training as ct
from counterfactual_training.errors import InputError
from counterfactual_training.training.regimes import RECIPES, REGIMES, trades
from covering import by_default

LOAN = ct.loan(400)
QUICK = {"epochs": 3, "random_state": 0, "progress": False, "mutability": {"age": "none"}}


@pytest.mark.parametrize("name", by_default(REGIMES, "pgd"))
def test_a_classifier_trains_by_any_regime(name, tmp_path):
    model = clone(ct.CounterfactualClassifier(regime=name, **QUICK)).fit(
        LOAN.frame, LOAN.labels
    )
    assert model.score(LOAN.frame, LOAN.labels) > 0.6
    withheld = LOAN.frame[model.predict(LOAN.frame) == "loan withheld"].head(5)
    told = model.explain(withheld, target="loan granted")
    assert (told.frame["age"] == withheld["age"]).all()
    model.save(tmp_path / "model.safetensors")
    again = ct.CounterfactualClassifier.load(tmp_path / "model.safetensors")
    assert again.regime == name
    np.testing.assert_array_equal(
        again.predict_proba(LOAN.frame), model.predict_proba(LOAN.frame)
    )


@pytest.mark.parametrize("name", by_default(RECIPES, "trades"))
def test_a_regime_changes_the_network(name):
    """It is no name that nobody reads; the first epochs of MISOB are conventional."""
    params = {**QUICK, "mutability": {}, "burn_in": 0.0, "max_steps": 100, "epochs": 5}
    labels = np.where(
        np.arange(400) % 10 == 0, LOAN.labels[::-1], LOAN.labels
    )  # some people are wrongly denied
    plain, other = (
        ct.CounterfactualClassifier(regime=regime, **params)
        .fit(LOAN.frame, labels)
        .predict_proba(LOAN.frame)
        for regime in ("conventional", name)
    )
    assert np.abs(plain - other).max() > 1e-6


def test_a_regime_of_ones_own_is_passed_again(tmp_path):
    model = ct.CounterfactualClassifier(regime=trades(beta=3.0), **QUICK).fit(
        LOAN.frame, LOAN.labels
    )
    model.save(tmp_path / "model.safetensors")
    with pytest.raises(ct.FileError, match="regime of your own"):
        ct.CounterfactualClassifier.load(tmp_path / "model.safetensors")
    again = ct.CounterfactualClassifier.load(
        tmp_path / "model.safetensors", regime=trades(beta=3.0)
    )
    np.testing.assert_array_equal(again.predict(LOAN.frame), model.predict(LOAN.frame))


@pytest.mark.check
def test_an_ensemble_of_a_regime_is_that_regime_with_several_seeds(tmp_path):
    named = ct.CounterfactualClassifier(regime="ensemble of pgd", **QUICK).fit(
        LOAN.frame, LOAN.labels
    )
    stated = ct.CounterfactualClassifier(regime="pgd", n_ensemble=5, **QUICK)
    assert isinstance(named.model_, ct.Ensemble) and len(named.model_.members) == 5
    expected = stated.fit(LOAN.frame, LOAN.labels).predict_proba(LOAN.frame)
    assert np.array_equal(named.predict_proba(LOAN.frame), expected)
    named.save(tmp_path / "model.safetensors")
    again = ct.CounterfactualClassifier.load(tmp_path / "model.safetensors")
    assert again.regime == "ensemble of pgd" and np.array_equal(
        again.predict_proba(LOAN.frame), expected
    )
    fewer = clone(named).set_params(n_ensemble=2).fit(LOAN.frame, LOAN.labels)
    assert len(fewer.model_.members) == 2
    with pytest.raises(InputError, match="Did you mean 'trades'"):
        ct.CounterfactualClassifier(regime="ensemble of trade", **QUICK).fit(
            LOAN.frame, LOAN.labels
        )


def test_restarts_of_a_regime_train_as_one_fleet():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(one by one|trained alone)")
        model = ct.CounterfactualClassifier(regime="pgd", n_restarts=2, **QUICK).fit(
            LOAN.frame, LOAN.labels
        )
    assert model.history_.records[-1]["adversarial"] > 0


def test_bad_input_is_named():
    with pytest.raises(InputError, match="'trades'"):
        ct.CounterfactualClassifier(regime="trade", **QUICK).fit(LOAN.frame, LOAN.labels)
    with pytest.raises(InputError, match="lambda_div has no effect"):
        ct.CounterfactualClassifier(regime="pgd", lambda_div=0.3, **QUICK).fit(
            LOAN.frame, LOAN.labels
        )
    with pytest.raises(InputError, match=r"Unknown regime to tune: 'smooth'"):
        own = ct.Regime("smooth", trades().loss, trades().find)
        ct.CounterfactualClassifier(regime=own, **QUICK).tune(LOAN.frame, LOAN.labels)
    with pytest.raises(InputError, match=r"'epsilom'\. Did you mean 'epsilon'"):
        ct.CounterfactualClassifier(regime={"name": "pgd", "epsilom": 0.2}, **QUICK).fit(
            LOAN.frame, LOAN.labels
        )
    with pytest.raises(InputError, match="needs a name"):
        ct.CounterfactualClassifier(regime={"epsilon": 0.2}, **QUICK).fit(
            LOAN.frame, LOAN.labels
        )


@pytest.mark.check
def test_the_numbers_of_a_regime_are_tuned_and_saved(tmp_path):
    start = ct.CounterfactualClassifier(
        regime={"name": "pgd", "steps": 2}, gate="none", **QUICK
    )
    space = {"epsilon": [0.1, 0.3], "learning_rate": "published"}
    best = start.tune(LOAN.frame, LOAN.labels, n_trials=3, space=space, at_most_lost=None)
    assert set(best.tuning_["epsilon"]) == {0.1, 0.3} and best.regime["epsilon"] in (0.1, 0.3)
    assert best.regime["steps"] == 2 and start.regime == {"name": "pgd", "steps": 2}
    by_hand = clone(start).set_params(
        regime={"name": "pgd", "steps": 2, "epsilon": best.regime["epsilon"]}
    )
    expected = by_hand.fit(LOAN.frame, LOAN.labels).predict_proba(LOAN.frame)
    assert np.array_equal(best.predict_proba(LOAN.frame), expected)
    best.save(tmp_path / "model.safetensors")
    again = ct.CounterfactualClassifier.load(tmp_path / "model.safetensors")
    assert again.regime == best.regime and np.array_equal(
        again.predict_proba(LOAN.frame), expected
    )
