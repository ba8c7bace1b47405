"""Neuro-trees, embeddings, TabM and ensembles: formulas, initial values, and what is refused."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus
from torch.testing import assert_close

import counterfactual_training as ct
from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.models.embeddings import Periodic, PiecewiseLinear, varied
from counterfactual_training.models.ensemble import joined_layers
from counterfactual_training.models.neurotree import NeuroTrees
from counterfactual_training.models.shapes import describe, make_network, shape_in_words
from counterfactual_training.models.stack import StackedModel
from counterfactual_training.models.tabm import TabM

X = torch.randn(50, 5, generator=torch.Generator().manual_seed(1))
X[:, 4] = (X[:, 4] > 0).float()
MAKERS = {
    "neurotree": lambda squash=False: ct.neurotree(5, 3, num_trees=4, depth=3, squash=squash),
    "mlp-plr": lambda squash=False: ct.mlp_plr(5, 3, (6, 4), "swish", squash, columns=(0, 2)),
    "mlp-ple": lambda squash=False: ct.mlp_ple(
        5, 3, (6,), "tanh", squash, columns=(0, 1, 3), num_bins=7, x=X
    ),
    "tabm": lambda squash=False: ct.tabm(5, 3, (6, 4), squash=squash, num_members=3),
}


# ---- neuro-trees ---------------------------------------------------------------------------------


def test_a_neuro_tree_is_the_mean_over_trees_of_leaves_weighted_by_the_way_to_them():
    trees = NeuroTrees(5, 3, num_trees=2, depth=2).double()
    x = X[0].double()

    def output(tree, node, level):
        if level == 2:
            return trees.leaves[tree, node - 3]
        weight = trees.weight[tree, node].tanh()
        mean = (weight / weight.abs().sum()) @ x + trees.bias[tree, node]
        gate = torch.sigmoid(softplus(trees.steepness[tree, node]) * mean)
        below = [output(tree, 2 * node + way, level + 1) for way in (1, 2)]
        return gate * below[0] + (1 - gate) * below[1]

    assert_close(trees(x), (output(0, 0, 0) + output(1, 0, 0)) / 2)


def test_neuro_trees_start_as_in_their_authors_package():
    trees = NeuroTrees(30, 2)
    assert (trees.num_trees, trees.depth) == (64, 4)
    assert_close(softplus(trees.steepness), torch.ones(64, 15))
    for values in (trees.weight, trees.bias):
        assert float(values.detach().abs().max()) <= 0.125
        assert float(values.detach().std()) == pytest.approx(0.125 / math.sqrt(3), rel=0.05)
    assert float(trees.leaves.detach().std()) == pytest.approx(0.1, rel=0.1)


def test_trees_without_weights_are_finite():
    trees = NeuroTrees(5, 2, 2, 2)
    nn.init.zeros_(trees.weight)
    trees(X).sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in trees.parameters())


def test_absurd_trees_are_refused():
    with pytest.raises(InputError, match="depth is from 1 to 16, got 40"):
        ct.neurotree(2, 2, depth=40)
    with pytest.raises(InputError, match="num_trees must be a whole number"):
        ct.neurotree(2, 2, num_trees=0)


# ---- embeddings ----------------------------------------------------------------------------------


def test_periodic_embeddings():
    layer = Periodic(5, (1, 3), num_frequencies=3, size=2).double()
    x = X.double()
    found = layer(x)
    assert found.shape == (50, 3 + 2 * 2) == (50, layer.width)
    assert torch.equal(found[:, :3], x[:, [0, 2, 4]])
    for place, column in enumerate((1, 3)):
        turns = 2 * math.pi * x[:, column, None] * layer.frequencies[place]
        waves = torch.cat([turns.sin(), turns.cos()], 1)
        assert_close(
            found[:, 3 + 2 * place : 5 + 2 * place],
            (waves @ layer.weight[place] + layer.bias[place]).clamp_min(0),
        )


def test_bins_lie_between_quantiles_and_end_at_the_edge_of_the_data():
    x = torch.arange(101.0).unsqueeze(-1).repeat(1, 2)
    x[:, 1] = x[:, 1].clamp_min(60)
    layer = PiecewiseLinear(2, num_bins=4)
    layer.fit(x)
    assert layer.lower[0].tolist() == [0, 25, 50, 75]
    assert_close(layer.rate[0], torch.full((4,), 0.04))
    # Of the second column three edges coincide: two bins are left, and the others stay zero.
    assert layer.lower[1, :2].tolist() == [60, 75] and layer.rate[1, 2:].tolist() == [0, 0]
    found = layer(torch.tensor([[30.0, 80.0], [-1e9, -1e9], [1e9, 1e9]])).unflatten(-1, (2, 4))
    assert_close(found[0], torch.tensor([[1, 0.2, 0, 0], [1, 0.2, 0, 0]]))
    assert found[1].sum() == 0 and found[2].sum() == 6


def test_columns_of_one_value_or_of_rounding_errors_are_harmless():
    x = torch.stack([torch.full((40,), 2.0), 1 + 1e-7 * torch.arange(40.0)], 1)
    x[0, 1] = 5.0
    layer = PiecewiseLinear(2)
    layer.fit(x)
    assert bool(layer(x).isfinite().all()) and float(layer.rate.max()) < 1e6


def test_squashed_rows_have_bins_of_what_the_layer_sees():
    model = ct.mlp_ple(5, 2, squash=True, x=X)
    assert_close(model[1].lower[0, 0], X[:, 0].min().asinh())


def test_only_columns_with_more_than_two_values_vary():
    assert varied(X) == (0, 1, 2, 3)


@pytest.mark.parametrize("columns", [(5,), (-1,), (0, 0), (1.5,), ("a",)])
def test_columns_to_embed_are_columns(columns):
    with pytest.raises(InputError, match="different numbers from 0 to 4"):
        ct.mlp_plr(5, 2, columns=columns)


# ---- TabM and ensembles --------------------------------------------------------------------------


def test_tabm_is_the_mean_of_networks_that_share_their_matrices():
    model = TabM(5, 3, (6, 4), num_members=3).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    x, total = X.double(), 0
    for m in range(3):
        h = x
        for layer in model.layers:
            h = (
                ((h * layer.before[m]) @ layer.weight.T) * layer.behind[m] + layer.bias[m]
            ).relu()
        total = total + h @ model.head[m] + model.bias[m]
    assert_close(model(x), total / 3)


def test_members_of_tabm_differ_by_signs_alone_at_first():
    model = TabM(400, 2, (8, 8), num_members=4)
    first, second = model.layers
    assert (
        first.before.detach().abs().unique().tolist() == [1.0]
        and abs(float(first.before.detach().mean())) < 0.1
    )
    assert (
        bool((second.before == 1).all())
        and bool((first.behind == 1).all())
        and bool((first.bias == 0).all())
    )


def test_tabm_needs_hidden_layers():
    with pytest.raises(InputError, match="TabM needs hidden layers"):
        ct.tabm(5, 2, hidden=())


def test_an_ensemble_averages_logits_and_keeps_the_scale_of_the_energy():
    members = [ct.mlp(5, 3), ct.neurotree(5, 3)]
    model = ct.Ensemble(members)
    assert_close(model(X), (members[0](X) + members[1](X)) / 2)
    assert float(model(X).detach().logsumexp(-1).abs().min()) > 0.1
    with pytest.raises(ModelError, match="at least one member"):
        ct.Ensemble([])


# ---- all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_a_network_of_the_same_shape_is_made_from_plain_numbers(name, squash):
    for model in (MAKERS[name](squash), ct.Ensemble([MAKERS[name](squash) for _ in range(2)])):
        again = make_network(describe(model), 5, 3)
        again.load_state_dict(model.state_dict())
        assert torch.equal(again(X), model(X)) and repr(again) == repr(model)


def test_networks_in_words():
    said = {name: shape_in_words(describe(make())) for name, make in MAKERS.items()}
    assert said == {
        "neurotree": "4 smooth trees of depth 3",
        "mlp-plr": "network on periodic embeddings with hidden layers of 6 and 4 units",
        "mlp-ple": "network on piecewise-linear embeddings with hidden layers of 6 units",
        "tabm": "3 networks that share weights, with hidden layers of 6 and 4 units",
    }
    assert shape_in_words(describe(ct.linear(3, 2))) == "linear classifier"
    pair = ct.Ensemble([ct.mlp(3, 2), ct.mlp(3, 2)])
    assert shape_in_words(describe(pair)) == "2 networks with hidden layers of 32 units"
    lines = ct.Ensemble([ct.linear(3, 2), ct.linear(3, 2), ct.linear(3, 2)])
    assert shape_in_words(describe(lines)) == "3 linear classifiers"
    trees = ct.Ensemble([MAKERS["neurotree"](), MAKERS["neurotree"]()])
    assert shape_in_words(describe(trees)) == "2 times 4 smooth trees of depth 3"


def test_a_network_without_a_kind_is_a_perceptron_and_others_are_refused():
    assert repr(make_network({"hidden": (4,), "squash": True}, 5, 2)) == repr(
        ct.mlp(5, 2, (4,), squash=True)
    )
    with pytest.raises(InputError, match="Did you mean 'tabm'"):
        make_network({"kind": "tabn"}, 5, 2)
    one = {"kind": "ensemble", "size": 1, "member": {"kind": "mlp"}}
    for bad in (one | {"size": 10**9}, one | {"member": one}):
        with pytest.raises(ModelError, match=r"ensemble has from 1 to 1000|got an ensemble"):
            make_network(bad, 5, 2)


@pytest.mark.parametrize("name", MAKERS)
def test_stacked_they_are_what_they_are_alone(name):
    models = [MAKERS[name]() for _ in range(3)]
    stacked, x = StackedModel(models), torch.randn(3, 7, 5)
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


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("rule", ["fixed", "line"])
def test_searches_respect_their_box(name, rule):
    model, y = MAKERS[name](), (X[:, 0] + X[:, 1] > 0).long() + (X[:, 1] > 0.7)
    ct.train(
        model,
        X,
        y,
        ct.methods.conventional(epochs=30, learning_rate=0.02, batch_size=25),
        progress=False,
    )
    constraints = ct.Constraints.infer(X, num_std=0, mutability={0: "increase", 2: "none"})
    generator = (ct.generic if rule == "fixed" else ct.line)(
        decision_threshold=0.6, max_steps=100
    )
    found = ct.search(model, X, (y + 1) % 3, generator=generator, constraints=constraints)
    low, high = X.min(0).values, X.max(0).values
    assert float(found.converged.float().mean()) > 0.3
    assert bool(((found.x_cf >= low - 1e-5) & (found.x_cf <= high + 1e-5)).all())
    assert torch.equal(found.x_cf[:, 2], X[:, 2]) and bool(
        (found.x_cf[:, 0] >= X[:, 0] - 1e-6).all()
    )


# ---- ensembles as one network --------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [(), (8,), (8, 6), (7, 5, 4)], ids=str)
@pytest.mark.parametrize("squash", [False, True])
def test_joined_members_compute_the_mean_of_their_logits(hidden, squash):
    model = ct.Ensemble([ct.mlp(5, 3, hidden, "swish", squash) for _ in range(4)]).double()
    layers = joined_layers(model)
    assert_close(nn.Sequential(*layers)(X.double()), model(X.double()))
    # The first layer is all members', the last one plain.
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if hidden:
        assert linear[0].out_features == 4 * hidden[0]
        assert linear[-1].in_features == 4 * hidden[-1]


def test_members_without_biases_are_joined_too():
    def make():
        return nn.Sequential(
            nn.Linear(5, 6, bias=False), nn.ReLU(), nn.Linear(6, 2, bias=False)
        )

    model = ct.Ensemble([make(), make()])
    assert_close(nn.Sequential(*joined_layers(model))(X), model(X))


def hooked_ensemble():
    model = ct.Ensemble([ct.mlp(5, 3), ct.mlp(5, 3)])
    model.register_forward_hook(lambda module, args, output: -output)
    return model


@pytest.mark.parametrize(
    "model",
    [
        ct.mlp(5, 3),
        ct.Ensemble([ct.mlp(5, 3, (8,)), ct.mlp(5, 3, (9,))]),
        ct.Ensemble([nn.Sequential(*ct.mlp(5, 3), nn.Tanh()) for _ in range(2)]),
        hooked_ensemble(),
        ct.Ensemble([ct.neurotree(5, 3), ct.neurotree(5, 3)]),
    ],
    ids=["one", "not alike", "bent at the end", "hooked", "no chains"],
)
def test_what_cannot_be_joined_is_left_as_it_is(model):
    assert joined_layers(model) is None
