"""Eq. 2 stands once: whatever trains by it stops training when it is taken away."""

import pandas as pd
import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import counterfactual_training as ct
from counterfactual_training.core import eq2


class MissingError(Exception):
    """Eq. 2 was asked for."""


class OwnModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 8)
        self.second = nn.Linear(8, 2)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Residual(OwnModule):
    def forward(self, x):
        return x + super().forward(x)


def cnn():
    return nn.Sequential(
        nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 4, 2), nn.Flatten(), nn.Linear(4, 2)
    )


def mlp():
    return ct.mlp(2, 2, (8,))


def quick(name="ct_published", **settings):
    return ct.make_method({"name": name, "epochs": 1, "num_counterfactuals": 6, **settings})


def lone(build, method="ct_published", **options):
    return lambda x, y: ct.train(build(), x, y, quick(method), **options)


def fleet(build):
    return lambda x, y: ct.Fleet([ct.Member(build(), quick()) for _ in range(2)]).train(x, y)


def ensemble(x, y):
    model = ct.Ensemble([mlp() for _ in range(3)])
    return ct.train(model, x, y, quick("ensemble", of="ct_published", members=3))


def classifier(x, y):
    frame = pd.DataFrame(x.numpy(), columns=["a", "b"])
    return ct.CounterfactualClassifier(epochs=1, gate="none", progress=False).fit(frame, y)


def own_loop(x, y):
    ct.Objective()(mlp(), x, y).total.backward()


def autocast(x, y):
    with torch.autocast("cpu", torch.bfloat16):
        ct.train(mlp(), x, y, quick())


def processes(x, y):
    """One of one: what runs is what runs on many."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        ct.train(DistributedDataParallel(mlp()), x, y, quick())
    finally:
        distributed.destroy_process_group()


KINDS = {
    "a lone MLP": lone(mlp),
    "an own module": lone(OwnModule),
    "a module that is no chain": lone(Residual),
    "a CNN": lone(cnn),
    "conventional": lone(mlp, "conventional"),
    "cheap recourse": lone(mlp, "cheap_recourse"),
    "gradients accumulated": lambda x, y: ct.train(mlp(), x, y, quick(accumulate=2)),
    "by LBFGS": lone(mlp, optimizer=torch.optim.LBFGS),
    "a fleet": fleet(mlp),
    "a fleet of own modules": fleet(OwnModule),
    "a fleet of modules that are no chains": fleet(Residual),
    "an ensemble": ensemble,
    "autocast": autocast,
    "processes": processes,
    "the classifier": classifier,
    "an own loop": own_loop,
}


@pytest.mark.parametrize("name", KINDS)
def test_nothing_trains_without_eq_2(name, blobs, monkeypatch):
    KINDS[name](*blobs)

    def gone(*_, **__):
        raise MissingError

    # Imported by name elsewhere, so its body is replaced, not the name.
    monkeypatch.setattr(eq2.table, "__code__", gone.__code__.replace(co_freevars=()))
    monkeypatch.setitem(eq2.table.__globals__, "MissingError", MissingError)
    with pytest.raises(MissingError):
        KINDS[name](*blobs)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "an own loop"])
def test_nothing_trains_without_its_gradient(name, blobs, monkeypatch):
    def gone(*_, **__):
        raise MissingError

    monkeypatch.setattr(eq2.Gradient, "__call__", gone)
    with pytest.raises(MissingError):
        KINDS[name](*blobs)
