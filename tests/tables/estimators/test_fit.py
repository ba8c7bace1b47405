"""Training and ``n_restarts``: what is chosen is chosen by rows held out."""

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

import counterfactual_training as ct
from counterfactual_training.errors import InputError, InputWarning
from counterfactual_training.tables.estimators import fit, inputs
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.fit import prepare, validation_split
from counterfactual_training.training.run import History, TrainResult

QUICK = {
    "method": "ct_published(num_counterfactuals=30)",
    "hidden": (32,),
    "scaling": "standard",
    "gate": "none",
    "early_stopping": False,
    "epochs": 6,
    "learning_rate": 0.02,
    "random_state": 0,
}


class Seen(ct.Callback):
    """Keeps the histories of all trainings; for the class, because scikit-learn copies
    parameters.
    """

    trainings: ClassVar = []

    def on_train_end(self, run):
        self.trainings.append(run.histories)


@pytest.fixture
def small(loans):
    frame, labels = loans
    return frame.iloc[:120], labels[:120]


class TestRestarts:
    def test_one_restart_is_a_plain_fit(self, small):
        plain, one = (
            CounterfactualClassifier(**QUICK),
            CounterfactualClassifier(**QUICK, n_restarts=1),
        )
        np.testing.assert_array_equal(
            plain.fit(*small).predict_proba(small[0]), one.fit(*small).predict_proba(small[0])
        )

    def test_the_kept_one_is_accurate_and_then_plausible(self, small, monkeypatch):
        measured = []
        original = fit.ValidationRows.__call__

        def record(self, trials, quiet=True):
            measured.append((trials, original(self, trials, quiet)))
            return measured[-1][1]

        monkeypatch.setattr(fit.ValidationRows, "__call__", record)
        classifier = CounterfactualClassifier(**QUICK, n_restarts=3).fit(*small)
        (trials, numbers), *_ = measured
        best = max(number["accuracy"] for number in numbers)
        error = np.sqrt(best * (1 - best) / 24)
        kept = next(i for i, (model,) in enumerate(trials) if model is classifier.model_)
        assert numbers[kept]["accuracy"] >= best - error
        good = [n["implausibility"] for n in numbers if n["accuracy"] >= best - error]
        assert numbers[kept]["implausibility"] == min(good)
        weights = [model[0].weight.detach() for (model,) in trials]
        assert not torch.equal(weights[0], weights[1])  # another seed, another model

    def test_restarts_are_compared_on_rows_that_none_of_them_trains_on(
        self, small, monkeypatch
    ):
        trained, measured = [], []
        train, measure = fit.Fleet.train, fit.ValidationRows.__call__

        def record_training(self, x, *args, **options):
            trained.append(x)
            return train(self, x, *args, **options)

        def record_measuring(self, trials, quiet=True):
            measured.append(self.x)
            return measure(self, trials, quiet)

        monkeypatch.setattr(fit.Fleet, "train", record_training)
        monkeypatch.setattr(fit.ValidationRows, "__call__", record_measuring)
        CounterfactualClassifier(**QUICK, n_restarts=2).fit(*small)
        (rows,), (held_out,) = trained, measured
        assert len(rows) == 96 and len(held_out) == 24
        assert (torch.cdist(held_out, rows) > 1e-4).all()  # the loan book holds nobody twice

    @pytest.mark.check
    def test_restarts_are_repeatable_and_saved(self, small, tmp_path):
        first = CounterfactualClassifier(**QUICK, n_restarts=2).fit(*small)
        second = CounterfactualClassifier(**QUICK, n_restarts=2).fit(*small)
        np.testing.assert_array_equal(
            first.predict_proba(small[0]), second.predict_proba(small[0])
        )
        first.save(tmp_path / "best.safetensors")
        assert CounterfactualClassifier.load(tmp_path / "best.safetensors").n_restarts == 2

    @pytest.mark.parametrize("num", [0, -1, 1.5, True, "two"])
    def test_no_number_of_restarts_is_refused(self, small, num):
        with pytest.raises(InputError, match="n_restarts"):
            CounterfactualClassifier(**QUICK, n_restarts=num).fit(*small)

    def test_too_few_rows_to_hold_some_out_are_said(self):
        frame, labels = np.random.default_rng(0).normal(size=(9, 2)), ["a"] * 8 + ["b"]
        with pytest.raises(InputError, match="every class needs at least two"):
            CounterfactualClassifier(**QUICK, n_restarts=2).fit(frame, labels)


def test_every_class_is_on_both_sides_of_the_split():
    y = torch.tensor([0] * 50 + [1] * 10 + [2] * 2)
    train, held_out = validation_split(y, 0.2, seed=0)
    assert set(y[train].tolist()) == set(y[held_out].tolist()) == {0, 1, 2}
    assert sorted([*train.tolist(), *held_out.tolist()]) == list(range(62))
    assert y[held_out].bincount().tolist() == [10, 2, 1]
    train, held_out = validation_split(y, 0.9, seed=0)
    assert y[train].bincount().tolist() == [5, 1, 1]  # never all of them are held out


def test_an_interrupted_fit_leaves_the_model_before(monkeypatch, blobs):
    x, y = blobs[0].numpy(), blobs[1].numpy()
    classifier = ct.CounterfactualClassifier("conventional", epochs=2, random_state=0)
    classifier.fit(x, y)
    before = classifier.predict_proba(x)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("counterfactual_training.tables.estimators.fit.train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        classifier.fit(x + 1, 1 - y)
    assert np.array_equal(classifier.predict_proba(x), before)
    fresh = ct.CounterfactualClassifier("conventional")
    with pytest.raises(KeyboardInterrupt):
        fresh.fit(x, y)
    assert not hasattr(fresh, "model_")


def test_early_stopping_keeps_the_best_epoch_of_rows_it_did_not_train_on(make_blobs):
    x, y = make_blobs(n=200)
    noisy = y.where(torch.rand(len(y), generator=torch.Generator().manual_seed(0)) > 0.3, 1 - y)
    params = {
        "method": "conventional",
        "learning_rate": 0.05,
        "random_state": 0,
        "n_iter_no_change": 4,
        "validation_fraction": 0.25,
    }
    classifier = ct.CounterfactualClassifier(**params).fit(x.numpy(), noisy.numpy())
    losses = classifier.history_.to_frame()["validation_loss"]
    assert "validation_loss has not improved for 4 epochs" in classifier.history_.stopped
    assert losses.idxmin() == len(losses) - 5
    prepared = prepare(
        classifier.get_params(),
        *inputs.frame_and_labels(classifier, x.numpy(), noisy.numpy()),
        classifier._seed(),
    )
    held = prepared.held_out
    assert prepared.y[held].bincount().tolist() == [
        round(0.25 * int((noisy == k).sum())) for k in (0, 1)
    ]
    loss = torch.nn.functional.cross_entropy(
        classifier.model_(prepared.x[held]), prepared.y[held]
    )
    assert loss.item() == pytest.approx(losses.min(), rel=1e-4)
    whole_run = ct.CounterfactualClassifier(**params, early_stopping=False, epochs=12).fit(
        x.numpy(), noisy.numpy()
    )
    assert whole_run.history_.last("epoch") == 12 and whole_run.history_.stopped is None


@pytest.mark.parametrize("options", [{}, {"verbose": True}, {"class_weight": "balanced"}])
def test_rows_that_are_squashed_once_train_the_same_network(small, options):
    params = {"epochs": 4, "random_state": 0, **options}
    once = ct.CounterfactualClassifier(**params).fit(*small)
    # Somebody who looks on sees the whole network and the rows as they are.
    always = ct.CounterfactualClassifier(**params, callbacks=[Seen()]).fit(*small)
    for mine, other in zip(once.model_.parameters(), always.model_.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert once.history_.last("validation_loss") == always.history_.last("validation_loss")
    assert torch.equal(once.gate_.centres, always.gate_.centres)
    assert not any(module.training for module in once.model_.modules())


def test_the_gate_gets_rows_as_they_are(small):
    classifier = ct.CounterfactualClassifier(
        epochs=1, early_stopping=False, random_state=0
    ).fit(*small)
    rows = torch.as_tensor(classifier.encoder_.transform(small[0], np.float32))
    kept = classifier.gate_.centres[classifier.gate_.width > 0]
    assert len(kept) > 50 and (kept[:, None] == rows).all(-1).any(-1).all()


def test_too_few_rows_to_stop_by_are_all_trained_on():
    x = np.random.default_rng(0).normal(size=(21, 2))
    y = [0] * 10 + [1] * 10 + [2]  # a class with one row keeps it
    classifier = ct.CounterfactualClassifier(epochs=3, random_state=0).fit(x, y)
    assert classifier.history_.last("epoch") == 3 and np.isnan(
        classifier.history_.last("validation_loss")
    )
    more = ct.CounterfactualClassifier(epochs=3, random_state=0).fit(
        np.tile(x[:-1], (5, 1)), y[:-1] * 5
    )
    assert np.isfinite(more.history_.last("validation_loss"))


def test_class_weights_go_by_label():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(120, 2)), rng.choice(["no", "yes"], 120)

    def share(weight):
        classifier = ct.CounterfactualClassifier(
            epochs=5, learning_rate=0.02, random_state=0, class_weight=weight
        )
        return classifier.fit(x, labels).predict_proba(x)[:, 1].mean()

    assert share({"yes": 20.0}) > share(None) + 0.05 > share({"no": 20.0}) + 0.1
    with pytest.raises(
        InputError, match=r"Unknown class in class_weight: 'yess'. Did you mean 'yes'"
    ):
        share({"yess": 2.0})
    with pytest.raises(InputError, match="'balanced' or one number per class"):
        share("fair")


def test_the_seed_of_a_fit_is_that_of_its_gate(small):
    params = CounterfactualClassifier(
        model="linear", gate="density", mutability={}
    ).get_params()
    first, again, other = (prepare(params, *small, seed) for seed in (0, 0, 1))
    gates = [made.fit_gate(made.model) for made in (first, again, other)]
    assert torch.equal(gates[0].centres, gates[1].centres)
    assert not torch.equal(gates[0].centres, gates[2].centres)


def test_going_on_classes_keep_the_order_of_the_outputs(small):
    frame, labels = small
    params = CounterfactualClassifier(model="linear", mutability={}).get_params()
    first = prepare(params, frame, labels, 0)
    start = fit.Start(
        first.encoder, np.array(["granted", "denied"]), first.model, first.method.generator
    )
    on = prepare(params, frame, labels, 0, start=start)
    assert on.classes.tolist() == ["granted", "denied"]
    assert (on.classes[on.y.numpy()] == labels).all()


def test_a_restart_without_counterfactuals_is_the_last_choice(small, monkeypatch):
    """Its implausibility is NaN, which is neither more nor less than any number."""
    prepared = prepare(
        CounterfactualClassifier(model="linear", mutability={}).get_params(), *small, 0
    )
    measured = [{"accuracy": 0.9, "implausibility": value} for value in (np.nan, 2.0, 1.0)]
    results = [TrainResult(name, History()) for name in ("none", "far", "near")]
    monkeypatch.setattr(
        fit, "Fleet", lambda members: SimpleNamespace(train=lambda *rows, **options: results)
    )
    monkeypatch.setattr(fit, "ValidationRows", lambda *rows: lambda models: measured)
    assert fit.best_restart(prepared, 3, False).model == "near"


@pytest.mark.parametrize(
    ("relations", "words"),
    [
        (
            ["a + b = -1"],
            r'^No training row keeps "a \+ b = -1", so that there may be no advice',
        ),
        (["a <= -5", "b >= 200"], r'^No training row keeps "a <= -5", "b >= 200", so that'),
        (["a >= 99.5"], r'^Fewer than 1% of the training rows keep "a >= 99.5", so that'),
        (
            ["a >= 60", "b <= -5"],
            r'keeps "b <= -5".*\. Most training rows break "a >= 60" \(60%\): ',
        ),
    ],
)
def test_relations_that_nobody_keeps_are_named(relations, words):
    frame = pd.DataFrame({"a": np.linspace(0, 100, 300), "b": np.tile([0.0, 1.0, 2.0], 100)})
    settings = {"epochs": 1, "gate": "none", "mutability": {}, "progress": False}
    with pytest.warns(InputWarning, match=words):
        ct.CounterfactualClassifier("conventional", relations=relations, **settings).fit(
            frame, frame["a"] > 50
        )
