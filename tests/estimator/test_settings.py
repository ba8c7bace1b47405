"""Presets reach every setting that is not stated, and a failed fit costs nothing."""

import numpy as np
import pytest

import counterfactual_training as ct
from counterfactual_training.errors import InputError
from counterfactual_training.estimator import settings
from counterfactual_training.training import Preset


def test_a_preset_decides_what_is_not_stated():
    own = Preset(
        generator=ct.ecco(lambda_energy=1.0, lambda_cost=0.7, max_steps=9),
        objective=ct.Objective(lambda_reg=0.9),
        config=ct.TrainConfig(epochs=3, burn_in=0.5, learning_rate=0.02),
    )
    params = ct.CounterfactualClassifier(preset=own, lambda_adv=0.3).get_params()
    generator = settings.make_training_generator(params)
    assert [penalty.weight for penalty in generator.penalties] == [0.7, 1.0] and generator.max_steps == 9
    objective = settings.make_training_objective(params)
    assert (objective.lambda_reg, objective.lambda_adv, objective.lambda_div) == (0.9, 0.3, 0.5)
    config = settings.make_config(params, num_rows=500, seed=1)
    assert (config.epochs, config.burn_in, config.learning_rate, config.shuffle) == (3, 0.5, 0.02, True)
    assert settings.make_config({**params, "epochs": np.int64(7)}, 500, 1).epochs == 7


def test_an_interrupted_fit_leaves_the_model_before(monkeypatch, blobs):
    x, y = blobs[0].numpy(), blobs[1].numpy()
    classifier = ct.CounterfactualClassifier(epochs=2, random_state=0).fit(x, y)
    before = classifier.predict_proba(x)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("counterfactual_training.estimator.classifier.train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        classifier.fit(x + 1, 1 - y)
    assert np.array_equal(classifier.predict_proba(x), before)
    fresh = ct.CounterfactualClassifier()
    with pytest.raises(KeyboardInterrupt):
        fresh.fit(x, y)
    assert not hasattr(fresh, "model_")


def test_a_device_that_is_not_there_is_an_input_error(blobs):
    with pytest.raises(InputError, match="device='cuda:99'"):
        ct.CounterfactualClassifier(device="cuda:99").fit(blobs[0].numpy(), blobs[1].numpy())
