"""Items in worker processes of this machine: a pool of the standard library, started again when it breaks."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from counterfactual_training.errors import CounterfactualTrainingError, InputError
from counterfactual_training.experiments.engine.launch import (
    Engine,
    Failed,
    Task,
    attempt,
    lost,
    reason,
    set_up_worker,
)


def in_processes(task: Task, items: Sequence[Any], shared: Any, engine: Engine) -> Iterator[tuple[Any, Any | Failed]]:
    """Pairs of item and result from ``engine.workers`` processes."""
    # A file, because a process that dies while it starts would block us forever if it had more than the buffer of a
    # pipe left to read.
    with TemporaryDirectory() as folder:
        path = Path(folder) / "payload"
        path.write_bytes(_packed(task, shared))
        yield from _run(items, str(path), engine)


def _packed(task: Task, shared: Any) -> bytes:
    try:
        return pickle.dumps((task, shared), protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"The work cannot be sent to other processes ({reason(error)}): the task must be a function of a module, "
            "and shared data must be picklable. Use one worker to run in this process."
        ) from error


def _run(items: Sequence[Any], payload: str, engine: Engine) -> Iterator[tuple[Any, Any | Failed]]:
    waiting, losses = deque(range(len(items))), Counter[int]()
    # A dead process breaks the whole pool, and we cannot tell which item caused it. So all items that were running
    # become suspects and run one at a time after the others: the item that breaks the pool again is the cause.
    suspects: deque[int] = deque()
    while waiting or suspects:
        alone = not waiting
        running: dict[Future[Any], int] = {}
        with _Pool(payload, 1 if alone else min(engine.workers, len(waiting))) as pool:
            try:
                while waiting or running or (alone and suspects):
                    queue = suspects if alone else waiting
                    while queue and len(running) < pool.workers:
                        running[pool.submit(items[queue[0]])] = queue[0]
                        queue.popleft()
                    done = wait(running, return_when=FIRST_COMPLETED).done
                    # Results first: what arrived before the pool broke is not run again.
                    for future in sorted(done, key=lambda one: one.exception() is not None):
                        result = _result(future)
                        yield items[running.pop(future)], result
            except BrokenProcessPool:
                pool.check_started()
                for index in running.values():
                    losses[index] += alone
                    if losses[index] <= engine.max_retries:
                        suspects.append(index)
                    else:
                        yield items[index], lost(losses[index])


def _result(future: Future[Any]) -> Any | Failed:
    try:
        return future.result()
    except BrokenProcessPool:
        raise
    except Exception as error:  # errors of the task itself are caught in the worker
        return Failed(f"The item or its result cannot be sent between processes ({reason(error)}).")


def _context() -> Any:
    """How worker processes start.

    Forks of this process may hang if it has used torch's threads. Forks of a server that only imports the package are
    safe, and start much faster than a new interpreter.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # What nearly every task imports, once for all workers; the package itself imports nothing.
    context.set_forkserver_preload([__name__, "counterfactual_training.estimator"])
    return context


class _Pool:
    """Worker processes that exit when this process does and are stopped with the iteration."""

    def __init__(self, payload: str, workers: int) -> None:
        context = _context()
        # Workers hold the reading end. It closes when this process closes its end, or dies, even by kill -9.
        theirs, self._lifeline = context.Pipe(duplex=False)
        self._theirs, self._started, self.workers = theirs, context.Event(), workers
        initial = (payload, theirs, self._started, dict(os.environ))
        self._pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=initial)

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # somebody stopped iterating: do not wait for unfinished items
            self._lifeline.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for end in (self._lifeline, self._theirs):
            end.close()

    def submit(self, item: Any) -> Future[Any]:
        with _no_interrupts():  # this may start a process
            return self._pool.submit(_work, item)

    def check_started(self) -> None:
        """Raise if no process got as far as its first item: another attempt would fail as well."""
        if not self._started.is_set():
            raise CounterfactualTrainingError(
                "The worker processes failed to start. If a script of yours started them, put its work under "
                '`if __name__ == "__main__":`; otherwise memory may be short. One worker needs no other processes.'
            )


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Processes started inside never receive Ctrl-C, not even while they import: this process decides."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- in the worker ---------------------------------------------------------------------------------------------------

_payload: list[Path] = []


def _begin(payload: str, lifeline: Connection, started: Any, environment: dict[str, str]) -> None:
    _payload.append(Path(payload))
    os.environ.update(environment)  # the server that this process was forked from may have an older one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(lifeline,), daemon=True).start()
    set_up_worker()
    started.set()


def _leave_with(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


def _work(item: Any) -> Any | Failed:
    # Unpacking is part of the attempt: a worker that cannot import the task says why.
    return attempt(lambda _, one: _unpacked()[0](_unpacked()[1], one), None, item)


@lru_cache(maxsize=1)
def _unpacked() -> tuple[Task, Any]:
    # Not security-sensitive: the process that started this one wrote the file, in a folder that only the user may read.
    return pickle.loads(_payload[0].read_bytes())  # noqa: S301
