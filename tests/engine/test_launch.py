"""Many pieces of work in processes: each result once, whatever happens to a worker."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from counterfactual_training.engine.launch import Engine, Failed, launch
from counterfactual_training.errors import FileError, InputError
from covering import repeats

pytestmark = pytest.mark.check

PATIENCE = 300  # seconds, on a machine that has other things to do


def scale(shared, item):
    return item * shared["factor"]


def touchy(shared, item):
    """Behaves badly, in the way the item says."""
    folder = Path(shared)
    with (folder / f"{item}.begun").open("a") as file:
        file.write("x")
    begun = len((folder / f"{item}.begun").read_text())
    if item == "killed once" and begun == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "killed always":
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "leaves":
        raise SystemExit(3)
    if item == "raises":
        raise ZeroDivisionError("by\n zero")
    if item == "explains":
        raise FileError("no such file,\n anywhere")
    if item == "unpicklable":
        return threading.Lock()
    if item == "slow":
        time.sleep(1.0)
    return item.upper()


def surroundings(shared, item):
    return {"pid": os.getpid(), "threads": torch.get_num_threads(), "shared": id(shared)}


def test_one_worker_is_this_process(tmp_path):
    found = dict(
        launch(scale, [1, 2], {"factor": torch.tensor([1.0, 2.0])}, engine=Engine(workers=1))
    )
    assert found[2].equal(torch.tensor([2.0, 4.0])) and len(found) == 2
    assert dict(
        launch(touchy, ["raises", "explains", "a"], str(tmp_path), engine=Engine(workers=1))
    ) == {
        "raises": Failed("ZeroDivisionError: by zero"),
        "explains": Failed("no such file, anywhere"),
        "a": "A",
    }


def test_nothing_to_do():
    assert list(launch(scale, [])) == []


def test_a_worker_that_dies_takes_nothing_else_along(tmp_path):
    """kill −9 of a worker: its item starts again, a hopeless one is given up, errors concern their
    own item only.
    """
    fine, unsendable = ["slow", "a", "b"], (letter for letter in "ab")
    items = [
        "slow",
        "killed once",
        "killed always",
        "raises",
        "explains",
        "leaves",
        "unpicklable",
        "a",
        "b",
    ]
    pairs = list(
        launch(
            touchy, [*items, unsendable], str(tmp_path), engine=Engine(workers=2, max_retries=1)
        )
    )
    assert Counter(item for item, _ in pairs) == Counter([*items, unsendable])
    found = dict(pairs)
    assert {item: found[item] for item in [*fine, "killed once"]} == {
        i: i.upper() for i in [*fine, "killed once"]
    }
    assert found["killed always"].reason.startswith(
        "Its worker process died 2 times. Most often memory ran out"
    )
    assert found["raises"] == Failed("ZeroDivisionError: by zero")
    assert found["explains"] == Failed("no such file, anywhere")
    assert found["leaves"] == Failed("SystemExit: 3")
    for item in ("unpicklable", unsendable):
        assert "cannot be sent between processes" in found[item].reason
    # A dead process breaks the pool: items that ran beside it start again too, but nothing does
    # more often than that.
    begun = {item: len((tmp_path / f"{item}.begun").read_text()) for item in items}
    assert begun["killed once"] == 2 and begun["killed always"] <= 3
    assert all(times <= 3 for times in begun.values()) and begun["a"] == begun["b"] == 1


def test_workers_have_one_thread_unpack_once_and_end_with_the_iteration():
    results = launch(surroundings, range(50), {"some": "data"}, engine=Engine(workers=2))
    found = [next(results)[1] for _ in range(6)]
    results.close()
    pids = {outcome["pid"] for outcome in found}
    assert {outcome["threads"] for outcome in found} == {1}
    assert os.getpid() not in pids and not any(alive(pid) for pid in pids)
    assert len({(outcome["pid"], outcome["shared"]) for outcome in found}) == len(pids)


def alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


_SCRIPT = """
    import os, signal, sys, time
    from pathlib import Path
    from counterfactual_training.engine.launch import Engine, launch

    # As in a terminal: who starts the tests in the background hands down a Ctrl-C that nobody
    # hears.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def wait(folder, item):
        (Path(folder) / str(os.getpid())).touch()
        time.sleep(60)

    {guard}
        for pair in launch(wait, [0], {folder!r}, engine=Engine(workers=2, max_retries=0)):
            pass
"""


def start(tmp_path, guard='if __name__ == "__main__":'):
    script = tmp_path / "script.py"
    (tmp_path / "pids").mkdir()
    script.write_text(
        textwrap.dedent(_SCRIPT).format(folder=str(tmp_path / "pids"), guard=guard)
    )
    return subprocess.Popen(
        [sys.executable, str(script)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def worker_pids(tmp_path, process):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        pids = [int(path.name) for path in (tmp_path / "pids").iterdir()]
        if pids:
            return pids
        time.sleep(0.05)
    raise AssertionError("the workers did not start")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("sent", [signal.SIGKILL, *repeats(signal.SIGINT)])
def test_workers_leave_with_whoever_started_them(tmp_path, sent):
    """Ctrl-C reaches all processes of the terminal, kill −9 the first one only; nobody stays,
    workers say nothing.
    """
    process = start(tmp_path)
    pids = worker_pids(tmp_path, process)
    if sent == signal.SIGINT:
        os.killpg(process.pid, sent)
    else:
        process.send_signal(sent)
    _, complaints = process.communicate(timeout=PATIENCE)
    assert process.returncode == -sent
    assert complaints.count("Traceback") == (
        sent == signal.SIGINT
    )  # Python's own, of the script
    deadline = time.monotonic() + PATIENCE
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


def test_a_script_without_its_guard_is_told_so(tmp_path):
    _, complaints = start(tmp_path, guard="if True:").communicate(timeout=PATIENCE)
    assert 'put its work under `if __name__ == "__main__":`' in complaints


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "procesess"}, "Did you mean 'processes'"),
        ({"workers": 0}, "workers must be 1 or more, got 0"),
        ({"max_retries": -1}, "max_retries must be 0 or more"),
        ({"address": "auto"}, "choose the engine 'ray'"),
    ],
)
def test_engines_that_make_no_sense(settings, words):
    with pytest.raises(InputError, match=words):
        Engine(**settings)


def test_work_that_cannot_be_sent():
    with pytest.raises(InputError, match="function of a module"):
        next(launch(lambda shared, item: item, [1, 2]))
