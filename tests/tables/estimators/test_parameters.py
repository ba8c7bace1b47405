"""What the parameters of the classifier mean for a training."""

import numpy as np
import pytest
import torch

import counterfactual_training as ct
from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.fit import prepare
from counterfactual_training.tables.estimators.parameters import method_for_rows


def made(method="conventional", num_rows=500, **changes):
    params = CounterfactualClassifier(method, **changes).get_params(deep=False)
    x = torch.zeros(num_rows, 2)
    return method_for_rows(params, x, Constraints.infer(x), seed=1)


def test_sizes_that_follow_the_number_of_rows():
    sizes = [
        (own.batch_size, own.num_counterfactuals, own.shuffle)
        for own in (made(num_rows=num).training for num in (50, 3600, 200_000))
    ]
    assert sizes == [(30, 100, True), (36, 900, True), (1000, 5000, True)]
    stated = made("ct_published(num_counterfactuals=11, shuffle=False)", batch_size=7).training
    assert (stated.batch_size, stated.num_counterfactuals, stated.shuffle) == (7, 11, False)
    assert (
        made("ct_published(batch_size=30, num_counterfactuals=1000)", 3600).training.batch_size
        == 30
    )
    by_hand = ct.Method(training=ct.TrainConfig(batch_size=9))
    assert made(by_hand).training.batch_size == 9


def test_what_is_stated_beside_the_method_wins():
    method = ct.methods.ct_published(epochs=3, learning_rate=0.02, burn_in=0.5)
    own = made(method).training
    assert (own.epochs, own.learning_rate, own.burn_in, own.seed) == (3, 0.02, 0.5, 1)
    stated = made(method, epochs=np.int64(7), learning_rate=0.3)
    assert (stated.training.epochs, stated.training.learning_rate) == (7, 0.3)
    assert (stated.num_std, made(method, num_std=None).num_std) == (0.0, 2.0)
    assert made("ct_published(num_std=1)", num_std=None).num_std == 1.0


def test_the_default_trains_without_counterfactuals_and_ct_with_them():
    assert not made().needs_counterfactuals
    assert vars(made("ct_published").objective) == vars(ct.Objective())
    printed = made("ct_as_printed").generator
    assert (printed.learning_rate, printed.strict_epsilon) == (0.25, True)


@pytest.mark.check
def test_cheap_recourse_searches_with_categories_and_keeps_its_budget(loans, make_quick):
    classifier = make_quick("cheap_recourse", mutability={"age": "none"}, epochs=4)
    frame, granted = loans
    prepared = prepare(classifier.get_params(deep=False), frame, granted, 0)
    method = prepared.method
    assert method.constraints.category_projection == "end" and method.constraints.groups
    assert (method.budget, method.training.positives, method.training.immature) == (
        0.0025,
        4,
        "keep",
    )
    assert prepared.patience is None  # the budget stops by itself
    assert (method.generator.max_steps, method.generator.decision_threshold) == (50, 0.5)
    as_run = prepare(make_quick("ct_published").get_params(deep=False), frame, granted, 0)
    assert as_run.method.constraints.category_projection == "never"
    history = classifier.fit(frame, granted).history_.to_frame()
    assert (
        history["strength"].between(0.02, 1).all()
        and history["reference_accuracy"].notna().all()
    )
    found = classifier.explain(
        frame[classifier.predict(frame) == "denied"].head(5), target="granted"
    )
    assert (
        found.frame["age"].to_numpy() == frame.loc[found.frame.index, "age"].to_numpy()
    ).all()
    restarted = make_quick("cheap_recourse", epochs=3, n_restarts=2).fit(frame, granted)
    assert "reference_accuracy" in restarted.history_.records[-1]


@pytest.mark.check
@pytest.mark.parametrize("method", ["conventional", "ct_published"])
def test_an_answer_asks_for_the_decision_unless_a_confidence_is_stated(method, blobs):
    x, y = blobs[0].numpy(), blobs[1].numpy()
    classifier = ct.CounterfactualClassifier(method, epochs=1, random_state=0).fit(x, y)
    assert classifier.explain(x[:2]).asked is None
    assert classifier.explain(x[:2], generator="ecco", max_steps=5).asked is None
    assert classifier.explain(x[:2], max_steps=5, confidence=0.9).asked == 0.9


def test_constraints_of_a_method_are_refused_because_columns_have_their_own(blobs):
    own = ct.Method(constraints=ct.Constraints.infer(blobs[0]))
    with pytest.raises(InputError, match="state mutability, domain or schema"):
        ct.CounterfactualClassifier(own).fit(blobs[0].numpy(), blobs[1].numpy())


def test_plain_scaling_has_the_papers_plain_network(make_blobs):
    x, y = (value.numpy() for value in make_blobs(n=120))
    plain = {"scaling": "standard", "hidden": (32,), "activation": "relu"}
    paper = ct.CounterfactualClassifier("ct_published", **plain, epochs=1, random_state=0).fit(
        x, y
    )
    assert [type(layer).__name__ for layer in paper.model_] == ["Linear", "ReLU", "Linear"]


def test_a_device_that_is_not_there_is_an_input_error(blobs):
    with pytest.raises(InputError, match="device='cuda:99'"):
        ct.CounterfactualClassifier(device="cuda:99").fit(blobs[0].numpy(), blobs[1].numpy())


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


@pytest.mark.parametrize("lambda_reg", [0.0, 0.1])
def test_a_divergence_without_a_ridge_is_warned_about(lambda_reg, points, make_quick, recwarn):
    method = ct.methods.ct_published(
        lambda_div=0.3, lambda_reg=lambda_reg, num_counterfactuals=5
    )
    make_quick(method, model="linear", epochs=1, gate="none").fit(*points)
    texts = [
        str(warning.message) for warning in recwarn if "without a ridge" in str(warning.message)
    ]
    assert len(texts) == (lambda_reg == 0)
    assert all(
        "lambda_div=0.3" in text and "State lambda_reg, such as the published 0.1." in text
        for text in texts
    )
