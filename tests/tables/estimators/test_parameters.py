"""Presets decide whatever is not stated."""

import numpy as np
import pytest
import torch

import counterfactual_training as ct
from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError
from counterfactual_training.generators import generic
from counterfactual_training.tables.estimators import CounterfactualClassifier, parameters
from counterfactual_training.tables.estimators.fit import prepare
from counterfactual_training.tables.estimators.parameters import (
    make_setting,
    make_training_generator,
)


def test_sizes_that_follow_the_number_of_rows():
    params = CounterfactualClassifier().get_params()

    def config(num_rows, **changes):
        x = torch.zeros(num_rows, 1)
        return make_setting({**params, **changes}, x, Constraints.infer(x), 0).config

    sizes = [
        (c.batch_size, c.num_counterfactuals)
        for c in (config(50), config(3600), config(200_000))
    ]
    assert sizes == [(30, 100), (36, 900), (1000, 5000)]
    stated = config(50, batch_size=7, num_counterfactuals=11)
    assert (stated.batch_size, stated.num_counterfactuals, stated.shuffle) == (7, 11, True)


def test_presets_and_overrides_of_the_generator():
    printed = make_training_generator(
        CounterfactualClassifier(preset="as_printed").get_params()
    )
    assert (printed.learning_rate, printed.strict_epsilon, printed.penalties[1].decay) == (
        0.25,
        True,
        "none",
    )
    run = make_training_generator(
        CounterfactualClassifier(
            generator="generic", lambda_cost=0.5, lambda_energy=3.0, max_steps=7
        ).get_params()
    )
    assert (run.name, run.learning_rate, run.max_steps, run.penalties[0].weight) == (
        "generic",
        0.1,
        7,
        0.5,
    )
    kept = make_training_generator(
        CounterfactualClassifier(generator=generic(max_steps=9), epsilon=0.1).get_params()
    )
    assert (kept.max_steps, kept.epsilon) == (9, 0.1)


def test_a_preset_decides_what_is_not_stated():
    own = ct.Setting(
        generator=ct.ecco(lambda_energy=1.0, lambda_cost=0.7, max_steps=9),
        objective=ct.Objective(lambda_reg=0.9),
        config=ct.TrainConfig(epochs=3, burn_in=0.5, learning_rate=0.02),
    )
    params = ct.CounterfactualClassifier(preset=own, lambda_adv=0.3).get_params()
    x = torch.zeros(500, 2)
    made = parameters.make_setting(params, x, ct.Constraints.infer(x), seed=1)
    generator, objective, config = made.generator, made.objective, made.config
    assert [penalty.weight for penalty in generator.penalties] == [
        0.7,
        1.0,
    ] and generator.max_steps == 9
    assert (objective.lambda_reg, objective.lambda_adv, objective.lambda_div) == (0.9, 0.3, 0.5)
    assert (config.epochs, config.burn_in, config.learning_rate, config.shuffle) == (
        3,
        0.5,
        0.02,
        True,
    )
    assert (config.seed, config.batch_size, config.num_counterfactuals, made.num_std) == (
        1,
        30,
        125,
        0.0,
    )
    stated = {**params, "epochs": np.int64(7), "num_std": None}
    again = parameters.make_setting(stated, x, ct.Constraints.infer(x), seed=1)
    assert (again.config.epochs, again.num_std) == (7, 2.0)


@pytest.mark.check
def test_cheap_recourse_searches_with_categories_and_keeps_its_budget(loans, make_quick):
    classifier = make_quick(preset="cheap_recourse", mutability={"age": "none"}, epochs=4)
    frame, granted = loans
    prepared = prepare(classifier.get_params(deep=False), frame, granted, 0)
    setting = prepared.setting
    assert setting.constraints.category_projection == "end" and setting.constraints.groups
    assert (setting.budget, setting.config.positives, setting.config.immature) == (
        0.0025,
        4,
        "keep",
    )
    assert (setting.generator.max_steps, setting.generator.decision_threshold) == (50, 0.5)
    as_run = make_quick(preset="as_run").get_params(deep=False)
    assert prepare(as_run, frame, granted, 0).setting.constraints.category_projection == "never"
    history = classifier.fit(frame, granted).history_.to_frame()
    assert history["strength"].between(0.02, 1).all() and history["twin_accuracy"].notna().all()
    found = classifier.explain(
        frame[classifier.predict(frame) == "denied"].head(5), target="granted"
    )
    assert (
        found.frame["age"].to_numpy() == frame.loc[found.frame.index, "age"].to_numpy()
    ).all()
    restarted = make_quick(preset="cheap_recourse", epochs=3, n_restarts=2).fit(frame, granted)
    assert "twin_accuracy" in restarted.history_.records[-1]


def test_an_objective_that_is_named_has_its_weights_whatever_the_preset_leaves_out():
    def objective(**params):
        made = ct.CounterfactualClassifier(**params).get_params()
        x = torch.zeros(50, 2)
        return parameters.make_setting(made, x, ct.Constraints.infer(x), seed=0).objective

    assert not objective().needs_counterfactuals
    assert vars(objective(objective="full")) == vars(ct.Objective())
    assert vars(objective(objective="adversarial")) == vars(ct.make_objective("adversarial"))
    assert (
        objective(lambda_adv=0.3).lambda_adv == 0.3
        and objective(lambda_adv=0.3).lambda_div == 0
    )
    kept = ct.Setting(objective=ct.Objective(lambda_div=0.9, lambda_adv=0.0))
    assert vars(objective(preset=kept, objective="full")) == vars(ct.Objective(lambda_div=0.9))


def test_the_generator_is_the_presets_unless_stated():
    own = ct.Setting(generator=ct.generic(max_steps=7))
    params = ct.CounterfactualClassifier(
        preset=own, decision_threshold=0.6, lambda_energy=3.0
    ).get_params()
    made = parameters.make_training_generator(params)
    assert (made.name, made.max_steps, made.decision_threshold) == ("generic", 7, 0.6)
    assert parameters.make_training_generator({**params, "generator": "ecco"}).name == "ecco"


@pytest.mark.check
def test_explanations_are_by_the_presets_search_unless_a_generator_was_stated(blobs):
    x, y = blobs[0].numpy(), blobs[1].numpy()
    for params, asked in (
        ({}, None),
        ({"generator": "ecco"}, None),
        ({"decision_threshold": 0.6}, 0.6),
    ):
        classifier = ct.CounterfactualClassifier(epochs=1, random_state=0, **params).fit(x, y)
        assert classifier.explain(x[:2], max_steps=5).asked == asked
        assert classifier.explain(x[:2], max_steps=5, confidence=0.9).asked == 0.9
    paper = ct.CounterfactualClassifier(epochs=1, preset="as_run", random_state=0).fit(x, y)
    assert (
        paper.explain(x[:2]).asked is None
    )  # the threshold of the training is none of a person's business


def test_constraints_of_a_preset_are_refused_because_columns_have_their_own(blobs):
    own = ct.Setting(constraints=ct.Constraints.infer(blobs[0]))
    with pytest.raises(InputError, match="state mutability, domain or schema"):
        ct.CounterfactualClassifier(preset=own).fit(blobs[0].numpy(), blobs[1].numpy())


def test_a_device_that_is_not_there_is_an_input_error(blobs):
    with pytest.raises(InputError, match="device='cuda:99'"):
        ct.CounterfactualClassifier(device="cuda:99").fit(blobs[0].numpy(), blobs[1].numpy())


def whole(**params):
    return parameters.make_preset(ct.CounterfactualClassifier(**params).get_params())


def test_the_default_is_conventional_and_the_papers_preset_stays_the_papers():
    x = torch.zeros(500, 2)

    def objective(**params):
        given = ct.CounterfactualClassifier(**params).get_params()
        return vars(
            parameters.make_setting(given, x, ct.Constraints.infer(x), seed=0).objective
        )

    paper = whole(preset="as_run")
    assert (paper.hidden, paper.activation, paper.scaling, paper.early_stopping) == (
        (32,),
        "relu",
        "standard",
        False,
    )
    assert objective(preset="as_run") == vars(ct.Objective())
    assert objective() == vars(ct.make_objective("vanilla"))
    assert objective(objective="full") == vars(
        ct.Objective()
    )  # weights of 0 in the preset do not ablate it
    assert objective(lambda_adv=0.3)["lambda_adv"] == 0.3
    stated = whole(
        preset="as_run",
        hidden=[5],
        activation="tanh",
        scaling="robust",
        validation_fraction=0.3,
    )
    assert (stated.hidden, stated.activation, stated.validation_fraction) == ([5], "tanh", 0.3)


@pytest.mark.check
def test_an_outlier_moves_the_robust_model_little(make_blobs):
    x, y = (value.numpy() for value in make_blobs(n=300))
    x[0, 0] = 1e6
    classifier = ct.CounterfactualClassifier(random_state=0).fit(x, y)
    assert classifier.score(x[1:], y[1:]) > 0.95
    assert np.abs(classifier.encoder_.transform(x)[1:]).max() < 10
    assert (
        np.isfinite(classifier.decision_function(x)).all()
        and abs(classifier.decision_function(x)[0]) < 1e3
    )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"scaling": "robst"}, "Did you mean 'robust'"),
        ({"activation": "silu"}, "Unknown activation 'silu'"),
        ({"validation_fraction": 1.0}, "between 0 and 1"),
        ({"n_iter_no_change": 0}, "patience"),
    ],
)
def test_what_makes_no_sense_is_refused(make_blobs, params, message):
    x, y = (value.numpy() for value in make_blobs(n=120))
    with pytest.raises(InputError, match=message):
        ct.CounterfactualClassifier(epochs=1, **params).fit(x, y)


def test_the_default_comes_back_from_a_file(make_blobs, tmp_path):
    x, y = (value.numpy() for value in make_blobs(n=120))
    classifier = ct.CounterfactualClassifier(
        epochs=3, random_state=0, class_weight={0: 2.0}
    ).fit(x, y)
    classifier.save(tmp_path / "c")
    loaded = ct.CounterfactualClassifier.load(tmp_path / "c")
    assert loaded.get_params() == classifier.get_params()
    np.testing.assert_array_equal(loaded.predict_proba(x), classifier.predict_proba(x))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_stated_by_name_wins_over_the_schema(loans, make_quick):
    frame, labels = loans
    schema = {
        "debt": {"mutability": "none", "domain": (0, 10)},
        "age": {"mutability": "increase"},
    }
    stated = {"schema": schema, "mutability": {"debt": "decrease"}, "domain": {"debt": (0, 90)}}
    classifier = make_quick(epochs=1, **stated).fit(frame, labels)
    explainer = ct.Explainer(
        classifier.model_, frame, encoder=classifier.encoder_, gate="none", **stated
    )
    for found in (classifier.schema_, explainer.schema_):
        assert (found["debt"].mutability, found["debt"].domain, found["age"].mutability) == (
            "decrease",
            (0, 90),
            "increase",
        )


def weights_of(**params):
    params = CounterfactualClassifier(**params).get_params()
    objective = make_setting(params, torch.zeros(30, 2), Constraints.build(2), 0).objective
    return objective.lambda_div, objective.lambda_reg, objective.lambda_adv


@pytest.mark.parametrize("preset", ["default", "cheap_recourse"])
def test_a_divergence_that_is_switched_on_brings_its_ridge(preset):
    assert weights_of(preset=preset) == (0.0, 0.0, 0.0)
    assert weights_of(preset=preset, lambda_div=0.3) == (0.3, ct.Objective().lambda_reg, 0.0)
    assert weights_of(preset=preset, lambda_div=0.3, lambda_reg=0.7) == (0.3, 0.7, 0.0)
    assert weights_of(preset=preset, lambda_div=0.3, lambda_reg=0.0) == (0.3, 0.0, 0.0)
    assert (
        weights_of(preset=preset, lambda_div=0.0)
        == weights_of(preset=preset, lambda_adv=0.0)
        == (0.0, 0.0, 0.0)
    )


def test_a_ridge_of_zero_that_a_setting_of_ones_own_states_stays():
    own = ct.Setting(objective=ct.Objective(lambda_reg=0.0, lambda_adv=0.0))
    assert weights_of(preset=own, lambda_div=0.3) == (0.3, 0.0, 0.0)
    assert weights_of(objective=ct.Objective(0.0, 0.0, 0.0, 0.0), lambda_div=0.3) == (
        0.3,
        0.0,
        0.0,
    )


@pytest.mark.parametrize("lambda_reg", [0.0, 0.1])
def test_a_divergence_without_a_ridge_is_warned_about(lambda_reg, points, make_quick, recwarn):
    params = {
        "lambda_div": 0.3,
        "lambda_reg": lambda_reg,
        "num_counterfactuals": 5,
        "gate": "none",
    }
    make_quick(model="linear", epochs=1, **params).fit(*points)
    texts = [
        str(warning.message) for warning in recwarn if "without a ridge" in str(warning.message)
    ]
    assert len(texts) == (lambda_reg == 0)
    assert all(
        "lambda_div=0.3" in text and "State lambda_reg, such as the published 0.1." in text
        for text in texts
    )
