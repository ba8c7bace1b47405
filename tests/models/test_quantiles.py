"""Ranks as inputs: monotone, invertible, and the same in files and fleets."""

import torch
from torch.testing import assert_close

import counterfactual_training as ct
from counterfactual_training.models.quantiles import Quantiles, behind_quantiles, knots
from counterfactual_training.models.shapes import describe, make_network
from counterfactual_training.models.stack import StackedModel


def rows(n=400):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=rng).double()
    x[:, 0] = x[:, 0].mul(3).exp()
    x[:, 1] = (x[:, 1] > 1).double()
    x[:, 2] = x[:, 2].clamp_min(0)
    return x


def test_knots_are_values_apart_from_each_other():
    assert knots(torch.arange(101.0), 4).tolist() == [0, 25, 50, 75, 100]
    assert knots(torch.tensor([3.0, 3.0]), 4).tolist() == [3]
    assert knots(1 + 1e-8 * torch.arange(50.0).double(), 4).tolist() == [1]


def test_heavy_tails_become_normal_and_two_values_stay():
    x = rows()
    layer = Quantiles(4, 64).double().fit(x)
    z = layer(x)
    assert abs(float(z[:, 0].mean())) < 0.05 and abs(float(z[:, 0].std()) - 1) < 0.05
    assert torch.equal(z[:, 1], x[:, 1])
    # Half of the third column's rows are zero: their score is that of their middle, a quarter.
    assert_close(
        z[x[:, 2] == 0, 2].unique(), torch.tensor([-0.6745]).double(), atol=0.1, rtol=0
    )


def test_it_rises_everywhere_and_is_undone():
    layer = Quantiles(4).double().fit(rows())
    x = torch.linspace(-50, 500, 4001).double().unsqueeze(-1).expand(-1, 4)
    z = layer(x)
    assert bool((z.diff(dim=0) > 0).all())
    assert_close(layer.inverse(z), x, rtol=1e-9, atol=1e-9)
    plain = Quantiles(2)
    assert_close(plain(torch.tensor([[-2.0, 1.5]])), torch.tensor([[-2.0, 1.5]]))


def test_constant_columns_are_harmless():
    layer = Quantiles(1).fit(torch.full((20, 1), 4.0))
    assert_close(layer(torch.tensor([[4.0], [5.0]])), 4 + torch.tensor([[0.0], [1.0]]).asinh())


def test_shapes_and_stacks():
    x = rows().float()
    models = [
        behind_quantiles(ct.mlp_plr(4, 2, (5,)), Quantiles(4, 7).fit(x)) for _ in range(2)
    ]
    again = make_network(describe(models[0]), 4, 2)
    again.load_state_dict(models[0].state_dict())
    assert torch.equal(again(x), models[0](x))
    out = StackedModel(models)(x.expand(2, -1, -1))
    for i, model in enumerate(models):
        assert_close(out[i], model(x))
