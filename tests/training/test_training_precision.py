"""Training in half precision, under autocast, and in double precision."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import counterfactual_training as ct
from covering import repeats

METHOD = ct.methods.ct_published(
    epochs=6, batch_size=20, num_counterfactuals=20, learning_rate=0.02, max_steps=8
)
HALF = [torch.bfloat16, torch.float16]
AUTOCAST = pytest.mark.parametrize("dtype", HALF, ids=str)


def network(dtype=torch.float32, seed=1):
    torch.manual_seed(seed)
    return ct.mlp(2, 2, hidden=(16,)).to(dtype)


class Casting(nn.Module):
    """Autocast inside the model's own forward."""

    def __init__(self):
        super().__init__()
        self.inner, self.seen = network(), set()

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.inner(x)
        self.seen.add(logits.dtype)
        return logits


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.enter, self.norm, self.leave = (
            nn.Linear(2, 16),
            nn.BatchNorm1d(16),
            nn.Linear(16, 2),
        )

    def forward(self, x):
        return self.leave(torch.relu(self.norm(self.enter(x))))


def train(model, x, y, method=METHOD, **options):
    return ct.train(model, x, y, method, validation=(x, y), **options)


def weights_of(result):
    return torch.cat([p.detach().flatten() for p in result.model.parameters()])


def check_history(result):
    """All numbers are there, and finer than half precision."""
    for record in result.history.records:
        assert all(math.isfinite(value) for value in record.values())
    losses = torch.tensor(
        [record["class_loss"] for record in result.history.records], dtype=torch.float64
    )
    assert not torch.equal(losses, losses.bfloat16().double())
    assert (
        result.history.records[-1]["class_loss"] < 0.8 * result.history.records[0]["class_loss"]
    )
    assert result.history.records[-1]["accuracy"] > 0.9


@AUTOCAST
def test_autocast_around_training_learns(dtype, blobs):
    """Weights cast once and kept would never be seen to change."""
    single = train(network(), *blobs)
    with torch.autocast("cpu", dtype):
        ct.search(network(), blobs[0], 1 - blobs[1])
        model = network()
        model(blobs[0])  # cast before training begins
        result = train(model, *blobs)
        assert torch.is_autocast_cache_enabled()
        logits = model(blobs[0])
    assert logits.dtype == dtype
    check_history(result)
    assert_close(logits.float(), model(blobs[0]), rtol=0.05, atol=0.1)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert not torch.equal(
        weights_of(result), weights_of(single)
    )  # it was half precision indeed
    assert_close(weights_of(result), weights_of(single), rtol=0.2, atol=0.1)


def test_autocast_around_a_fleet_learns(blobs):
    methods = [METHOD, METHOD.conventional()]
    with torch.autocast("cpu", torch.bfloat16):
        found = ct.Fleet([ct.Member(network(), own) for own in methods]).train(
            *blobs, validation=blobs
        )
        alone = train(network(), *blobs)
    assert_close(weights_of(found[0]), weights_of(alone), rtol=0.1, atol=0.05)
    assert (
        found[1].history.records[-1]["class_loss"]
        < 0.8 * found[1].history.records[0]["class_loss"]
    )


def test_autocast_inside_a_model_learns(blobs, tmp_path):
    model = Casting()
    check_history(train(model, *blobs, checkpoint=tmp_path / "run.safetensors"))
    assert model.seen == {torch.bfloat16}


class Interrupt(ct.Callback):
    def on_epoch_end(self, run):
        if run.epoch == 3:
            raise KeyboardInterrupt


MODELS = {
    "chain": network,
    "double": lambda: network(torch.float64),
    "bfloat16": lambda: network(torch.bfloat16),
    "float16": lambda: network(torch.float16),
    "normed in bfloat16": lambda: Normed().bfloat16(),
    "normed in float16": lambda: Normed().half(),
    "casting": Casting,
}


@pytest.mark.parametrize(
    "settings",
    [*repeats({}), {"refresh": "batch", "immature": "drop", "accumulate": 2}],
    ids=str,
)
@pytest.mark.parametrize("name", MODELS)
def test_every_precision_trains_and_resumes_exactly(name, settings, blobs, tmp_path):
    method, file = METHOD.replace(settings), tmp_path / "run.safetensors"
    x, y = blobs[0].to(next(MODELS[name]().parameters()).dtype), blobs[1]
    options = {"method": method, "sample_weight": torch.linspace(0.5, 1.5, 60)}
    whole = train(MODELS[name](), x, y, **options)
    check_history(whole)
    with pytest.raises(KeyboardInterrupt):
        train(MODELS[name](), x, y, checkpoint=file, callbacks=[Interrupt()], **options)
    resumed = train(MODELS[name](), x, y, checkpoint=file, **options)
    state, its = whole.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(state[k], its[k]) and state[k].dtype == its[k].dtype for k in state)
    assert [r["loss"] for r in whole.history.records] == [
        r["loss"] for r in resumed.history.records
    ]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("rates", [(0.02, 0.02), (0.02, 0.01)], ids=["one rate", "two rates"])
def test_fleets_in_half_precision_train_as_lone_runs(dtype, rates, blobs, tmp_path):
    """With rates of their own members are updated by formula, whose corrections need more digits
    than bfloat16.
    """
    x, y = blobs[0].to(dtype), blobs[1]
    methods = [METHOD.replace("learning_rate", rate) for rate in rates]
    members = [ct.Member(network(dtype, i), own) for i, own in enumerate(methods)]
    found = ct.Fleet(members).train(
        x, y, validation=(x, y), checkpoint=tmp_path / "run.safetensors"
    )
    for i, result in enumerate(found):
        check_history(result)
        alone = train(network(dtype, i), x, y, method=methods[i])
        assert_close(weights_of(result), weights_of(alone), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_non_finite_gradients_are_found_in_half_precision(dtype, blobs):
    class Spoil(ct.Callback):
        def __init__(self):
            self.updates = 0

        def before_step(self, run):
            self.updates += 1
            if self.updates == 2:
                run.gradients[0].fill_(torch.inf)

    result = ct.train(network(dtype), blobs[0].to(dtype), blobs[1], METHOD, callbacks=[Spoil()])
    assert [record["skipped"] for record in result.history.records] == [1, 0, 0, 0, 0, 0]
    assert all(torch.isfinite(p).all() for p in result.model.parameters())


def test_a_default_precision_of_double_changes_nothing_for_single(blobs):
    single = train(network(), *blobs)
    model = network()
    twin = copy.deepcopy(model)
    torch.set_default_dtype(torch.float64)
    try:
        found = train(model, *blobs)
        fleet = ct.Fleet([ct.Member(own, METHOD) for own in (twin, copy.deepcopy(twin))])
        together = fleet.train(*blobs, validation=blobs)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(weights_of(found), weights_of(single))
    assert weights_of(together[0]).dtype == torch.float32
    assert_close(weights_of(together[0]), weights_of(single), rtol=1e-3, atol=1e-3)
