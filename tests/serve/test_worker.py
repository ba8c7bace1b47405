"""Processes that search: ended when a task takes too long or nobody waits for it, replaced when
they die.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest
from serving import PATIENCE

from counterfactual_serve.served import Served
from counterfactual_serve.worker import (
    _TRIM,
    DiedError,
    GoneError,
    TaskError,
    TooLongError,
    Worker,
    make_workers,
)

pytestmark = pytest.mark.check


def answers(served: Served) -> str:
    return "an answer"


def number(served: Served) -> int:
    return os.getpid()


def never_ends(served: Served) -> None:
    threading.Event().wait()


def says_so_and_never_ends(served: Served, address: str) -> None:
    with multiprocessing.connection.Client(address):
        threading.Event().wait()


def dies(served: Served) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fails(served: Served) -> None:
    raise KeyError("a value of somebody's row")


KEPT: list[bytes] = []


class Ring:
    """Garbage that only a collector finds."""

    ends = 0

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        Ring.ends += 1


def leaves_a_ring(served: Served) -> None:
    Ring()


def ends_of_rings(served: Served) -> int:
    return Ring.ends


def fills_and_frees(served: Served, number: int) -> None:
    """Take so many MB, in pieces too small to be given back one by one, and keep one behind
    them.
    """
    pieces = [bytes(100_000) for _ in range(10 * number)]
    KEPT.append(pieces.pop())


def megabytes(served: Served) -> float:
    (line,) = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("RssAnon")
    ]
    return int(line.split()[1]) / 1000


def ask(
    worker: Worker,
    task,
    *arguments,
    seconds: float = PATIENCE,
    gone: threading.Event | None = None,
):
    return worker.ask(task, *arguments, seconds=seconds, gone=gone or threading.Event())


@pytest.fixture(scope="module")
def started(served):
    (worker,) = make_workers(served, 1)
    yield worker
    worker.stop()


@pytest.fixture
def worker(started):
    """A worker with a process; whatever happens to that, the next task is answered."""
    assert ask(started, answers) == "an answer"
    yield started
    assert ask(started, answers) == "an answer"


def test_a_task_that_takes_too_long_is_ended(worker):
    process = ask(worker, number)
    with pytest.raises(TooLongError, match="longer than"):
        ask(worker, never_ends, seconds=0.0)
    # The test hangs, and fails, if it goes on.
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(process, 0)


def test_a_process_that_was_killed_while_it_waited_is_replaced_before_it_is_asked(worker):
    process = ask(worker, number)
    os.kill(process, signal.SIGKILL)
    worker._pipe.poll(None)
    assert ask(worker, number) != process


def test_a_task_that_nobody_waits_for_is_ended(worker, tmp_path):
    gone = threading.Event()
    with multiprocessing.connection.Listener(str(tmp_path / "socket")) as listener:

        def hang_up() -> None:
            with listener.accept() as process:
                gone.set()
                # Closed by the end of the process: the test hangs, and fails, if it goes on.
                with pytest.raises(EOFError):
                    process.recv()

        client = threading.Thread(target=hang_up)
        client.start()
        with pytest.raises(GoneError):
            ask(worker, says_so_and_never_ends, str(tmp_path / "socket"), gone=gone)
        client.join(PATIENCE)
        assert not client.is_alive()


def test_a_process_that_dies_is_replaced(worker):
    before = worker.starts
    with pytest.raises(DiedError):
        ask(worker, dies)
    ask(worker, answers)
    assert worker.starts == before + 1


def test_a_fault_names_its_type_and_nothing_of_the_data(worker):
    before = worker.starts
    with pytest.raises(TaskError) as error:
        ask(worker, fails)
    assert str(error.value) == "KeyError" and worker.starts == before


def test_what_a_task_leaves_is_gone_before_the_next(worker):
    before = ask(worker, ends_of_rings)
    ask(worker, leaves_a_ring)
    assert ask(worker, ends_of_rings) == before + 1


@pytest.mark.skipif(_TRIM is None, reason="another C library than glibc")
def test_memory_that_is_free_goes_back_to_the_system(worker):
    before = ask(worker, megabytes)
    ask(worker, fills_and_frees, 100)
    assert ask(worker, megabytes) < before + 50
