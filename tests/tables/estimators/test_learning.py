"""fit with weights, warm starts, partial_fit, and what training tells while it runs."""

import copy

import numpy as np
import pytest
import torch

import counterfactual_training as ct
from counterfactual_training.errors import InputError, InputWarning
from counterfactual_training.tables.estimators import fit
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from lab.refits import refits


def quick(**params):
    """A classifier that trains in well under a second."""
    small = {"epochs": 15, "learning_rate": 0.02, "random_state": 0}
    return CounterfactualClassifier(**{**small, **params})


def weights(classifier):
    return [parameter.detach().clone() for parameter in classifier.model_.parameters()]


def same(a, b):
    return all(torch.equal(one, two) for one, two in zip(a, b, strict=True))


# ---- sample weights ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [{}, {"method": "ct_published"}, {"n_restarts": 2, "method": "conventional"}],
    ids=str,
)
def test_heavier_rows_count_more(loans, params):
    frame, _ = loans
    noise = (
        np.random.default_rng(0).random(len(frame)) > 0.5
    )  # nothing to learn but the weights
    heavy = quick(gate="none", epochs=5, **params).fit(
        frame, noise, sample_weight=np.where(noise, 20.0, 1.0)
    )
    assert heavy.predict(frame).mean() > 0.9
    assert (
        0.1
        < quick(gate="none", epochs=5, **params).fit(frame, noise).predict(frame).mean()
        < 0.9
    )


def test_equal_weights_change_nothing(loans):
    plain = quick(gate="none", epochs=2).fit(*loans)
    one = quick(gate="none", epochs=2).fit(*loans, sample_weight=1.0)
    assert all(
        torch.allclose(a, b, atol=1e-5)
        for a, b in zip(weights(plain), weights(one), strict=True)
    )


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ([1.0, 2.0], r"shape \(2,\), but there are 240 rows"),
        (np.ones((240, 2)), "one number per row"),
        ("heavy", "one number per row, got 'heavy'"),
        (-np.ones(240), "not negative"),
        (np.full(240, np.nan), "finite"),
        (np.zeros(240), "not zero for all rows"),
    ],
)
def test_weights_that_make_no_sense(loans, given, match):
    with pytest.raises(InputError, match=match):
        quick().fit(*loans, sample_weight=given)


@pytest.mark.parametrize("way", ["fit", "partial_fit"])
@pytest.mark.parametrize("method", ["bag", "ct"])
def test_every_member_learns_from_the_few_rows_with_a_weight(loans, method, way):
    frame, y = loans
    weight = np.zeros(len(frame))
    weight[0] = 1.0
    bag = quick(method=method, gate="none", epochs=40, learning_rate=0.05)
    for _ in range(30 if way == "partial_fit" else 1):
        getattr(bag, way)(frame, y, sample_weight=weight)
    encoded = bag._encoded(frame.head(1))
    known = bag.classes_.tolist().index(y[0])
    assert len(bag.model_.members) == 5
    for member in bag.model_.members:
        assert float(member(encoded).softmax(-1)[0, known]) > 0.9


def test_five_networks_that_go_on_with_one_row_of_a_class_are_told(loans):
    frame, y = loans
    bag = quick(method="bag", gate="none", epochs=1, warm_start=True).fit(frame, y)
    rare = np.full(len(y), y[0], dtype=object)
    rare[3] = next(label for label in np.unique(y) if label != y[0])
    for learn in (bag.partial_fit, bag.fit):
        with pytest.warns(InputWarning, match=f"Class '{rare[3]}' has one row, which every"):
            learn(frame, rare)


# ---- going on ------------------------------------------------------------------------------------


def test_a_warm_start_goes_on(loans):
    frame, y = loans
    classifier = quick(gate="none", epochs=3, warm_start=True).fit(frame, y)
    first, encoder, before = (
        classifier.history_.last("loss"),
        classifier.encoder_,
        weights(classifier),
    )
    classifier.fit(frame[:200], y[:200])
    assert classifier.encoder_ is encoder  # not fitted to the fewer rows
    assert classifier.history_.to_frame()["epoch"].tolist() == [1, 2, 3, 4, 5, 6]
    assert classifier.history_.last("loss") < first
    assert not same(before, weights(classifier))
    cold = quick(gate="none", epochs=3).fit(frame, y).fit(frame, y)
    assert len(cold.history_.records) == 3


def test_a_warm_start_that_cannot_go_on(loans):
    frame, y = loans
    classifier = quick(method="conventional", gate="none", epochs=1, warm_start=True).fit(
        frame, y
    )
    before = weights(classifier)
    for x, labels, match in (
        (
            frame,
            np.where(y == "denied", "maybe", y),
            "'maybe', which this classifier was not trained on .*warm_start",
        ),
        (frame[y == "denied"], y[y == "denied"], "No row is of class 'granted'"),
        (frame.drop(columns="age"), y, "Missing columns: 'age'"),
    ):
        with pytest.raises(InputError, match=match):
            classifier.fit(x, labels)
    with pytest.raises(InputError, match="n_restarts=1 or warm_start=False"):
        classifier.set_params(n_restarts=2).fit(frame, y)
    assert same(before, weights(classifier)) and list(classifier.feature_names_in_) == list(
        frame.columns
    )


@pytest.mark.parametrize(
    "params", [{}, {"method": "ct_published"}], ids=["default", "ct_published"]
)
def test_rows_in_parts(loans, params):
    frame, y = loans
    classifier = quick(**params)
    parts = [slice(i, i + 80) for i in (0, 80, 160)] * 5
    for part in parts:
        classifier.partial_fit(frame[part], y[part], classes=["granted", "denied"])
    assert classifier.history_.to_frame()["epoch"].tolist() == list(range(1, 16))
    assert classifier.score(frame, y) > 0.85
    age = classifier.encoder_.columns_[0]
    assert (age.low, age.high) == (frame["age"][:80].min(), frame["age"][:80].max())
    classifier.explain(frame.head(3))


def test_partial_fit_goes_on_from_a_file(loans, fitted, tmp_path):
    frame, y = loans
    fitted.save(tmp_path / "m.safetensors")
    again = CounterfactualClassifier.load(tmp_path / "m.safetensors")
    before = again.score(frame, y)
    again.partial_fit(frame, y)
    assert len(again.history_.records) == len(fitted.history_.records) + 1
    assert again.score(frame, y) > before - 0.05


def test_partial_fit_wants_all_classes(loans):
    frame, y = loans
    with pytest.raises(
        InputError, match=r"classes lists \['denied', 'granted', 'maybe'\].*rows of all classes"
    ):
        quick().partial_fit(frame, y, classes=["denied", "granted", "maybe"])
    classifier = quick(gate="none").partial_fit(frame, y)
    with pytest.raises(InputError, match="'maybe', which this classifier was not trained on"):
        classifier.partial_fit(frame, np.where(y == "denied", "maybe", y))


def test_zero_epochs_are_refused(loans):
    with pytest.raises(InputError, match="epochs=0 would leave the random weights"):
        quick(epochs=0).fit(*loans)


# ---- while it runs -------------------------------------------------------------------------------


class Count(ct.Callback):
    epochs = 0

    def on_epoch_end(self, run):
        type(self).epochs += 1


@pytest.mark.parametrize(
    "params",
    [{}, {"early_stopping": False}, {"n_restarts": 2, "method": "conventional"}],
    ids=str,
)
def test_callbacks_are_called(loans, params, tmp_path):
    Count.epochs = 0
    classifier = quick(gate="none", epochs=3, callbacks=[Count()], **params).fit(*loans)
    assert Count.epochs == 3
    classifier.save(tmp_path / "m.safetensors")
    assert CounterfactualClassifier.load(tmp_path / "m.safetensors").callbacks is None
    with pytest.raises(InputError, match=r"write \[callback\]"):
        quick(callbacks=Count()).fit(*loans)


def test_verbose_prints_the_loss(loans, capsys):
    classifier = quick(method="conventional", gate="none", epochs=2, verbose=True).fit(*loans)
    lines = capsys.readouterr().out.splitlines()
    record = classifier.history_.records[1]
    assert (
        lines[1] == f"Epoch 2, loss = {record['loss']:.8f}, validation loss = "
        f"{record['validation_loss']:.8f}"
    )
    quick(method="conventional", gate="none", epochs=1, n_restarts=2, verbose=True).fit(*loans)
    assert [line[:16] for line in capsys.readouterr().out.splitlines()] == [
        "Model 0, Epoch 1",
        "Model 1, Epoch 1",
    ]
    quick(gate="none", epochs=1).fit(*loans)
    assert capsys.readouterr().out == ""


# ---- how long each network trained ---------------------------------------------------------------


@pytest.fixture(scope="module")
def noisy():
    """A bag whose members stop at different epochs, because much of what they see is chance."""
    people = ct.loan(300)
    y = people.labels.copy()
    rng = np.random.default_rng(0)
    wrong = rng.random(300) < 0.3
    y[wrong] = rng.permutation(y[wrong])
    return quick(method="bag", epochs=100).fit(people.frame, y), people.frame, y


def test_each_member_tells_its_own_epochs(noisy, tmp_path):
    bag, _, _ = noisy
    runs = [epochs.run for epochs in bag.epochs_]
    assert len(runs) == 5 and min(runs) < max(runs) < 100
    assert runs[0] == len(bag.history_.records)
    losses = bag.history_.to_frame()["validation_loss"]
    assert bag.epochs_[0].best == losses.idxmin() + 1
    # Stopped after ten epochs that brought nothing.
    assert all(epochs.run - epochs.best == 10 for epochs in bag.epochs_)
    assert bag.trained_.endswith(f"{min(runs)} to {max(runs)} epochs on 300 rows")
    bag.save(tmp_path / "bag.safetensors")
    loaded = CounterfactualClassifier.load(tmp_path / "bag.safetensors")
    assert loaded.epochs_ == bag.epochs_


def test_training_that_goes_on_adds_to_the_epochs_of_each_member(noisy):
    bag, frame, y = noisy
    more = copy.deepcopy(bag).partial_fit(frame, y)
    for before, after in zip(bag.epochs_, more.epochs_, strict=True):
        assert after == (before.run + 1, before.best + 1)


def test_a_member_left_out_takes_its_epochs_along(noisy, monkeypatch):
    bag, frame, y = noisy
    sound = fit.sound_members
    monkeypatch.setattr(fit, "sound_members", lambda results: sound(results)[1:])
    fewer = copy.deepcopy(bag).partial_fit(frame, y)
    assert [epochs.best for epochs in fewer.epochs_] == [
        epochs.best + 1 for epochs in bag.epochs_[1:]
    ]


def test_a_refit_of_the_laboratory_trains_as_long_member_by_member(noisy):
    bag, frame, y = noisy
    (again,) = refits(bag, frame, y, 1, seed=0)
    assert [epochs.run for epochs in again.epochs_] == [epochs.best for epochs in bag.epochs_]
