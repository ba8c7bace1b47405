"""Tuning from ask to tell: what is tried, what is given up, what comes out."""

import math
from dataclasses import replace

import pytest
import torch

from counterfactual_lab.tuning import (
    RANGES,
    Choices,
    Goal,
    TuningPlan,
    train_batch,
    tune,
)
from counterfactual_lab.tuning.space import tunable_numbers
from counterfactual_lab.tuning.storage import open_study
from counterfactual_lab.tuning.tuner import progress_line
from counterfactual_training.errors import InputError
from counterfactual_training.training.train import train


def run(toy, num_trials=7, batch=3, goal=None, space=None, task=None, **plan):
    return tune(
        task or toy.make_task(),
        goal or toy.GOAL,
        TuningPlan(num_trials, batch, **plan),
        space or toy.SPACE,
    )


@pytest.mark.check
def test_the_start_is_the_first_trial_and_nothing_worse_comes_out(toy):
    found = run(toy)
    assert found.num_finished == 7
    first = found.trials[0]
    values = tunable_numbers(toy.make_task().start)
    assert first.published and first.settings == {name: values[name] for name in toy.TUNED}
    assert found.best.values <= found.published.values
    assert [trial.number for trial in found.trials if trial.published] == [0]


def test_a_trial_is_the_lone_training_of_its_settings(toy):
    task = toy.make_task()
    found = run(toy, num_trials=4)
    trial = found.complete[-1]
    method = task.start.replace(trial.settings)
    model = toy.make_model(method.training.seed)
    train(model, task.x, task.y, method, progress=False)
    assert task.measure([[model]])[0] == pytest.approx(trial.metrics, abs=1e-4)


@pytest.mark.check
def test_trials_differ_and_a_lone_study_is_repeatable(toy):
    first, second = run(toy), run(toy)
    settings = [tuple(trial.settings.values()) for trial in first.trials]
    assert len(set(settings)) == len(settings)
    assert settings == [tuple(trial.settings.values()) for trial in second.trials]
    assert settings != [tuple(trial.settings.values()) for trial in run(toy, seed=1).trials]


@pytest.mark.check
def test_several_objectives_give_a_front_that_holds_the_choice(toy):
    found = run(toy, goal=Goal(("ip", "cost", "accuracy", "robustness")))
    assert found.best.number in {trial.number for trial in found.front}
    assert all(a <= b for a, b in zip(found.best.values, found.published.values, strict=True))
    assert len(found.importances) == 4
    assert sum(found.importances[0].values()) == pytest.approx(1.0)


def test_measures_are_means_over_seeds(toy):
    task = toy.make_task(num_seeds=2)
    found = run(toy, num_trials=1, task=task)
    models = train_batch(task, [task.start])[0].models
    assert len(models) == 2
    each = task.measure([[model] for model in models])
    assert found.published.metrics["accuracy"] == pytest.approx(
        sum(m["accuracy"] for m in each) / 2, abs=1e-6
    )


def test_a_gate_is_fitted_to_the_trained_model_of_a_trial(toy):
    """Trials that differ by their gate alone are equally accurate; the gated one ends nearer to
    real rows.
    """
    space = {**dict.fromkeys(RANGES, "published"), "gate": ["none", "density"]}
    found = run(toy, num_trials=2, space=space)
    by_gate = {trial.settings["gate"]: trial for trial in found.complete}
    plain, gated = by_gate["none"], by_gate["density"]
    assert plain.published and plain.metrics["accuracy"] == gated.metrics["accuracy"]
    assert gated.metrics["implausibility"] < plain.metrics["implausibility"]
    task = toy.make_task()
    models = task.gated(train_batch(task, [task.start])[0].models, "density")
    assert task.measure([models])[0] == pytest.approx(gated.metrics, abs=1e-4)
    assert found.best is gated and found.settings(gated)["gate"] == "density"


def test_a_gate_that_is_not_tuned_is_that_of_the_start(toy):
    task = replace(toy.make_task(), gate="density")
    gated = run(toy, num_trials=1, task=task)
    assert (
        gated.published.metrics["implausibility"]
        != run(toy, num_trials=1).published.metrics["implausibility"]
    )
    assert gated.conventional == run(toy, num_trials=1).conventional


def test_trials_of_other_shapes_train_beside_each_other(toy):
    task = toy.make_task()
    settings = [task.start.replace({"num_counterfactuals": num}) for num in (10, 12, 10)]
    together = train_batch(task, settings)
    alone = train_batch(task, settings[1:2])[0]
    for mine, its in zip(
        together[1].models[0].parameters(), alone.models[0].parameters(), strict=True
    ):
        torch.testing.assert_close(mine, its)


@pytest.mark.filterwarnings(
    "ignore::counterfactual_training.evaluation.findings.MeasurementWarning"
)
def test_what_collapses_is_given_up(toy):
    space = {"learning_rate": Choices((0.02, 50.0, 80.0, 120.0))}
    found = tune(
        toy.make_task(epochs=9),
        Goal(("ip", "accuracy")),
        TuningPlan(4, 4),
        {**rest("training.learning_rate"), **space},
    )
    pruned = [trial for trial in found.trials if trial.state == "PRUNED"]
    assert pruned and all(trial.settings["training.learning_rate"] > 1 for trial in pruned)
    assert all(trial.reason for trial in pruned)
    assert found.best.settings["training.learning_rate"] == 0.02
    assert found.num_finished == 4


def rest(*kept):
    """Every setting but these stays as it is."""
    return {name: "published" for name in RANGES if name not in kept}


def test_a_space_that_is_exhausted_ends_the_study(toy):
    space = {**rest("objective.lambda_reg"), "lambda_reg": [0.1, 0.2, 0.3]}
    found = tune(toy.make_task(), toy.GOAL, TuningPlan(20, 8), space)
    assert sorted(trial.settings["objective.lambda_reg"] for trial in found.complete) == [
        0.1,
        0.2,
        0.3,
    ]
    assert all("repeats" in trial.reason for trial in found.trials if trial.state == "FAIL")


def test_one_objective_compares_trials_by_the_median(toy):
    study = open_study(None, "median", (1,), epochs=9)
    space = {"lambda_reg": Choices(tuple(0.1 * i for i in range(1, 20)))}
    for trial in study.ask(space, 8):
        assert not study.report(trial.number, 3, 1.0)
        study.complete(trial.number, [1.0], {"accuracy": 1.0}, {"accuracy": -0.1}, 0.0)
    good, bad = study.ask(space, 2)
    assert not study.report(good.number, 3, 0.5)
    assert study.report(bad.number, 3, 2.0)
    study.prune(bad.number, "behind", {"accuracy": -0.1})
    assert [trial.state for trial in study.trials()][-1] == "PRUNED"


def test_measures_that_could_not_be_taken_are_infinitely_bad(toy):
    study = open_study(None, "infinite", (1, -1), epochs=9)
    trial, *_ = study.ask({"lambda_reg": Choices((0.1, 0.2))}, 1)
    study.complete(
        trial.number,
        [math.inf, math.inf],
        {"implausibility": math.nan},
        {"validity": math.nan},
        0.0,
    )
    told = study.trials()[0]
    assert told.values == (math.inf, math.inf)
    assert told.violations["validity"] > 0 and math.isnan(told.metrics["implausibility"])


def test_progress_names_trials_and_time(toy):
    heard = []
    tune(toy.make_task(), toy.GOAL, TuningPlan(5, 2), toy.SPACE, heard.append)
    assert [p.finished for p in heard] == sorted(p.finished for p in heard)
    assert heard[0].tuning is None and "reference models" in progress_line(heard[0])
    middle = next(p for p in heard if p.finished == 3 and p.seconds_left is not None)
    assert "[3/5] best ip" in progress_line(middle) and "left" in progress_line(middle)
    assert heard[-1].finished == 5 and "left" not in progress_line(heard[-1])


@pytest.mark.parametrize("plan", [{"num_trials": 0}, {"batch": 0}])
def test_plans_without_work_are_refused(plan):
    with pytest.raises(InputError, match="1 or more"):
        TuningPlan(**plan)


@pytest.mark.filterwarnings("ignore")
def test_members_that_all_diverge_at_once_are_given_up(toy):
    """At 1e30 the weights are infinite after an epoch, and no member is left to look at."""
    space = {
        **rest("training.learning_rate"),
        "learning_rate": Choices((0.02, 1e30, 2e30, 3e30)),
    }
    found = tune(toy.make_task(), Goal(("ip",)), TuningPlan(4, 4), space)
    lost = [trial for trial in found.trials if trial.settings["training.learning_rate"] > 1]
    assert len(lost) == 3 and {trial.state for trial in lost} == {"PRUNED"}


@pytest.mark.filterwarnings("ignore")
def test_a_batch_is_watched_only_while_somebody_trains(toy):
    task = toy.make_task()
    seen = []
    lost = task.start.replace({"learning_rate": 1e30})
    (outcome,) = train_batch(task, [lost], lambda run, trials: seen.append(trials) or {})
    assert outcome.stopped is not None and all(seen)
