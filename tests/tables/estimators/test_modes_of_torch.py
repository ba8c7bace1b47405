"""What a caller switches on in torch around a call changes no answer."""

import numpy as np
import pytest
import torch
from pandas.testing import assert_frame_equal
from torch.testing import assert_close

import counterfactual_training as ct
from counterfactual_training.generators import evaluating

MODES = {
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.fixture(params=MODES)
def mode(request):
    return MODES[request.param]


def test_explanations(mode, fitted, rejected):
    expected = fitted.explain(rejected[:3])
    with mode():
        answer = fitted.explain(rejected[:3])
    assert_frame_equal(answer.frame, expected.frame)
    np.testing.assert_array_equal(answer.confidence, expected.confidence)
    np.testing.assert_array_equal(answer.plausibility, expected.plausibility)


def test_predictions_and_plausibility(mode, fitted, rejected):
    methods = (fitted.predict_proba, fitted.decision_function, fitted.plausibility)
    expected = [method(rejected) for method in methods]
    with mode():
        values = [method(rejected) for method in methods]
    for value, wanted in zip(values, expected, strict=True):
        np.testing.assert_array_equal(value, wanted)


def test_an_explainer_of_a_module(mode, fitted, rejected, loans):
    def ask():
        given = {"encoder": fitted.encoder_, "classes": fitted.classes_}
        return ct.Explainer(fitted.model_, loans[0][:60], **given).explain(rejected[:2]).frame

    expected = ask()
    with mode():
        frame = ask()
    assert_frame_equal(frame, expected)


def test_a_file_read_in_inference_mode_works_outside(fitted, rejected, tmp_path):
    fitted.save(tmp_path / "model.safetensors")
    with torch.inference_mode():
        loaded = ct.CounterfactualClassifier.load(tmp_path / "model.safetensors")
    assert_frame_equal(loaded.explain(rejected[:2]).frame, fitted.explain(rejected[:2]).frame)


@pytest.mark.check
def test_a_regressor(points):
    x, _ = points
    model = ct.CounterfactualRegressor(model="linear", epochs=2, random_state=0)
    model.fit(x, x[:, 0] + 1)
    expected = model.explain(x[:2], (1.5, None)).frame
    predicted = model.predict(x)
    for mode in MODES.values():
        with mode():
            np.testing.assert_array_equal(model.predict(x), predicted)
            assert_frame_equal(model.explain(x[:2], (1.5, None)).frame, expected)


@pytest.mark.parametrize(
    ("without_gradients", "gate"),
    [(torch.inference_mode, "density"), (torch.no_grad, "learned")],
)
def test_a_fit_without_gradients_around_it(
    without_gradients, gate, points, make_quick, quick_gates
):
    params = {"model": "linear", "epochs": 2, "gate": gate}
    expected = make_quick(**params).fit(*points)
    with without_gradients():
        model = make_quick(**params).fit(*points)
    assert_close(model.model_.state_dict(), expected.model_.state_dict(), rtol=0, atol=0)
    assert_frame_equal(
        model.explain(points[0][:2]).frame, expected.explain(points[0][:2]).frame
    )


@pytest.mark.parametrize("make", [ct.mlp, ct.neurotree])  # by hand, and by autograd
def test_what_is_made_in_inference_mode_is_searched_and_trained(make, blobs):
    def steps():
        torch.manual_seed(0)
        model = make(2, 2)
        x, y = (part.clone() for part in blobs)
        found = ct.search(model, x, 1 - y, ct.generic(max_steps=3), ct.Constraints.infer(x))
        attacked = ct.fgsm(model, x, y, 0.1)
        method = ct.methods.ct_published(epochs=1, batch_size=30, num_counterfactuals=10)
        ct.train(model, x, y, method, validation=(x, y), progress=False)
        return model, [found.x_cf, found.confidence, attacked]

    expected_model, expected = steps()
    with torch.inference_mode():
        model, values = steps()
    assert_close(values, expected, rtol=0, atol=0)
    assert_close(model.state_dict(), expected_model.state_dict(), rtol=0, atol=0)
    model(blobs[0]).sum().backward()  # and goes on to be an ordinary model


@pytest.mark.filterwarnings(
    "ignore::counterfactual_training.evaluation.findings.MeasurementWarning"
)
@pytest.mark.parametrize("without_gradients", [torch.inference_mode, torch.no_grad])
def test_an_evaluation(without_gradients, blobs):
    model = ct.mlp(2, 2)
    protocol = ct.EvaluationProtocol(
        num_individuals=4, num_runs=1, langevin_steps=2, lambda_energy=(0.1,)
    )
    expected = ct.evaluate(model, blobs, protocol)
    with without_gradients():
        table = ct.evaluate(model, tuple(part.clone() for part in blobs), protocol)
    assert_frame_equal(table, expected)


def test_a_search_in_a_training_loop_of_ones_own_keeps_autocast(blobs):
    """The model is asked in the precision that its owner chose."""
    x, y = blobs
    dtypes = set()
    model = ct.mlp(2, 2)
    model.register_forward_hook(lambda module, inputs, output: dtypes.add(output.dtype))
    with evaluating(model), MODES["autocast"]():
        ct.search(model, x, 1 - y, ct.generic(max_steps=2))
    assert dtypes == {torch.bfloat16}


def test_a_warning_still_names_the_callers_line(blobs):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).eval()
    method = ct.methods.ct_published(epochs=1, num_counterfactuals=10)
    with pytest.warns(UserWarning, match="came in eval mode") as caught:
        ct.train(model, *blobs, method, progress=False)
    assert caught[0].filename == __file__
