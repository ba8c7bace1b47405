"""A checkpoint knows its run by what things are: code, closures, constants and whole tensors, not
how they print.
"""

import functools
import subprocess
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import counterfactual_training as ct
from counterfactual_training import (
    Callback,
    Constraints,
    Generator,
    Objective,
    mlp,
    train,
)
from counterfactual_training.constraints import OneHotGroup
from counterfactual_training.errors import FileError
from counterfactual_training.training.fingerprint import Digest, fingerprint
from counterfactual_training.training.rows import TrainingRows
from counterfactual_training.training.run import Run

QUICK = ct.methods.ct_published(epochs=2, batch_size=20, num_counterfactuals=6)


def digest(value) -> str:
    found = Digest()
    found.add(value)
    return found.hexdigest()


def of_model(model: nn.Module) -> str:
    found = Digest()
    found.add_trained(model)
    return found.hexdigest()


# ---- what is another run -------------------------------------------------------------------------


def costly(weight):
    def penalty(state):
        return weight * state.delta.square().sum(-1)

    return Generator("own", penalties=(penalty,))


WEIGHT, SETTINGS = 0.1, {"weight": 0.1}
elsewhere = types.ModuleType("elsewhere")
elsewhere.WEIGHT = 0.1


def by_global(state):
    return WEIGHT * state.delta.square().sum(-1)


def by_table(state):
    return sum(SETTINGS["weight"] * state.delta[..., j].square() for j in range(2))


def by_module(state):
    return elsewhere.WEIGHT * state.delta.square().sum(-1)


def by_inner(state):
    return sum(WEIGHT * state.delta[..., j].square() for j in range(2))


class Holding:
    """A penalty that is an object."""

    scale = 1.0

    def __init__(self, value):
        self.value = value

    def __call__(self, state):
        return (self.scale * state.delta * torch.as_tensor(self.value)).square().sum(-1)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def __call__(self, state):
        return self.value * state.delta.square().sum(-1)


def long_vector(last):
    values = torch.zeros(5000)
    values[2500] = last
    return values


def table(entry):
    allowed = torch.ones(60, 60, dtype=torch.bool)
    allowed[30, 31] = entry
    return Constraints.build(60, groups=[OneHotGroup(tuple(range(60)), allowed)])


def hooked(factor):
    model = mlp(2, 2)
    model.register_forward_hook(lambda module, inputs, output: output * factor)
    return model


def patched(factor):
    model = mlp(2, 2)
    model.forward = lambda x: nn.Sequential.forward(model, x) * factor
    return model


class Own(nn.Module):
    offset = 0.0

    def __init__(self, act=torch.relu, columns=(0, 1), hidden=1.0, table=None):
        super().__init__()
        self.layer, self.act, self.columns, self._hidden, self.table = (
            nn.Linear(2, 2),
            act,
            list(columns),
            hidden,
            table,
        )

    def forward(self, x):
        return self.act(self.layer(x[:, self.columns])) * self._hidden + self.offset


class OtherForward(Own):
    def forward(self, x):
        return self.act(self.layer(x[:, self.columns])) - self._hidden


@dataclass(frozen=True, eq=False)
class Scaled(Objective):
    def __call__(self, *arguments, **named):
        terms = super().__call__(*arguments, **named)
        return replace(terms, total=2 * terms.total)


@dataclass(frozen=True, eq=False)
class ScaledMore(Objective):
    def __call__(self, *arguments, **named):
        terms = super().__call__(*arguments, **named)
        return replace(terms, total=3 * terms.total)


ScaledMore.__qualname__ = ScaledMore.__name__ = "Scaled"


def same_name(factor):
    """Classes of one name and other code."""
    if factor == 2:

        class Model(mlp(2, 2).__class__):
            def forward(self, x):
                return super().forward(x) * 2.0
    else:

        class Model(mlp(2, 2).__class__):
            def forward(self, x):
                return super().forward(x) * 3.0

    return Model(nn.Linear(2, 2))


PAIRS = {
    "a closure's number": lambda: (costly(0.1), costly(100.0)),
    "a partial's number": lambda: (functools.partial(max, 1), functools.partial(max, 2)),
    "a partial's function": lambda: (functools.partial(max, 1), functools.partial(min, 1)),
    "a partial's keyword": lambda: (
        functools.partial(sorted, reverse=True),
        functools.partial(sorted, reverse=False),
    ),
    "a table of transitions": lambda: (table(True), table(False)),
    "a tensor's middle": lambda: (Holding(long_vector(0.0)), Holding(long_vector(1.0))),
    "an array's middle": lambda: (
        Holding(long_vector(0.0).numpy()),
        Holding(long_vector(1.0).numpy()),
    ),
    "words in an array": lambda: (
        np.array(["a"] * 2000),
        np.array(["a"] * 1000 + ["b"] + ["a"] * 999),
    ),
    "an object's slot": lambda: (Slotted(1.0), Slotted(2.0)),
    "increase or free": lambda: (Constraints.build(2, {0: "increase"}), Constraints.build(2)),
    "decrease or free": lambda: (Constraints.build(2, {0: "decrease"}), Constraints.build(2)),
    "increase or none": lambda: (
        Constraints.build(2, {0: "increase"}),
        Constraints.build(2, {0: "none"}),
    ),
    "a wider box": lambda: (
        Constraints.build(2, domain=(-1, 1)),
        Constraints.build(2, domain=(-1, 2)),
    ),
    "functions of C": lambda: (torch.relu, torch.tanh),
    "ufuncs": lambda: (np.tanh, np.sin),
    "code of one name": lambda: (Scaled(), ScaledMore()),
    "a default": lambda: (lambda state, w=1.0: w, lambda state, w=2.0: w),
    "who is who": lambda: ([*(parts := ([1], [2])), parts[0]], [*parts, parts[1]]),
}
MODELS = {
    "ReLU or Tanh": lambda: (
        nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
        nn.Sequential(nn.Linear(2, 2), nn.Tanh()),
    ),
    "a slope": lambda: (
        nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(0.1)),
        nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(0.2)),
    ),
    "a hook's closure": lambda: (hooked(1.0), hooked(2.0)),
    "a hook or none": lambda: (mlp(2, 2), hooked(1.0)),
    "a forward of its own": lambda: (patched(1.0), patched(2.0)),
    "an activation by reference": lambda: (Own(torch.relu), Own(torch.tanh)),
    "a list of columns": lambda: (Own(columns=(0, 1)), Own(columns=(1, 0))),
    "a private number": lambda: (Own(hidden=1.0), Own(hidden=2.0)),
    "a table that is no buffer": lambda: (
        Own(table=long_vector(0.0)),
        Own(table=long_vector(1.0)),
    ),
    "other code": lambda: (Own(), OtherForward()),
    "other code, same name": lambda: (same_name(2), same_name(3)),
    "padding": lambda: (nn.Conv2d(1, 1, 3, padding=0), nn.Conv2d(1, 1, 3, padding=1)),
    "frozen or not": lambda: (mlp(2, 2), mlp(2, 2).requires_grad_(False)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_differs_is_told_apart_and_what_is_equal_is_not(name):
    first, second = PAIRS[name]()
    again, _ = PAIRS[name]()
    told = digest(first)
    assert told != digest(second)
    assert told == digest(first) == digest(again)


@pytest.mark.parametrize("name", MODELS)
def test_models_are_told_apart_by_what_they_compute(name):
    first, second = MODELS[name]()
    again, _ = MODELS[name]()  # with weights of its own
    assert of_model(first) != of_model(second)
    assert of_model(first) == of_model(again)


@pytest.mark.parametrize("penalty", [by_global, by_table, by_module, by_inner, Holding(1.0)])
def test_constants_around_a_penalty_belong_to_it(penalty, monkeypatch):
    before = digest(penalty)
    monkeypatch.setitem(globals(), "WEIGHT", 100.0)
    monkeypatch.setitem(SETTINGS, "weight", 100.0)
    monkeypatch.setattr(elsewhere, "WEIGHT", 100.0)
    monkeypatch.setattr(Holding, "scale", 100.0)
    assert digest(penalty) != before
    monkeypatch.undo()
    assert digest(penalty) == before


def test_a_global_that_happens_to_be_called_like_an_attribute_does_not(monkeypatch):
    before = digest(by_global)
    monkeypatch.setitem(globals(), "delta", torch.randn(3))
    assert digest(by_global) == before


def test_equal_things_shared_or_not_are_one_run():
    rules = Constraints.build(2)
    assert digest([rules, rules]) == digest([rules, Constraints.build(2)])


# ---- refused and accepted, end to end ------------------------------------------------------------


def scheduled(power):
    return ct.Schedule(
        lambda optimizer: LambdaLR(optimizer, lambda epoch: 0.9 ** (power * epoch))
    )


def built(activation=nn.ReLU):
    return nn.Sequential(nn.Linear(2, 8), activation(), nn.Linear(8, 2))


OTHERS = {
    "activation": ({"model": lambda: built(nn.ReLU)}, {"model": lambda: built(nn.Tanh)}),
    "penalty": (
        {"method": lambda: QUICK.replace("generator", costly(0.1))},
        {"method": lambda: QUICK.replace("generator", costly(100.0))},
    ),
    "direction": (
        {"constraints": lambda: Constraints.build(2, {0: "increase"})},
        {"constraints": lambda: Constraints.build(2)},
    ),
    "scheduler": ({"callbacks": lambda: [scheduled(1)]}, {"callbacks": lambda: [scheduled(2)]}),
    "scheduler or none": ({"callbacks": lambda: [scheduled(1)]}, {}),
    "clipping": (
        {"callbacks": lambda: [ct.ClipGradient(1.0)]},
        {"callbacks": lambda: [ct.ClipGradient(0.01)]},
    ),
    "patience": (
        {"callbacks": lambda: [ct.EarlyStopping(2, metric="loss")]},
        {"callbacks": lambda: [ct.EarlyStopping(3, metric="loss")]},
    ),
    "mean": (
        {"callbacks": lambda: [ct.AverageWeights(0.9)]},
        {"callbacks": lambda: [ct.AverageWeights()]},
    ),
    "weights of rows": (
        {"sample_weight": lambda: torch.ones(60)},
        {"sample_weight": lambda: torch.arange(60.0)},
    ),
    "accumulation": (
        {"method": lambda: QUICK},
        {"method": lambda: QUICK.replace("accumulate", 2)},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_run_is_refused_and_the_same_one_accepted(blobs, tmp_path, name):
    first, second = (
        {"model": built, "method": lambda: QUICK, **changes} for changes in OTHERS[name]
    )
    path = tmp_path / "run.ckpt"
    train(x=blobs[0], y=blobs[1], checkpoint=path, **{k: make() for k, make in first.items()})
    with pytest.raises(FileError, match="another run"):
        train(
            x=blobs[0], y=blobs[1], checkpoint=path, **{k: make() for k, make in second.items()}
        )
    history = train(
        x=blobs[0], y=blobs[1], checkpoint=path, **{k: make() for k, make in first.items()}
    ).history
    assert len(history.records) == 2


class Listening(Callback):
    """Decides nothing."""

    def __init__(self, notes):
        self.notes = notes

    def on_epoch_end(self, run):
        self.notes.append(run.epoch)


def normed():
    return nn.Sequential(
        nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2)
    )


def test_what_makes_no_other_run(blobs, tmp_path):
    """A model that has trained before, running statistics, threads, listeners, callbacks used
    before.
    """
    x, y = blobs
    path = tmp_path / "run.ckpt"
    callbacks = [
        ct.EarlyStopping(5, metric="loss", mode="min"),
        ct.AverageWeights(0.9),
        scheduled(1),
    ]
    train(normed(), x, y, QUICK, callbacks=callbacks, checkpoint=path)
    used = normed()
    train(used, x + 3, y, QUICK.replace("seed", 4), callbacks=callbacks)
    used.train()
    again = train(
        used,
        x,
        y,
        QUICK.replace("threads", 1),
        callbacks=[*callbacks, Listening([])],
        checkpoint=path,
    )
    assert len(again.history.records) == 2


def test_a_forward_put_on_the_object_does_not_tell_the_weights(blobs, tmp_path):
    """Its function holds the model; that must not make the weights part of the run."""
    x, y = blobs
    path = tmp_path / "run.ckpt"
    first, second = patched(2.0), patched(2.0)
    train(first, x, y, QUICK, checkpoint=path)
    train(second, x, y, QUICK, checkpoint=path)
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )


def test_methods_of_members_are_told_one_by_one(blobs):
    data, parts = TrainingRows(*blobs, 2), (ct.ecco(), ct.generic())

    def of(order):
        torch.manual_seed(0)
        methods = [
            ct.methods.ct_published(generator=parts[i], constraints=Constraints.build(2))
            for i in order
        ]
        return fingerprint(Run([mlp(2, 2) for _ in order], methods, data, members=range(3)))

    assert of((0, 1, 0)) != of((0, 1, 1))


def everything() -> list[str]:
    told = [digest(make()[0]) for make in PAIRS.values()] + [
        of_model(make()[0]) for make in MODELS.values()
    ]
    told += [digest(function) for function in (by_global, by_table, by_inner)]
    return [*told, digest({"a", "b", "c"}), digest(scheduled(1))]


@pytest.mark.check
def test_another_process_tells_the_same():
    """Addresses, order of sets and hashes of words differ there."""
    code = f"import {__name__} as this; print(*this.everything())"
    other = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    assert other.stdout.split() == everything()


def of_run(blobs, model: nn.Module, method: ct.Method = QUICK) -> str:
    return fingerprint(
        Run(
            [model],
            [method.replace({"generator": ct.ecco(), "constraints": Constraints.build(2)})],
            TrainingRows(*blobs, 2),
        )
    )


def test_parts_in_eval_mode_are_another_run(blobs):
    model = normed()
    training = of_run(blobs, model)
    model[3].eval()
    assert of_run(blobs, model) != training


OTHER_TRAINING = {
    "epochs": 3,
    "batch_size": 30,
    "learning_rate": 0.5,
    "num_counterfactuals": 7,
    "burn_in": 0.5,
    "refresh": "batch",
    "shuffle": True,
    "target_rule": "prior",
    "adversarial_label": "predicted",
    "immature": "drop",
    "max_bad_updates": 3,
    "seed": 5,
    "accumulate": 2,
    "positives": 2,
}


def test_every_setting_but_threads_makes_another_run(blobs):
    assert {*OTHER_TRAINING, "threads"} == set(vars(QUICK.training))
    model = built()
    usual = of_run(blobs, model)
    for name, value in OTHER_TRAINING.items():
        assert of_run(blobs, model, QUICK.replace({name: value})) != usual, name
    assert of_run(blobs, model, QUICK.replace("threads", 1)) == usual
