"""A real PostgreSQL server, started for these tests, and processes that share a study in it."""

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from counterfactual_lab.tuning import TuningPlan, tune
from counterfactual_lab.tuning.storage import open_study

psycopg = pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")

pytestmark = pytest.mark.check


def program(name):
    """A server program: from PATH, or where distributions hide it."""
    hidden = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(hidden[-1]) if hidden else None)


def unprivileged():
    """How to run as somebody whom PostgreSQL accepts: it refuses to serve root."""
    if os.geteuid() != 0:
        return [], None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return [
                "setpriv",
                f"--reuid={user.pw_uid}",
                f"--regid={user.pw_gid}",
                "--clear-groups",
            ], user
    return None, None


@pytest.fixture(scope="module")
def server():
    """The URL of an empty database, in a server of its own on a free port."""
    initdb, postgres = program("initdb"), program("postgres")
    prefix, user = unprivileged()
    if (
        initdb is None
        or postgres is None
        or prefix is None
        or (prefix and shutil.which("setpriv") is None)
    ):
        pytest.skip(
            "no PostgreSQL server programs (initdb, postgres), or nobody to run them as"
        )
    with tempfile.TemporaryDirectory(prefix="ct-postgresql-") as folder:
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        base = Path(folder) / "base"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}
        subprocess.run(
            [*prefix, initdb, "-D", base, "-U", "tester", "-A", "trust", "-N"],
            check=True,
            **quiet,
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = [
            "-D",
            base,
            "-p",
            str(port),
            "-k",
            folder,
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "fsync=off",
        ]
        process = subprocess.Popen([*prefix, postgres, *options], **quiet)
        try:
            wait_for(port)
            yield f"postgresql://tester@127.0.0.1:{port}/postgres"
        finally:
            process.send_signal(
                signal.SIGINT
            )  # ends at once, without waiting for clients to go
            process.wait(timeout=30)


def wait_for(port):
    for _ in range(100):
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(
                host="127.0.0.1", port=port, user="tester", dbname="postgres", connect_timeout=1
            ).close()
            return
        time.sleep(0.1)
    pytest.fail("the PostgreSQL server did not start")


def go_on(worker):
    worker.stdin.write("\n")
    worker.stdin.flush()


def test_two_processes_share_a_study_from_an_empty_database(toy, server, start_worker):
    workers = [start_worker(server, "shared", 6, batch=2, hang_after=1) for _ in range(2)]
    for worker in workers:
        assert worker.stdout.readline().strip() == "ready"
    for worker in workers:  # both find no tables, no study and no first trial
        go_on(worker)
    for worker in workers:  # both have trials of their own before either finishes one
        assert worker.stdout.readline().strip() == "hanging"
    for worker in workers:
        go_on(worker)
    reports = []
    for worker in workers:
        out, err = worker.communicate(timeout=400)
        assert worker.returncode == 0, err
        reports.append(json.loads(out))
    study = open_study(server, "shared", (1,), toy.EPOCHS)
    trials = study.trials()
    done = [trial for trial in trials if trial.state in ("COMPLETE", "PRUNED")]
    assert len(done) == 6 and max(report["finished"] for report in reports) == 6
    assert len({tuple(trial.settings.values()) for trial in done}) == 6
    assert sum(trial.published for trial in done) == 1
    # Both had trials of their own, finished or given back.
    everything = study._study.trials
    owners = {
        trial.user_attrs["worker"] for trial in everything if "worker" in trial.user_attrs
    }
    assert len(owners) == 2, [
        (own.number, own.state.name, own.user_attrs) for own in everything
    ]
    # A third that comes later finds all done, and the same best.
    found = tune(toy.make_task(), toy.GOAL, TuningPlan(6, 3, server, "shared"), toy.SPACE)
    assert found.num_finished == 6 and found.best.values <= found.published.values


def test_a_killed_process_is_replaced(toy, server, start_worker):
    worker = start_worker(server, "killed", num_trials=6, batch=2, hang_after=3)
    go_on(worker)
    assert [worker.stdout.readline().strip() for _ in range(2)] == ["ready", "hanging"]
    worker.kill()
    worker.wait()
    found = tune(toy.make_task(), toy.GOAL, TuningPlan(6, 3, server, "killed"), toy.SPACE)
    assert found.num_finished == 6
    assert sum(trial.state == "FAIL" for trial in found.trials) == 2


def test_studies_of_one_database_do_not_mix(toy, server):
    found = tune(toy.make_task(), toy.GOAL, TuningPlan(2, 2, server, "another"), toy.SPACE)
    assert found.num_finished == 2
