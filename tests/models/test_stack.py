"""Models side by side compute what each computes alone."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from counterfactual_training import cnn, linear, mlp
from counterfactual_training.errors import ModelError
from counterfactual_training.models.stack import StackedModel


class Tied(nn.Module):
    """Not a Sequential, one layer used twice, a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.twice = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.register_buffer("shift", torch.randn(4))

    def forward(self, x):
        return self.twice(self.twice(self.first(x).tanh()) + self.shift)


def repeated():
    act, layer = nn.SiLU(), nn.Linear(4, 4)
    return nn.Sequential(layer, act, layer, act, nn.Linear(4, 3, bias=False))


MAKERS = {
    "mlp": lambda: mlp(4, 3, (6, 5)),
    "linear": lambda: linear(4, 3),
    "tied": Tied,
    "repeated": repeated,
    "normed": lambda: nn.Sequential(
        nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3)
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_outputs_and_gradients_are_the_members_own(name):
    torch.manual_seed(0)
    models = [MAKERS[name]() for _ in range(3)]
    stacked, x = StackedModel(models), torch.randn(3, 7, 4)
    out = stacked(x)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    for i, model in enumerate(models):
        alone = model(x[i])
        assert_close(out[i], alone)
        (alone * weight[i]).sum().backward()
        assert_close(
            stacked.weights.grad[i], torch.cat([p.grad.flatten() for p in model.parameters()])
        )


def test_images():
    torch.manual_seed(0)
    models = [cnn(784, 3) for _ in range(2)]
    x = torch.rand(2, 4, 1, 28, 28)
    for i, model in enumerate(models):
        assert_close(StackedModel(models)(x)[i], model(x[i]), atol=1e-5, rtol=1e-4)


def test_stacking_copies_and_unstacking_gives_back():
    models = [Tied() for _ in range(3)]
    stacked = StackedModel(models)
    before = copy.deepcopy(models[1].state_dict())
    with torch.no_grad():
        stacked.weights.add_(1.0)
    assert all(
        torch.equal(value, before[name]) for name, value in models[1].state_dict().items()
    )
    x = torch.randn(5, 4)
    out = stacked(x.expand(3, 5, 4))[1]
    assert_close(stacked.unstack(1)(x), out)
    stacked.keep(torch.tensor([1, 2]))
    assert stacked.num_members == 2
    assert stacked.unstack(0, models[0]) is models[0]
    assert_close(models[0](x), out)


def test_layers_of_a_mode_follow_it():
    """Also where somebody sets the flag by hand, and but for parts that were frozen."""

    class Louder(nn.Module):
        def forward(self, x):
            return 10 * x if self.training else x

    models = [
        nn.Sequential(nn.Linear(4, 3), Louder(), nn.Sequential(Louder()).eval())
        for _ in range(2)
    ]
    stacked, x = StackedModel(models), torch.randn(2, 5, 4)
    loud, quiet = stacked.train()(x), stacked.eval()(x)
    assert_close(loud, 10 * quiet)
    stacked.training = True
    assert_close(stacked(x), loud)


@pytest.mark.parametrize(
    ("models", "why"),
    [
        ([], "at least one"),
        ([mlp(4, 3), mlp(4, 2)], "same architecture"),
        ([mlp(4, 3), mlp(4, 3).double()], "same architecture"),
        (
            [
                nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
                nn.Sequential(nn.Linear(4, 3), nn.Tanh()),
            ],
            "same architecture",
        ),
        (
            [nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))],
            "BatchNorm1d '1' keeps running statistics",
        ),
        ([nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 3))], "Dropout '0' draws random numbers"),
        ([nn.Identity()], "must have parameters"),
    ],
)
def test_what_cannot_be_stacked_is_refused_with_the_reason(models, why):
    with pytest.raises(ModelError, match=why):
        StackedModel(models)


def test_a_model_is_not_stacked_with_itself():
    model = mlp(4, 3)
    with pytest.raises(ModelError, match="share parameters"):
        StackedModel([model, model])
