"""A run that was killed ends bit for bit as one that was not, with everything that callbacks
hold.
"""

import contextlib
import math
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau, StepLR

from counterfactual_training import (
    AccuracyBudget,
    AverageWeights,
    BestEpoch,
    Callback,
    ClipGradient,
    EarlyStopping,
    Fleet,
    Member,
    Schedule,
    ecco,
    methods,
    mlp,
    train,
)
from covering import each_value, repeats
from forked import fork

pytestmark = pytest.mark.usefixtures("saved_every_epoch")
METHOD = methods.ct_published(
    epochs=8, batch_size=20, num_counterfactuals=6, learning_rate=0.02
)
SEARCH = ecco(learning_rate=0.5, max_steps=8)
UPDATES = 3  # per epoch


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(60) % 2
    return torch.randn(60, 2, generator=torch.Generator().manual_seed(0)) + 2 * y.unsqueeze(
        1
    ), y


class Kill(Callback):
    def __init__(self, at: int, hard: bool = False) -> None:
        self.at, self.hard = at, hard

    def on_epoch_end(self, run) -> None:
        if run.epoch == self.at:
            if self.hard:
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyboardInterrupt


class Rates(Callback):
    """The epochs that were run, and the rates after them."""

    def __init__(self) -> None:
        self.seen = []

    def on_epoch_end(self, run) -> None:
        self.seen.append((run.epoch, [group["lr"] for group in run.optimizer.param_groups]))


class Prune(Callback):
    """Ends members of a fleet of four."""

    def __init__(self, *whom: int) -> None:
        self.whom = whom

    def on_epoch_end(self, run) -> None:
        if run.epoch == 2 and len(run.members) > 1:
            for i in self.whom:
                run.stop("pruned", i)


CALLBACKS = {
    "none": list,
    "a schedule per epoch": lambda: [Schedule(lambda o: CosineAnnealingLR(o, 8))],
    "one cycle": lambda: [
        Schedule(lambda o: OneCycleLR(o, 0.1, total_steps=8 * UPDATES), "update")
    ],
    "a plateau": lambda: [
        Schedule(lambda o: ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=0.3))
    ],
    "a mean": lambda: [AverageWeights()],
    "a late moving mean": lambda: [AverageWeights(0.9, start=0.3)],
    "early stopping": lambda: [
        EarlyStopping(2, metric="class_loss", mode="min", min_delta=0.05)
    ],
    "best epoch": lambda: [BestEpoch("loss", "min"), ClipGradient(0.1)],
    "a budget": lambda: [AccuracyBudget(0.01)],
    "a budget, one member left": lambda: [AccuracyBudget(0.02, start=0.5), Prune(0, 1, 2)],
    "all of it, members pruned": lambda: [
        Schedule(lambda o: StepLR(o, 2, 0.5)),
        AverageWeights(0.9),
        ClipGradient(0.5),
        Prune(0, 2),
        EarlyStopping(3, metric="class_loss", mode="min", min_delta=0.01),
    ],
}


def chain(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return mlp(2, 2, hidden=(8,))


def noisy(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 2)
    )


def run(
    kind: str, callbacks: list[Callback], path: Path | None = None, seed: int = 0, **changes
):
    """Results of a lone chain, of a lone model that draws and keeps statistics, or of a fleet."""
    x, y = rows()
    method = METHOD.replace(changes)
    if kind == "fleet":
        chosen = [
            method.replace({"generator": SEARCH, "seed": i, "learning_rate": 0.02 / (1 + i)})
            for i in range(4)
        ]
        members = [Member(chain(seed + i), own) for i, own in enumerate(chosen)]
        return Fleet(members).train(x, y, callbacks=callbacks, checkpoint=path)
    optimizer = None if kind == "chain" else (lambda p: SGD(p, 0.1, momentum=0.9))
    model = chain(seed) if kind == "chain" else noisy(seed)
    return [
        train(
            model,
            x,
            y,
            method.replace("generator", SEARCH),
            optimizer=optimizer,
            callbacks=callbacks,
            checkpoint=path,
        )
    ]


def told(results) -> list:
    """All that must agree, bit for bit."""
    return [
        [
            result.history.stopped,
            [
                {k: repr(v) for k, v in record.items() if k != "seconds"}
                for record in result.history.records
            ],
            {name: value.tolist() for name, value in result.model.state_dict().items()},
        ]
        for result in results
    ]


def expect_uninterrupted(tmp_path: Path, name: str, kind: str, accumulate: int) -> None:
    """The run that goes on has another seed for the weights it starts from: they come from the
    file.
    """
    whole, resumed = Rates(), Rates()
    expected = run(kind, [*CALLBACKS[name](), whole], accumulate=accumulate)
    with contextlib.suppress(KeyboardInterrupt):  # some have stopped before
        run(kind, [*CALLBACKS[name](), Kill(4)], tmp_path / "run.ckpt", accumulate=accumulate)
    results = run(
        kind,
        [*CALLBACKS[name](), resumed],
        tmp_path / "run.ckpt",
        seed=70,
        accumulate=accumulate,
    )
    assert told(results) == told(expected)
    assert resumed.seen == whole.seen[3:] and len(whole.seen) > 4


@pytest.mark.filterwarnings("error::UserWarning")
@each_value(name=list(CALLBACKS), kind=["chain", "noisy"], accumulate=[1, 2])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path, name, kind, accumulate):
    expect_uninterrupted(tmp_path, name, kind, accumulate)


@pytest.mark.filterwarnings("error::UserWarning")
@each_value(name=list(CALLBACKS), accumulate=[1, 2])
def test_an_interrupted_fleet_ends_as_an_uninterrupted_one(tmp_path, name, accumulate):
    expect_uninterrupted(tmp_path, name, "fleet", accumulate)


@pytest.mark.parametrize("kind", ["fleet", *repeats("chain")])
def test_killed_without_warning(tmp_path, kind):
    """Another process, killed by the system in the middle of its work; this one carries on."""
    path, name = tmp_path / "run.ckpt", "all of it, members pruned"
    killed = fork(
        lambda: run(kind, [*CALLBACKS[name](), Kill(4, hard=True)], path, accumulate=2)
    )
    killed.join(300)
    assert killed.exitcode == -signal.SIGKILL
    seen = Rates()
    resumed = run(kind, [*CALLBACKS[name](), seen], path, seed=70, accumulate=2)
    assert seen.seen[0][0] == 4, "the epoch in which it was killed was not saved yet"
    assert told(resumed) == told(run(kind, CALLBACKS[name](), accumulate=2))


@pytest.mark.parametrize("kind", ["chain", "noisy", "fleet"])
@pytest.mark.parametrize("average", [False, True])
def test_a_run_stopped_early_returns_at_once_when_started_again(tmp_path, kind, average):
    def callbacks():
        return [
            *([AverageWeights()] if average else []),
            EarlyStopping(1, metric="class_loss", mode="min", min_delta=1.0),
        ]

    seen = Rates()
    first = run(kind, callbacks(), tmp_path / "run.ckpt")
    again = run(kind, [*callbacks(), seen], tmp_path / "run.ckpt", seed=70)
    assert all(result.history.stopped for result in first) and len(first[0].history.records) < 8
    assert seen.seen == [] and told(again) == told(first)


@pytest.mark.parametrize("kind", ["chain", "fleet"])
def test_a_run_stopped_by_a_listener_stays_stopped(tmp_path, kind):
    """Also where whoever has stopped it does not listen any more."""

    class Enough(Callback):
        def on_epoch_end(self, run) -> None:
            if run.epoch == 3:
                run.stop("enough")

    seen = Rates()
    first = run(kind, [Enough()], tmp_path / "run.ckpt")
    again = run(kind, [seen], tmp_path / "run.ckpt", seed=70)
    assert (
        seen.seen == [] and told(again) == told(first) and first[0].history.stopped == "enough"
    )


# ---- bad updates ---------------------------------------------------------------------------------


class Faults(Callback):
    """Spoils the gradients of chosen updates."""

    def __init__(self, faulty) -> None:
        self.faulty, self.update = faulty, 0

    def on_train_begin(self, run) -> None:
        self.update = run.epoch * UPDATES

    def before_step(self, run) -> None:
        if self.faulty(self.update):
            run.gradients[0].fill_(math.nan)
        self.update += 1


@pytest.mark.filterwarnings("ignore:.*stopped")
@pytest.mark.parametrize("kind", ["chain", "noisy", "fleet"])
def test_a_streak_of_bad_updates_is_not_forgotten(tmp_path, kind):
    """Five in a row before the interruption, the last two of seven after it."""

    def faults():
        return Faults(lambda update: update >= 7)

    expected = run(kind, [faults()], max_bad_updates=7)
    with pytest.raises(KeyboardInterrupt):
        run(kind, [faults(), Kill(5)], tmp_path / "run.ckpt", max_bad_updates=7)
    resumed = run(kind, [faults()], tmp_path / "run.ckpt", seed=70, max_bad_updates=7)
    assert told(resumed) == told(expected)
    for result in resumed:
        assert "7 updates in a row" in result.history.stopped
        assert [record["skipped"] for record in result.history.records] == [0, 0, 2, 3, 2]


@pytest.mark.parametrize("kind", ["chain", "noisy", "fleet"])
def test_faults_that_come_and_go_do_not_add_up(kind):
    """Two bad, one good: sixteen in all, never three in a row, also across the ends of epochs."""
    for good in range(3):
        results = run(
            kind, [Faults(lambda update, good=good: update % 3 != good)], max_bad_updates=3
        )
        for result in results:
            assert result.history.stopped is None
            assert [record["skipped"] for record in result.history.records] == [2] * 8


def test_every_member_has_its_own_patience():
    x, y = rows()
    limits = (2, 5, 100)
    chosen = [
        METHOD.replace({"generator": SEARCH, "seed": i, "max_bad_updates": limit})
        for i, limit in enumerate(limits)
    ]

    def faults():
        return Faults(lambda update: update >= 4)

    with pytest.warns(UserWarning, match="stopped in epoch"):
        fleet = Fleet([Member(chain(5), method) for method in chosen]).train(
            x, y, callbacks=[faults()]
        )
    assert [len(result.history.records) for result in fleet] == [2, 3, 8]
    for result, method in zip(fleet, chosen, strict=True):
        with pytest.warns(UserWarning) if result.history.stopped else contextlib.nullcontext():
            lone = train(chain(5), x, y, method, callbacks=[faults()])
        assert lone.history.stopped == result.history.stopped
        skipped = [[record["skipped"] for record in r.history.records] for r in (lone, result)]
        assert skipped[0] == skipped[1]
