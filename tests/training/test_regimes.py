"""Every regime resumes exactly, trains in fleets as alone, and leaves alone what may not change."""

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
from counterfactual_training.training import regimes
from counterfactual_training.training.regime import Regime, Round
from counterfactual_training.training.regimes import RECIPES, REGIMES, make_regime
from covering import repeats

SMALL = {
    "jem": {"buffer": 50, "steps": 3},
    "dat": {"most": 4, "steps": 3},
    "pgd": {"steps": 3},
    "trades": {"steps": 3},
}
FOUND = [
    name for name in RECIPES if name not in ("misob", "counternet")
]  # regimes that find rows to train on


def blobs(
    rows: int = 90, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % 2
    return (torch.randn(rows, 3, generator=rng) + 2.0 * y[:, None]).to(dtype), y


def network(seed: int = 0, name: str = "", dropout: float = 0.3) -> nn.Module:
    torch.manual_seed(seed)
    if name == "ensemble":
        return ct.Ensemble([network(i) for i in range(3)])
    if name == "counternet":
        return ct.counternet(3, dropout=dropout).double()
    return ct.mlp(3, 2, hidden=(8,)).double()


def setting(name: str, **config) -> ct.Setting:
    made = make_regime(name, **SMALL.get(name, {}))
    made = replace(made, members=min(made.members, 3))
    common = {"epochs": 4, "batch_size": 40, "num_counterfactuals": 20, "learning_rate": 0.02}
    return replace(made, config=replace(made.config, **{**common, **config}))


class InterruptedRunError(Exception):
    pass


class Interrupt(ct.Callback):
    def on_epoch_end(self, run: ct.Run) -> None:
        if run.epoch == 3:
            raise InterruptedRunError


@pytest.mark.parametrize("name", REGIMES)
def test_a_resumed_run_equals_one_never_interrupted(name, tmp_path):
    x, y = blobs()
    whole, broken = network(name=name), network(name=name)
    ct.train(whole, x, y, setting=setting(name))
    file = tmp_path / "run.safetensors"
    with pytest.raises(InterruptedRunError):
        ct.train(broken, x, y, setting=setting(name), callbacks=[Interrupt()], checkpoint=file)
    resumed = network(name=name)
    ct.train(resumed, x, y, setting=setting(name), checkpoint=file)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("own_rows", [True, *repeats(False)])
@pytest.mark.parametrize("name", [name for name in REGIMES if name != "ensemble"])
def test_a_member_of_a_fleet_ends_as_alone(name, own_rows):
    x, y = blobs()
    if own_rows:
        x, y = torch.stack([x, 2 * x + 1]), torch.stack([y, y.flip(0)])
    rules = [{0: "none"}, {1: "increase"}]
    members = []
    for i, rule in enumerate(rules):
        made = setting(name, seed=i)
        rows = x[i] if own_rows else x
        members.append(
            ct.Member(
                network(i, name, dropout=0.0),
                replace(made, constraints=ct.Constraints.infer(rows, rule)),
            )
        )
    alone = [copy.deepcopy(member) for member in members]
    ct.Fleet(members).train(x, y)
    for i, member in enumerate(alone):
        rows = (x[i], y[i]) if own_rows else (x, y)
        ct.train(member.model, *rows, setting=member.setting)
        for one, other in zip(
            members[i].model.parameters(), member.model.parameters(), strict=True
        ):
            assert_close(one, other, rtol=1e-6, atol=1e-8)


def spying(made: ct.Setting, seen: list) -> ct.Setting:
    """The setting, which notes what its regime finds."""
    assert made.regime is not None and made.regime.find is not None
    find = made.regime.find

    def noted(now: Round):
        found = find(now)
        seen.append((now, found))
        return found

    return replace(made, regime=replace(made.regime, find=noted))


@pytest.mark.parametrize("name", FOUND)
def test_what_may_not_change_does_not(name):
    """Nothing that a regime trains on differs from its row in an immutable feature, or leaves the
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
        setting=spying(setting(name, burn_in=0.0), seen),
        constraints=constraints,
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
    ct.train(network(), x, y, setting=spying(setting("cat", burn_in=0.0), seen))
    _, (x_cf, y_target, counted) = seen[0]
    assert len(x_cf) == math.ceil(0.25 * 40) == len(y_target) == len(counted)
    assert set(counted.tolist()) <= {0.0, 1.0}


def a_round(
    model: nn.Module, recipe: Regime, generator: ct.Generator | None = None, **numbers
) -> Round:
    """All rows as one batch, for a recipe that may have a memory."""
    x, y = blobs(**numbers)
    data = _rows(x, y)
    memory = recipe.remember(data, torch.Size()) if recipe.remember is not None else {}
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
    now = a_round(steep(), regimes.cat(share=1.0), ct.ecco(max_steps=3, learning_rate=0.5))
    x_cf, y_target, counted = regimes.cat(share=1.0).find(now)
    reached = now.model(x_cf).softmax(-1).gather(-1, y_target[:, None]).squeeze(-1)
    arrived = reached >= now.generator.decision_threshold
    assert bool(arrived.any()) and not bool(arrived.all())
    assert torch.equal(counted.bool(), arrived)


def test_a_round_of_jem_is_kept_in_its_buffer():
    recipe = regimes.jem(buffer=500, steps=2)
    now = a_round(steep(), recipe)
    before = now.memory["buffer"]
    sampled = recipe.find(now)
    after = now.memory["buffer"]
    replaced = (after != before).any(-1)
    assert 0 < int(replaced.sum()) <= len(sampled)
    kept = {tuple(row) for row in sampled.tolist()}
    assert all(tuple(row) in kept for row in after[replaced].tolist())


def test_no_feature_of_a_jem_sample_moves_further_than_clip():
    recipe = regimes.jem(buffer=500, steps=1, clip=0.1, restart=0.0)
    now = a_round(steep(1e3), recipe)
    now.memory["buffer"] = torch.ones_like(now.memory["buffer"])
    moved = (recipe.find(now) - 1).abs()
    assert_close(moved.amax(0), torch.full((3,), 0.1, dtype=moved.dtype))


def test_dat_takes_no_further_step_while_samples_look_real():
    """The energy of a flat model is the same everywhere, so its AUC is none."""
    recipe = regimes.dat(steps=1)
    now = a_round(steep(0.0), recipe)
    recipe.find(now)
    assert now.memory["steps"] == 1


@pytest.mark.parametrize("target", [0, 1])
def test_recourse_training_moves_rows_towards_the_target(target):
    recipe = regimes.ross(reach=0.5, target=target)
    now = a_round(steep(), recipe)
    moved = recipe.find(now)
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
    config = ct.TrainConfig(epochs=60, batch_size=50, learning_rate=0.05)
    ct.train(plain, x, y, setting=make_regime("conventional"), config=config)
    numbers = {"epsilon": 0.3, "steps": 5} | ({"beta": 6.0} if name == "trades" else {})
    ct.train(hardened, x, y, regime=getattr(regimes, name)(**numbers), config=config)
    assert robust(hardened, x, y, 0.3) > robust(plain, x, y, 0.3) + 0.2


def test_pgd_finds_what_the_attack_finds():
    x, y = blobs()
    model, rule = network(), ct.Constraints.infer(x)
    recipe = regimes.pgd(0.2, 7, 0.05)
    now = Round(model, x, y, rule, ct.ecco(), None, {}, 0, torch.Generator().manual_seed(5))  # type: ignore[arg-type]
    start = x + 0.2 * (
        2 * torch.rand(x.shape, generator=torch.Generator().manual_seed(5)).double() - 1
    )
    expected = start.clamp(*now.box(0.2))
    for _ in range(7):
        leaf = expected.clone().requires_grad_()
        (slope,) = torch.autograd.grad(cross_entropy(model(leaf), y), leaf)
        expected = (expected + 0.05 * slope.sign()).clamp(*now.box(0.2))
    assert_close(recipe.find(now), expected)


def test_trades_is_its_formula():
    x, y = blobs()
    model, x_adv = network(), x + 0.1
    terms = regimes.trades(beta=3.0).loss(model, ct.training.objective.Batch(x, y), x_adv)
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
    config = ct.TrainConfig(epochs=40, batch_size=50, learning_rate=0.005)
    gap = {}
    for made in (make_regime("conventional"), make_regime("jem", buffer=500, steps=10)):
        model = network().float()
        ct.train(model, x, y, setting=made, config=config)
        gap[made.regime is None] = energy_gap(model, x)
    assert gap[False] > max(gap[True], 0.0) + 0.1
    assert float((model(x).argmax(-1) == y).float().mean()) > 0.9


@pytest.mark.check
def test_an_energy_model_that_diverges_stops_with_sound_weights():
    x, y = blobs()
    model = network()
    made = make_regime("jem", weight=1e12, ridge=1e-12, buffer=50, steps=2)
    config = ct.TrainConfig(epochs=400, batch_size=10, learning_rate=50.0, max_bad_updates=5)
    with pytest.warns(UserWarning, match="last sound epoch"):
        result = ct.train(model, x, y, setting=made, config=config)
    assert result.history.stopped is not None
    assert all(bool(torch.isfinite(value).all()) for value in model.parameters())


@pytest.mark.check
def test_recourse_training_brings_people_closer_to_the_target():
    x, y = blobs(rows=300, dtype=torch.float32)
    config = ct.TrainConfig(epochs=40, batch_size=50, learning_rate=0.01)
    probability = {}
    for name in ("conventional", "ross"):
        model = network().float()
        ct.train(model, x, y, setting=make_regime(name), config=config)
        denied = x[y == 0]
        probability[name] = float(model(denied + 0.75).softmax(-1)[:, 1].mean().detach())
    assert probability["ross"] > probability["conventional"] + 0.1


def test_gradient_supervision_aligns_gradients_with_the_way_to_other_rows():
    x, y = blobs(rows=200, dtype=torch.float32)
    config = ct.TrainConfig(epochs=30, batch_size=50, learning_rate=0.02)
    aligned = {}
    for name in ("conventional", "gradient_supervision"):
        model = network().float()
        ct.train(model, x, y, setting=make_regime(name), config=config)
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
        found = regimes.gradient_supervision().find(now)
        terms = regimes.gradient_supervision().loss(
            model, ct.training.objective.Batch(x, y), found
        )
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
    weights = regimes.misob().find(now)
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
    assert bool((regimes.misob().find(early) == 1).all())


def test_dat_climbs_further_while_samples_are_told_apart():
    x, y = blobs()
    seen: list = []
    ct.train(network(), x, y, setting=spying(setting("dat", epochs=8), seen))
    steps = [int(now.memory["steps"]) for now, _ in seen]
    assert steps[-1] > 1 and steps[-1] <= 4 and steps == sorted(steps)


@pytest.mark.parametrize("name", ["jem", "dat"])
def test_samples_of_a_data_set_are_those_of_the_tensors_it_wraps(name):
    x, y = blobs()
    models = network(), network()
    constraints = ct.Constraints.infer(x)
    ct.train(models[0], x, y, setting=setting(name), constraints=constraints)
    ct.train(models[1], TensorDataset(x, y), setting=setting(name), constraints=constraints)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


def test_a_regime_of_ones_own_trains_and_is_recorded():
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
    result = ct.train(
        network(), x, y, regime=Regime("noise", loss, find), config=ct.TrainConfig(epochs=2)
    )
    last = result.history.records[-1]
    assert last["loss"] == pytest.approx(last["class_loss"] + last["adversarial"])
    assert last["adversarial"] > 0


@pytest.mark.parametrize("of", ["conventional", "pgd"])
def test_members_of_an_ensemble_train_as_alone_and_share_nothing_but_the_mean(of):
    x, y = blobs()
    made = make_regime(f"ensemble of {of}", members=3, **SMALL.get(of, {}))
    config = replace(made.config, epochs=2, batch_size=40, learning_rate=0.02, seed=4)
    ensemble = network(name="ensemble")
    result = ct.train(ensemble, x, y, setting=replace(made, config=config))
    assert result.model is ensemble
    for i, member in enumerate(ensemble.members):
        alone = network(i)
        one = ct.train(
            alone,
            x,
            y,
            setting=make_regime(of, **SMALL.get(of, {})),
            config=replace(config, seed=4 + i),
        )
        for trained, other in zip(member.parameters(), alone.parameters(), strict=True):
            assert_close(trained, other, rtol=1e-6, atol=1e-8)
        if i == 0:
            assert one.history.last("loss") == pytest.approx(result.history.last("loss"))
    assert_close(ensemble(x), torch.stack([member(x) for member in ensemble.members]).mean(0))


def test_an_ensemble_by_name_has_as_many_members_as_it_is_given():
    x, y = blobs()
    result = ct.train(
        network(name="ensemble"), x, y, regime="ensemble", config=ct.TrainConfig(epochs=1)
    )
    assert len(result.model.members) == 3 and len(result.history.records) == 1
    assert make_regime("ensemble", of="trades", beta=2.0).regime.numbers["beta"] == 2.0
    with pytest.raises(
        ModelError,
        match=r"got one Sequential: pass ct.Ensemble\(\[make\(\) for _ in range\(5\)\]\)",
    ):
        ct.train(network(), x, y, regime="ensemble")
    with pytest.raises(InputError, match="about 5 members, the ensemble has 3"):
        ct.train(network(name="ensemble"), x, y, setting=make_regime("ensemble"))
    with pytest.raises(InputError, match="an Adam each"):
        ct.train(network(name="ensemble"), x, y, regime="ensemble", optimizer=torch.optim.SGD)
    with pytest.raises(InputError, match="is an ensemble"):
        ct.Fleet([ct.Member(network(name="ensemble"), make_regime("ensemble"))])
    with pytest.raises(InputError, match=r"Unknown regime 'trade'.*'trades'"):
        make_regime("ensemble of trade")
    with pytest.raises(InputError, match="one larger ensemble"):
        make_regime("ensemble", of="ensemble of jem")


def test_train_takes_a_regime_with_numbers_of_its_own():
    x, y = blobs()
    config, results = ct.TrainConfig(epochs=2), []
    for given in (
        {"regime": make_regime("pgd", epsilon=0.2)},
        {"setting": make_regime("pgd", epsilon=0.2)},
    ):
        torch.manual_seed(0)
        results.append(
            ct.train(network(), x, y, config=config, **given).history.to_frame()["loss"]
        )
    assert results[0].equals(results[1])


def test_the_page_on_regimes_lists_all():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "regimes.md").read_text()
    assert set(re.findall(r"`(\w+)`", page)) >= set(REGIMES)


def test_bad_input_is_named():
    x, y = blobs()
    with pytest.raises(InputError, match="trades"):
        make_regime("trade")
    with pytest.raises(InputError, match="Did you mean 'epsilon'"):
        make_regime("pgd", eps=0.1)
    with pytest.raises(InputError, match="no numbers of its own"):
        make_regime("ct", epsilon=0.1)
    with pytest.raises(InputError, match="epsilon must be positive"):
        make_regime("pgd", epsilon=0.0)
    with pytest.raises(InputError, match="loss of its own"):
        replace(make_regime("pgd"), budget=0.01)
    with pytest.raises(InputError, match=r"classes 0\.\.1"):
        ct.train(
            network(), x, y, regime=regimes.ross(target=3), config=ct.TrainConfig(epochs=1)
        )
    with pytest.raises(
        InputError, match=r"find returned None; return what its loss needs, or \(\)"
    ):
        forgot = ct.Regime("forgot", lambda model, batch, found: None, find=lambda now: None)
        ct.train(network(), x, y, regime=forgot, config=ct.TrainConfig(epochs=1))
