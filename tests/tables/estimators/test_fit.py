"""Training, ``tune`` and ``n_restarts``: what is chosen is chosen by rows held out."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.base import clone

import counterfactual_training as ct
from counterfactual_training.errors import InputError
from counterfactual_training.generators import Generator, ecco
from counterfactual_training.tables.estimators import CounterfactualClassifier, fit, inputs
from counterfactual_training.tables.estimators.fit import prepare, tuning_task, validation_split
from counterfactual_training.tuning import RANGES, train_batch

QUICK = {
    "preset": "as_run",
    "epochs": 6,
    "num_counterfactuals": 30,
    "learning_rate": 0.02,
    "random_state": 0,
}
SPACE = {**dict.fromkeys(RANGES, "published"), "lambda_reg": (0.01, 1.0), "max_steps": [5, 30]}


@dataclass(frozen=True)
class Sparsity:
    """A penalty of a user's own, its weight named."""

    number: ClassVar = "lambda_sparse"
    weight: float

    def __call__(self, state):
        return self.weight * state.delta.abs().sum(-1)


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


@pytest.fixture(scope="module")
def tuned(loans):
    pytest.importorskip("optuna", reason="tuning needs the extra 'tune'")
    frame, labels = loans
    classifier = CounterfactualClassifier(**QUICK)
    return classifier, classifier.tune(
        frame[:120], labels[:120], n_trials=4, batch=3, space=SPACE
    )


class TestTune:
    @pytest.mark.check
    def test_a_new_classifier_is_fitted_with_the_best_settings(self, tuned, small):
        before, after = tuned
        best = after.tuning_[after.tuning_["best"]].iloc[0]
        assert after.lambda_reg == best["lambda_reg"] and after.max_steps == best["max_steps"]
        assert before.lambda_reg is None and not hasattr(before, "model_")
        assert after.predict(small[0]).shape == (120,)
        assert after.explain(small[0].iloc[:2]).status is not None

    @pytest.mark.check
    def test_a_gate_is_a_setting_like_others(self, small):
        pytest.importorskip("optuna", reason="tuning needs the extra 'tune'")
        space = {**dict.fromkeys(RANGES, "published"), "gate": ["none", "density"]}
        after = CounterfactualClassifier(**QUICK).tune(*small, n_trials=2, batch=2, space=space)
        table = after.tuning_.set_index("gate")
        assert table["accuracy"].nunique() == 1 < table["implausibility"].nunique()
        chosen = table.index[table["best"]].tolist()
        assert [after.gate] == chosen and (after.gate_ is None) == (chosen == ["none"])

    def test_it_is_fitted_to_all_rows(self, tuned, small):
        after = tuned[1]
        again = clone(after).fit(*small)
        np.testing.assert_allclose(
            again.predict_proba(small[0]), after.predict_proba(small[0]), atol=1e-6
        )

    def test_the_table_starts_with_the_settings_of_the_classifier(self, tuned):
        table = tuned[1].tuning_
        first = table.iloc[0]
        assert first["published"] and first["max_steps"] == 30 and first["lambda_reg"] == 0.1
        assert (table["state"] != "fail").sum() == 4

    def test_what_comes_out_is_saved_and_loaded(self, tuned, small, tmp_path):
        tuned[1].save(tmp_path / "tuned.safetensors")
        loaded = CounterfactualClassifier.load(tmp_path / "tuned.safetensors")
        np.testing.assert_array_equal(loaded.predict(small[0]), tuned[1].predict(small[0]))
        assert loaded.lambda_reg == tuned[1].lambda_reg

    @pytest.mark.parametrize(
        ("params", "options", "message"),
        [
            ({"objective": "vanilla"}, {}, "nothing to tune"),
            (
                {"preset": "default"},
                {},
                "nothing to tune. preset='as_run'.* or objective='full'",
            ),
            ({}, {"space": {"lambda_rg": (0.1, 1.0)}}, "Did you mean 'lambda_reg'"),
            ({}, {"objectives": ("ip", "costs")}, "Did you mean 'cost'"),
            ({}, {"n_trials": 0}, "1 or more"),
            ({}, {"validation_share": 1.5}, "between 0 and 1"),
            ({"generator": ecco()}, {"space": {"lambda_energy": (0.1, 1.0)}}, "ready-made"),
        ],
    )
    def test_bad_input_is_refused_before_anything_runs(self, small, params, options, message):
        with pytest.raises(InputError, match=message):
            CounterfactualClassifier(**{**QUICK, **params}).tune(*small, **options)

    @pytest.mark.check
    def test_the_default_preset_is_tuned_with_an_objective_that_has_weights(self, small):
        pytest.importorskip("optuna", reason="tuning needs the extra 'tune'")
        classifier = CounterfactualClassifier(
            **{**QUICK, "preset": "default"}, objective="full"
        )
        tuned = classifier.tune(*small, n_trials=2, batch=2, space=SPACE)
        assert tuned.tuning_["lambda_reg"].iloc[0] == 0.1 and tuned.gate_ is not None

    @pytest.mark.check
    def test_trials_train_as_fit_does(self, small):
        """With early stopping, and the callbacks of the user: else trials would choose for another
        model.
        """
        pytest.importorskip("optuna", reason="tuning needs the extra 'tune'")
        stopping = {
            "preset": "default",
            "objective": "full",
            "epochs": 60,
            "learning_rate": 0.2,
            "n_iter_no_change": 2,
        }
        classifier = CounterfactualClassifier(
            **{**QUICK, **stopping}, callbacks=[Seen()], verbose=True
        )
        Seen.trainings.clear()
        tuned = classifier.tune(*small, n_trials=3, batch=2, space=SPACE)
        *trials, last = Seen.trainings
        assert (
            sum(map(len, trials)) == 4 and len(last) == 1
        )  # trials and the conventional model beside the first one
        reasons = [history.stopped for histories in trials for history in histories]
        assert (
            sum(reason == "validation_loss has not improved for 2 epochs" for reason in reasons)
            > 2
        )
        assert (
            tuned.tuning_["state"] == "complete"
        ).sum() > 1  # to stop early is not to be given up

    def test_trials_end_with_their_best_epoch_on_rows_that_do_not_choose(self, small):
        params = CounterfactualClassifier(
            **{**QUICK, "preset": "default", "epochs": 40, "learning_rate": 0.2}
        )
        params.set_params(objective="full", n_iter_no_change=3)
        task = tuning_task(prepare(params.get_params(deep=False), *small, seed=0), 0.2, 2)
        (x, y), rows = task.held_out, {tuple(row) for row in task.measure.x.tolist()}
        assert len(x) >= 10 and len(task.x) + len(x) + len(task.measure.x) == 120
        assert not rows & {tuple(row) for row in x.tolist()} and not rows & {
            tuple(row) for row in task.x.tolist()
        }
        (trial,) = train_batch(task, [task.start])
        for model, history in zip(trial.models, trial.histories, strict=True):
            losses = history.to_frame()["validation_loss"]
            assert losses.idxmin() == len(losses) - 1 - 3 and trial.stopped is None
            with torch.no_grad():
                assert float(torch.nn.functional.cross_entropy(model(x), y)) == pytest.approx(
                    losses.min(), rel=1e-4
                )

    def test_a_weight_that_is_no_parameter_of_the_classifier_is_refused_before_anything_runs(
        self, small
    ):
        own = Generator("own", penalties=(Sparsity(0.1),))
        with pytest.raises(
            InputError, match="'lambda_sparse' is not a parameter of the classifier"
        ):
            CounterfactualClassifier(**QUICK, generator=own).tune(
                *small, space={"lambda_sparse": (0.1, 1.0)}
            )

    @pytest.mark.check
    def test_a_ready_made_generator_keeps_its_weights(self, small):
        pytest.importorskip("optuna", reason="tuning needs the extra 'tune'")
        classifier = CounterfactualClassifier(**QUICK, generator=ecco(lambda_energy=2.0))
        space = {name: value for name, value in SPACE.items() if name != "lambda_energy"}
        tuned = classifier.tune(*small, n_trials=2, batch=1, space=space)
        assert tuned.generator_.penalties[1].weight == 2.0


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
        original = fit.Measure.__call__

        def record(self, trials, quiet=True):
            measured.append((trials, original(self, trials, quiet)))
            return measured[-1][1]

        monkeypatch.setattr(fit.Measure, "__call__", record)
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
        train, measure = fit.Fleet.train, fit.Measure.__call__

        def record_training(self, x, *args, **options):
            trained.append(x)
            return train(self, x, *args, **options)

        def record_measuring(self, trials, quiet=True):
            measured.append(self.x)
            return measure(self, trials, quiet)

        monkeypatch.setattr(fit.Fleet, "train", record_training)
        monkeypatch.setattr(fit.Measure, "__call__", record_measuring)
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


def test_settings_are_measured_on_rows_that_no_trial_trains_on(small, monkeypatch):
    tasks = []

    def catch(task, *_):
        tasks.append(task)
        raise InterruptedError

    monkeypatch.setattr(fit, "tune", catch)
    with pytest.raises(InterruptedError):
        CounterfactualClassifier(**QUICK).tune(*small, n_trials=1, validation_share=0.25)
    (task,) = tasks
    assert len(task.measure.x) == 30 and len(task.x) == 90
    assert (
        torch.cdist(task.measure.x, task.x) > 1e-4
    ).all()  # the loan book holds nobody twice


def test_an_interrupted_fit_leaves_the_model_before(monkeypatch, blobs):
    x, y = blobs[0].numpy(), blobs[1].numpy()
    classifier = ct.CounterfactualClassifier(epochs=2, random_state=0).fit(x, y)
    before = classifier.predict_proba(x)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("counterfactual_training.tables.estimators.fit.train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        classifier.fit(x + 1, 1 - y)
    assert np.array_equal(classifier.predict_proba(x), before)
    fresh = ct.CounterfactualClassifier()
    with pytest.raises(KeyboardInterrupt):
        fresh.fit(x, y)
    assert not hasattr(fresh, "model_")


def test_early_stopping_keeps_the_best_epoch_of_rows_it_did_not_train_on(make_blobs):
    x, y = make_blobs(n=200)
    noisy = y.where(torch.rand(len(y), generator=torch.Generator().manual_seed(0)) > 0.3, 1 - y)
    params = {
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
        *inputs.training_rows(classifier, x.numpy(), noisy.numpy()),
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
        first.encoder, np.array(["granted", "denied"]), first.model, first.setting.generator
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
    results = [SimpleNamespace(model=name, history=None) for name in ("none", "far", "near")]
    monkeypatch.setattr(
        fit, "Fleet", lambda members: SimpleNamespace(train=lambda *rows, **options: results)
    )
    monkeypatch.setattr(fit, "Measure", lambda *rows: lambda models: measured)
    assert fit.best_restart(prepared, 3, False)[0] == "near"
