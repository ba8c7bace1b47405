"""The paper's networks of named data sets."""

import pytest
import torch

import counterfactual_training as ct
from counterfactual_lab.dataset_classifier import as_classifier
from counterfactual_lab.networks import encoder_of, fit_model, untrained
from counterfactual_training.datasets import load_dataset
from counterfactual_training.errors import InputError
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier


@pytest.fixture(scope="module")
def data():
    return load_dataset("loan")


@pytest.fixture(scope="module")
def trained(data):
    model = untrained(data, 3, (8, 4))
    fit_model(model, data, ct.methods.ct_published(epochs=1, seed=3), progress=False)
    return model


def test_equal_seeds_give_equal_models_and_others_others(trained, data):
    for seed, same in ((3, True), (4, False)):
        model = untrained(data, seed, (8, 4))
        fit_model(model, data, ct.methods.ct_published(epochs=1, seed=seed), progress=False)
        assert torch.equal(model(data.x_test), trained(data.x_test)) == same


def test_names_of_data_sets():
    assert load_dataset("LOAN").name == "loan"
    assert load_dataset("Moon").name == "moons"
    with pytest.raises(InputError, match="Did you mean 'moons'"):
        load_dataset("mons")
    with pytest.raises(InputError, match="default"):
        load_dataset("loan", "full")


def test_protected_columns_have_the_names_of_the_frame(data):
    assert data.protected_columns == ("age",)


def test_a_data_set_without_encoder_gets_one_that_changes_nothing():
    moons = load_dataset("moons")
    assert torch.equal(
        torch.as_tensor(encoder_of(moons).transform(moons.frame_test)).float(), moons.x_test
    )


def test_a_model_with_the_scikit_learn_face_predicts_and_explains_alike(trained, data):
    classifier = as_classifier(trained, data, ("age",))
    people = data.frame_test.iloc[:6]
    expected = trained(data.x_test[:6]).argmax(-1)
    assert classifier.predict(people).tolist() == [
        data.class_names[k] for k in expected.tolist()
    ]
    explanation = classifier.explain(people)
    assert explanation.frame["age"].equals(people["age"])


def test_a_model_with_the_scikit_learn_face_can_be_saved_and_loaded(trained, data, tmp_path):
    classifier = as_classifier(trained, data, ("age",))
    classifier.save(tmp_path / "c.safetensors")
    loaded = CounterfactualClassifier.load(tmp_path / "c.safetensors")
    people = data.frame_test.iloc[:20]
    assert loaded.predict_proba(people) == pytest.approx(classifier.predict_proba(people))
    told, again = classifier.explain(people), loaded.explain(people)
    assert again.frame.equals(told.frame) and again.changes() == told.changes()
    assert again.frame["age"].equals(people["age"])  # still protected
