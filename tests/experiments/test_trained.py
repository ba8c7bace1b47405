"""Classifiers of named data sets."""

from dataclasses import replace

import pytest
import torch

from counterfactual_training.datasets import load_dataset
from counterfactual_training.errors import FileError, InputError
from counterfactual_training.experiments.trained import (
    Recipe,
    TrainedClassifier,
    as_classifier,
    encoder_of,
    fit,
    protected_columns,
    protected_constraints,
)
from counterfactual_training.generators import ecco, generic
from counterfactual_training.persistence import save_file
from counterfactual_training.tables.estimators import CounterfactualClassifier

RECIPE = Recipe("loan", objective="full", protected=("age",), hidden=(8, 4), epochs=1, seed=3)


@pytest.fixture(scope="module")
def data():
    return load_dataset("loan")


@pytest.fixture(scope="module")
def trained(data):
    return fit(RECIPE, data, progress=False)


def test_a_saved_model_is_the_same_after_loading(trained, data, tmp_path):
    trained.save(tmp_path / "m.safetensors")
    loaded = TrainedClassifier.load(tmp_path / "m.safetensors")
    assert loaded.recipe == RECIPE
    assert torch.equal(loaded.model(data.x_test), trained.model(data.x_test))
    assert loaded.numbers["share_mature"] == trained.numbers["share_mature"]


def test_equal_recipes_give_equal_models_and_other_seeds_others(trained, data):
    again, other = (
        fit(RECIPE, data, progress=False),
        fit(replace(RECIPE, seed=4), data, progress=False),
    )
    assert torch.equal(again.model(data.x_test), trained.model(data.x_test))
    assert not torch.equal(other.model(data.x_test), trained.model(data.x_test))


def test_a_linear_recipe_makes_a_linear_model(data):
    model = fit(replace(RECIPE, hidden=()), data, progress=False).model
    middle = model((data.x_test[0:1] + data.x_test[1:2]) / 2)
    assert torch.allclose(
        middle, (model(data.x_test[0:1]) + model(data.x_test[1:2])) / 2, atol=1e-5
    )


@pytest.mark.parametrize(
    "content", [{}, {"recipe": 3, "numbers": {}}, {"recipe": {"data": "loan"}, "numbers": {}}]
)
def test_a_file_that_describes_no_classifier_is_refused(content, tmp_path):
    save_file(
        tmp_path / "m.safetensors",
        "data set classifier",
        {"0.weight": torch.zeros(2, 2)},
        content,
    )
    with pytest.raises(FileError, match="damaged"):
        TrainedClassifier.load(tmp_path / "m.safetensors")


def test_a_file_cannot_claim_a_larger_model_than_it_holds(trained, tmp_path):
    trained.save(tmp_path / "m.safetensors")
    huge = replace(trained, recipe=replace(RECIPE, hidden=(10**9,)))
    huge.save(tmp_path / "huge.safetensors")
    model = TrainedClassifier.load(tmp_path / "huge.safetensors").model
    assert sum(p.numel() for p in model.parameters()) == sum(
        p.numel() for p in trained.model.parameters()
    )


def test_weights_that_miss_a_layer_are_refused(trained, tmp_path):
    state = {
        name: value
        for name, value in trained.model.state_dict().items()
        if not name.startswith("2.")
    }
    trained.save(tmp_path / "m.safetensors")
    from counterfactual_training.persistence import load_file

    _, content = load_file(tmp_path / "m.safetensors", "data set classifier")
    save_file(tmp_path / "m.safetensors", "data set classifier", state, content)
    with pytest.raises(FileError):
        TrainedClassifier.load(tmp_path / "m.safetensors")


def test_names_of_data_sets():
    assert load_dataset("LOAN").name == "loan"
    assert load_dataset("Moon").name == "moons"
    with pytest.raises(InputError, match="Did you mean 'moons'"):
        load_dataset("mons")
    with pytest.raises(InputError, match="default"):
        load_dataset("loan", "full")


def test_protected_columns_are_immutable_by_name(data):
    assert protected_columns(data) == ("age",)
    held = protected_constraints(data, data.constraints, ("debt",))
    assert held.directions == ("both", "none")
    assert protected_constraints(data, data.constraints, ()).directions == ("both", "both")
    with pytest.raises(InputError, match="'age', 'debt'"):
        protected_constraints(data, data.constraints, ("income",))


def test_a_data_set_without_encoder_gets_one_that_changes_nothing():
    moons = load_dataset("moons")
    assert torch.equal(
        torch.as_tensor(encoder_of(moons).transform(moons.frame_test)).float(), moons.x_test
    )


def test_a_model_with_the_scikit_learn_face_predicts_and_explains_alike(trained, data):
    classifier = as_classifier(trained.model, data, generic(decision_threshold=0.51), ("age",))
    people = data.frame_test.iloc[:6]
    expected = trained.model(data.x_test[:6]).argmax(-1)
    assert classifier.predict(people).tolist() == [
        data.class_names[k] for k in expected.tolist()
    ]
    explanation = classifier.explain(people)
    assert explanation.frame["age"].equals(people["age"])


@pytest.mark.parametrize(
    "generator", [generic(decision_threshold=0.51, max_steps=20), ecco(0.01, 2.0, epsilon=0.1)]
)
def test_a_model_with_the_scikit_learn_face_can_be_saved_and_loaded(
    trained, data, generator, tmp_path
):
    classifier = as_classifier(trained.model, data, generator, ("age",))
    classifier.save(tmp_path / "c.safetensors")
    loaded = CounterfactualClassifier.load(tmp_path / "c.safetensors")
    people = data.frame_test.iloc[:20]
    assert loaded.predict_proba(people) == pytest.approx(classifier.predict_proba(people))
    told, again = classifier.explain(people), loaded.explain(people)
    assert again.frame.equals(told.frame) and again.changes() == told.changes()
    assert again.frame["age"].equals(people["age"])  # still protected
    assert loaded.generator_.penalties[0].weight == generator.penalties[0].weight


def test_a_generator_that_no_parameters_describe_has_to_be_brought_along(
    trained, data, tmp_path
):
    own = ecco(decay="none")
    as_classifier(trained.model, data, own).save(tmp_path / "c.safetensors")
    with pytest.raises(FileError, match="generator of your own"):
        CounterfactualClassifier.load(tmp_path / "c.safetensors")
    loaded = CounterfactualClassifier.load(tmp_path / "c.safetensors", generator=own)
    assert loaded.generator_.penalties == own.penalties
