"""Presets reach every setting that is not stated, and a failed fit costs nothing."""

import numpy as np
import pytest
import torch

import counterfactual_training as ct
from counterfactual_training.errors import InputError
from counterfactual_training.estimator import settings


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


def test_an_objective_that_is_named_has_its_weights_whatever_the_preset_leaves_out():
    def objective(**params):
        made = ct.CounterfactualClassifier(**params).get_params()
        x = torch.zeros(50, 2)
        return settings.make_setting(made, x, ct.Constraints.infer(x), seed=0).objective

    assert not objective().needs_counterfactuals
    assert vars(objective(objective="full")) == vars(ct.Objective())
    assert vars(objective(objective="adversarial")) == vars(ct.make_objective("adversarial"))
    assert objective(lambda_adv=0.3).lambda_adv == 0.3 and objective(lambda_adv=0.3).lambda_div == 0
    kept = ct.Setting(objective=ct.Objective(lambda_div=0.9, lambda_adv=0.0))
    assert vars(objective(preset=kept, objective="full")) == vars(ct.Objective(lambda_div=0.9))


def test_the_generator_is_the_presets_unless_stated():
    own = ct.Setting(generator=ct.generic(max_steps=7))
    params = ct.CounterfactualClassifier(preset=own, decision_threshold=0.6, lambda_energy=3.0).get_params()
    made = settings.make_training_generator(params)
    assert (made.name, made.max_steps, made.decision_threshold) == ("generic", 7, 0.6)
    assert settings.make_training_generator({**params, "generator": "ecco"}).name == "ecco"


def test_explanations_are_by_the_presets_search_unless_a_generator_was_stated(blobs):
    x, y = blobs[0].numpy(), blobs[1].numpy()
    for params, threshold in (({}, 0.5), ({"generator": "ecco"}, 0.75), ({"decision_threshold": 0.6}, 0.6)):
        classifier = ct.CounterfactualClassifier(epochs=1, random_state=0, **params).fit(x, y)
        assert classifier.explain(x[:2]).decision_threshold == threshold
    paper = ct.CounterfactualClassifier(epochs=1, preset="as_run", random_state=0).fit(x, y)
    assert paper.explain(x[:2]).decision_threshold == 0.75


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
