"""Every method resumes exactly, trains in fleets as alone, and leaves alone what may not change."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
from torch.utils.data import TensorDataset

import counterfactual_training as ct
from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.training import methods
from counterfactual_training.training.registry import METHODS, method_names
from counterfactual_training.training.round import Round
from covering import repeats

SMALL = {
    "jem": {"buffer": 50, "steps": 3},
    "dat": {"most": 4, "steps": 3},
    "pgd": {"steps": 3},
    "trades": {"steps": 3},
}
NAMES = [*METHODS, "ensemble", "ensemble of jem", "bag"]
# Those of several networks.
SEVERAL = ("ensemble", "bag", "ct")
ALONE = [name for name, make in METHODS.items() if make().members == 1]
# Methods that find rows to train on.
FOUND = [
    name
    for name, make in METHODS.items()
    if make().find is not None and name not in ("misob", "counternet")
]


def blobs(
    rows: int = 90, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % 2
    return (torch.randn(rows, 3, generator=rng) + 2.0 * y[:, None]).to(dtype), y


def network(seed: int = 0, name: str = "", dropout: float = 0.3) -> nn.Module:
    torch.manual_seed(seed)
    if name.split(" ")[0] in SEVERAL:
        return ct.Ensemble([network(i) for i in range(3)])
    if name == "counternet":
        return ct.counternet(3, dropout=dropout).double()
    return ct.mlp(3, 2, hidden=(8,)).double()


def short(name: str, **settings) -> ct.Method:
    common = {"epochs": 4, "batch_size": 40, "num_counterfactuals": 20, "learning_rate": 0.02}
    if name.split(" ")[0] in SEVERAL:
        common["members"] = 3
    small = SMALL.get(name.removeprefix("ensemble of "), {})
    return ct.make_method({"name": name, **small, **common, **settings})


class InterruptedRunError(Exception):
    pass


class Interrupt(ct.Callback):
    def on_epoch_end(self, run: ct.Run) -> None:
        if run.epoch == 3:
            raise InterruptedRunError


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_equals_one_never_interrupted(name, tmp_path):
    x, y = blobs()
    whole, broken = network(name=name), network(name=name)
    ct.train(whole, x, y, short(name))
    file = tmp_path / "run.safetensors"
    with pytest.raises(InterruptedRunError):
        ct.train(broken, x, y, short(name), callbacks=[Interrupt()], checkpoint=file)
    resumed = network(name=name)
    ct.train(resumed, x, y, short(name), checkpoint=file)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("own_rows", [True, *repeats(False)])
@pytest.mark.parametrize("name", ALONE)
def test_a_member_of_a_fleet_ends_as_alone(name, own_rows):
    x, y = blobs()
    if own_rows:
        x, y = torch.stack([x, 2 * x + 1]), torch.stack([y, y.flip(0)])
    rules = [{0: "none"}, {1: "increase"}]
    members = []
    for i, rule in enumerate(rules):
        rows = x[i] if own_rows else x
        members.append(
            ct.Member(
                network(i, name, dropout=0.0),
                short(name, seed=i, constraints=ct.Constraints.infer(rows, rule)),
            )
        )
    alone = [copy.deepcopy(member) for member in members]
    ct.Fleet(members).train(x, y)
    for i, member in enumerate(alone):
        rows = (x[i], y[i]) if own_rows else (x, y)
        ct.train(member.model, *rows, member.method)
        for one, other in zip(
            members[i].model.parameters(), member.model.parameters(), strict=True
        ):
            assert_close(one, other, rtol=1e-6, atol=1e-8)


def spying(method: ct.Method, seen: list) -> ct.Method:
    """The method, which notes what it finds."""
    find = method.find
    assert find is not None

    def noted(now: Round):
        found = find(now)
        seen.append((now, found))
        return found

    return replace(method, find=noted)


@pytest.mark.parametrize("name", FOUND)
def test_what_may_not_change_does_not(name):
    """Nothing that a method trains on differs from its row in an immutable feature, or leaves the
    domain there.
    """
    x, y = blobs()
    seen: list = []
    constraints = ct.Constraints.infer(x, {0: "none", 1: "increase"}, domain={2: (-1.0, 3.0)})
    x[:, 2].clamp_(-1.0, 3.0)
    ct.train(
        network(),
        x,
        y,
        spying(short(name, burn_in=0.0), seen),
        constraints,
    )
    assert seen
    for now, found in seen:
        for rows in found if isinstance(found, tuple) else (found,):
            if rows.dim() < 2:
                continue  # classes or weights
            if name == "cat":  # of a part of the batch, so that only the values can be compared
                assert (
                    bool(torch.isin(rows[:, 0], now.x[:, 0]).all())
                    and not torch.isin(rows, now.x).all()
                )
                continue
            # Gradient supervision tells differences, all others points.
            change = rows if name == "gradient_supervision" else rows - now.x
            assert bool((change[:, 0] == 0).all())
            if name in ("pgd", "trades", "ross", "gradient_supervision"):
                assert bool((change[:, 1] >= 0).all())
            if name in ("pgd", "trades", "ross"):
                assert bool(((now.x + change)[:, 2] <= 3.0 + 1e-9).all())


def test_cat_searches_the_rows_it_is_least_sure_of():
    x, y = blobs()
    seen: list = []
    ct.train(network(), x, y, spying(short("cat", burn_in=0.0), seen))
    _, (x_cf, y_target, counted) = seen[0]
    assert len(x_cf) == math.ceil(0.25 * 40) == len(y_target) == len(counted)
    assert set(counted.tolist()) <= {0.0, 1.0}


def a_round(
    model: nn.Module, method: ct.Method, generator: ct.Generator | None = None, **numbers
) -> Round:
    """All rows as one batch, for a method that may have a memory."""
    x, y = blobs(**numbers)
    data = _rows(x, y)
    memory = method.remember(data, torch.Size()) if method.remember is not None else {}
    made = generator if generator is not None else ct.ecco()
    return Round(
        model,
        x,
        y,
        ct.Constraints.build(3),
        made,
        data,
        memory,
        0,
        torch.Generator().manual_seed(0),
    )


def steep(weight: float = 1.0) -> nn.Module:
    """Class 1 by the sum of the features."""
    model = ct.linear(3, 2).double().requires_grad_(False)
    model[-1].weight.copy_(torch.tensor([[0.0] * 3, [weight] * 3]))
    model[-1].bias.copy_(torch.tensor([0.0, -3.0 * weight]))
    return model


def test_cat_leaves_out_rows_whose_search_missed():
    now = a_round(steep(), methods.cat(share=1.0), ct.ecco(max_steps=3, learning_rate=0.5))
    x_cf, y_target, counted = methods.cat(share=1.0).find(now)
    reached = now.model(x_cf).softmax(-1).gather(-1, y_target[:, None]).squeeze(-1)
    arrived = reached >= now.generator.decision_threshold
    assert bool(arrived.any()) and not bool(arrived.all())
    assert torch.equal(counted.bool(), arrived)


def test_a_round_of_jem_is_kept_in_its_buffer():
    method = methods.jem(buffer=500, steps=2)
    now = a_round(steep(), method)
    before = now.memory["buffer"]
    sampled = method.find(now)
    after = now.memory["buffer"]
    replaced = (after != before).any(-1)
    assert 0 < int(replaced.sum()) <= len(sampled)
    kept = {tuple(row) for row in sampled.tolist()}
    assert all(tuple(row) in kept for row in after[replaced].tolist())


def test_no_feature_of_a_jem_sample_moves_further_than_clip():
    method = methods.jem(buffer=500, steps=1, clip=0.1, restart=0.0)
    now = a_round(steep(1e3), method)
    now.memory["buffer"] = torch.ones_like(now.memory["buffer"])
    moved = (method.find(now) - 1).abs()
    assert_close(moved.amax(0), torch.full((3,), 0.1, dtype=moved.dtype))


def test_dat_takes_no_further_step_while_samples_look_real():
    """The energy of a flat model is the same everywhere, so its AUC is none."""
    method = methods.dat(steps=1)
    now = a_round(steep(0.0), method)
    method.find(now)
    assert now.memory["steps"] == 1


@pytest.mark.parametrize("target", [0, 1])
def test_recourse_training_moves_rows_towards_the_target(target):
    method = methods.ross(reach=0.5, target=target)
    now = a_round(steep(), method)
    moved = method.find(now)
    assert_close(moved, now.x + (1 if target else -1) * 0.5)


def robust(model: nn.Module, x: torch.Tensor, y: torch.Tensor, epsilon: float) -> float:
    attacked = ct.pgd(
        model, x, y, epsilon, 20, epsilon / 5, rng=torch.Generator().manual_seed(0)
    )
    return float((model(attacked).argmax(-1) == y).float().mean())


@pytest.mark.check
@pytest.mark.parametrize("name", ["pgd", "trades"])
def test_adversarial_training_makes_attacks_harder(name):
    """On data whose first feature is weak but easy, and whose second is strong: an attack removes
    the weak one.
    """
    rng = torch.Generator().manual_seed(1)
    y = torch.arange(400) % 2
    sign = 2.0 * y - 1
    x = torch.stack(
        [
            0.2 * sign + 0.02 * torch.randn(400, generator=rng),
            sign + torch.randn(400, generator=rng),
        ],
        -1,
    )
    plain, hardened = ct.linear(2, 2), ct.linear(2, 2)
    settings = {"epochs": 60, "batch_size": 50, "learning_rate": 0.05}
    ct.train(plain, x, y, methods.conventional(**settings))
    numbers = {"epsilon": 0.3, "steps": 5} | ({"beta": 6.0} if name == "trades" else {})
    ct.train(hardened, x, y, {"name": name, **numbers, **settings})
    assert robust(hardened, x, y, 0.3) > robust(plain, x, y, 0.3) + 0.2


def test_pgd_finds_what_the_attack_finds():
    x, y = blobs()
    model, rule = network(), ct.Constraints.infer(x)
    method = methods.pgd(0.2, 7, 0.05)
    now = Round(model, x, y, rule, ct.ecco(), None, {}, 0, torch.Generator().manual_seed(5))  # type: ignore[arg-type]
    start = x + 0.2 * (
        2 * torch.rand(x.shape, generator=torch.Generator().manual_seed(5)).double() - 1
    )
    expected = start.clamp(*now.box(0.2))
    for _ in range(7):
        leaf = expected.clone().requires_grad_()
        (slope,) = torch.autograd.grad(cross_entropy(model(leaf), y), leaf)
        expected = (expected + 0.05 * slope.sign()).clamp(*now.box(0.2))
    assert_close(method.find(now), expected)


def test_trades_is_its_formula():
    x, y = blobs()
    model, x_adv = network(), x + 0.1
    terms = methods.trades(beta=3.0).loss(model, ct.training.objective.Batch(x, y), x_adv)
    p, q = model(x).softmax(-1), model(x_adv).softmax(-1)
    expected = cross_entropy(model(x), y) + 3.0 * (p * (p / q).log()).sum(-1).mean()
    assert_close(terms.total, expected)


@torch.no_grad()
def energy_gap(model: nn.Module, x: torch.Tensor) -> float:
    """How much more likely the model finds real rows than points of their box."""
    low, high = x.amin(0), x.amax(0)
    empty = low + (high - low) * torch.rand(
        500, x.shape[1], generator=torch.Generator().manual_seed(0)
    )
    return float(model(x).logsumexp(-1).mean() - model(empty).logsumexp(-1).mean())


@pytest.mark.check
def test_jem_finds_real_rows_likelier_than_empty_space():
    x, y = blobs(rows=300, dtype=torch.float32)
    settings = {"epochs": 40, "batch_size": 50, "learning_rate": 0.005}
    gap = {}
    for method in (
        methods.conventional(**settings),
        methods.jem(buffer=500, steps=10, **settings),
    ):
        model = network().float()
        ct.train(model, x, y, method)
        gap[method.name] = energy_gap(model, x)
    assert gap["jem"] > max(gap["conventional"], 0.0) + 0.1
    assert float((model(x).argmax(-1) == y).float().mean()) > 0.9


@pytest.mark.check
def test_an_energy_model_that_diverges_stops_with_sound_weights():
    x, y = blobs()
    model = network()
    method = methods.jem(
        weight=1e12,
        ridge=1e-12,
        buffer=50,
        steps=2,
        epochs=400,
        batch_size=10,
        learning_rate=50.0,
        max_bad_updates=5,
    )
    with pytest.warns(UserWarning, match="last sound epoch"):
        result = ct.train(model, x, y, method)
    assert result.history.stopped is not None
    assert all(bool(torch.isfinite(value).all()) for value in model.parameters())


@pytest.mark.check
def test_recourse_training_brings_people_closer_to_the_target():
    x, y = blobs(rows=300, dtype=torch.float32)
    settings = {"epochs": 40, "batch_size": 50, "learning_rate": 0.01}
    probability = {}
    for name in ("conventional", "ross"):
        model = network().float()
        ct.train(model, x, y, {"name": name, **settings})
        denied = x[y == 0]
        probability[name] = float(model(denied + 0.75).softmax(-1)[:, 1].mean().detach())
    assert probability["ross"] > probability["conventional"] + 0.1


def test_gradient_supervision_aligns_gradients_with_the_way_to_other_rows():
    x, y = blobs(rows=200, dtype=torch.float32)
    settings = {"epochs": 30, "batch_size": 50, "learning_rate": 0.02}
    aligned = {}
    for name in ("conventional", "gradient_supervision"):
        model = network().float()
        ct.train(model, x, y, {"name": name, **settings})
        now = Round(
            model,
            x,
            y,
            ct.Constraints.build(3),
            ct.ecco(),
            _rows(x, y),
            {},
            0,
            torch.Generator(),
        )
        supervised = methods.gradient_supervision()
        terms = supervised.loss(model, ct.training.objective.Batch(x, y), supervised.find(now))
        aligned[name] = (terms.total - terms.class_loss).item()
    assert aligned["gradient_supervision"] < aligned["conventional"] - 0.05


def _rows(x: torch.Tensor, y: torch.Tensor):
    return ct.training.rows.TrainingRows(x, y, 2)


def test_misob_weighs_rows_by_the_cost_of_their_recourse():
    x, y = blobs(rows=60)
    model = ct.linear(3, 2).double()
    with torch.no_grad():
        model[-1].weight.copy_(torch.tensor([[0.0, 0, 0], [1.0, 1.0, 1.0]]))
        model[-1].bias.copy_(torch.tensor([0.0, -4.0]))  # denies many of class 1
    now = Round(
        model,
        x,
        y,
        ct.Constraints.build(3),
        ct.line(decision_threshold=0.5),
        _rows(x, y),
        {},
        2,
        torch.Generator(),
    )
    weights = methods.misob().find(now)
    denied = (y == 1) & (model(x).argmax(-1) == 0)
    assert (
        bool(denied.any())
        and bool((weights[~denied] == 1).all())
        and bool((weights[denied] > 1).all())
    )
    assert_close(weights.mean(), torch.tensor(1.2, dtype=weights.dtype))
    margin = (4 - x.sum(-1))[denied]  # a larger one costs more
    assert torch.equal(weights[denied].argsort(), margin.argsort())
    early = replace(now, epoch=0)
    assert bool((methods.misob().find(early) == 1).all())


def test_dat_climbs_further_while_samples_are_told_apart():
    x, y = blobs()
    seen: list = []
    ct.train(network(), x, y, spying(short("dat", epochs=8), seen))
    steps = [int(now.memory["steps"]) for now, _ in seen]
    assert steps[-1] > 1 and steps[-1] <= 4 and steps == sorted(steps)


@pytest.mark.parametrize("name", ["jem", "dat"])
def test_samples_of_a_data_set_are_those_of_the_tensors_it_wraps(name):
    x, y = blobs()
    models = network(), network()
    constraints = ct.Constraints.infer(x)
    ct.train(models[0], x, y, short(name), constraints=constraints)
    ct.train(models[1], TensorDataset(x, y), method=short(name), constraints=constraints)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


def test_a_method_of_ones_own_trains_and_is_recorded():
    def find(now: Round) -> torch.Tensor:
        return now.x + 0.1 * now.normal()

    def loss(model, batch, noisy):
        logits = model(batch.x)
        return ct.LossTerms.sum(
            logits,
            class_loss=cross_entropy(logits, batch.y),
            adversarial=cross_entropy(model(noisy), batch.y),
        )

    x, y = blobs()
    noise = ct.Method("noise", loss=loss, find=find, training=ct.TrainConfig(epochs=2))
    result = ct.train(network(), x, y, noise)
    last = result.history.records[-1]
    assert last["loss"] == pytest.approx(last["class_loss"] + last["adversarial"])
    assert last["adversarial"] > 0


@pytest.mark.parametrize("of", ["conventional", "pgd"])
def test_members_of_an_ensemble_train_as_alone_and_share_nothing_but_the_mean(of):
    x, y = blobs()
    ensemble = network(name="ensemble")
    result = ct.train(ensemble, x, y, short(f"ensemble of {of}", epochs=2, seed=4))
    assert result.model is ensemble
    for i, member in enumerate(ensemble.members):
        alone = network(i)
        one = ct.train(alone, x, y, short(of, epochs=2, seed=4 + i))
        for trained, other in zip(member.parameters(), alone.parameters(), strict=True):
            assert_close(trained, other, rtol=1e-6, atol=1e-8)
        if i == 0:
            assert one.history.last("loss") == pytest.approx(result.history.last("loss"))
    assert_close(ensemble(x), torch.stack([member(x) for member in ensemble.members]).mean(0))


def test_an_ensemble_by_name_has_as_many_members_as_it_is_given():
    x, y = blobs()
    result = ct.train(network(name="ensemble"), x, y, "ensemble(epochs=1)")
    assert len(result.model.members) == 3 and len(result.history.records) == 1
    with pytest.raises(
        ModelError,
        match=r"got one Sequential: .* Pass ct.Ensemble\(\[make\(\) for _ in range\(5\)\]\)",
    ):
        ct.train(network(), x, y, "ensemble")
    with pytest.raises(InputError, match="about 5 members, the ensemble has 3"):
        ct.train(network(name="ensemble"), x, y, methods.ensemble(members=5))
    with pytest.raises(InputError, match="an Adam each"):
        ct.train(network(name="ensemble"), x, y, "ensemble", optimizer=torch.optim.SGD)
    with pytest.raises(InputError, match="is an ensemble"):
        ct.Fleet([ct.Member(network(name="ensemble"), methods.ensemble())])


def test_the_page_on_methods_lists_all():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "methods.md").read_text()
    assert set(re.findall(r"`(\w+)`", page)) >= set(method_names())


def test_bad_input_is_named():
    x, y = blobs()
    with pytest.raises(InputError, match=r"classes 0\.\.1"):
        ct.train(network(), x, y, methods.ross(target=3, epochs=1))
    forgot = ct.Method("forgot", loss=lambda model, batch, found: None, find=lambda now: None)
    with pytest.raises(
        InputError, match=r"find returned None; return what its loss needs, or \(\)"
    ):
        ct.train(network(), x, y, forgot)
