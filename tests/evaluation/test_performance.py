"""Accuracy, F1 and calibration against scikit-learn and by hand."""

import math

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch import nn

from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.evaluation.performance import (
    accuracy,
    calibration_error,
    macro_f1,
    predict_logits,
)


@pytest.fixture
def answers():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(3, 200, 5, generator=rng), torch.randint(0, 4, (3, 200), generator=rng)


def test_accuracy_and_f1_agree_with_sklearn(answers):
    logits, y = answers
    logits[1, :, 4] = -9  # class 4 is neither a label nor, here, a prediction
    for i in range(3):
        predicted = logits[i].argmax(-1)
        assert float(accuracy(logits, y)[i]) == pytest.approx(accuracy_score(y[i], predicted))
        assert float(macro_f1(logits, y)[i]) == pytest.approx(
            f1_score(y[i], predicted, average="macro")
        )


def test_calibration_error_by_hand():
    confidence = torch.tensor([0.55, 0.58, 0.95, 0.95], dtype=torch.float64)
    logits = torch.stack(
        [torch.zeros(4, dtype=torch.float64), torch.log(confidence / (1 - confidence))], -1
    )
    y = torch.tensor([1, 0, 1, 1])
    expected = 0.5 * abs(0.5 - 0.565) + 0.5 * abs(1.0 - 0.95)
    assert float(calibration_error(logits, y, num_bins=10)) == pytest.approx(expected)


def test_a_confidence_at_the_edge_belongs_to_the_bin_below():
    """Half sure and right, and sure and wrong: in one bin the two would make up for each other."""
    logits = torch.tensor([[0.0, 0.0], [0.0, math.log(9.0)]], dtype=torch.float64)
    expected = (0.5 + 0.9) / 2
    assert float(calibration_error(logits, torch.tensor([0, 0]), num_bins=2)) == pytest.approx(
        expected
    )


def test_calibration_error_against_a_loop(answers):
    logits, y = answers
    for i in range(3):
        confidence, predicted = logits[i].softmax(-1).max(-1)
        total = 0.0
        for b in range(15):
            inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
            if inside.any():
                gap = (predicted[inside] == y[i][inside]).float().mean() - confidence[
                    inside
                ].mean()
                total += float(inside.float().mean() * gap.abs())
        assert float(calibration_error(logits, y)[i]) == pytest.approx(total, abs=1e-6)


def test_a_calibrated_model_has_a_small_error():
    rng = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20_000, 3, generator=rng)
    y = torch.multinomial(logits.softmax(-1), 1, generator=rng).squeeze(-1)
    assert float(calibration_error(logits, y)) < 0.02
    assert float(calibration_error(3 * logits, y)) > 0.1


def test_predict_logits_works_in_batches_and_leaves_the_model_alone():
    rng = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    model[2].eval()
    x = torch.randn(50, 3, generator=rng)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    logits = predict_logits(model, x, batch_size=7)
    assert [m.training for m in model] == [True, True, False, True]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    torch.testing.assert_close(logits, model.eval()(x).detach())
    assert not logits.requires_grad


def test_bad_input():
    good = torch.randn(4, 3)
    with pytest.raises(ModelError, match="one column"):
        accuracy(torch.randn(4, 1), torch.zeros(4, dtype=torch.long))
    with pytest.raises(InputError, match="one label per row"):
        accuracy(good, torch.zeros(5, dtype=torch.long))
    with pytest.raises(InputError, match=r"y\.long\(\)"):
        macro_f1(good, torch.zeros(4))
    with pytest.raises(InputError, match=r"0\.\.2, got 0\.\.3"):
        calibration_error(good, torch.tensor([0, 1, 2, 3]))
    with pytest.raises(InputError, match="float64"):
        predict_logits(nn.Linear(3, 2), torch.zeros(4, 3, dtype=torch.float64))
