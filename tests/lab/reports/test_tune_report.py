"""Figures of a study are drawn for any goal, also from very little."""

import io
import math

import pytest

from counterfactual_lab.tuning import Goal, Tuning, TuningTrial

pytest.importorskip("matplotlib", reason="figures need the extra 'lab'")
image = pytest.importorskip("PIL.Image")

from counterfactual_lab.reports.tune_report import draw_front, draw_importances  # noqa: E402

BASE = {
    "implausibility": 1.5,
    "cost": 1.2,
    "validity": 0.9,
    "accuracy": 0.9,
    "robust_accuracy": 0.6,
}


def make(goal, num=6, importances=None):
    limits = goal.limits(BASE, BASE)
    trials = []
    for i in range(num):
        metrics = {
            **BASE,
            "implausibility": 1.5 - 0.1 * i,
            "accuracy": 0.9 - 0.02 * i,
            "cost": 1.0 + 0.1 * i,
        }
        values, missed = tuple(goal.values(metrics)), limits.violations(metrics)
        trials.append(
            TuningTrial(
                i,
                "COMPLETE",
                {"lambda_reg": float(i)},
                values,
                metrics,
                missed,
                published=i == 0,
            )
        )
    shares = (
        [{"lambda_reg": 0.7, "lambda_div": 0.3}] * len(goal.objectives)
        if importances is None
        else importances
    )
    return Tuning(goal, limits, BASE, {"lambda_reg": 0.0}, trials, shares)


def size(png):
    return image.open(io.BytesIO(png)).size


GOALS = [
    Goal(("ip",), 1.0),
    Goal(("accuracy",)),
    Goal(("ip", "accuracy")),
    Goal(("ip", "cost", "accuracy", "robustness")),
]


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: "-".join(goal.objectives))
def test_the_front_is_drawn(goal):
    width, height = size(draw_front(make(goal)))
    assert width > 300 and height > 300


@pytest.mark.check
def test_a_lone_trial_is_drawn_too():
    assert draw_front(make(GOALS[0], num=1)) and draw_front(make(GOALS[3], num=1))


def test_measures_that_could_not_be_taken_do_not_matter():
    goal = Goal(("ip", "accuracy"))
    tuning = make(goal)
    metrics = {**BASE, "implausibility": math.nan}
    tuning.trials.append(
        TuningTrial(9, "COMPLETE", {}, (math.inf, -0.9), metrics, {"validity": 0.5})
    )
    assert draw_front(tuning)


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: "-".join(goal.objectives))
def test_importances_are_drawn_a_panel_per_objective(goal):
    assert size(draw_importances(make(goal)))[0] > 300


def test_too_few_trials_for_importances_are_said():
    assert draw_importances(make(GOALS[2], importances=[{}, {}]))


def test_the_same_study_is_the_same_file():
    assert draw_front(make(GOALS[2])) == draw_front(make(GOALS[2]))
