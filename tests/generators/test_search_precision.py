"""Half precision: whatever a model computes with, probabilities meet τ in float32."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from counterfactual_training import (
    Constraints,
    Generator,
    ecco,
    generic,
    linear,
    mlp,
    revise,
    search,
)
from counterfactual_training.constraints import Lattice
from counterfactual_training.models.stack import StackedModel
from counterfactual_training.models.vae import fit_vae

HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


class Autocast(nn.Module):
    """A model that casts by itself: float32 goes in, half precision comes out."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, x):
        with torch.autocast("cpu", self.dtype):
            return self.model(x)


def own(**settings) -> Generator:
    return Generator(
        "own", penalties=(lambda state: 0.01 * state.delta.square().sum(-1),), **settings
    )


def problem(members=None):
    torch.manual_seed(0)
    models = [mlp(4, 2, hidden=(16,)) for _ in range(members or 1)]
    for model in models:
        for parameter in model.parameters():
            parameter.data.mul_(2.5)
    x = torch.randn(*([members] if members else []), 40, 4)
    model = StackedModel(models) if members else models[0]
    with torch.no_grad():
        return model, x, 1 - model(x).argmax(-1)


SETTINGS = {"max_steps": 40, "decision_threshold": 0.9, "learning_rate": 0.3}
GENERATORS = {
    "generic": lambda x: generic(**SETTINGS),
    "ecco": lambda x: ecco(**SETTINGS),
    "own": lambda x: own(**SETTINGS),
    "revise": lambda x: revise(fit_vae(x, epochs=20), **SETTINGS),
}


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("where", ["around", "inside"])
@HALVES
def test_autocast_is_honoured(dtype, where, name):
    model, x, y_target = problem()
    generator = GENERATORS[name](x)
    exact = search(model, x, y_target, generator)
    if where == "around":
        with torch.autocast("cpu", dtype):
            result = search(model, x, y_target, generator)
    else:
        result = search(Autocast(model, dtype), x, y_target, generator)
    expect_single(result)
    assert result.x_cf.dtype == torch.float32
    if name != "revise":  # its latent steps differ by more than a model's rounding
        assert (
            int(exact.converged.sum()) > 20
            and int((result.converged != exact.converged).sum()) <= 2
        )
        assert_close(result.x_cf, exact.x_cf, atol=0.5, rtol=0)
    assert not torch.equal(result.x_cf, exact.x_cf), (
        "the search did not use the model's precision"
    )


def expect_single(result):
    assert result.confidence.dtype == torch.float32
    assert torch.equal(result.converged, result.confidence >= 0.9)
    assert bool((result.confidence[result.mature] >= 0.9).all()) and bool(result.mature.any())


@pytest.mark.parametrize("name", ["generic", "ecco", "own"])
@pytest.mark.parametrize("members", [None, 3])
@HALVES
def test_models_in_half_precision(dtype, members, name):
    model, x, y_target = problem(members)
    generator = GENERATORS[name](x)
    exact = search(model, x, y_target, generator)
    result = search(model.to(dtype), x.to(dtype), y_target, generator)
    expect_single(result)
    assert result.x_cf.dtype == result.x_adv.dtype == dtype
    assert float((result.converged == exact.converged).float().mean()) > 0.9


@HALVES
def test_constraints_hold_in_half_precision(dtype):
    model, x, y_target = problem()
    rules = Constraints.build(4, {0: "none", 1: "increase"}, (-8.0, 8.0), lattices=[Lattice(2)])
    x[:, 2] = x[:, 2].round()
    x = x.to(dtype)
    result = search(model.to(dtype), x, y_target, GENERATORS["ecco"](x), rules)
    assert torch.equal(result.x_cf[:, 0], x[:, 0]) and bool(
        (result.x_cf[:, 1] >= x[:, 1]).all()
    )
    assert torch.equal(result.x_cf[:, 2], result.x_cf[:, 2].round())


def test_a_threshold_is_not_rounded_to_the_models_precision():
    """0.9 is 0.8984375 in bfloat16: a row of probability 0.899 has not arrived."""
    model = linear(1, 2).bfloat16()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.0], [1.0]]))
        model[0].bias.zero_()
    x = torch.tensor([[2.1875]], dtype=torch.bfloat16)
    assert 0.8984 < float(x.float().sigmoid()) < 0.9
    result = search(
        model, x, torch.tensor([1]), Generator("plain", max_steps=0, decision_threshold=0.9)
    )
    assert not bool(result.converged) and float(result.confidence) == float(x.float().sigmoid())
