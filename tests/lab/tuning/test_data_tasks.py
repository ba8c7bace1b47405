"""Tuning on named data sets: which rows are looked at when, and what is written."""

import json
from dataclasses import replace

import pytest
import torch

from counterfactual_lab.tuning import RANGES, Choices, Goal, TuningPlan, tune
from counterfactual_lab.tuning.data_tasks import (
    TuningEffort,
    best_file,
    confirm,
    named_task,
)
from counterfactual_training.datasets import load_dataset
from counterfactual_training.errors import InputError
from counterfactual_training.tables.estimators.validation import ValidationRows

pytest.importorskip("optuna", reason="tuning needs the extra 'lab'")

EFFORT = TuningEffort(epochs=2, confirm_seeds=2)
GOAL = Goal(("ip",), 50.0)
SPACE = {**dict.fromkeys(RANGES, "published"), "objective.lambda_reg": Choices((0.1, 0.2, 0.3))}


@pytest.fixture(scope="module")
def data():
    whole = load_dataset("moons")
    few = slice(0, 300)
    settings = replace(
        whole.settings, num_validation=100, num_counterfactuals=20, batch_size=100
    )
    small = {"x_train": whole.x_train[few], "y_train": whole.y_train[few], "settings": settings}
    return replace(whole, x_test=whole.x_test[:60], y_test=whole.y_test[:60], **small)


@pytest.fixture(scope="module")
def held_out(data):
    return ValidationRows(data.x_test, data.y_test, data.constraints)


@pytest.fixture(scope="module")
def tuned(data, tmp_path_factory):
    plan = TuningPlan(2, 2, tmp_path_factory.mktemp("tuned") / "study.journal", "moons")
    task = named_task(data, EFFORT)
    return task, plan, tune(task, GOAL, plan, SPACE)


def test_no_test_row_is_trained_or_measured_on(data):
    task = named_task(data, EFFORT)
    seen = torch.cat([task.x, task.measure.x])
    assert len(seen) == len(data.x_train) == 300 and len(task.measure.x) == 100
    assert sorted(map(tuple, seen.tolist())) == sorted(map(tuple, data.x_train.tolist()))


def test_the_start_is_what_the_paper_ran(data):
    whole = load_dataset("moons")
    start = named_task(whole, TuningEffort()).start
    settings = start.settings()
    assert settings["objective.lambda_reg"] == 0.25
    assert settings["generator.decision_threshold"] == 0.9
    assert start.training.epochs == 100 and start.training.num_counterfactuals == 1000


@pytest.mark.check
def test_test_rows_are_looked_at_once(held_out, tuned, tmp_path):
    task, plan, tuning = tuned
    found, first = confirm(held_out, task, tuning, plan, EFFORT, tmp_path)
    assert first and found["test_rows"] == 60 and found["seeds"] == 2
    assert list(found["mean"]) == ["conventional", "published", "tuned"]
    assert json.loads((tmp_path / "confirmation.json").read_text()) == found
    again, first = confirm(held_out, task, tuning, plan, EFFORT, tmp_path)
    assert again == found and not first
    other = replace(tuning, trials=[t for t in tuning.trials if t.number != tuning.best.number])
    with pytest.raises(InputError, match="A second look would choose by test rows"):
        confirm(held_out, task, other, plan, EFFORT, tmp_path)


def test_the_look_at_test_rows_trains_from_seeds_that_the_study_never_used(
    held_out, tuned, tmp_path
):
    task, plan, tuning = tuned
    seeds, effort = [], replace(EFFORT, num_seeds=20)

    def make_model(seed):
        seeds.append(seed)
        return task.make_model(seed)

    recorded = replace(task, make_model=make_model)
    unseen = replace(plan, storage=tmp_path / "study.journal")
    confirm(held_out, recorded, tuning, unseen, effort, tmp_path)
    of_study = {effort.seed + i for i in range(effort.num_seeds)}
    assert len(set(seeds)) == effort.confirm_seeds and not of_study & set(seeds)
    assert sorted(seeds) == sorted(3 * list(set(seeds)))  # the same for all three settings


@pytest.mark.check
def test_a_gate_is_confirmed_with_the_model_it_was_tuned_for(data, held_out, tmp_path):
    """Trials that differ by their gate alone: equally accurate on test rows too, and nearer to real
    rows.
    """
    effort, plan = (
        replace(EFFORT, epochs=20),
        TuningPlan(2, 2, tmp_path / "study.journal", "gates"),
    )
    task = named_task(data, effort)
    tuning = tune(
        task,
        Goal(("ip",), 90.0),
        plan,
        {**dict.fromkeys(RANGES, "published"), "gate": ["none", "density"]},
    )
    means = confirm(held_out, task, tuning, plan, effort, tmp_path)[0]["mean"]
    assert tuning.best.settings["gate"] == "density"
    assert means["tuned"]["accuracy"] == means["published"]["accuracy"]
    assert means["tuned"]["implausibility"] < means["published"]["implausibility"]


def test_the_best_settings_are_a_grid_file(tuned):
    from counterfactual_lab.grids.file import parse_grid

    task, _, tuning = tuned
    grid = parse_grid(best_file("moons", task, tuning), "best.toml")
    values = {name: value for name, (value,) in grid.values}
    assert values["objective.lambda_reg"] == tuning.best.settings["objective.lambda_reg"]
    assert values["training.epochs"] == 2 and values["generator.lambda_energy"] == 5.0
    assert (
        values["generator.learning_rate"] == 0.1 and values["training.learning_rate"] == 0.001
    )
    assert grid.data == ("Moon",) and "gate" not in values
    assert values["method"] == "ct_published"
    gated = best_file("moons", replace(task, gate="density"), tuning)
    assert dict(parse_grid(gated, "best.toml").values)["gate"] == ("density",)


@pytest.mark.parametrize("bad", [{"num_seeds": 0}, {"confirm_seeds": 0}])
def test_efforts_without_seeds_are_refused(bad):
    with pytest.raises(InputError, match="1 or more"):
        TuningEffort(**bad)
