"""Algorithm 1 as a whole: what it does, what it logs, what it leaves alone."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from counterfactual_training import (
    Callback,
    Constraints,
    Method,
    fit_vae,
    linear,
    methods,
    mlp,
    revise,
    train,
)
from counterfactual_training.training.callbacks import EpochProgress
from counterfactual_training.training.run import Run

QUICK = methods.ct_published(
    epochs=3, batch_size=20, num_counterfactuals=12, learning_rate=0.01
)


def with_changes(**changes) -> Method:
    return QUICK.replace(changes)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat(
        [value.detach().flatten().double() for value in model.state_dict().values()]
    )


def fresh(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return mlp(2, 2, hidden=(8,))


class Dropping(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)
        )


# ---- what it does --------------------------------------------------------------------------------


def test_training_learns_and_returns_the_same_object(blobs):
    x, y = blobs
    model = fresh()
    result = train(model, x, y, with_changes(epochs=15))
    assert result.model is model and not model.training
    assert float((model(x).argmax(-1) == y).float().mean()) > 0.9
    assert result.history.stopped is None


def test_conventional_training_is_a_plain_loop(blobs):
    """Zero weights, no shuffling: the weights of a loop anybody would write."""
    x, y = blobs
    ours, theirs = fresh(), fresh()
    train(ours, x, y, QUICK.conventional())
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.01)
    for _ in range(3):
        for rows, classes in zip(x.split(20), y.split(20), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(theirs(rows), classes).backward()
            optimizer.step()
    assert_close(weights(ours), weights(theirs))


def test_burn_in_is_conventional_training(blobs):
    x, y = blobs
    burning, conventional = fresh(), fresh()
    history = train(burning, x, y, with_changes(epochs=2, burn_in=1.0)).history
    train(conventional, x, y, with_changes(epochs=2).conventional())
    assert torch.equal(weights(burning), weights(conventional))
    assert all(math.isnan(record["share_mature"]) for record in history.records)


def test_after_burn_in_counterfactuals_come(blobs):
    x, y = blobs
    frame = train(fresh(), x, y, with_changes(epochs=4, burn_in=0.5)).history.to_frame()
    assert frame["share_mature"].isna().tolist() == [True, True, False, False]
    assert (frame["ridge"] > 0).tolist() == [False, False, True, True]


def test_fine_tuning_starts_from_the_weights_given(blobs):
    x, y = blobs
    model = fresh()
    train(model, x, y, with_changes(epochs=20).conventional())
    trained = weights(model)
    train(model, x, y, with_changes(epochs=1, learning_rate=1e-5))
    moved = float((weights(model) - trained).abs().max())
    assert 0 < moved < 1e-3


def test_same_seed_same_weights_other_seed_other_weights(blobs):
    x, y = blobs
    method = with_changes(shuffle=True)
    first, second, other = fresh(), fresh(), fresh()
    train(first, x, y, method)
    torch.manual_seed(99)  # the host's randomness plays no part
    train(second, x, y, method)
    train(other, x, y, with_changes(shuffle=True, seed=1))
    assert torch.equal(weights(first), weights(second)) and not torch.equal(
        weights(first), weights(other)
    )


def test_dropout_is_seeded_too(blobs):
    x, y = blobs
    torch.manual_seed(0)
    first = Dropping()
    second = copy.deepcopy(first)
    train(first, x, y, QUICK)
    torch.manual_seed(5)
    train(second, x, y, QUICK)
    assert torch.equal(weights(first), weights(second))


def test_shuffling_draws_new_batches(blobs):
    x, y = blobs
    seen = []

    class Watching(nn.Sequential):
        def forward(self, rows):
            if self.training:
                seen.append(rows.clone())
            return super().forward(rows)

    def batches(shuffle):
        seen.clear()
        model = Watching(nn.Linear(2, 2))
        train(model, x, y, with_changes(shuffle=shuffle, epochs=2).conventional())
        return [torch.cat(seen[:3]), torch.cat(seen[3:])]

    first, second = batches(False)
    assert torch.equal(first, x) and torch.equal(second, x)
    first, second = batches(True)
    assert not torch.equal(first, x) and not torch.equal(first, second)
    assert torch.equal(first.sort(0).values, x.sort(0).values), "every row once per epoch"


def test_refresh_per_batch_searches_for_every_batch(blobs, monkeypatch):
    from counterfactual_training.training import algorithm

    rounds = []
    real = algorithm.counterfactuals

    def counting(*args):
        rounds.append(args[1])
        return real(*args)

    monkeypatch.setattr(algorithm, "counterfactuals", counting)
    x, y = blobs
    train(fresh(), x, y, with_changes(epochs=1))
    assert rounds == [12]
    rounds.clear()
    train(fresh(), x, y, with_changes(epochs=1, refresh="batch", num_counterfactuals=11))
    assert rounds == [4, 4, 3]
    rounds.clear()
    train(fresh(), x, y, with_changes(epochs=1, num_counterfactuals=1))
    assert rounds == [3], "one counterfactual per batch at least"


@pytest.mark.parametrize("immature", ["replace", "drop", "keep"])
@pytest.mark.parametrize("refresh", ["epoch", "batch"])
def test_every_combination_runs(blobs, immature, refresh):
    x, y = blobs
    history = train(
        fresh(), x, y, with_changes(epochs=2, immature=immature, refresh=refresh)
    ).history
    assert all(math.isfinite(record["loss"]) for record in history.records)


def test_revise_trains_too(blobs):
    x, y = blobs
    history = train(
        fresh(), x, y, QUICK.replace("generator", revise(fit_vae(x, epochs=2)))
    ).history
    assert len(history.records) == 3


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": torch.optim.AdamW,
    "RMSprop": torch.optim.RMSprop,
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer(blobs, name):
    x, y = blobs
    by_factory, by_instance = fresh(), fresh()
    before = weights(by_factory)
    history = train(by_factory, x, y, QUICK, optimizer=OPTIMIZERS[name]).history
    assert history.stopped is None
    train(by_instance, x, y, QUICK, optimizer=OPTIMIZERS[name](by_instance.parameters()))
    assert torch.equal(weights(by_factory), weights(by_instance)) and not torch.equal(
        weights(by_factory), before
    )


def test_protection_acts_in_training(blobs):
    """Same seeds, same data: only the constraint differs, and so do the weights."""
    x, y = blobs
    free, bound = fresh(), fresh()
    method = QUICK.replace("generator.learning_rate", 0.5)
    train(free, x, y, method, Constraints.infer(x))
    train(bound, x, y, method, Constraints.infer(x, {0: "none"}))
    assert not torch.equal(weights(free), weights(bound))


def test_images_and_three_classes(make_blobs):
    x, y = make_blobs(num_classes=3, n=60, d=4)
    model = nn.Sequential(nn.Flatten(), mlp(4, 3))
    history = train(model, x.reshape(-1, 1, 2, 2), y, QUICK).history
    assert math.isfinite(history.last("loss"))


def test_small_integer_classes_are_fine(blobs):
    x, y = blobs
    wide, narrow = fresh(), fresh()
    train(wide, x, y, QUICK)
    train(narrow, x, y.to(torch.uint8), QUICK)
    assert torch.equal(weights(wide), weights(narrow))


def test_weights_of_the_loss_act(blobs):
    x, y = blobs
    plain, heavy = fresh(), fresh()
    train(plain, x, y, QUICK)
    train(heavy, x, y, QUICK.replace("lambda_reg", 5.0))
    assert not torch.equal(weights(plain), weights(heavy))


def test_linear_models_train(blobs):
    assert len(train(linear(2, 2), *blobs, QUICK).history.records) == 3


# ---- what it logs, announces and leaves alone ----------------------------------------------------


def test_the_history_tells_each_epoch(blobs):
    x, y = blobs
    frame = train(
        fresh(),
        x,
        y,
        QUICK.replace("generator.learning_rate", 0.5),
        validation=(x[:20], y[:20]),
    ).history.to_frame()
    assert frame["epoch"].tolist() == [1, 2, 3]
    expected = {
        "loss",
        "class_loss",
        "divergence",
        "ridge",
        "adversarial",
        "accuracy",
        "validation_accuracy",
    }
    expected |= {"share_mature", "mean_steps", "skipped", "seconds"}
    assert expected <= set(frame.columns) and not frame.isna().any().any()
    assert (
        frame["share_mature"].between(0, 1).all()
        and frame["validation_accuracy"].between(0, 1).all()
    )
    assert (frame["skipped"] == 0).all() and (frame["seconds"] > 0).all()
    total = (
        frame["class_loss"]
        + 0.5 * frame["divergence"]
        + 0.1 * frame["ridge"]
        + 0.25 * frame["adversarial"]
    )
    assert frame["loss"].tolist() == pytest.approx(total.tolist(), rel=1e-4)


def test_accuracy_is_that_of_all_batches(blobs):
    """Hardly trained, and in three batches of different size, a model has the accuracy it ends
    with.
    """
    x, y = blobs
    model = fresh()
    method = methods.conventional(epochs=1, batch_size=25, learning_rate=1e-9)
    history = train(model, x, y, method).history
    assert history.last("accuracy") == pytest.approx(
        float((model(x).argmax(-1) == y).float().mean())
    )


def test_validation_is_logged_and_influences_nothing(blobs):
    x, y = blobs
    with_it, without = fresh(), fresh()
    history = train(with_it, x, y, QUICK, validation=(x[:10], y[:10])).history
    blank = train(without, x, y, QUICK).history
    assert torch.equal(weights(with_it), weights(without))
    accuracy = float((with_it(x[:10]).argmax(-1) == y[:10]).float().mean())
    assert history.last("validation_accuracy") == pytest.approx(accuracy)
    loss = float(torch.nn.functional.cross_entropy(with_it(x[:10]), y[:10]))
    assert history.last("validation_loss") == pytest.approx(loss) and math.isnan(
        blank.last("validation_loss")
    )
    assert math.isnan(blank.last("validation_accuracy")) and not math.isnan(
        blank.last("accuracy")
    )


class Listening(Callback):
    def __init__(self, stop_at: int | None = None) -> None:
        self.heard: list[str] = []
        self.stop_at, self.threads = stop_at, 0

    def on_train_begin(self, run: Run) -> None:
        self.heard.append("begin")
        self.threads = torch.get_num_threads()

    def on_epoch_end(self, run: Run) -> None:
        self.heard.append(f"epoch {run.epoch}")
        if run.epoch == self.stop_at:
            run.stop("heard enough")

    def on_train_end(self, run: Run) -> None:
        self.heard.append("end")


def test_callbacks_hear_everything_and_may_stop(blobs):
    x, y = blobs
    listener = Listening()
    train(fresh(), x, y, QUICK, callbacks=[listener])
    assert listener.heard == ["begin", "epoch 1", "epoch 2", "epoch 3", "end"]
    listener = Listening(stop_at=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        history = train(fresh(), x, y, QUICK, callbacks=[listener]).history
    assert (
        listener.heard[-1] == "end"
        and len(history.records) == 2
        and history.stopped == "heard enough"
    )


def test_the_hosts_randomness_is_untouched(blobs):
    x, y = blobs
    torch.manual_seed(0)
    model = Dropping()
    before = torch.get_rng_state()
    train(model, x, y, with_changes(shuffle=True))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.check
def test_the_hosts_threads_are_restored(blobs):
    x, y = blobs
    torch.set_num_threads(2)
    small, asked = Listening(), Listening()
    train(fresh(), x, y, QUICK, callbacks=[small])
    assert small.threads == 1 and torch.get_num_threads() == 2
    torch.set_num_threads(1)
    train(fresh(), x, y, with_changes(threads=2), callbacks=[asked])
    assert asked.threads == 2 and torch.get_num_threads() == 1


def test_a_progress_bar_only_where_it_helps(blobs, capsys):
    x, y = blobs
    train(fresh(), x, y, QUICK)
    assert capsys.readouterr().err == ""
    train(fresh(), x, y, QUICK, progress=True)
    shown = capsys.readouterr().err
    assert "training" in shown and "3/3" in shown and "loss" in shown and "mature" in shown
    assert not EpochProgress(False).status.live


def test_no_epochs_leave_the_weights(blobs):
    x, y = blobs
    model = fresh()
    before = weights(model)
    history = train(model, x, y, with_changes(epochs=0)).history
    assert (
        torch.equal(weights(model), before)
        and history.records == []
        and math.isnan(history.last("loss"))
    )
    assert not model.training
