"""Callbacks do to a run what the same lines would do in a loop of one's own, alone and in a
fleet.
"""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.testing import assert_close

from counterfactual_training import (
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
from counterfactual_training.errors import InputError
from covering import each_value, on_product

PLAIN = methods.ct_published(epochs=6, batch_size=20, num_counterfactuals=6, learning_rate=0.02)
SEARCH = ecco(learning_rate=0.5, max_steps=8)
UPDATES = 3  # per epoch, of the sixty rows


def fresh(seed: int = 0, layers: str = "chain") -> nn.Module:
    torch.manual_seed(seed)
    return (
        mlp(2, 2, hidden=(8,))
        if layers == "chain"
        else nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    )


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def by_torch(model, x, y, optimizer, epochs=6, before=None, after=None, each=None):
    """A plain loop: what a user would write."""
    for epoch in range(epochs):
        total = 0.0
        for rows, classes in zip(x.split(20), y.split(20), strict=True):
            optimizer.zero_grad()
            loss = cross_entropy(model(rows), classes)
            loss.backward()
            if before is not None:
                before()
            optimizer.step()
            total += loss.item()
            if after is not None:
                after(epoch)
        if each is not None:
            each(total / UPDATES)
    return weights(model)


def fused(model, rate=0.02):
    return torch.optim.Adam(model.parameters(), lr=rate, fused=True)


OPTIMIZERS = {
    "Adam": (None, fused),
    "SGD": (
        lambda p: SGD(p, lr=0.1, momentum=0.9),
        lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9),
    ),
    "AdamW": (lambda p: AdamW(p, lr=0.02), lambda m: AdamW(m.parameters(), lr=0.02)),
}


def members(rates, **changes):
    """Models that start alike, with and without counterfactuals, which differ in their rate."""
    return [
        Member(
            fresh(3).double(),
            method.replace({"generator": SEARCH, "learning_rate": rate, "seed": i, **changes}),
        )
        for i, (rate, method) in enumerate(
            zip(rates, (PLAIN, PLAIN.conventional(), PLAIN), strict=True)
        )
    ]


def expect_alone(x, y, make, rates=(0.02, 0.05, 0.002), stop=None, **changes):
    """A fleet with callbacks equals its members alone with callbacks of their own."""
    fleet = members(rates, **changes)
    lone = [copy.deepcopy(member.model) for member in fleet]
    x = x.double()
    results = Fleet(fleet).train(
        x, y, validation=(x, y), callbacks=[*make(), *([Stop(stop)] if stop else [])]
    )
    for i, (member, model) in enumerate(zip(fleet, lone, strict=True)):
        own = [Stop({0: stop[i]})] if stop and i in stop else []
        alone = train(model, x, y, member.method, validation=(x, y), callbacks=[*make(), *own])
        assert_close(weights(member.model), weights(model), atol=1e-9, rtol=1e-7)
        assert results[i].history.stopped == alone.history.stopped
        assert len(results[i].history.records) == len(alone.history.records)
    return results


class Stop(Callback):
    """Ends members after epochs."""

    def __init__(self, after: dict[int, int]) -> None:
        self.after = after

    def on_epoch_end(self, run) -> None:
        for i in list(run.running):
            if self.after.get(i) == run.epoch:
                run.stop("asked to", i)


# ---- gradients -----------------------------------------------------------------------------------


class TorchClip(Callback):
    def before_step(self, run) -> None:
        nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)


class Replaced(Callback):
    """Puts another tensor in the place of the gradient, as people do."""

    def before_step(self, run) -> None:
        for parameter in run.model.parameters():
            parameter.grad = parameter.grad.clamp(-0.01, 0.01)


class InPlace(Callback):
    def before_step(self, run) -> None:
        for grad in run.gradients:
            grad.clamp_(-0.01, 0.01)


def clamped(model):
    for parameter in model.parameters():
        parameter.grad.clamp_(-0.01, 0.01)


CLIPS = {
    "torch's own": (TorchClip, lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.1)),
    "shipped": (
        lambda: ClipGradient(0.1),
        lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.1),
    ),
    "replaced": (Replaced, clamped),
    "in place": (InPlace, clamped),
}


@on_product(clip=CLIPS, optimizer=OPTIMIZERS, layers=["chain", "autograd"])
def test_gradients_changed_before_the_step_are_the_ones_used(blobs, clip, optimizer, layers):
    x, y = blobs
    callback, before = CLIPS[clip]
    ours, theirs = OPTIMIZERS[optimizer]
    mine, its = fresh(layers=layers), fresh(layers=layers)
    plain = copy.deepcopy(mine)
    train(mine, x, y, PLAIN.conventional(), optimizer=ours, callbacks=[callback()])
    expected = by_torch(its, x, y, theirs(its), before=lambda: before(its))
    assert_close(weights(mine), expected, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(expected, by_torch(plain, x, y, theirs(plain)), atol=1e-3), (
        "clipping must matter here"
    )


def test_every_member_of_a_fleet_is_clipped_by_itself(blobs):
    expect_alone(*blobs, lambda: [ClipGradient(0.05)])


def test_a_gradient_of_infinite_length_is_left_out_not_spread(blobs):
    """A callback that spoils one gradient: the update is skipped and counted, as for any bad
    gradient.
    """

    class Spoil(Callback):
        calls = 0

        def before_step(self, run) -> None:
            self.calls += 1
            if self.calls == 2:
                run.gradients[0].fill_(math.inf)

    model = fresh()
    history = train(model, *blobs, PLAIN, callbacks=[Spoil(), ClipGradient(1.0)]).history
    assert [record["skipped"] for record in history.records] == [1, 0, 0, 0, 0, 0]
    assert bool(torch.isfinite(weights(model)).all())


def test_accumulated_gradients_are_seen_once_per_update(blobs):
    """Three batches of twenty, two per update: two updates an epoch, of the mean gradient."""
    x, y = blobs
    norms = []

    class Norms(Callback):
        def before_step(self, run) -> None:
            norms.append(float(run.gradients[0].norm()))

    model, its = fresh(), fresh()
    train(
        model,
        x,
        y,
        PLAIN.conventional().replace({"epochs": 1, "accumulate": 2}),
        callbacks=[Norms()],
    )
    assert len(norms) == 2
    optimizer = fused(its)
    for part in ((0, 1), (2,)):
        optimizer.zero_grad()
        (
            sum(cross_entropy(its(x.split(20)[i]), y.split(20)[i]) for i in part) / len(part)
        ).backward()
        optimizer.step()
    assert_close(weights(model), weights(its))


# ---- schedules -----------------------------------------------------------------------------------

PER_EPOCH = {
    "StepLR": lambda o: schedulers.StepLR(o, 2, gamma=0.3),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 6),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.ConstantLR(o, 0.1, 2), schedulers.ExponentialLR(o, 0.7)], milestones=[2]
    ),
}
PER_UPDATE = {
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=6 * UPDATES),
    "OneCycleLR, fixed momentum": lambda o: schedulers.OneCycleLR(
        o, 0.1, total_steps=18, cycle_momentum=False
    ),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step)),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.001, 0.05, step_size_up=4),
}
ALL = [*[("epoch", name) for name in PER_EPOCH], *[("update", name) for name in PER_UPDATE]]


def made(per, name):
    return (PER_EPOCH if per == "epoch" else PER_UPDATE)[name]


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("per", "name"), ALL)
def test_a_schedule_equals_the_same_scheduler_in_a_plain_loop(blobs, per, name, optimizer):
    x, y = blobs
    ours, theirs = OPTIMIZERS[optimizer]
    mine, its = fresh(), fresh()
    seen, rates = [], []

    class Rates(Callback):
        def on_epoch_end(self, run) -> None:
            seen.append(run.optimizer.param_groups[0]["lr"])

    train(
        mine,
        x,
        y,
        PLAIN.conventional(),
        optimizer=ours,
        callbacks=[Schedule(made(per, name), per), Rates()],
    )
    own = theirs(its)
    scheduler = made(per, name)(own)

    def each(loss):
        if per == "epoch":
            scheduler.step()
        rates.append(own.param_groups[0]["lr"])

    by_torch(
        its,
        x,
        y,
        own,
        after=lambda epoch: scheduler.step() if per == "update" else None,
        each=each,
    )
    assert seen == pytest.approx(rates) and len(set(rates)) > 1
    assert_close(weights(mine), weights(its), atol=1e-6, rtol=1e-5)


@each_value(schedule=ALL, stop=[None, {0: 2, 2: 3}])
def test_a_scheduled_member_equals_the_run_alone(blobs, schedule, stop):
    """Rates differ per member, and two of three leave the stack."""
    expect_alone(*blobs, lambda: [Schedule(made(*schedule), schedule[0])], stop=stop)


def test_a_plateau_is_each_members_own(blobs):
    x, y = blobs

    def plateau(optimizer):
        return schedulers.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=0.9)

    mine, its = fresh(), fresh()
    train(mine, x, y, PLAIN.conventional(), callbacks=[Schedule(plateau)])
    optimizer = fused(its)
    by_torch(its, x, y, optimizer, each=plateau(optimizer).step)
    assert optimizer.param_groups[0]["lr"] < 0.02
    assert_close(weights(mine), weights(its), atol=1e-6, rtol=1e-5)
    expect_alone(
        x, y, lambda: [Schedule(plateau, metric="class_loss")], rates=(0.0005, 0.2, 0.02)
    )


def test_a_metric_that_is_not_there_is_told(blobs):
    x, y = blobs

    def plateau(optimizer):
        return schedulers.ReduceLROnPlateau(optimizer)

    with pytest.raises(
        InputError, match=r"column of the history: 'losss'\. Did you mean 'loss'"
    ):
        train(fresh(), x, y, PLAIN, callbacks=[Schedule(plateau, metric="losss")])
    for callback in (
        BestEpoch(),
        EarlyStopping(3),
        Schedule(plateau, metric="validation_accuracy"),
    ):
        with pytest.raises(InputError, match="needs validation rows"):
            train(fresh(), x, y, PLAIN, callbacks=[callback])
    with pytest.raises(InputError, match=r"'accuracies'\. Did you mean 'accuracy'"):
        Fleet([Member(fresh(i), PLAIN) for i in range(2)]).train(
            x, y, callbacks=[BestEpoch("accuracies")]
        )


# ---- means of weights ----------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("decay", [None, 0.8])
def test_the_mean_of_the_weights_is_torchs_averaged_model(blobs, decay, optimizer):
    x, y = blobs
    ours, theirs = OPTIMIZERS[optimizer]
    mine, its = fresh(), fresh()
    train(
        mine,
        x,
        y,
        PLAIN.conventional(),
        optimizer=ours,
        callbacks=[AverageWeights(decay, start=0.5)],
    )
    mean = AveragedModel(
        its, multi_avg_fn=None if decay is None else get_ema_multi_avg_fn(decay)
    )
    last = by_torch(
        its,
        x,
        y,
        theirs(its),
        after=lambda epoch: mean.update_parameters(its) if epoch >= 3 else None,
    )
    assert_close(weights(mine), weights(mean.module), atol=1e-6, rtol=1e-5)
    assert not torch.allclose(weights(mine), last, atol=1e-3)


@each_value(stop=[None, {0: 2}, {0: 2, 2: 4}], decay=[None, 0.9])
def test_means_of_members_equal_those_alone(blobs, decay, stop):
    """Whoever is stopped ends with its mean so far, whether or not it has left the stack since."""
    expect_alone(*blobs, lambda: [AverageWeights(decay)], stop=stop)


def test_a_run_stopped_early_ends_with_its_mean_so_far(blobs):
    stopped, short = fresh(), fresh()
    train(stopped, *blobs, PLAIN, callbacks=[AverageWeights(), Stop({0: 2})])
    train(short, *blobs, PLAIN.replace("epochs", 2), callbacks=[AverageWeights()])
    assert torch.equal(weights(stopped), weights(short))


def test_a_run_that_breaks_keeps_its_last_sound_epoch_not_a_mean(blobs):
    class Wreck(Callback):
        def on_epoch_end(self, run) -> None:
            if run.epoch == 3:
                run.optimizer.param_groups[0]["lr"] = 1e39

    kept = []

    class Keep(Callback):
        def on_epoch_end(self, run) -> None:
            kept.append(weights(run.snapshot(0)))

    model = fresh()
    with pytest.warns(UserWarning, match="last sound epoch"):
        train(model, *blobs, PLAIN, callbacks=[AverageWeights(), Wreck(), Keep()])
    assert torch.equal(weights(model), kept[2])


# ---- best epochs and early stopping --------------------------------------------------------------


class Remember(Callback):
    def __init__(self) -> None:
        self.states, self.values = [], []

    def on_epoch_end(self, run) -> None:
        self.states.append(weights(run.snapshot(0)))
        self.values.append(run.history.last("loss"))


class Rise(Callback):
    """From an epoch on, the loss gets worse."""

    def __init__(self, after: int) -> None:
        self.after = after

    def before_step(self, run) -> None:
        if run.epoch >= self.after:
            for grad in run.gradients:
                grad.mul_(-0.2)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_best_epoch_is_the_one_kept(blobs, optimizer):
    seen, model = Remember(), fresh()
    callbacks = [BestEpoch("loss", "min"), Rise(3), seen]
    history = train(
        model, *blobs, PLAIN, optimizer=OPTIMIZERS[optimizer][0], callbacks=callbacks
    ).history
    best = min(range(6), key=seen.values.__getitem__)
    assert len(history.records) == 6 and history.stopped is None and best < 5
    assert torch.equal(weights(model), seen.states[best])


def test_a_run_without_progress_is_stopped_and_ends_with_its_best(blobs):
    seen, model = Remember(), fresh()
    callbacks = [EarlyStopping(2, metric="loss", mode="min"), Rise(3), seen]
    history = train(model, *blobs, PLAIN.replace("epochs", 30), callbacks=callbacks).history
    best = min(range(len(seen.values)), key=seen.values.__getitem__)
    assert (
        history.stopped == "loss has not improved for 2 epochs"
        and len(history.records) == best + 3
    )
    assert torch.equal(weights(model), seen.states[best])


def test_a_member_stops_while_the_others_go_on(blobs):
    """By its own metric: the second one takes steps too large to improve for long."""
    results = expect_alone(
        *blobs,
        lambda: [EarlyStopping(2, metric="class_loss", mode="min", min_delta=0.02)],
        rates=(0.002, 0.2, 0.01),
        epochs=12,
    )
    ended = [len(result.history.records) for result in results]
    assert ended[1] < 12 and max(ended) == 12


def test_epochs_without_the_metric_do_not_count(blobs):
    """During burn-in there are no counterfactuals, so their share says nothing."""
    stopping = EarlyStopping(2, metric="share_mature")
    history = train(
        fresh(), *blobs, PLAIN.replace({"epochs": 10, "burn_in": 0.6}), callbacks=[stopping]
    ).history
    assert len(history.records) > 7


def test_callbacks_begin_anew_with_every_run(blobs):
    """Also with every group of a fleet, which share them."""
    x, y = blobs
    torch.manual_seed(0)

    def dropping():
        return nn.Sequential(nn.Linear(2, 6), nn.Dropout(0.3), nn.ReLU(), nn.Linear(6, 2))

    models = [dropping() for _ in range(2)]
    lone = [copy.deepcopy(model) for model in models]
    chosen = [PLAIN.replace({"generator": SEARCH, "seed": i}) for i in range(2)]
    shared = [
        EarlyStopping(2, metric="loss", mode="min"),
        AverageWeights(),
        Schedule(PER_EPOCH["StepLR"]),
    ]
    with pytest.warns(UserWarning, match="one by one"):
        Fleet([Member(m, s) for m, s in zip(models, chosen, strict=True)]).train(
            x, y, callbacks=shared
        )
    for mine, its, method in zip(models, lone, chosen, strict=True):
        own = [
            EarlyStopping(2, metric="loss", mode="min"),
            AverageWeights(),
            Schedule(PER_EPOCH["StepLR"]),
        ]
        train(its, x, y, method, callbacks=own)
        assert torch.equal(weights(mine), weights(its))


# ---- what callbacks may do -----------------------------------------------------------------------


class StopAfter(Callback):
    """Ends member 1, or a lone run, after so many updates."""

    def __init__(self, updates: int, i: int = 0) -> None:
        self.left, self.i, self.kept = updates, i, None

    def on_batch_end(self, run) -> None:
        self.left -= 1
        if self.left == 0:
            self.kept = weights(run.snapshot(self.i))
            run.stop("enough", self.i)


@pytest.mark.parametrize("refresh", ["epoch", "batch"])
def test_a_run_stopped_within_an_epoch_ends_there(blobs, refresh):
    stop, model = StopAfter(4), fresh()
    history = train(model, *blobs, PLAIN.replace("refresh", refresh), callbacks=[stop]).history
    assert history.stopped == "enough" and len(history.records) == 2
    assert torch.equal(weights(model), stop.kept)
    assert history.records[1]["skipped"] == 0 and math.isfinite(history.records[1]["loss"])


@pytest.mark.parametrize("refresh", ["epoch", "batch"])
def test_a_member_stopped_within_an_epoch_ends_as_it_would_alone(blobs, refresh):
    x, y = blobs[0].double(), blobs[1]
    fleet = members((0.02, 0.05, 0.002), refresh=refresh)
    lone = [copy.deepcopy(member.model) for member in fleet]
    results = Fleet(fleet).train(x, y, callbacks=[StopAfter(4, 1)])
    for i, (member, model) in enumerate(zip(fleet, lone, strict=True)):
        alone = train(model, x, y, member.method, callbacks=[StopAfter(4)] if i == 1 else [])
        assert_close(weights(member.model), weights(model), atol=1e-9, rtol=1e-7)
        mine, its = (
            r.history.to_frame().drop(columns="seconds").to_numpy(float)
            for r in (results[i], alone)
        )
        assert_close(
            torch.tensor(mine), torch.tensor(its), atol=1e-6, rtol=1e-6, equal_nan=True
        )


class Meddling(Callback):
    def before_step(self, run) -> None:
        run.model.eval()

    def on_batch_end(self, run) -> None:
        run.model.eval()

    def on_epoch_end(self, run) -> None:
        run.model.eval()


def test_a_callback_that_switches_to_eval_mode_changes_nothing(blobs):
    def noisy():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 2)
        )

    plain, meddled = noisy(), noisy()
    train(plain, *blobs, PLAIN)
    train(meddled, *blobs, PLAIN, callbacks=[Meddling()])
    for mine, its in zip(
        plain.state_dict().values(), meddled.state_dict().values(), strict=True
    ):
        assert torch.equal(mine, its)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Schedule(PER_EPOCH["StepLR"], per="batch"),
            "Unknown value of per: 'batch'. Valid: 'epoch', 'update'",
        ),
        (lambda: ClipGradient(0.0), "max_norm is a positive number, got 0.0"),
        (lambda: AverageWeights(1.0), r"decay lies in \[0, 1\)"),
        (lambda: BestEpoch(mode="highest"), "Unknown mode"),
        (lambda: EarlyStopping(0), "patience"),
    ],
)
def test_callbacks_that_make_no_sense_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_scheduler_that_no_file_can_hold_says_so(blobs, tmp_path):
    class Odd(torch.optim.lr_scheduler.LambdaLR):
        def __init__(self, optimizer):
            self.memory = [object()]
            super().__init__(optimizer, lambda epoch: 0.9**epoch)

    with pytest.warns(UserWarning, match=r"Odd holds memory.*another rate"):
        train(
            mlp(2, 2),
            *blobs,
            methods.ct_published(epochs=1),
            callbacks=[Schedule(Odd)],
            checkpoint=tmp_path / "c",
        )


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
        lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
    ],
)
def test_schedulers_of_torch_are_held(blobs, tmp_path, make):
    schedule = Schedule(make)
    train(
        mlp(2, 2),
        *blobs,
        methods.ct_published(epochs=1),
        callbacks=[schedule],
        checkpoint=tmp_path / "c",
    )
    assert schedule.state_dict()["schedulers"][0]["last_epoch"] == 1
