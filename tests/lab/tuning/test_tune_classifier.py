"""``CounterfactualClassifier.tune``: what is chosen is chosen by rows held out."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.base import clone

import counterfactual_training as ct
from counterfactual_lab.tuning import RANGES, train_batch
from counterfactual_lab.tuning.classifier import tuning_task
from counterfactual_lab.tuning.space import tunable_numbers
from counterfactual_training.errors import InputError
from counterfactual_training.generators import Generator
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.fit import prepare

QUICK = {
    "method": "ct_published(num_counterfactuals=30)",
    "gate": "none",
    "early_stopping": False,
    "epochs": 6,
    "learning_rate": 0.02,
    "random_state": 0,
}
SPACE = {
    **dict.fromkeys(RANGES, "published"),
    "objective.lambda_reg": (0.01, 1.0),
    "generator.max_steps": [5, 30],
}
STOPPING = {"gate": "density", "early_stopping": True}


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
    pytest.importorskip("optuna", reason="tuning needs the extra 'lab'")
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
        assert after.method.objective.lambda_reg == best["objective.lambda_reg"]
        assert after.method.generator.max_steps == best["generator.max_steps"]
        assert before.method == QUICK["method"] and not hasattr(before, "model_")
        assert after.predict(small[0]).shape == (120,)
        assert after.explain(small[0].iloc[:2]).status is not None

    @pytest.mark.check
    def test_a_gate_is_a_setting_like_others(self, small):
        pytest.importorskip("optuna", reason="tuning needs the extra 'lab'")
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
        assert first["published"] and first["generator.max_steps"] == 30
        assert first["objective.lambda_reg"] == 0.1
        assert (table["state"] != "fail").sum() == 4

    def test_what_comes_out_is_saved_and_loaded(self, tuned, small, tmp_path):
        tuned[1].save(tmp_path / "tuned.safetensors")
        loaded = CounterfactualClassifier.load(tmp_path / "tuned.safetensors")
        np.testing.assert_array_equal(loaded.predict(small[0]), tuned[1].predict(small[0]))
        assert str(ct.make_method(loaded.method)) == str(tuned[1].method)

    @pytest.mark.parametrize(
        ("params", "options", "message"),
        [
            (
                {"method": "conventional"},
                {},
                "nothing to tune: method='ct_published' trains with counterfactuals",
            ),
            ({}, {"space": {"lambda_rg": (0.1, 1.0)}}, "Did you mean 'lambda_reg'"),
            ({}, {"objectives": ("ip", "costs")}, "Did you mean 'cost'"),
            ({}, {"n_trials": 0}, "1 or more"),
            ({}, {"validation_share": 1.5}, "between 0 and 1"),
        ],
    )
    def test_bad_input_is_refused_before_anything_runs(self, small, params, options, message):
        with pytest.raises(InputError, match=message):
            CounterfactualClassifier(**{**QUICK, **params}).tune(*small, **options)

    @pytest.mark.check
    def test_a_gated_classifier_is_tuned_with_its_gate(self, small):
        classifier = CounterfactualClassifier(**{**QUICK, **STOPPING})
        tuned = classifier.tune(*small, n_trials=2, batch=2, space=SPACE)
        assert tuned.tuning_["objective.lambda_reg"].iloc[0] == 0.1
        assert tuned.gate_ is not None

    @pytest.mark.check
    def test_any_method_is_tuned_by_its_own_numbers(self, small):
        classifier = CounterfactualClassifier(**{**QUICK, "method": "pgd(steps=2)"})
        space = {"epsilon": [0.05, 0.3], "training.learning_rate": "published"}
        tuned = classifier.tune(*small, n_trials=2, batch=2, space=space)
        best = tuned.tuning_[tuned.tuning_["best"]].iloc[0]
        assert tuned.method.numbers["epsilon"] == best["epsilon"]
        assert tuned.method.numbers["steps"] == 2

    @pytest.mark.check
    def test_trials_train_as_fit_does(self, small):
        """With early stopping, and the callbacks of the user: else trials would choose for another
        model.
        """
        pytest.importorskip("optuna", reason="tuning needs the extra 'lab'")
        stopping = {
            **STOPPING,
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
            **{**QUICK, **STOPPING, "epochs": 40, "learning_rate": 0.2}
        )
        params.set_params(n_iter_no_change=3)
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

    @pytest.mark.check
    def test_the_weights_of_a_generator_of_ones_own_are_tuned(self, small):
        own = Generator("own", penalties=(Sparsity(0.1),))
        method = ct.methods.ct_published(generator=own, num_counterfactuals=30)
        classifier = CounterfactualClassifier(**{**QUICK, "method": method})
        space = {
            **dict.fromkeys(tunable_numbers(method), "published"),
            "lambda_sparse": [0.2, 0.4],
        }
        tuned = classifier.tune(*small, n_trials=2, batch=2, space=space)
        best = tuned.tuning_[tuned.tuning_["best"]].iloc[0]
        assert tuned.method.generator.penalties[0].weight == best["generator.lambda_sparse"]


def test_settings_are_measured_on_rows_that_no_trial_trains_on(small, monkeypatch):
    tasks = []

    def catch(task, *_):
        tasks.append(task)
        raise InterruptedError

    monkeypatch.setattr("counterfactual_lab.tuning.classifier.tune", catch)
    with pytest.raises(InterruptedError):
        CounterfactualClassifier(**QUICK).tune(*small, n_trials=1, validation_share=0.25)
    (task,) = tasks
    assert len(task.measure.x) == 30 and len(task.x) == 90
    assert (
        torch.cdist(task.measure.x, task.x) > 1e-4
    ).all()  # the loan book holds nobody twice
