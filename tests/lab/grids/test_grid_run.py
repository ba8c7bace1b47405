"""Running grids: in fleets, resumable at any kill, and never the same work twice."""

import errno
import io
import os
import signal
import time
from dataclasses import replace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from counterfactual_lab.grids import run as running
from counterfactual_lab.grids.file import load_grid, parse_grid
from counterfactual_lab.grids.job import JobResult
from counterfactual_lab.grids.plan import MAX_MEMBERS, _shape, plan, run_seconds
from counterfactual_lab.grids.results import GridResults
from counterfactual_lab.grids.run import GridWork, expected_seconds, run_grid
from counterfactual_lab.networks import fit_model, untrained
from counterfactual_lab.runs.outcome import Outcome
from counterfactual_lab.runs.store import Store
from counterfactual_training.engine.launch import Engine
from counterfactual_training.errors import FileError
from forked import fork
from tiny_grid import TINIEST_GRID as TINY

HERE = Engine(workers=1)


def prepared(text: str = TINY) -> GridWork:
    return GridWork.from_grids(parse_grid(text, "tiny.toml"))


@pytest.fixture
def fake(monkeypatch):
    """Jobs that take no time; what they were asked for."""
    asked = []

    def run(benches, job):
        asked.extend(job.runs)
        shape = (len(job.runs[0].measurement.protocol.lambda_energy), 2)
        names = ("implausibility", "implausibility_mmd", "cost", "validity")
        outcomes = [
            Outcome(
                run,
                {name: np.full(shape, 1.0 if run.is_conventional else 0.8) for name in names},
                {"accuracy": 0.9, "f1": 0.9},
                {"loss": np.ones(1)}
                | ({} if run.is_conventional else {"share_mature": np.ones(1)}),
                None,
                {"train": 1.0, "evaluate": 1.0},
            )
            for run in job.runs
        ]
        return JobResult(outcomes, (), 1.0)

    monkeypatch.setattr(running, "run_job", run)
    return asked


def test_a_real_run_measures_every_run_and_is_not_repeated(tmp_path):
    work, stream = prepared(), io.StringIO()
    found = run_grid(work, tmp_path, HERE, "ct grid run", stream)
    assert (found.runs, found.before, found.failures) == (3, 0, {})
    assert "[3/3]" in stream.getvalue() and "best on LS: IP" in stream.getvalue()
    assert ", \n" not in stream.getvalue()
    store = Store(tmp_path)
    outcome = store.load(work.points[0].run)
    assert outcome.arrays["implausibility"].shape == (2, 2)
    assert 0.5 < outcome.numbers["accuracy"] <= 1 and len(outcome.history["share_mature"]) == 1
    assert 0 <= outcome.history["share_mature"][0] <= 1
    assert (
        "share_mature" not in store.load(work.points[0].conventional).history
        or np.isnan(store.load(work.points[0].conventional).history["share_mature"]).all()
    )
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    again = run_grid(work, tmp_path, HERE, "ct grid run", io.StringIO())
    assert again.before == 3
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()} == times
    assert not [
        path
        for name in ("checkpoints", "running", "pending")
        for path in (tmp_path / name).glob("*")
    ]


def test_a_run_is_the_same_whoever_trains_beside_it(tmp_path):
    """What makes it right to know a run by its content: company does not change it."""
    together, alone = (
        prepared(TINY.replace("[2, 4]", "[4, 6]")),
        prepared(TINY.replace("[2, 4]", "4")),
    )
    run_grid(together, tmp_path / "a", HERE, "", io.StringIO())
    run_grid(alone, tmp_path / "b", HERE, "", io.StringIO())
    run = alone.points[0].run
    assert run in {point.run for point in together.points}
    a, b = Store(tmp_path / "a").load(run), Store(tmp_path / "b").load(run)
    assert a.numbers == pytest.approx(b.numbers, rel=1e-3)
    for name, values in a.arrays.items():
        np.testing.assert_allclose(values, b.arrays[name], rtol=1e-2, atol=1e-3)


@pytest.mark.check
@pytest.mark.usefixtures("quick_gates")
def test_gates_change_where_advice_ends_and_not_who_is_accepted(tmp_path):
    """Rows of LS lie in two heaps: a counterfactual that a gate has to let through ends deeper in
    one of them.
    """
    text = 'gate = ["none", "density", "learned"]\n' + TINY.replace("[2, 4]", "4").replace(
        "epochs = 1", "epochs = 5"
    )
    work = prepared(text)
    assert run_grid(work, tmp_path, HERE, "", io.StringIO()).failures == {}
    results = GridResults.load(work.grids[0], work.points, Store(tmp_path))
    summary = results.summary.set_index("gate")
    assert set(summary["method"]) == {"ct_published"}
    assert summary["accuracy"].nunique() == summary["robust_accuracy_fgsm@0.1"].nunique() == 1
    assert summary["implausibility"]["density"] < 0.95 * summary["implausibility"]["none"]
    assert summary["implausibility"].nunique() == 3 and summary["validity"]["density"] > 0.9
    assert set(results.marginal["value"]) == {"none", "density", "learned"}
    assert (
        run_grid(work, tmp_path, HERE, "", io.StringIO()).before == 4
    )  # and the conventional one, which has no gate


@pytest.mark.check
def test_methods_are_an_axis(tmp_path):
    longer = TINY.replace("[2, 4]", "4").replace("epochs = 1", "epochs = 3")
    text = 'method = ["ct_published", "pgd", "ross", "counternet"]\n' + longer
    work = prepared(text)
    assert run_grid(work, tmp_path, HERE, "", io.StringIO()).failures == {}
    assert [point.run.model for point in work.points] == [
        "ct_published",
        "pgd",
        "ross",
        "counternet",
    ]
    assert len({point.conventional for point in work.points}) == 1
    summary = GridResults.load(work.grids[0], work.points, Store(tmp_path)).summary.set_index(
        "method"
    )
    assert (
        summary["implausibility"].nunique() == 4 and summary["accuracy"].between(0.5, 1).all()
    )


def test_a_gated_conventional_model_is_compared_with_one_without(tmp_path, fake):
    work = prepared(
        'gate = ["none", "density"]\nmethod = "conventional"\n' + TINY.replace("[2, 4]", "4")
    )
    run_grid(work, tmp_path, HERE, "", io.StringIO())
    results = GridResults.load(work.grids[0], work.points, Store(tmp_path))
    assert results.summary[["method", "gate"]].to_numpy().tolist() == [
        ["conventional", "none"],
        ["conventional", "density"],
    ]
    assert results.marginal["value"].tolist() == ["density"] and set(
        results.changes["gate"]
    ) == {"density"}
    assert results.models == 2 and results.maturity.empty


def test_runs_that_differ_by_their_gate_are_one_job_and_take_longer():
    text = (
        f'gate = ["none", "density"]\n{TINY}[objective]\nlambda_reg = '
        f"{[i / 100 for i in range(1, 41)]}\n"
    )
    work = prepared(text)
    runs, data = work.runs, work.data["LS"]
    jobs = plan(work.costs, work.data, workers=2)
    assert len(jobs) > 2 and sum(len(job.runs) for job in jobs) == len(runs) == 161
    place = {run: i for i, job in enumerate(jobs) for run in job.runs}
    gated = [run for run in runs if run.gate == "density"]
    assert len(gated) == 80 and all(place[run] == place[run.ungated] for run in gated)
    assert run_seconds(gated[0], data) > run_seconds(gated[0].ungated, data)


def test_an_edited_grid_reruns_only_what_changed(tmp_path, fake):
    run_grid(prepared(), tmp_path, HERE, "", io.StringIO())
    assert len(fake) == 3
    fake.clear()
    run_grid(prepared(TINY.replace("[2, 4]", "[2, 4, 6]")), tmp_path, HERE, "", io.StringIO())
    assert [run.values["generator.max_steps"] for run in fake] == [6]
    fake.clear()
    stream = io.StringIO()
    run_grid(
        prepared(TINY.replace("epochs = 1", "epochs = [1, 2]")), tmp_path, HERE, "", stream
    )
    assert {run.values["training.epochs"] for run in fake} == {2} and len(fake) == 3
    assert "3 of 6 runs were done before" in stream.getvalue()


def test_failures_leave_the_others_and_are_tried_again(tmp_path, fake, monkeypatch):
    working = running.run_job

    def broken(benches, job):
        if job.runs[0].is_conventional:
            raise MemoryError("too large")
        return working(benches, job)

    monkeypatch.setattr(running, "run_job", broken)
    stream = io.StringIO()
    found = run_grid(prepared(), tmp_path, HERE, "", stream)
    assert list(found.failures.values()) == ["MemoryError: too large"]
    assert "LS, 1 × conventional failed: MemoryError" in stream.getvalue()
    assert len(Store(tmp_path).done()) == 2
    monkeypatch.setattr(running, "run_job", working)
    assert run_grid(prepared(), tmp_path, HERE, "", io.StringIO()).failures == {}
    assert len(Store(tmp_path).done()) == 3


def test_changes_are_against_the_mean_of_all_conventional_models(tmp_path, fake):
    work = prepared("seeds = 2\n" + TINY)
    run_grid(work, tmp_path, HERE, "", io.StringIO())
    results = GridResults.load(work.grids[0], work.points, Store(tmp_path))
    assert results.missing == 0 and results.models == 6
    assert results.changes["change"].to_numpy() == pytest.approx(-20)
    assert len(results.changes) == 4 * 3 * 2 * 2  # settings, metrics, λ, runs
    assert results.summary["cost change %"].to_numpy() == pytest.approx(-20)
    assert list(results.marginal["value"]) == [2, 4] and list(results.marginal["settings"]) == [
        2,
        2,
    ]
    assert set(results.tidy["metric"]) == {
        "implausibility",
        "implausibility_mmd",
        "cost",
        "validity",
        "accuracy",
        "f1",
    }


def test_results_of_an_unfinished_grid_hold_what_there_is(tmp_path, fake):
    run_grid(prepared(), tmp_path, HERE, "", io.StringIO())
    more = prepared(TINY.replace("[2, 4]", "[2, 4, 6]"))
    results = GridResults.load(more.grids[0], more.points, Store(tmp_path))
    assert (results.points, results.missing) == (3, 1) and len(results.summary) == 2
    nothing = GridResults.load(more.grids[0], more.points, Store(tmp_path / "none"))
    assert nothing.missing == 3 and not len(nothing.marginal)


@pytest.mark.check
def test_killed_in_the_middle_and_rerun_equals_never_killed(tmp_path):
    """kill −9 as soon as one fleet is done and another has begun; the rest is as if nothing had
    happened.
    """
    path = tmp_path / "tiny.toml"
    path.write_text(
        TINY.replace(
            "max_steps = [2, 4]", "max_steps = 4\n[objective]\nlambda_div = [0.5, 1.0]"
        ).replace("epochs = 1", "epochs = 6")
    )
    root = tmp_path / "killed"
    process = fork(
        run_grid, GridWork.from_grids(load_grid(path)), root, HERE, "", io.StringIO()
    )
    while process.is_alive() and not (
        list((root / "runs").glob("*.json")) and list((root / "running").glob("*"))
    ):
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    before = {file: file.stat().st_mtime_ns for file in (root / "runs").glob("*.json")}
    assert 0 < len(before) < 3

    work = GridWork.from_grids(load_grid(path))
    # Runs of the finished fleet that were not yet written one by one are found in its pending
    # file.
    assert len(before) <= run_grid(work, root, HERE, "", io.StringIO()).before < 3
    assert not [
        file
        for file in root.rglob("*")
        if file.is_file()
        and file.parent.name in ("runs", "pending")
        and file.name.startswith(".")
    ]
    run_grid(work, tmp_path / "whole", HERE, "", io.StringIO())
    assert {file: file.stat().st_mtime_ns for file in before} == before
    for run in work.runs:
        a, b = Store(root).load(run), Store(tmp_path / "whole").load(run)
        assert a.numbers == b.numbers
        for name, values in a.arrays.items():
            np.testing.assert_array_equal(values, b.arrays[name])


def paper_work(changes) -> GridWork:
    return GridWork.from_grids(load_grid("synthetic", changes=changes).changed(["LS"], 1))


def assert_same(runs, one, other):
    for run in runs:
        a, b = (Store(folder).load(run) for folder in (one, other))
        assert a.numbers == b.numbers and set(a.arrays) == set(b.arrays)
        for name in a.arrays:
            np.testing.assert_array_equal(a.array(name), b.array(name))
        for name in set(a.history) - {"seconds"}:
            np.testing.assert_array_equal(a.history[name], b.history[name])
        assert all(a.weights[name].equal(b.weights[name]) for name in a.weights) and a.weights


@pytest.mark.check
def test_models_that_train_alone_survive_a_kill(tmp_path, tiny):
    """kill −9 once the first model has begun to train; the same command again, against a run left
    in peace.
    """
    changes = {**tiny, "training.epochs": 8}
    root = tmp_path / "killed"
    work = paper_work(changes)
    process = fork(run_grid, work, root, HERE, "", io.StringIO())
    while process.is_alive() and not list((root / "checkpoints").glob("*.safetensors")):
        time.sleep(0.01)
    process.kill()
    process.join()
    assert len(Store(root).done()) < 2
    for folder in ("killed", "whole"):
        assert run_grid(work, tmp_path / folder, HERE, "", io.StringIO()).failures == {}
    assert_same(work.runs, root, tmp_path / "whole")


@pytest.mark.check
def test_worker_processes_give_what_this_process_gives(tmp_path, tiny):
    work = paper_work(tiny)
    for folder, workers in (("one", 1), ("two", 2)):
        assert (
            run_grid(
                work, tmp_path / folder, Engine(workers=workers), "", io.StringIO()
            ).failures
            == {}
        )
    assert_same(work.runs, tmp_path / "one", tmp_path / "two")


@pytest.mark.check
def test_models_that_train_alone_are_trained_as_by_train(tmp_path, tiny):
    """A lone run by hand: its own split, its own weights; and in the table of a grid they compare
    as usual.
    """
    work = paper_work(tiny)
    run_grid(work, tmp_path, HERE, "ct", io.StringIO())
    data = work.data["LS"]
    run = next(run for run in work.runs if run.model == "ct_published")
    model = untrained(data, run.seed)
    fit_model(
        model,
        data,
        replace(run.method, constraints=data.training_constraints),
        progress=False,
    )
    weights = Store(tmp_path).load(run).weights
    assert all(value.equal(weights[name]) for name, value in model.state_dict().items())
    results = GridResults.load(work.grids[0], work.points, Store(tmp_path))
    assert results.missing == 0 and set(results.summary["method"]) == {
        "conventional",
        "ct_published",
    }


@pytest.mark.check
def test_data_that_cannot_be_loaded_fails_its_own_runs(tmp_path, tiny, monkeypatch):
    load = running.load_data

    def broken(name):
        if name == "OL":
            raise FileError("no such file,\n anywhere")
        return load(name)

    monkeypatch.setattr(running, "load_data", broken)
    grid = load_grid("synthetic", changes=tiny).changed(["LS", "OL"], 1)
    with pytest.raises(FileError):
        GridWork.from_grids(grid)
    work, stream = GridWork.from_grids(grid, strict=False), io.StringIO()
    found = run_grid(work, tmp_path, HERE, "", stream)
    assert found.failures == dict.fromkeys(
        ("OL conventional seed 0", "OL ct_published seed 0"), "no such file, anywhere"
    )
    assert (
        len(Store(tmp_path).done()) == 2
        and "OL ct_published seed 0 failed" in stream.getvalue()
    )
    assert "[1/4] LS " in stream.getvalue()


def test_every_run_is_in_one_job_of_one_shape_and_no_job_is_too_large():
    grid = load_grid("generators").changed(["Moon", "OL"])
    work = GridWork.from_grids(grid)
    jobs = plan(work.costs, work.data, 2)
    assert sorted(run.id for job in jobs for run in job.runs) == sorted(
        run.id for run in work.runs
    )
    for job in jobs:
        assert len({_shape(run) for run in job.runs}) == 1 and len(job.runs) <= MAX_MEMBERS
        assert len({run.generator == "revise" for run in job.runs}) == 1
    costs = work.costs
    lengths = [sum(costs[run] for run in job.runs) for job in jobs]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] < sum(lengths) / 4
    assert [job.id for job in plan(work.costs, work.data, 2)] == [job.id for job in jobs]


def test_wide_data_makes_small_fleets():
    work = GridWork.from_grids(load_grid("tuning").changed(["LS"]))
    narrow, wide = (
        replace(work.data["LS"], x_train=torch.zeros(3600, features)) for features in (2, 784)
    )
    assert all(len(job.runs) <= 26 for job in plan(work.costs, {"LS": wide}, 2))
    assert run_seconds(work.runs[-1], wide) > 5 * run_seconds(work.runs[-1], narrow)


def test_the_guess_for_huge_grids_is_of_the_size_of_the_real_one():
    work = GridWork.from_grids(load_grid("generators").changed(["Moon"]))
    quick, exact = expected_seconds(work.grids[0], 2), work.expected_seconds(set(), 2)
    assert 0.7 < quick / exact < 1.4
    assert work.expected_seconds({run.id for run in work.runs}, 2) == 0


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_checkpoint_that_finds_no_space_does_not_end_its_fleet(tmp_path, monkeypatch):
    monkeypatch.setattr("counterfactual_training.training.checkpoint.Checkpoint.save", full)
    stream = io.StringIO()
    found = run_grid(prepared(), tmp_path / "full", HERE, "", stream)
    assert found.failures == {} and "no checkpoint could be written" in stream.getvalue()
    monkeypatch.undo()
    run_grid(prepared(), tmp_path / "free", HERE, "", io.StringIO())
    for run in prepared().runs:
        a, b = (Store(tmp_path / name).load(run) for name in ("full", "free"))
        assert a.numbers == b.numbers


def test_other_errors_of_a_checkpoint_are_not_passed_over(tmp_path, monkeypatch):
    def denied(*_):
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr("counterfactual_training.training.checkpoint.Checkpoint.save", denied)
    failures = run_grid(prepared(), tmp_path, HERE, "", io.StringIO()).failures
    assert any("PermissionError" in reason for reason in failures.values())


def test_a_worker_without_space_is_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "run_job", full)
    failures = run_grid(prepared(), tmp_path, HERE, "", io.StringIO()).failures
    assert failures and all(
        "There is no space left for" in reason for reason in failures.values()
    )


def test_the_recorded_time_survives_reruns_and_adds_up(tmp_path, fake, monkeypatch):
    def seconds():
        return Store(tmp_path).notes()["tiny"]["seconds"]

    working, clock = running.run_job, iter(range(0, 10_000, 10))
    monkeypatch.setattr(running.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(running, "RunProgress", MagicMock())  # it asks the clock, too

    monkeypatch.setattr(running, "run_job", lambda benches, job: full())
    run_grid(prepared(), tmp_path, HERE, "", io.StringIO())
    first = seconds()
    assert first > 0
    monkeypatch.setattr(running, "run_job", working)
    run_grid(prepared(), tmp_path, HERE, "", io.StringIO())
    second = seconds()
    assert second > first
    run_grid(prepared(), tmp_path, HERE, "", io.StringIO())
    assert seconds() == second
    run_grid(prepared(TINY.replace("[2, 4]", "[2, 6]")), tmp_path, HERE, "", io.StringIO())
    assert 0 < seconds() < second  # another grid of the same name
