"""Training by the table of Eq. 2 is training by autograd of Eq. 2 as a textbook writes it: bit by
bit for a lone model, up to rounding for a stack.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, replace

import pytest
import torch
from cases import MODELS as LAW_MODELS
from torch import nn
from torch.nn.modules import module as torch_module
from torch.testing import assert_close

import counterfactual_training as ct
from counterfactual_training.errors import InputError
from counterfactual_training.models.stack import StackedModel
from counterfactual_training.training.learner import ByLoss, ByTable, Learner
from counterfactual_training.training.network import (
    ChainNetwork,
    Network,
    StackedNetwork,
    network_of,
)
from counterfactual_training.training.objective import (
    Batch,
    CounterfactualBatch,
    Objective,
)
from covering import each_value, on_product
from eq2_terms import Textbook, textbook


def chain(widths, activation=nn.ReLU, bias=True):
    layers = []
    for i in range(len(widths) - 1):
        layers += [activation()] if i else []
        layers.append(nn.Linear(widths[i], widths[i + 1], bias=bias))
    return nn.Sequential(*layers)


def frozen(*places):
    model = chain((4, 7, 6, 3))
    for place in places:
        model[place].requires_grad_(False)
    return model


def frozen_bias():
    model = chain((4, 7, 2))
    model[0].bias.requires_grad_(False)
    return model


def of_the_laws(name):
    return lambda: LAW_MODELS[name][1](LAW_MODELS[name][0])


MODELS = {
    **{f"laws: {name}": of_the_laws(name) for name in LAW_MODELS if name != "own_module"},
    "one layer": lambda: chain((4, 2)),
    "no bias": lambda: chain((4, 8, 3), bias=False),
    "one linear layer, no bias": lambda: chain((4, 2), bias=False),
    "one feature": lambda: chain((1, 5, 2)),
    "one unit": lambda: chain((4, 1, 2)),
    "wide": lambda: chain((4, 130, 40, 10)),
    "silu": lambda: chain((4, 8, 3), nn.SiLU),
    "tanh": lambda: chain((4, 8, 8, 2), nn.Tanh),
    "sigmoid": lambda: chain((4, 8, 2), nn.Sigmoid),
    "gelu": lambda: chain((4, 8, 2), nn.GELU),
    "gelu by tanh": lambda: chain((4, 8, 2), functools.partial(nn.GELU, "tanh")),
    "leaky": lambda: chain((4, 8, 2), functools.partial(nn.LeakyReLU, 0.2)),
    "elu": lambda: chain((4, 8, 2), functools.partial(nn.ELU, 0.5)),
    "softplus": lambda: chain((4, 8, 2), functools.partial(nn.Softplus, 2.0, 1.0)),
    "identities": lambda: nn.Sequential(nn.Identity(), *chain((4, 8, 2)), nn.Identity()),
    "activations at both ends": lambda: nn.Sequential(nn.Tanh(), *chain((4, 8, 2)), nn.ReLU()),
    "activations in a row": lambda: nn.Sequential(
        nn.Linear(4, 8), nn.Tanh(), nn.ReLU(), nn.Linear(8, 2)
    ),
    "first layer frozen": lambda: frozen(0),
    "middle layer frozen": lambda: frozen(2),
    "last layer frozen": lambda: frozen(4),
    "all but the first frozen": lambda: frozen(2, 4),
    "a frozen bias": frozen_bias,
}
# Models that may give a row the same logit twice: 0, behind a ReLU.
TIES = ("no bias", "activations at both ends")
OBJECTIVES = {
    "full": Objective(),
    "conventional": Objective(lambda_div=0.0, lambda_reg=0.0, lambda_adv=0.0),
    "divergence": Objective(lambda_adv=0.0),
    "adversarial": Objective(lambda_div=0.0, lambda_reg=0.0),
    "no class loss": Objective(lambda_class=0.0),
    "other numbers": Objective(1.7, 0.3, 0.03, 2.1),
    "divergence without ridge": Objective(lambda_reg=0.0, lambda_adv=0.0),
    "ridge without divergence": Objective(lambda_div=0.0, lambda_adv=0.0),
    "ridge and adversarial": Objective(lambda_div=0.0),
}


@dataclass(frozen=True)
class Weights:
    rows: bool = False
    contrast: bool = False
    adversarial: bool = False
    none_left: bool = False  # in this batch all weights are 0


WEIGHTS = {
    "none": Weights(),
    "rows": Weights(rows=True),
    "immature": Weights(contrast=True),
    "adversarial": Weights(adversarial=True),
    "all": Weights(True, True, True),
    "zero": Weights(True, True, True, none_left=True),
}


def batch_of(like, d, k, lead=(), n=13, m=5, weights=WEIGHTS["none"], explained=True, seed=0):
    """A mini-batch as the loop makes it."""
    rng = torch.Generator().manual_seed(seed)

    def rows(num):
        return torch.randn(*lead, num, d, generator=rng).to(like)

    def labels(num):
        return torch.randint(k, (*lead, num), generator=rng)

    def numbers(wanted, num):
        if not wanted:
            return None
        drawn = torch.rand(*lead, num, generator=rng) * (
            torch.rand(*lead, num, generator=rng) > 0.3
        )
        return (0 * drawn if weights.none_left else drawn).to(like)

    found = None
    if explained:
        own = numbers(weights.contrast, m)
        if own is not None:
            own = (own > 0).to(own)
        found = CounterfactualBatch(
            rows(m),
            rows(m),
            rows(m),
            labels(m),
            labels(m),
            own,
            numbers(weights.adversarial, m),
        )
    return Batch(rows(n), labels(n), numbers(weights.rows, n), found)


def sizes_of(model):
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    return linear[0].in_features, linear[-1].out_features


def both(model, num_classes):
    """The two ways, on the same weights."""
    trained = [p for p in model.parameters() if p.requires_grad]
    network = network_of(model, trained)
    assert isinstance(network, ChainNetwork)
    return ByTable(network, num_classes), ByLoss(model, trained)


@torch.no_grad()  # as the loop does
def gradients(way, objective, batches):
    if isinstance(way, ByLoss):
        objective = Textbook(**vars(objective))
    found = [[g.detach().clone() for g in one] for one in way.gradients(objective, batches)]
    return found, way.terms


def drawn(build, dtype=torch.float32, seed=3):
    torch.manual_seed(seed)
    return build().to(dtype)


def same_bits(model, objective, batches):
    hand, automatic = both(model, sizes_of(model)[1])
    mine, told = gradients(hand, objective, batches)
    its, its_told = gradients(automatic, objective, batches)
    assert len(mine) == len(its) == len(batches)
    for one, other in zip(mine, its, strict=True):
        assert [a.shape for a in one] == [b.shape for b in other]
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert_close(told[:, :5], its_told[:, :5].to(told.dtype), rtol=1e-5, atol=1e-6)


@each_value(name=list(MODELS), dtype=[torch.float32, torch.float64])
def test_every_chain_has_autograds_bits(name, dtype):
    model = drawn(MODELS[name], dtype)
    d, k = sizes_of(model)
    like = next(model.parameters())
    for weights in (WEIGHTS["none"], WEIGHTS["all"]):
        batches = [
            batch_of(like, d, k, n=n, m=m, weights=weights, seed=n)
            for n, m in ((13, 5), (30, 34), (2, 1), (1, 1))
        ]
        same_bits(model, OBJECTIVES["full"], batches)
    same_bits(model, OBJECTIVES["full"], [batch_of(like, d, k, explained=False)])


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_and_weight_has_autograds_bits(objective, weights):
    model = drawn(MODELS["laws: deep"])
    d, k = sizes_of(model)
    batches = [
        batch_of(model[0].weight, d, k, n=n, weights=WEIGHTS[weights], seed=n)
        for n in (30, 30, 7)
    ]
    same_bits(model, OBJECTIVES[objective], batches)


BEYOND = {
    "contrast": Objective(lambda_div=0.0, lambda_reg=0.0, lambda_adv=0.0, lambda_contrast=0.7),
    "recourse": Objective(lambda_div=0.0, lambda_reg=0.0, lambda_adv=0.0, lambda_recourse=0.7),
    "all": Objective(lambda_contrast=0.7, lambda_recourse=0.4),
}


@on_product(
    name=["laws: deep", "one layer", "wide", "last layer frozen"],
    objective=BEYOND,
    weights=WEIGHTS,
)
def test_what_goes_beyond_the_paper_has_autograds_gradient(name, objective, weights):
    model = drawn(MODELS[name], torch.float64)
    d, k = sizes_of(model)
    like = next(model.parameters())
    batches = [batch_of(like, d, k, n=n, weights=WEIGHTS[weights], seed=n) for n in (30, 30, 7)]
    hand, automatic = both(model, k)
    (mine, told), (its, its_told) = (
        gradients(way, BEYOND[objective], batches) for way in (hand, automatic)
    )
    assert_close(mine, its, rtol=1e-10, atol=1e-13)
    assert_close(told[:, :5], its_told[:, :5].to(told.dtype), rtol=1e-10, atol=1e-12)


def test_a_contrast_of_models_that_are_sure_is_finite():
    """exp(±200) is not a number in single precision; the contrast needs none."""
    model = chain((4, 3))
    with torch.no_grad():
        model[0].weight.mul_(1000)
    hand, automatic = both(model, 3)
    batch = batch_of(model[0].weight, 4, 3)
    (mine,), told = gradients(hand, BEYOND["contrast"], [batch])
    (its,), _ = gradients(automatic, BEYOND["contrast"], [batch])
    assert_close(mine, its, rtol=1e-4, atol=1e-5)
    assert (
        torch.isfinite(told).all()
        and float(torch.cat([g.flatten() for g in mine]).abs().max()) < 10
    )


@each_value(name=list(MODELS), dtype=[torch.float32, torch.float64])
def test_a_stack_walked_by_hand_is_its_gradient_by_autograd(name, dtype):
    members = [drawn(MODELS[name], dtype, seed) for seed in range(3)]
    d, k = sizes_of(members[0])
    stack = StackedModel(members)
    hand, automatic = both(stack, k)
    # One member has counterfactuals, one none, one only adversarial examples.
    columns = {
        "lambda_class": [1.0, 0.7, 1.3],
        "lambda_div": [0.5, 0, 0],
        "lambda_reg": [0.1, 0, 0],
        "lambda_adv": [0.25, 0, 2.0],
        "lambda_contrast": [0.3, 0, 0],
        "lambda_recourse": [0, 0, 0.4],
    }
    objective = Objective(
        **{name: torch.tensor(values, dtype=dtype) for name, values in columns.items()}
    )
    for weights in WEIGHTS.values():
        batches = [batch_of(stack.weights, d, k, (3,), weights=weights, seed=n) for n in (4, 5)]
        (mine, told), (its, its_told) = (
            gradients(hand, objective, batches),
            gradients(automatic, objective, batches),
        )
        slack = (
            {"rtol": 1e-4, "atol": 1e-6}
            if dtype == torch.float32
            else {"rtol": 1e-10, "atol": 1e-13}
        )
        assert_close(mine, its, **slack)
        assert_close(told[:, :5], its_told[:, :5], **slack)
        assert (told[:, 5] >= its_told[:, 5]).all()  # by hand, ties count as right
        assert name in TIES or torch.equal(told[:, 5], its_told[:, 5])
    for i, model in enumerate(members):  # and what each member finds alone
        own = replace(
            objective, **{name: float(value[i]) for name, value in vars(objective).items()}
        )
        parts = [_of_member(batch, i) for batch in batches]
        alone, _ = gradients(both(model, k)[1], own, parts)
        for row, grads in zip(mine, alone, strict=True):
            trained = _trained_part(stack, model, row[0][i])
            assert_close(trained, torch.cat([g.flatten() for g in grads]), **slack)


def _of_member(batch, i):
    def cut(value):
        return None if value is None else value[i]

    found = CounterfactualBatch(*(cut(value) for value in batch.explanations))
    return Batch(batch.x[i], batch.y[i], cut(batch.weight), found)


def _trained_part(stack, model, row):
    """A member's row of the gradient, without its frozen parameters, whose gradient is 0."""
    parts = row.split(stack.sizes)
    for part, parameter in zip(parts, model.parameters(), strict=True):
        assert parameter.requires_grad or not part.any()
    return torch.cat(
        [part for part, p in zip(parts, model.parameters(), strict=True) if p.requires_grad]
    )


# ---- whole trainings -----------------------------------------------------------------------------


@pytest.fixture
def by_autograd(monkeypatch):
    """Call a function while Eq. 2 is what a textbook writes, by autograd."""

    def call(function):
        with monkeypatch.context() as patch:
            patch.setattr(Objective, "has_closed_form", False)
            patch.setattr(Objective, "__call__", textbook)
            return function()

    return call


def columns(history):
    return {k: [r[k] for r in history.records] for k in history.records[0] if k != "seconds"}


RUNS = {
    "as run": {},
    "batches anew": {"refresh": "batch", "shuffle": True},
    "drop": {"immature": "drop"},
    "keep": {"immature": "keep", "target_rule": "uniform"},
    "accumulate": {"accumulate": 3},
    "accumulate and anew": {"accumulate": 2, "refresh": "batch"},
    "burn-in": {"burn_in": 0.5},
}


@each_value(run=list(RUNS), weighted=[False, True])
def test_trained_weights_are_those_of_autograd(run, weighted, make_blobs, by_autograd):
    x, y = make_blobs(num_classes=3, n=67)
    method = ct.methods.ct_published(
        epochs=4, num_counterfactuals=40, learning_rate=0.02, max_steps=15, **RUNS[run]
    )
    more = {"sample_weight": torch.rand(67), "class_weight": "balanced"} if weighted else {}
    models = [drawn(lambda: chain((2, 8, 3))) for _ in range(2)]

    def go(model):
        return ct.train(model, x, y, method, validation=(x, y), **more)

    mine, its = go(models[0]), by_autograd(lambda: go(models[1]))
    assert all(
        torch.equal(a, b)
        for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True)
    )
    assert_close(
        columns(mine.history), columns(its.history), rtol=1e-5, atol=1e-6, equal_nan=True
    )


@pytest.mark.parametrize("run", RUNS)
def test_a_trained_fleet_is_that_of_autograd(run, make_blobs, by_autograd):
    x, y = make_blobs(num_classes=3, n=67)
    method = ct.methods.ct_published(
        epochs=3, num_counterfactuals=40, learning_rate=0.01, max_steps=15, **RUNS[run]
    )

    def go():
        methods = [
            method.replace({"objective": OBJECTIVES[name], "seed": i})
            for i, name in enumerate(("full", "conventional", "adversarial"))
        ]
        members = [
            ct.Member(drawn(lambda: chain((2, 8, 3)), torch.float64, i), own)
            for i, own in enumerate(methods)
        ]
        return ct.Fleet(members).train(x.double(), y, sample_weight=torch.linspace(0, 2, 67))

    for mine, its in zip(go(), by_autograd(go), strict=True):
        assert_close(
            list(mine.model.parameters()), list(its.model.parameters()), rtol=1e-7, atol=1e-9
        )
        assert_close(
            columns(mine.history), columns(its.history), rtol=1e-6, atol=1e-8, equal_nan=True
        )


# ---- what must not be walked by hand -------------------------------------------------------------


class OwnCall(Objective):
    def __call__(self, model, x, y, explanations=None, weight=None):
        return super().__call__(model, x, y, explanations, weight)


class OwnTotal(Objective):
    def __call__(self, *given):
        terms = super().__call__(*given)
        return replace(terms, total=terms.total.square())


class OwnSequential(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


class Replacing(torch.optim.SGD):
    """Gives every parameter new memory at every step, as some optimizers do."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            parameter.data = parameter - 0.1 * parameter.grad


def test_parameters_with_new_memory_are_seen(make_blobs, by_autograd):
    x, y = make_blobs(
        num_classes=3, n=60
    )  # batches of one size, so that nothing else is made anew

    def trained():
        torch.manual_seed(0)
        model = ct.mlp(x.shape[1], 3, [8])
        method = ct.methods.ct_published(epochs=3, num_counterfactuals=40)
        ct.train(
            model, x, y, method, optimizer=lambda parameters: Replacing(list(parameters), 0.1)
        )
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(trained(), by_autograd(trained))


def way_of(model, objective=OBJECTIVES["full"], optimizer=None):
    rates = [1e-3] * getattr(model, "num_members", 1)
    gradient = Learner(model, objective, 2, rates, optimizer).gradient
    if isinstance(gradient, ByLoss):
        return ByLoss
    return type(gradient.network)


def test_a_plain_chain_is_walked_by_hand():
    assert way_of(chain((4, 8, 2))) is ChainNetwork
    for kind in (torch.optim.SGD, torch.optim.LBFGS):
        model = chain((4, 8, 2))
        assert way_of(model, optimizer=kind(model.parameters(), 0.1)) is ChainNetwork
    assert way_of(StackedModel([chain((4, 8, 2)), chain((4, 8, 2))])) is StackedNetwork


@pytest.mark.parametrize("objective", [OwnCall(), OwnTotal()], ids=["own call", "own total"])
def test_an_objective_of_ones_own_gets_autograd(objective):
    assert way_of(chain((4, 8, 2)), objective) is ByLoss


def test_a_total_of_ones_own_is_honoured(blobs, by_autograd):
    def go():
        model = drawn(lambda: chain((2, 8, 2)))
        return ct.train(
            model,
            *blobs,
            ct.methods.ct_published(epochs=2, num_counterfactuals=10, objective=OwnTotal()),
        )

    mine, its = go(), by_autograd(go)
    assert columns(mine.history)["loss"] == pytest.approx(columns(its.history)["loss"])
    plain = ct.train(
        drawn(lambda: chain((2, 8, 2))),
        *blobs,
        ct.methods.ct_published(epochs=2, num_counterfactuals=10),
    )
    assert columns(plain.history)["loss"] != columns(mine.history)["loss"]


def with_hook(where):
    def build():
        model, heard = chain((2, 8, 2)), []
        where(model)(lambda *_: heard.append(1))
        return model, heard

    return build


HOOKS = {
    "forward": with_hook(lambda model: model[0].register_forward_hook),
    "forward before": with_hook(lambda model: model[2].register_forward_pre_hook),
    "backward": with_hook(lambda model: model[0].register_full_backward_hook),
    "backward before": with_hook(lambda model: model.register_full_backward_pre_hook),
    "gradient": with_hook(lambda model: model[0].weight.register_hook),
    "accumulated": with_hook(lambda model: model[0].weight.register_post_accumulate_grad_hook),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_are_called(name, blobs):
    model, heard = HOOKS[name]()
    assert way_of(model) is Network
    method = ct.methods.conventional(epochs=2, batch_size=20)
    ct.train(model, *blobs, method)
    assert len(heard) >= 6


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_are_called_in_a_fleet(name, blobs):
    pairs = [HOOKS[name]() for _ in range(2)]
    method = ct.methods.conventional(epochs=2, batch_size=20)
    with pytest.warns(UserWarning, match="one by one"):
        ct.Fleet([ct.Member(model, method) for model, _ in pairs]).train(*blobs)
    assert all(len(heard) >= 6 for _, heard in pairs)


@pytest.mark.parametrize(
    "register",
    [
        torch_module.register_module_forward_hook,
        torch_module.register_module_forward_pre_hook,
        torch_module.register_module_full_backward_hook,
    ],
    ids=["forward", "forward before", "backward"],
)
def test_hooks_of_all_modules_are_called(register, blobs):
    kinds = []
    handle = register(lambda module, *_: kinds.append(type(module)))
    try:
        model = chain((2, 8, 2))
        assert way_of(model) is Network
        method = ct.methods.conventional(epochs=1, batch_size=20)
        ct.train(model, *blobs, method)
        assert kinds.count(nn.Linear) >= 6
        kinds.clear()
        with pytest.warns(UserWarning, match="one by one"):
            ct.Fleet([ct.Member(chain((2, 8, 2)), method) for _ in range(2)]).train(*blobs)
        assert kinds.count(nn.Linear) >= 12
    finally:
        handle.remove()


def tied():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    return model


def repeated():
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, nn.Tanh(), layer)


def working_in_place():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))


def own_forward():
    model = chain((2, 8, 2))
    model[0].forward = lambda x: 2 * nn.functional.linear(x, model[0].weight, model[0].bias)
    return model


OTHERS = {
    "tied": tied,
    "repeated": repeated,
    "in place": working_in_place,
    "own forward": own_forward,
    "own Sequential": lambda: OwnSequential(*chain((2, 8, 2))),
    "spectral norm": lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(2, 8)), nn.Linear(8, 2)
    ),
    "bfloat16": lambda: chain((2, 8, 2)).bfloat16(),
    "float16": lambda: chain((2, 8, 2)).half(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_get_autograd(name, blobs):
    """Training by the library is a plain loop in torch."""
    model = drawn(OTHERS[name], next(OTHERS[name]().parameters()).dtype)
    assert way_of(model) is Network
    x, y = blobs[0].to(next(model.parameters())), blobs[1]
    twin = copy.deepcopy(model) if name != "own forward" else None
    method = ct.methods.conventional(epochs=2, batch_size=60, learning_rate=0.01)
    ct.train(model, x, y, method)
    if twin is not None:
        optimizer = torch.optim.Adam(twin.parameters(), lr=0.01, fused=True)
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(twin(x).float(), y).backward()
            optimizer.step()
        slack = 1e-6 if x.dtype == torch.float32 else 1e-2
        assert_close(list(model.parameters()), list(twin.parameters()), rtol=slack, atol=slack)


@pytest.mark.parametrize("build", [tied, repeated], ids=["tied", "repeated"])
def test_stacks_of_shared_parameters_get_autograd(build):
    assert way_of(StackedModel([build(), build()])) is Network


def test_autocast_gets_autograd():
    with torch.autocast("cpu", torch.bfloat16):
        assert way_of(chain((4, 8, 2))) is Network
        assert way_of(StackedModel([chain((4, 8, 2)), chain((4, 8, 2))])) is Network


def test_lbfgs_trains_as_a_plain_loop_does(blobs):
    x, y = blobs
    model = drawn(lambda: chain((2, 8, 2)))
    twin = copy.deepcopy(model)
    method = ct.methods.conventional(epochs=3, batch_size=60)
    ct.train(
        model,
        x,
        y,
        method,
        optimizer=lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=5),
    )
    optimizer = torch.optim.LBFGS(twin.parameters(), lr=0.5, max_iter=5)

    def closure():
        optimizer.zero_grad()
        loss = ct.core.losses.class_loss(twin(x), y)
        loss.backward()
        return loss

    with pytest.raises(InputError, match="LBFGS"):
        ct.train(model, x, y, method.replace("accumulate", 2), optimizer=torch.optim.LBFGS)
    for _ in range(3):
        optimizer.step(closure)
    assert_close(list(model.parameters()), list(twin.parameters()), rtol=1e-5, atol=1e-6)
