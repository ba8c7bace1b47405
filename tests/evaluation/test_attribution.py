"""Integrated gradients: their axioms, Captum, and the published sensitivity score."""

import pytest
import torch
from torch import nn

from counterfactual_training import mlp
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.attribution import (
    AttributionRounds,
    completeness_gap,
    integrated_gradients,
    protected_sensitivity,
    standardise,
)
from counterfactual_training.evaluation.findings import MeasurementWarning
from covering import each_value


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).double()


@pytest.fixture
def rows():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(20, 4, generator=rng, dtype=torch.float64), torch.randint(
        0, 3, (20,), generator=rng
    )


def score(model, x, y, output):
    out = model(x).detach()
    out = out.softmax(-1) if output == "probability" else out
    return out.gather(-1, y[:, None]).squeeze(-1)


@pytest.mark.parametrize("output", ["logit", "probability"])
@pytest.mark.parametrize(
    ("quadrature", "tolerance"), [("gauss_legendre", 1e-8), ("midpoint", 2e-3)]
)
def test_completeness(model, rows, output, quadrature, tolerance):
    x, y = rows
    baseline = torch.full((4,), 0.3, dtype=torch.float64)
    attributions = integrated_gradients(model, x, y, baseline, 50, quadrature, output)
    change = score(model, x, y, output) - score(model, baseline.expand_as(x), y, output)
    torch.testing.assert_close(attributions.sum(-1), change, atol=tolerance, rtol=0)


def test_a_linear_model_is_attributed_by_hand():
    model = nn.Linear(3, 2)
    x, y = torch.tensor([[1.0, -2.0, 0.5]]), torch.tensor([1])
    torch.testing.assert_close(
        integrated_gradients(model, x, y, steps=1), x * model.weight[1].detach()
    )
    assert model.weight.grad is None


def test_unused_features_get_nothing(model, rows):
    with torch.no_grad():
        model[0].weight[:, 2] = 0
    x, y = rows
    assert bool((integrated_gradients(model, x, y)[:, 2] == 0).all())


def test_images():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    images = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    assert (
        integrated_gradients(model, images, torch.zeros(5, dtype=torch.long), steps=3).shape
        == images.shape
    )


@pytest.mark.parametrize(
    ("quadrature", "method"),
    [("gauss_legendre", "gausslegendre"), ("midpoint", "riemann_middle")],
)
@pytest.mark.check
def test_captum(model, rows, quadrature, method):
    captum = pytest.importorskip("captum.attr", reason="captum absent")
    x, y = rows
    baseline = torch.randn(
        20, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    expected = captum.IntegratedGradients(model).attribute(
        x, baseline, target=y, n_steps=20, method=method
    )
    torch.testing.assert_close(
        integrated_gradients(model, x, y, baseline, 20, quadrature), expected
    )


def test_standardisations_by_hand():
    g = torch.tensor([[-1.0, 0.0, 3.0]])
    torch.testing.assert_close(standardise(g, "range"), torch.tensor([[0.0, 0.25, 1.0]]))
    torch.testing.assert_close(standardise(g, "magnitude"), torch.tensor([[0.25, 0.0, 0.75]]))
    torch.testing.assert_close(standardise(g, "share"), torch.tensor([[0.25, 0.0, 0.75]]))
    torch.testing.assert_close(standardise(g), standardise(g, "range"))
    two = torch.tensor([2.0, 2.1])
    torch.testing.assert_close(
        standardise(two), torch.tensor([20.0, 21.0]), atol=1e-3, rtol=0
    )  # it does explode
    assert bool((standardise(two, "share") < 1).all())


def test_protected_sensitivity_of_a_linear_model():
    # On a linear model IG_d = w_d (x_d − b_d): a zero weight gives the smallest magnitude there is.
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]))
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(100, 3, generator=rng) + 5, torch.randint(0, 2, (100,), generator=rng)
    few = AttributionRounds(rounds=5, num_samples=50, steps=2)
    unused = protected_sensitivity(model, x, y, [0], torch.Generator().manual_seed(1), few)
    assert unused.shape == (5,)
    assert bool((unused == 0).all())
    used = protected_sensitivity(model, x, y, [1], torch.Generator().manual_seed(1), few)
    assert bool((used > 0.5).all())


def test_one_round_by_hand():
    model = nn.Linear(3, 2)
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 3, generator=rng), torch.randint(0, 2, (30,), generator=rng)
    how = AttributionRounds(1, 40, 3, "share", (-2.0, 0.0))
    value = protected_sensitivity(model, x, y, [0, 2], torch.Generator().manual_seed(4), how)
    rng = torch.Generator().manual_seed(4)
    index = torch.randint(30, (40,), generator=rng)
    baseline = -2 + 2 * torch.rand(40, 3, generator=rng)  # one per sample
    g = (model.weight.detach()[y[index]] * (x[index] - baseline)).mean(0)
    torch.testing.assert_close(value[0], (g.abs() / g.abs().sum())[[0, 2]].mean())


def test_too_few_steps_for_the_path_are_said():
    model = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2))
    x, y = 10 * torch.randn(50, 3), torch.zeros(50, dtype=torch.long)
    with pytest.warns(MeasurementWarning, match="more steps"):
        protected_sensitivity(
            model, x, y, [0], torch.Generator(), AttributionRounds(1, num_samples=50, steps=1)
        )


def test_bad_input(model, rows):
    x, y = rows
    rng = torch.Generator()
    with pytest.raises(InputError, match="Did you mean 'midpoint'"):
        integrated_gradients(model, x, y, quadrature="midpont")
    with pytest.raises(InputError, match="baseline"):
        integrated_gradients(model, x, y, torch.zeros(3))
    with pytest.raises(InputError, match="output"):
        integrated_gradients(model, x, y, output="loss")
    with pytest.raises(InputError, match="steps"):
        integrated_gradients(model, x, y, steps=0)
    with pytest.raises(InputError, match="standardisation"):
        standardise(x, "max")
    with pytest.raises(InputError, match="protected"):
        protected_sensitivity(model, x, y, [4], rng)
    with pytest.raises(InputError, match="protected"):
        protected_sensitivity(model, x, y, [], rng)
    with pytest.raises(InputError, match="rounds"):
        AttributionRounds(rounds=0)


@each_value(output=["logit", "probability"], lead=[(), (2,)])
def test_networks_with_kinks_are_integrated_until_the_gap_is_small(output, lead):
    torch.manual_seed(0)
    model = mlp(6, 3, hidden=(32, 32), activation="relu")
    x, y, baseline = (
        2 * torch.randn(*lead, 40, 6),
        torch.randint(3, (*lead, 40)),
        torch.randn(*lead, 40, 6),
    )
    rough = integrated_gradients(model, x, y, baseline, output=output)
    fine = integrated_gradients(model, x, y, baseline, output=output, tolerance=1e-3)
    before, after = (
        completeness_gap(model, x, y, found, baseline, output) for found in (rough, fine)
    )
    # The gap is what the sum misses of F(x) − F(b).
    value, start = (
        model(at).softmax(-1) if output == "probability" else model(at) for at in (x, baseline)
    )
    change = (value - start).gather(-1, y.unsqueeze(-1)).squeeze(-1).detach()
    torch.testing.assert_close((rough.sum(-1) - change).abs(), before, atol=1e-5, rtol=0)
    assert before.max() > 4e-3 and bool((after <= 1e-3 * (1 + change.abs())).all())


def test_a_gap_that_remains_is_said():
    class Staircase(torch.nn.Module):
        """Its gradient is zero wherever it exists."""

        def forward(self, x):
            return torch.stack(
                [x.sum(-1) * 0, x.sum(-1) * 0 + 3 * x.sum(-1).floor().detach()], -1
            )

    x = torch.full((3, 2), 2.0)
    with pytest.warns(
        MeasurementWarning, match=r"3 rows miss F\(x\) − F\(baseline\), by up to 1.2e"
    ):
        integrated_gradients(
            Staircase(), x, torch.ones(3, dtype=torch.long), steps=1, tolerance=1e-3
        )
