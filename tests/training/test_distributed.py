"""One model on two processes is that model on one, up to rounding."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import two_ranks
from torch.testing import assert_close

from counterfactual_training.persistence import load_file
from counterfactual_training.training import epoch
from counterfactual_training.training.distributed import Ranks
from counterfactual_training.training.sampling import shares

pytestmark = pytest.mark.check

EXAMPLE = Path(__file__).parents[2] / "examples" / "distributed.py"
SLACK = {"rtol": 2e-4, "atol": 2e-5}
# Batch norm by itself looks at the rows of one process only.
ALONE_TOO = [name for name in two_ranks.SCENARIOS if name not in ("batch norm", "one stops")]


def start(folder: Path, tasks: list, num: int = 2) -> list:
    """Processes that have torch already, as forks of one that did nothing but import it: forks of
    this one may hang.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["counterfactual_training", "torch._dynamo"])
    processes = [
        context.Process(target=two_ranks.work, args=(i, num, folder, tasks)) for i in range(num)
    ]
    for process in processes:
        process.start()
    return processes


def on_ranks(folder: Path, *tasks: tuple[str, dict], num: int = 2) -> list[list[dict]]:
    """What each process found."""
    processes = start(folder, list(tasks), num)
    # Much longer than they need, also where many processes share few cores: this only ends a test
    # that hangs.
    for process in processes:
        process.join(300)
    hung = [process for process in processes if process.is_alive()]
    for process in hung:
        process.kill()
    assert not hung, "the processes wait for each other"
    assert all(process.exitcode == 0 for process in processes)
    (folder / "store").unlink(missing_ok=True)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(num)]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """All scenarios, on two processes."""
    found = on_ranks(
        tmp_path_factory.mktemp("ranks"), *((name, {}) for name in two_ranks.SCENARIOS)
    )
    return [dict(zip(two_ranks.SCENARIOS, own, strict=True)) for own in found]


@pytest.mark.parametrize("name", ALONE_TOO)
def test_two_processes_train_as_one(name, both):
    alone = two_ranks.outcome(two_ranks.train(name))
    mine = both[0][name]
    assert_close(mine["weights"], alone["weights"], **SLACK)
    assert mine["stopped"] == alone["stopped"]
    assert len(mine["records"]) == len(alone["records"])
    for one, other in zip(mine["records"], alone["records"], strict=True):
        assert_close(one, other, equal_nan=True, **SLACK)


@pytest.mark.parametrize("name", two_ranks.SCENARIOS)
def test_both_processes_end_alike(name, both):
    first, second = both[0][name], both[1][name]
    assert all(torch.equal(first["weights"][k], second["weights"][k]) for k in first["weights"])
    assert repr(first["records"]) == repr(second["records"])
    assert first["stopped"] == second["stopped"]


def test_bad_updates_and_stops_are_agreed_on(both):
    """Only one process sees the row that blows up, and only one decides to stop."""
    assert sum(record["skipped"] for record in both[0]["explosive"]["records"]) == 1
    assert both[0]["one stops"]["stopped"] == "one has had enough"
    assert len(both[0]["one stops"]["records"]) == 2
    assert "has not improved" in both[0]["early stopping"]["stopped"]


def test_killed_processes_resume_exactly(tmp_path):
    """Kill −9 of both; two processes go on bit by bit, one goes on up to rounding."""
    file, more = tmp_path / "run.safetensors", {"epochs": 8}
    ((whole, *_), _) = on_ranks(tmp_path, ("shuffled", more))
    processes = start(
        tmp_path, [("shuffled", {**more, "checkpoint": file, "callbacks": [two_ranks.Stuck()]})]
    )
    while not file.exists() and all(process.is_alive() for process in processes):
        time.sleep(0.01)
    for process in processes:
        process.kill()
        process.join()
    (tmp_path / "store").unlink()
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(file.read_bytes())
    assert 1 <= load_file(file, "training checkpoint")[1]["epoch"] < 8
    ((resumed,), (second,)) = on_ranks(tmp_path, ("shuffled", {**more, "checkpoint": file}))
    for name, value in whole["weights"].items():
        assert torch.equal(value, resumed["weights"][name]) and torch.equal(
            value, second["weights"][name]
        )
    assert repr(resumed["records"]) == repr(whole["records"])
    (((alone,),)) = on_ranks(tmp_path, ("shuffled", {**more, "checkpoint": copy}), num=1)
    assert_close(alone["weights"], whole["weights"], **SLACK)


def test_what_is_refused_is_refused_by_all(tmp_path):
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"not a checkpoint")
    differing = [
        two_ranks.train_on_own_rows,
        two_ranks.train_on_other_values,
        two_ranks.train_with_own_seed,
        two_ranks.train_with_own_generator,
        two_ranks.train_with_own_constraints,
    ]
    words = {
        ("full", damaged): "damaged",
        **dict.fromkeys(differing, "different rows or methods"),
        two_ranks.train_fleet: "one such model at a time",
        two_ranks.train_normed: "single row",
        two_ranks.train_with_a_budget: "train on one process",
    }
    tasks = [
        (task, {}) if callable(task) else (task[0], {"checkpoint": task[1]}) for task in words
    ]
    for own in on_ranks(tmp_path, *tasks):
        for found, word in zip(own, words.values(), strict=True):
            assert word in found["refused"]


def test_what_a_process_knows_of_itself_is_not_refused(tmp_path):
    first, second = on_ranks(tmp_path, (two_ranks.train_on_own_device, {}))
    assert len(first[0]["records"]) == len(second[0]["records"]) == 1


def test_groups_of_batches_may_differ_between_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(
        epoch, "_GROUP_VALUES", 90
    )  # reached by the 16 rows of one process, not by the 15 of the other
    more = {"batch_size": 31, "shuffle": True}
    (mine,), (other,) = on_ranks(tmp_path, ("full", more))
    assert repr(mine["records"]) == repr(other["records"])
    alone = two_ranks.outcome(two_ranks.train("full", **more))
    assert_close(mine["weights"], alone["weights"], **SLACK)


def test_the_example_runs_by_torchrun(tmp_path):
    """And no thread of its group outlives it: one that does sometimes aborts a process that has
    done its work.
    """
    script = tmp_path / "example.py"
    threads = (
        "[open(f'/proc/self/task/{i}/comm').read() for i in os.listdir('/proc/self/task')]"
    )
    script.write_text(
        EXAMPLE.read_text()
        + (f"print({threads})\n" if Path("/proc/self/task").exists() else "")
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^\d process\(es\): loss 0\.", done.stdout, re.MULTILINE) == [
        "2 process(es): loss 0."
    ]
    assert "gloo" not in done.stdout


@pytest.mark.parametrize("num", [1, 2, 3, 7, 30])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_parts_are_all_rows_once(num, size):
    parts = [Ranks(rank, size).rows(num) for rank in range(size)]
    taken = [i for own, here in parts if here for i in range(num)[own]]
    assert taken == list(range(num))
    assert sum(here for _, here in parts) == num
    assert all(own.stop - own.start >= 1 for own, _ in parts)
    assert (
        sum(shares(num, size)) == num and max(shares(num, size)) - min(shares(num, size)) <= 1
    )
