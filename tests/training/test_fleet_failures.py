"""What goes wrong for one member of a fleet stays with it, and a checkpoint holds whoever has
ended.
"""

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from counterfactual_training import Constraints, TrainConfig, methods, mlp, train
from counterfactual_training.errors import InputError, ModelError, StoppedWarning
from counterfactual_training.training import fleet as fleet_module
from counterfactual_training.training import run as run_module
from counterfactual_training.training.callbacks import Callback
from counterfactual_training.training.fingerprint import fingerprint
from counterfactual_training.training.fleet import Fleet, Member
from counterfactual_training.training.rows import TrainingRows
from counterfactual_training.training.run import Run
from covering import each_value, repeats

ROWS = 60


class After(Callback):
    """Calls a function after every epoch."""

    def __init__(self, do):
        self.do = do

    def on_epoch_end(self, run):
        self.do(run)


def rows(seed=0, num=ROWS):
    x = torch.randn(num, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x, (torch.arange(num) % 2 + (x[:, 0] > 2).long()).clamp_max(1)


def member(seed, make=None, **changes):
    torch.manual_seed(seed)
    settings = {
        "epochs": 6,
        "batch_size": 20,
        "num_counterfactuals": 10,
        "seed": seed,
        **changes,
    }
    model = mlp(2, 2, (5,)).double() if make is None else make()
    return Member(model, methods.ct_published(max_steps=5, **settings))


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def expect_same(mine, its, skip=("seconds",), exact=True):
    assert mine.history.stopped == its.history.stopped
    ours, theirs = (r.history.to_frame().drop(columns=list(skip)) for r in (mine, its))
    assert list(ours.columns) == list(theirs.columns)
    close = {"atol": 0, "rtol": 0} if exact else {"atol": 1e-6, "rtol": 1e-6}
    assert_close(
        torch.tensor(ours.to_numpy(float)),
        torch.tensor(theirs.to_numpy(float)),
        equal_nan=True,
        **close,
    )
    assert_close(weights(mine.model), weights(its.model), **close)


# Who stops after which epoch, in fleets of four: with and without a smaller stack in between, and
# with nobody left.
STOPS = {
    "compaction, then one more": {1: (0, 1), 2: (2,)},
    "compaction, then all": {1: (0, 1, 2), 2: (3,)},
    "one that stays in the stack": {1: (3,)},
    "twice a smaller stack": {1: (1, 3), 2: (0,)},
}


@each_value(stops=list(STOPS), own_rows=[False, True])
@pytest.mark.usefixtures("saved_every_epoch")
def test_a_fleet_resumes_whoever_has_stopped_before(tmp_path, stops, own_rows):
    def prune(run, killed_at=None):
        for i in STOPS[stops].get(run.epoch, ()):
            run.stop("pruned", i)
        if run.epoch == killed_at:
            raise KeyboardInterrupt

    x, y = rows()
    validation = rows(9, 30)
    if own_rows:
        x, y = (torch.stack(parts) for parts in zip(*(rows(i) for i in range(4)), strict=True))
        validation = tuple(
            torch.stack(parts)
            for parts in zip(*(rows(9 + i, 30) for i in range(4)), strict=True)
        )

    def fleet():
        return Fleet([member(i) for i in range(4)])

    whole = fleet().train(x, y, validation=validation, callbacks=[After(prune)])
    file = tmp_path / "f.safetensors"
    with contextlib.suppress(KeyboardInterrupt):
        fleet().train(
            x,
            y,
            validation=validation,
            checkpoint=file,
            callbacks=[After(lambda run: prune(run, 4))],
        )
    epochs = []
    resumed = fleet().train(
        x,
        y,
        validation=validation,
        checkpoint=file,
        callbacks=[After(lambda run: epochs.append(run.epoch))],
    )
    assert epochs == ([] if stops == "compaction, then all" else [4, 5, 6])
    for mine, its in zip(resumed, whole, strict=True):
        expect_same(mine, its)


def test_a_second_stop_changes_nothing():
    x, y = rows()

    def on_epoch(run):
        if run.epoch == 2:
            before = weights(run.snapshot(0))
            run.stop("first", 0)
            run.stop("second", 0)
            assert torch.equal(weights(run.snapshot(0)), before)

    results = Fleet([member(0), member(1)]).train(x, y, callbacks=[After(on_epoch)])
    assert results[0].history.stopped == "first" and bool(weights(results[0].model).any())


BROKEN = {
    "within the first epoch": {"refresh": "batch"},
    "at the start of the second": {},
    "with the only batch of an epoch": {"batch_size": ROWS},  # finite weights, infinite logits
    "by losses that are not finite": {"max_bad_updates": 2},
    "in the midst of an epoch": {"refresh": "batch", "max_bad_updates": 1, "shuffle": True},
}


@pytest.mark.filterwarnings("ignore:.*stopped")
@pytest.mark.parametrize("rate", [1e307, *repeats(1e200)])
@pytest.mark.parametrize("how", BROKEN)
def test_a_member_whose_numbers_break_ends_as_it_would_alone(how, rate):
    x, y = rows()
    held = rows(5, 30)
    fleet = [
        member(0, **BROKEN[how]),
        member(1, learning_rate=rate, **BROKEN[how]),
        member(2, **BROKEN[how]),
    ]
    twins = [copy.deepcopy(one.model) for one in fleet]
    results = Fleet(fleet).train(x, y, validation=held)
    for one, model, result in zip(fleet, twins, results, strict=True):
        lone = train(model, x, y, one.method, validation=held)
        expect_same(result, lone, exact=False)
    assert results[1].history.stopped is not None and results[0].history.stopped is None


@pytest.mark.filterwarnings("ignore:.*stopped")
@pytest.mark.usefixtures("saved_every_epoch")
def test_a_broken_member_is_in_the_checkpoint(tmp_path):
    x, y = rows()

    def fleet():
        return Fleet(
            [
                member(i, batch_size=ROWS, learning_rate=1e307 if i == 1 else 0.01)
                for i in range(5)
            ]
        )

    def kill(run):
        if run.epoch == 4:
            raise KeyboardInterrupt

    whole = fleet().train(x, y)
    with pytest.raises(KeyboardInterrupt):
        fleet().train(x, y, checkpoint=tmp_path / "f.safetensors", callbacks=[After(kill)])
    for mine, its in zip(
        fleet().train(x, y, checkpoint=tmp_path / "f.safetensors"), whole, strict=True
    ):
        expect_same(mine, its)
    assert whole[1].history.stopped is not None


class Spoil(Callback):
    """Makes all gradients NaN from an epoch on."""

    def __init__(self, since):
        self.since = since

    def before_step(self, run):
        if run.epoch >= self.since:
            for grad in run.gradients:
                grad.fill_(torch.nan)


class Interrupt(Callback):
    """Interrupts an epoch after its first update."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_batch_end(self, run):
        if run.epoch == self.epoch:
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:Member")
def test_every_member_has_its_own_limit_of_bad_updates():
    x, y = rows()  # three updates per epoch
    limits = (2, 5, 20)
    results = Fleet([member(i, max_bad_updates=limit) for i, limit in enumerate(limits)]).train(
        x, y, callbacks=[Spoil(since=1)]
    )
    assert [len(result.history.records) for result in results] == [2, 3, 6]
    reasons = [result.history.stopped for result in results]
    assert reasons[0].startswith("2 updates in a row") and reasons[1].startswith(
        "5 updates in a row"
    )
    assert reasons[2] is None, "15 bad updates, 20 allowed"
    assert [
        sum(record["skipped"] for record in result.history.records) for result in results
    ] == [2, 5, 15]


@pytest.mark.usefixtures("saved_every_epoch")
@pytest.mark.filterwarnings("ignore:Member", "ignore:Training stopped")
@pytest.mark.parametrize("count", [1, 2])
def test_a_run_killed_within_a_streak_of_bad_updates_counts_on(tmp_path, count):
    x, y = rows()

    def run(*callbacks, **options):
        fleet = Fleet([member(i, max_bad_updates=5) for i in range(count)])
        return fleet.train(x, y, callbacks=[Spoil(since=1), *callbacks], **options)

    with contextlib.suppress(KeyboardInterrupt):
        run(Interrupt(2), checkpoint=tmp_path / "run")
    assert list(tmp_path.iterdir()), "two epochs were saved, with three bad updates"
    for mine, its in zip(run(checkpoint=tmp_path / "run"), run(), strict=True):
        assert len(its.history.records) == 3
        expect_same(mine, its)


class Shifted(nn.Module):
    def __init__(self, shift):
        super().__init__()
        self.layer = nn.Linear(2, 2).double()
        self.register_buffer("shift", torch.tensor(shift, dtype=torch.float64))

    def forward(self, x):
        return self.layer(x + self.shift)


def test_the_fingerprint_knows_rules_and_buffers():
    x, y = torch.eye(2, dtype=torch.float64).repeat(6, 1), torch.arange(12) % 2
    data = TrainingRows(x, y, 2)

    def digest(constraints, shift=0.0):
        torch.manual_seed(0)
        return fingerprint(
            Run([Shifted(shift)], [methods.ct_published(constraints=constraints)], data)
        )

    plain = Constraints.build(2, None, (0.0, 1.0))
    grouped = Constraints.build(2, None, (0.0, 1.0), groups=[[0, 1]])
    stepwise = Constraints.build(
        2, None, (0.0, 1.0), groups=[[0, 1]], category_projection="step"
    )
    digests = [digest(plain), digest(grouped), digest(stepwise), digest(plain, shift=1.0)]
    assert len(set(digests)) == 4
    assert digest(plain) == digests[0]


def test_memory_counts_the_shuffled_rows_and_the_limit_of_a_container(tmp_path, monkeypatch):
    shuffled, plain = (
        fleet_module.memory_per_member(mlp(50, 2), 50, 10_000, TrainConfig(shuffle=shuffle))
        for shuffle in (True, False)
    )
    assert shuffled - plain == 4 * 10_000 * 52

    assert fleet_module._container(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("700\n")
    assert fleet_module._container(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    assert fleet_module._container(tmp_path) == 300
    (tmp_path / "memory.stat").write_text("anon 600\ninactive_file 50\n")
    assert fleet_module._container(tmp_path) == 350
    left = fleet_module._container(tmp_path)
    monkeypatch.setattr(fleet_module, "_container", lambda: left)
    assert fleet_module.free_memory(torch.device("cpu")) == 350


# ---- outputs that are no numbers, of weights that are some ---------------------------------------


def steep(rate, epochs=1):
    """A member whose two updates are too few for a streak of bad ones to be noticed."""
    torch.manual_seed(0)
    model = mlp(2, 2, (5,))
    return Member(model, methods.conventional(epochs=epochs, learning_rate=rate, batch_size=30))


def test_a_member_that_returns_no_numbers_is_left_out():
    x, y = rows()
    x = x.float()
    fleet = Fleet([steep(1e30), steep(1e-3)])
    with pytest.warns(StoppedWarning, match="Member 0 of the fleet cannot be used"):
        results = fleet.train(x, y)
    assert all(torch.isfinite(p).all() for p in results[0].model.parameters())
    assert results[0].history.diverged and not results[0].history.usable
    assert not results[1].history.diverged and results[1].history.usable
    with pytest.warns(UserWarning, match="Of 2 members 1 diverged and are left out"):
        assert fleet_module.sound_members(results) == [1]
    # None is sound, but one returns numbers.
    results[1].history.diverged = True
    assert fleet_module.sound_members(results) == [1]


def test_a_lone_model_that_returns_no_numbers_is_told():
    x, y = rows()
    member = steep(1e30)
    with pytest.warns(StoppedWarning, match="The trained model cannot be used"):
        history = train(member.model, x.float(), y, member.method).history
    assert history.diverged and "not finite numbers" in history.stopped


def test_models_whose_first_outputs_overflow_are_told_as_such():
    x, y = rows()
    models = [mlp(2, 2, (5,)) for _ in range(2)]
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter.fill_(1e30)
    with pytest.raises(ModelError, match="NaN or infinity"):
        Fleet([Member(model, methods.conventional(epochs=1)) for model in models]).train(
            x.float(), y
        )


def test_who_diverged_is_remembered_by_a_checkpoint(tmp_path):
    x, y = rows()
    path = tmp_path / "fleet.safetensors"

    def ends(run):
        if run.epoch == 1:
            run.fail(0, 1, "made to fail")
        if run.epoch == 2:
            raise KeyboardInterrupt

    with pytest.warns(StoppedWarning), contextlib.suppress(KeyboardInterrupt):
        Fleet([member(0), member(1)]).train(x, y, callbacks=[After(ends)], checkpoint=path)
    first, second = Fleet([member(0), member(1)]).train(x, y, checkpoint=path)
    assert first.history.diverged and not second.history.diverged


def with_dropout():
    return nn.Sequential(nn.Linear(2, 6), nn.Dropout(0.3), nn.Linear(6, 2)).double()


@pytest.mark.filterwarnings("ignore:The fleet is trained one by one")
def test_listeners_hear_of_members_trained_one_by_one():
    x, y = rows()
    heard = []

    def on_epoch(run):
        assert len(run.histories[0].records) == run.epoch and run.running == [0]
        heard.append((run.members, run.epoch, run.epochs))
        if run.members == [1] and run.epoch == 2:
            kept.append(weights(run.snapshot(0)))
            run.stop("pruned", 0)
            assert run.running == []

    kept: list = []
    results = Fleet([member(i, with_dropout, epochs=3) for i in range(3)]).train(
        x, y, callbacks=[After(on_epoch)]
    )
    assert heard == [
        ([i], epoch, 3) for i in range(3) for epoch in (1, 2, 3) if (i, epoch) != (1, 3)
    ]
    assert [r.history.stopped for r in results] == [None, "pruned", None]
    assert torch.equal(kept[0], weights(results[1].model))


def test_validation_classes_are_checked():
    x, y = rows()
    for wrong in (y + 1, y - 1):
        with pytest.raises(InputError, match=r"lasses must lie in 0\.\.1"):
            Fleet([member(0), member(1)]).train(x, y, validation=(x, wrong))
    late = torch.cat([y, y, y + 1])  # not among the first rows, which the model is tried on
    with pytest.raises(InputError, match=r"Validation classes must lie in 0\.\.1"):
        Fleet([member(0), member(1)]).train(x, y, validation=(x.repeat(3, 1), late))


@pytest.mark.parametrize("own_rows", [False, True])
def test_threads_are_chosen_by_the_rows_of_a_batch(monkeypatch, own_rows):
    x, y = torch.rand(24, 1, 5, 5, dtype=torch.float64), torch.arange(24) % 2
    if own_rows:
        x, y = x.expand(2, *x.shape), y.expand(2, -1)
    shapes = []
    real = run_module.sensible_threads

    def seen(model, batch, threads):
        shapes.append(tuple(batch.shape))
        return real(model, batch, threads)

    monkeypatch.setattr(run_module, "sensible_threads", seen)

    def flat():
        return nn.Sequential(nn.Flatten(), nn.Linear(25, 2)).double()

    Fleet([member(i, flat, epochs=1, batch_size=8) for i in range(2)]).train(x, y)
    assert shapes == [(18, 1, 5, 5)], "a batch and the counterfactuals of an epoch"
