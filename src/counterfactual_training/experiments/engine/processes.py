"""Local worker processes that may die without taking anything else along.

A pool of the standard library breaks as a whole when one process is killed, and cannot tell whose fault it was. Here
every process has a pipe of its own: the item it was given is known, and only that item begins again.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from counterfactual_training.errors import CounterfactualTrainingError
from counterfactual_training.experiments.engine.engine import Agenda, Engine, Failed
from counterfactual_training.experiments.engine.parcels import answer, open_result, pack_item, pack_luggage, unpack
from counterfactual_training.experiments.engine.worker import Task, attempt, settle

_SECONDS_TO_LEAVE = 5.0
_READY = b""  # what a new process says first; a result is never empty


def in_processes(task: Task, items: Sequence[Any], shared: Any, engine: Engine) -> Iterator[tuple[Any, Any | Failed]]:
    """Pairs of item and result from ``engine.workers`` processes."""
    luggage = pack_luggage(task, shared)
    agenda, stillborn = Agenda(len(items), engine.max_retries), 0
    crew: list[_Worker] = []
    try:
        crew += [_Worker() for _ in range(min(engine.workers, len(items)))]
        while crew:
            talking = wait([worker.connection for worker in crew])
            for worker in [worker for worker in crew if worker.connection in talking]:
                message, index, worker.index = worker.hear(), worker.index, None
                outcomes: list[Any] = []
                if index is None and message is None:
                    stillborn += 1
                    _check_start(stillborn, engine, worker.ending())
                elif index is not None:
                    outcomes = [open_result(message)] if message else agenda.lost(index, worker.ending())
                if message is None or not agenda:
                    crew.remove(worker)
                    worker.end()
                    crew += [_Worker() for _ in range(message is None and bool(agenda))]
                else:
                    worker.index = agenda.next()
                    worker.tell(*[luggage] * (message == _READY), pack_item(items[worker.index]))
                # Only now, so that no worker waits for what the caller does with it.
                for outcome in outcomes:
                    yield items[index or 0], outcome
    finally:
        for worker in crew:
            worker.end()


class _Worker:
    """One process, seen from here.

    Attributes:
        index: of the item it works on.
    """

    def __init__(self) -> None:
        # Forked children of a process that has used torch's threads may hang: start afresh.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(theirs,), daemon=True)
        with _no_interrupts():
            self.process.start()
        theirs.close()  # so that its end means the end of the process
        self.index: int | None = None

    def hear(self) -> bytes | None:
        """What it sent, or None if it is dead."""
        try:
            return self.connection.recv_bytes()
        except (EOFError, OSError):
            return None

    def tell(self, *messages: bytes) -> None:
        # If it died just now, the next look at the pipe shows it.
        with contextlib.suppress(OSError):
            for message in messages:
                self.connection.send_bytes(message)

    def ending(self) -> str:
        self.process.join(5)
        code = self.process.exitcode
        how = f"was killed (signal {-code})" if code is not None and code < 0 else f"ended (exit code {code})"
        return f"the worker process {how}"

    def end(self) -> None:
        self.connection.close()
        if self.index is None:  # it waits for work; told that there is none, it leaves and tidies up after itself
            self.process.join(_SECONDS_TO_LEAVE)
        self.process.kill()
        self.process.join()


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Processes started inside do not hear Ctrl-C, from their first moment: the one that asked for them decides."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_start(stillborn: int, engine: Engine, ending: str) -> None:
    if stillborn > engine.max_retries:
        raise CounterfactualTrainingError(
            f"Workers do not get as far as their first item: {ending}. If a script of yours started them, its work "
            'belongs under `if __name__ == "__main__":`; otherwise memory may be short. One worker needs no other '
            "processes."
        )


def _work(connection: Connection) -> None:
    """The life of a worker process: luggage first, then items until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    settle()
    try:
        connection.send_bytes(_READY)
        luggage = attempt(unpack, None, connection.recv_bytes())
        while True:
            connection.send_bytes(answer(luggage, connection.recv_bytes()))
    except (EOFError, OSError):
        return


def _leave_with_parent() -> None:
    """Whoever asked for the work was killed: nobody waits for it any more."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
