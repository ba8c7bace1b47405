"""Studies in files and databases: resumed, shared, damaged, unreachable."""

import multiprocessing
import sys
import time

import pytest

from counterfactual_lab.tuning import Choices, Goal, TuningPlan, tune
from counterfactual_lab.tuning.storage import open_study
from counterfactual_training.errors import InputError, MissingExtraError
from covering import repeats
from forked import fork

SPACE = {"lambda_reg": Choices(tuple(range(1, 200)))}


def settings_of(found, *states):
    return [tuple(trial.settings.values()) for trial in found.trials if trial.state in states]


@pytest.mark.parametrize("kind", ["journal", *repeats("sqlite")])
def test_a_study_is_gone_on_with(toy, tmp_path, kind):
    storage = (
        tmp_path / "study.journal" if kind == "journal" else f"sqlite:///{tmp_path}/study.db"
    )
    first = tune(toy.make_task(), toy.GOAL, TuningPlan(4, 3, storage), toy.SPACE)
    second = tune(toy.make_task(), toy.GOAL, TuningPlan(7, 3, storage), toy.SPACE)
    assert second.num_finished == 7
    assert second.trials[: len(first.trials)] == first.trials
    third = tune(toy.make_task(), toy.GOAL, TuningPlan(7, 3, storage), toy.SPACE)
    assert third.trials == second.trials  # all was done: nothing ran


@pytest.mark.parametrize("change", ["goal", "space", "task"])
def test_a_study_made_for_something_else_is_refused(toy, tmp_path, change):
    plan = TuningPlan(1, 1, tmp_path / "study.journal")
    tune(toy.make_task(), toy.GOAL, plan, toy.SPACE)
    task = toy.make_task(epochs=3) if change == "task" else toy.make_task()
    goal = Goal(("ip",), 3.0) if change == "goal" else toy.GOAL
    space = {**toy.SPACE, "lambda_reg": (0.02, 1.0)} if change == "space" else toy.SPACE
    with pytest.raises(InputError, match=f"{'start' if change == 'task' else change} differ"):
        tune(task, goal, plan, space)
    with pytest.raises(InputError, match="other objectives"):
        tune(toy.make_task(), Goal(("ip", "cost")), plan, toy.SPACE)


@pytest.mark.check
def test_killed_at_work_nothing_is_lost_and_nothing_done_twice(toy, tmp_path):
    storage = tmp_path / "study.journal"
    hanging = multiprocessing.get_context("fork").Event()

    def hang(progress):
        if progress.finished >= 4 and progress.epoch < progress.epochs:
            hanging.set()
            time.sleep(120)

    worker = fork(
        tune, toy.make_task(), toy.GOAL, TuningPlan(8, 3, storage, "toy"), toy.SPACE, hang
    )
    assert hanging.wait(300)
    worker.kill()
    worker.join()
    found = tune(toy.make_task(), toy.GOAL, TuningPlan(8, 3, storage, "toy"), toy.SPACE)
    lost = [trial for trial in found.trials if trial.state == "FAIL"]
    assert len(lost) == 3 and found.num_finished == 8
    done = settings_of(found, "COMPLETE", "PRUNED")
    assert len(set(done)) == 8
    assert {tuple(trial.settings.values()) for trial in lost} <= set(
        done
    )  # tried again, and finished
    assert not [trial for trial in found.trials if trial.state in ("RUNNING", "WAITING")]


def test_a_dead_process_loses_its_trials_to_one_of_the_others(tmp_path):
    storage = tmp_path / "study.journal"
    dead, one, two = (open_study(storage, "s", (1,), 3) for _ in range(3))
    asked = dead.ask(SPACE, 3)
    assert one.recover() == 0  # it lives
    dead.leave()
    assert (one.recover(), two.recover()) == (3, 0)
    again = two.ask(SPACE, 3)
    assert [trial.settings for trial in again] == [trial.settings for trial in asked]
    dead.complete(
        asked[0].number, [1.0], {}, {}, 0.0
    )  # came back from the dead: too late, but no harm
    assert one.trials()[asked[0].number].state == "FAIL"


def test_two_processes_never_ask_for_the_same_nor_for_too_many(tmp_path):
    storage = tmp_path / "study.journal"
    one, two = (open_study(storage, "s", (1,), 3) for _ in range(2))
    first, second = one.ask(SPACE, 4), two.ask(SPACE, 4)
    assert not {t.settings["lambda_reg"] for t in first} & {
        t.settings["lambda_reg"] for t in second
    }
    assert two.ask(SPACE, 4, most=8) == []
    assert sum(trial.state == "RUNNING" for trial in one.trials()) == 8


def test_half_a_line_at_the_end_of_a_journal_is_cut_off(toy, tmp_path):
    storage = tmp_path / "study.journal"
    first = tune(toy.make_task(), toy.GOAL, TuningPlan(3, 3, storage), toy.SPACE)
    with storage.open("ab") as file:
        file.write(b'{"op_code": 5, "worker')
    second = tune(toy.make_task(), toy.GOAL, TuningPlan(4, 3, storage), toy.SPACE)
    assert second.trials[:3] == first.trials and second.num_finished == 4


@pytest.mark.parametrize(
    "storage",
    [
        "postgresql://somebody:secret@127.0.0.1:1/base",
        "sqlite:////no/such/folder/study.db",
        "oddbase://host/base",
    ],
)
def test_a_storage_that_does_not_answer_is_said(storage):
    with pytest.raises((InputError, MissingExtraError)) as caught:
        open_study(storage, "s", (1,), 3)
    assert "secret" not in str(caught.value)
    assert "storage" in str(caught.value)


def test_a_file_that_is_no_journal_is_refused(tmp_path):
    path = tmp_path / "study.journal"
    path.write_text("this is not a journal\nat all\n")
    with pytest.raises(InputError, match="cannot be used"):
        open_study(path, "s", (1,), 3)


def test_without_optuna_it_is_said_how_to_get_it(monkeypatch, toy):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"counterfactual-training\[lab\]"):
        tune(toy.make_task(), toy.GOAL, TuningPlan(1, 1), toy.SPACE)
