"""Presets reach every setting that is not stated, and a failed fit costs nothing."""

import numpy as np
import pytest
import torch

import counterfactual_training as ct
from counterfactual_training.errors import InputError
from counterfactual_training.estimator import settings
from counterfactual_training.estimator.preparing import prepare


def test_a_preset_decides_what_is_not_stated():
    own = ct.Setting(
        generator=ct.ecco(lambda_energy=1.0, lambda_cost=0.7, max_steps=9),
        objective=ct.Objective(lambda_reg=0.9),
        config=ct.TrainConfig(epochs=3, burn_in=0.5, learning_rate=0.02),
    )
    params = ct.CounterfactualClassifier(preset=own, lambda_adv=0.3).get_params()
    x = torch.zeros(500, 2)
    made = settings.make_setting(params, x, ct.Constraints.infer(x), seed=1)
    generator, objective, config = made.generator, made.objective, made.config
    assert [penalty.weight for penalty in generator.penalties] == [0.7, 1.0] and generator.max_steps == 9
    assert (objective.lambda_reg, objective.lambda_adv, objective.lambda_div) == (0.9, 0.3, 0.5)
    assert (config.epochs, config.burn_in, config.learning_rate, config.shuffle) == (3, 0.5, 0.02, True)
    assert (config.seed, config.batch_size, config.num_counterfactuals, made.num_std) == (1, 30, 125, 0.0)
    stated = {**params, "epochs": np.int64(7), "num_std": None}
    again = settings.make_setting(stated, x, ct.Constraints.infer(x), seed=1)
    assert (again.config.epochs, again.num_std) == (7, 2.0)


def test_cheap_recourse_searches_with_categories_and_keeps_its_budget(loans, make_quick):
    classifier = make_quick(preset="cheap_recourse", mutability={"age": "none"}, epochs=4)
    frame, granted = loans
    prepared = prepare(classifier.get_params(deep=False), frame, granted, 0)
    setting = prepared.setting
    assert setting.constraints.category_projection == "end" and setting.constraints.groups
    assert (setting.budget, setting.config.positives, setting.config.immature) == (0.0025, 4, "keep")
    assert (setting.generator.max_steps, setting.generator.decision_threshold) == (50, 0.5)
    as_run = make_quick(preset="as_run").get_params(deep=False)
    assert prepare(as_run, frame, granted, 0).setting.constraints.category_projection == "never"
    history = classifier.fit(frame, granted).history_.to_frame()
    assert history["strength"].between(0.02, 1).all() and history["twin_accuracy"].notna().all()
    found = classifier.explain(frame[classifier.predict(frame) == "denied"].head(5), target="granted")
    assert (found.frame["age"].to_numpy() == frame.loc[found.frame.index, "age"].to_numpy()).all()
    restarted = make_quick(preset="cheap_recourse", epochs=3, n_restarts=2).fit(frame, granted)
    assert "twin_accuracy" in restarted.history_.records[-1]


def test_constraints_of_a_preset_are_refused_because_columns_have_their_own(blobs):
    own = ct.Setting(constraints=ct.Constraints.infer(blobs[0]))
    with pytest.raises(InputError, match="state mutability, domain or schema"):
        ct.CounterfactualClassifier(preset=own).fit(blobs[0].numpy(), blobs[1].numpy())


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
