"""The paper's classifiers: shapes, initial weights, and what is refused."""

import pytest
import torch
from torch import nn

from counterfactual_training import cnn, linear, mlp
from counterfactual_training.errors import InputError
from counterfactual_training.models.classifiers import Asinh, _with_three_values, bend


def test_linear_is_one_layer():
    model = linear(4, 3)
    assert [type(layer) for layer in model] == [nn.Linear]
    assert model(torch.zeros(5, 4)).shape == (5, 3)


def test_the_default_perceptron_is_the_papers():
    model = mlp(4, 3)
    assert [type(layer) for layer in model] == [nn.Linear, nn.ReLU, nn.Linear]
    assert model[0].out_features == 32


@pytest.mark.parametrize(
    ("activation", "kind"), [("relu", nn.ReLU), ("swish", nn.SiLU), ("tanh", nn.Tanh)]
)
def test_activations_and_depth(activation, kind):
    model = mlp(2, 2, hidden=(8, 4), activation=activation)
    assert [type(layer) for layer in model] == [nn.Linear, kind, nn.Linear, kind, nn.Linear]


def test_glorot_weights_and_zero_biases():
    torch.manual_seed(0)
    layer = mlp(100, 2, hidden=(50,))[0]
    bound = (6 / 150) ** 0.5
    assert float(layer.weight.detach().abs().max()) <= bound
    assert float(layer.weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.05)
    assert bool((layer.bias == 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_asinh_is_that_of_torch(dtype):
    large = 10 ** torch.linspace(-30, 30, 61, dtype=dtype)
    x = torch.cat(
        [large, -large, torch.tensor([0.0, torch.inf, -torch.inf], dtype=dtype)]
    ).requires_grad_()
    found, expected = Asinh()(x), torch.asinh(x)
    torch.testing.assert_close(found, expected, rtol=4 * torch.finfo(dtype).eps, atol=0)
    slopes = [
        torch.autograd.grad(values.sum(), x, retain_graph=True)[0]
        for values in (found, expected)
    ]
    assert torch.equal(*slopes)
    assert torch.equal(torch.func.vmap(Asinh())(x), found)
    with torch.no_grad():
        assert torch.equal(Asinh()(x), found)


def test_leading_dimensions_pass_through():
    assert mlp(3, 2)(torch.zeros(4, 5, 3)).shape == (4, 5, 2)


def test_cnn_takes_rows_and_images():
    torch.manual_seed(0)
    model = cnn(64, 10, image_shape=(1, 8, 8))
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(model(x), model(x.flatten(1))) and model(x).shape == (3, 10)


def test_unknown_activation_suggests_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'relu'"):
        mlp(2, 2, activation="relus")


@pytest.mark.parametrize("widths", [{"hidden": (0,)}, {"num_classes": 0}])
def test_widths_are_positive(widths):
    with pytest.raises(InputError, match=r"must be positive|num_classes must"):
        mlp(2, widths.pop("num_classes", 2), **widths)


def test_image_shape_must_fit_the_features():
    with pytest.raises(InputError, match="64 pixels, the data 60 features"):
        cnn(60, 10, image_shape=(1, 8, 8))


def test_bends_lie_at_quantiles_of_columns_with_more_than_two_values():
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    x[:, 1] = (x[:, 1] > 0).float()
    x[0, 2] = 1e9
    model = mlp(3, 2, (16,), "swish", squash=True)
    rest = model[1].weight[8:].clone()
    bend(model, x, 0.5)
    weight, bias = model[1].weight.detach(), model[1].bias.detach()
    assert weight[:8].count_nonzero(1).tolist() == [1] * 8 and (weight[:8, 1] == 0).all()
    assert torch.equal(weight[8:], rest) and (bias[8:] == 0).all()
    for column, units in ((0, range(0, 8, 2)), (2, range(1, 8, 2))):
        at = torch.stack([-bias[j] / weight[j, column] for j in units]).sinh()
        torch.testing.assert_close(
            at,
            x[:, column].quantile(torch.tensor([0.125, 0.375, 0.625, 0.875])),
            atol=0.02,
            rtol=0,
        )
    assert _with_three_values(model[0], x.repeat(200, 1)) == [
        0,
        2,
    ]  # more rows than are looked at together
    parts = torch.tensor([0.0, 0.5, 1.0]).repeat_interleave(70_000).unsqueeze(1)
    assert _with_three_values(torch.nn.Identity(), parts) == [0]
    same = mlp(3, 2, (16,))
    before = same[0].weight.clone()
    bend(same, x[:, 1:2].expand(-1, 3), 0.5)
    assert torch.equal(same[0].weight, before)
