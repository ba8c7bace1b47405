"""Chains walked by hand against autograd: bit by bit for a lone model, up to rounding for a
fleet.
"""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from counterfactual_training import Constraints, Generator, ecco, generic, mlp, search
from counterfactual_training.constraints import Lattice
from counterfactual_training.errors import ModelError
from counterfactual_training.generators.chain import (
    ByAutograd,
    Chain,
    StackedChain,
    chain_layers,
    differentiable,
)
from counterfactual_training.models.stack import StackedModel
from counterfactual_training.models.trace import hooked

FEATURES = torch.Size([6])


def network(hidden, activation=nn.ReLU, bias=True, k=2, d=6):
    torch.manual_seed(0)
    widths = [d, *hidden, k]
    layers = []
    for i in range(len(widths) - 1):
        layers += [activation()] if i else []
        layers.append(nn.Linear(widths[i], widths[i + 1], bias=bias))
    return nn.Sequential(*layers).eval()


SHARED = nn.Tanh()
MODELS = {
    "linear": network(()),
    "relu": network((32,)),
    "two layers": network((32, 17)),
    "wide": network((256, 256), k=10),
    "one unit": network((1,)),
    "swish": network((32,), nn.SiLU),
    "tanh": network((20, 20), nn.Tanh),
    "sigmoid": network((9,), nn.Sigmoid, k=3),
    "leaky": network((32,), lambda: nn.LeakyReLU(0.2)),
    "gelu": network((32,), nn.GELU),
    "gelu by tanh": network((32,), lambda: nn.GELU("tanh")),
    "elu": network((32,), lambda: nn.ELU(0.5)),
    "softplus": network((32,), lambda: nn.Softplus(2.0, 1.0)),
    "identities": nn.Sequential(nn.Identity(), *network((8,)), nn.Identity()),
    "one activation twice": network((8, 8), lambda: SHARED),
    "half": network((16,), nn.GELU).bfloat16(),
    "without bias": network((32, 32), bias=False),
    "activations at both ends": nn.Sequential(nn.Tanh(), *network((8,)), nn.ReLU()),
    "double": network((16,)).double(),
    "squashed": mlp(6, 2, (16,), "swish", squash=True),
}


@pytest.mark.parametrize("rows", [1, 2, 7, 256, 1000])
@pytest.mark.parametrize("name", MODELS)
def test_a_chain_has_autograds_bits(name, rows):
    model = MODELS[name]
    like = next(model.parameters())
    x = torch.randn(rows, 6).to(like)
    by_columns = x.t().contiguous().t()
    for points in (x, by_columns):
        by_hand, automatic = differentiable(model, FEATURES, 2), ByAutograd(model)
        assert isinstance(by_hand, Chain)
        logits = automatic.logits(points)
        assert torch.equal(by_hand.logits(points), logits)
        grad = torch.randn(logits.shape).to(logits)
        assert torch.equal(by_hand.pullback(grad), automatic.pullback(grad))
    assert not logits.requires_grad and all(p.grad is None for p in model.parameters())


CONSTRAINTS = {
    "nothing": None,
    "box and directions": Constraints.build(
        6, ["both", "increase", "decrease", "none", "both", "both"], (-2.0, 2.0)
    ),
    "discrete": Constraints.build(6, groups=[[0, 1, 2]], lattices=[Lattice(3)]),
}
GENERATORS = {
    "generic": generic(0.01),
    "ecco": ecco(0.01, 5.0),
    "plain": Generator("plain", strict_epsilon=True),
}


@pytest.mark.parametrize("constraints", CONSTRAINTS)
@pytest.mark.parametrize("generator", GENERATORS)
def test_a_search_by_hand_is_the_search_by_autograd(generator, constraints):
    torch.manual_seed(1)
    x = torch.randn(300, 6).clamp(-2, 2)
    x[:, :3] = nn.functional.one_hot(torch.randint(3, (300,)), 3)
    x[:, 3] = x[:, 3].round()
    y = torch.randint(2, (300,))
    model = network((32, 17))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)  # decided enough for the threshold to be within reach
    hooked = nn.Sequential(*model)
    hooked.register_forward_hook(lambda *_: None)
    found = [
        search(m, x, y, GENERATORS[generator], CONSTRAINTS[constraints])
        for m in (model, hooked)
    ]
    for name in ("x_cf", "x_adv", "converged", "num_steps", "status", "confidence", "binding"):
        assert torch.equal(getattr(found[0], name), getattr(found[1], name)), name
    assert 0 < int(found[0].mature.sum()) < 300


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def hook(model, where):
    where(model)(lambda *_: None)
    return model


def instance_forward():
    model = network((4,))
    model[0].forward = lambda x: x[:, :4]
    return model


def tied(how=lambda weight: weight):
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight = how(model[0].weight)
    return model


def unregistered():
    model = network((4,))
    weight = model[0].weight
    del model[0].weight
    model[0].weight = 2 * weight
    return model


OTHERS = {
    "a subclass": lambda: nn.Sequential(Doubled(6, 2)),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(), nn.Linear(4, 2)),
    "an unknown activation": lambda: network((4,), nn.Mish),
    "in place": lambda: network((4,), lambda: nn.ReLU(inplace=True)),
    "a hook": lambda: hook(network((4,)), lambda m: m.register_forward_hook),
    "a hook inside": lambda: hook(network((4,)), lambda m: m[1].register_forward_pre_hook),
    "a hook on the way back": lambda: hook(
        network((4,)), lambda m: m[0].register_full_backward_hook
    ),
    "weight norm": lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 2))
    ),
    "its own forward": instance_forward,
    "a layer twice": lambda: nn.Sequential(*[nn.Linear(6, 6)] * 2),
    "a weight twice": tied,
    "memory twice": lambda: tied(lambda weight: nn.Parameter(weight.data)),
    "a weight that is no parameter": unregistered,
    "no linear layer": lambda: nn.Sequential(nn.ReLU()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_anything_else_is_left_to_autograd(name):
    assert isinstance(differentiable(OTHERS[name](), FEATURES, 2), ByAutograd)


@pytest.mark.parametrize(
    "register",
    [
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
        nn.modules.module.register_module_full_backward_hook,
        nn.modules.module.register_module_full_backward_pre_hook,
    ],
)
def test_hooks_on_all_modules_are_honoured(register):
    model, stacked = MODELS["relu"], StackedModel([network((4,))])
    handle = register(lambda *_: None)
    try:
        assert hooked(model) and chain_layers(model) is None
        assert isinstance(differentiable(stacked, FEATURES, 3), ByAutograd)
    finally:
        handle.remove()
    assert chain_layers(model) == list(model)


def test_identities_are_no_layers_of_a_chain():
    model = MODELS["identities"]
    assert chain_layers(model) == list(model)[1:-1]


def test_other_rows_and_modes_are_left_to_autograd():
    model = MODELS["relu"]
    assert isinstance(differentiable(model, torch.Size([2, 3]), 2), ByAutograd)
    assert isinstance(differentiable(model, FEATURES, 3), ByAutograd)
    assert isinstance(differentiable(model, FEATURES, 2, plain=False), ByAutograd)
    with torch.autocast("cpu"):
        assert isinstance(differentiable(model, FEATURES, 2), ByAutograd)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("double", "half")])
def test_a_stacked_chain_gives_what_autograd_gives(name):
    torch.manual_seed(2)
    members = [nn.Sequential(*(_fresh(layer) for layer in MODELS[name])) for _ in range(3)]
    stacked = StackedModel(members)
    by_hand, automatic = differentiable(stacked, FEATURES, 3), ByAutograd(stacked)
    assert isinstance(by_hand, StackedChain)
    x = torch.randn(3, 50, 6)
    before = x.clone()
    logits = automatic.logits(x)
    assert_close(by_hand.logits(x), logits)
    grad = torch.randn(logits.shape)
    kept = grad.clone()
    assert_close(by_hand.pullback(grad), automatic.pullback(grad))
    assert torch.equal(x, before) and torch.equal(grad, kept)


def _fresh(layer):
    if isinstance(layer, nn.Linear):
        return nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    return layer


def test_weights_are_read_at_every_search():
    model = mlp(6, 2)
    x, y = torch.randn(20, 6), torch.ones(20, dtype=torch.long)
    first = search(model, x, y)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.neg_()
    assert not torch.equal(search(model, x, y).confidence, first.confidence)


def test_an_output_without_gradient_is_refused():
    network = ByAutograd(lambda x: x.detach())
    network.logits(torch.randn(3, 2))
    with pytest.raises(ModelError, match="differentiably"):
        network.pullback(torch.ones(3, 2))
