"""Run many independent items: in this process, in processes of this machine, or on a Ray cluster.

The processes are a pool of the standard library, started again when it breaks.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

from counterfactual_training.errors import CounterfactualTrainingError, InputError, check_name
from counterfactual_training.registered import Registered, registered_files, run_files

EngineName = Literal["processes", "ray"]
# Called as ``task(shared, item)``.
Task = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Engine:
    """Where :func:`launch` runs its items.

    Attributes:
        name: processes of this machine, or tasks of a Ray cluster.
        workers: items run at once; with one, everything runs in the calling process. An existing
            Ray cluster decides this itself, one item per processor: see :func:`capacity`.
        address: of the Ray cluster: ``auto``, ``host:port`` or ``ray://host:port``. Without one,
            the environment variable ``RAY_ADDRESS`` counts, and without that Ray is started on this
            machine.
        max_retries: how often an item is started again after its worker or node died. An item that
            raises is not.
    """

    name: EngineName = "processes"
    workers: int = 2
    address: str | None = None
    max_retries: int = 3

    def __post_init__(self) -> None:
        check_name("engine", self.name, get_args(EngineName))
        if self.workers < 1:
            raise InputError(f"workers must be 1 or more, got {self.workers}.")
        if self.max_retries < 0:
            raise InputError(f"max_retries must be 0 or more, got {self.max_retries}.")
        if self.address is not None and self.name != "ray":
            raise InputError(
                f"The address {self.address!r} is one of a Ray cluster: choose the engine 'ray' "
                "with it."
            )


@dataclass(frozen=True)
class Failed:
    """The result of an item that failed; ``errno`` is the system's number of the error, if any."""

    reason: str
    errno: int | None = None


_DEFAULT = Engine()


def launch(
    task: Task, items: Sequence[Any], shared: Any = None, *, engine: Engine = _DEFAULT
) -> Iterator[tuple[Any, Any | Failed]]:
    """Run ``task(shared, item)`` for each item; yields item and result as they finish, each item
    exactly once.

    An item that raises gives :class:`Failed`, and so does one whose worker died too often; the
    others continue. Closing the iterator stops the work. Workers of a cluster share no disk with
    the caller, so the caller should write the results.

    Args:
        task: a function of a module, so that workers can import it; must not change ``shared``.
        items: what differs between the calls; small.
        shared: what they have in common, such as the data; sent once to each worker or node.
        engine: where to run. More than one worker means processes that import the caller's main
            module: a script needs its ``if __name__ == "__main__":``.
    """
    if not items:
        return iter(())
    files = registered_files()
    if files:
        task = _WithFiles(task, files)
    if engine.name == "ray":
        from counterfactual_training.engine.ray_engine import on_ray, require_ray

        require_ray()  # here, because a generator would complain only when somebody iterates
        return on_ray(task, items, shared, engine)
    if engine.workers == 1:
        return ((item, attempt(task, shared, item)) for item in items)
    return in_processes(task, items, shared, engine)


@dataclass(frozen=True)
class _WithFiles:
    """A task whose worker first runs the files that registered something here."""

    task: Task
    files: tuple[Registered, ...]

    def __call__(self, shared: Any, item: Any) -> Any:
        run_files(self.files)
        return self.task(shared, item)


def capacity(engine: Engine) -> int:
    """How many items run at once.

    A cluster is asked, so an address that does not answer raises here, before anything has been
    prepared.
    """
    if engine.name == "processes":
        return engine.workers
    from counterfactual_training.engine.ray_engine import num_processors

    return num_processors(engine)


# ---- what both kinds of workers share ------------------------------------------------------------


def reason(error: BaseException) -> str:
    """One line: the message of our own errors, type and message of others."""
    text = " ".join(str(error).split())
    if isinstance(error, CounterfactualTrainingError):
        return text
    if text:
        return f"{type(error).__name__}: {text}"
    return type(error).__name__


def lost(times: int) -> Failed:
    """The result of an item whose worker died too often."""
    if times == 1:
        count = "once"
    else:
        count = f"{times} times"
    return Failed(
        f"Its worker process died {count}. Most often memory ran out: use fewer workers, smaller "
        "fleets or a larger "
        "machine."
    )


def set_up_worker() -> None:
    """One thread.

    Two processes of one thread each use two cores well; threads that compete do not. The library
    itself never calls this: the threads of a process belong to whoever started it.
    """
    # Not above: the command line imports this module, and loading torch takes seconds.
    import torch

    torch.set_num_threads(1)


def attempt(task: Task, shared: Any, item: Any) -> Any | Failed:
    """The task's result; an error in it concerns this item only."""
    try:
        return task(shared, item)
    except (Exception, SystemExit) as error:
        return Failed(reason(error), getattr(error, "errno", None))


# ---- processes of this machine -------------------------------------------------------------------


def in_processes(
    task: Task, items: Sequence[Any], shared: Any, engine: Engine
) -> Iterator[tuple[Any, Any | Failed]]:
    """Pairs of item and result from ``engine.workers`` processes."""
    # A file, because a process that dies while it starts would block us forever if it had more than
    # the buffer of a pipe left to read.
    with TemporaryDirectory() as folder:
        path = Path(folder) / "payload"
        path.write_bytes(_packed(task, shared))
        yield from _run(items, str(path), engine)


def _packed(task: Task, shared: Any) -> bytes:
    try:
        return pickle.dumps((task, shared), protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"The work cannot be sent to other processes ({reason(error)}): the task must be a "
            "function of a module, "
            "and shared data must be picklable. Use one worker to run in this process."
        ) from error


def _run(
    items: Sequence[Any], payload: str, engine: Engine
) -> Iterator[tuple[Any, Any | Failed]]:
    waiting = deque(range(len(items)))
    losses = Counter[int]()
    # A dead process breaks the whole pool, and we cannot tell which item caused it. So all items
    # that were running become suspects and run one at a time after the others: the item that breaks
    # the pool again is the cause.
    suspects: deque[int] = deque()
    while waiting or suspects:
        alone = not waiting
        running: dict[Future[Any], int] = {}
        if alone:
            queue = suspects
            workers = 1
        else:
            queue = waiting
            workers = min(engine.workers, len(waiting))
        with _pool(payload, workers) as (pool, started):
            try:
                while queue or running:
                    while queue and len(running) < workers:
                        with _no_interrupts():  # this may start a process
                            running[pool.submit(_work, items[queue[0]])] = queue[0]
                        queue.popleft()
                    for index, result in _finished(running):
                        yield items[index], result
            except BrokenProcessPool:
                _check_started(started)
                for index in running.values():
                    losses[index] += alone
                    if losses[index] <= engine.max_retries:
                        suspects.append(index)
                    else:
                        yield items[index], lost(losses[index])


def _finished(running: dict[Future[Any], int]) -> Iterator[tuple[int, Any | Failed]]:
    """Waits for an item; index and result of all that have ended, which run no longer."""
    done = wait(running, return_when=FIRST_COMPLETED).done
    # Results first: what arrived before the pool broke is not run again.
    for future in sorted(done, key=lambda one: one.exception() is not None):
        result = _result(future)
        yield running.pop(future), result


def _result(future: Future[Any]) -> Any | Failed:
    try:
        return future.result()
    except BrokenProcessPool:
        raise
    except Exception as error:  # errors of the task itself are caught in the worker
        return Failed(
            f"The item or its result cannot be sent between processes ({reason(error)})."
        )


def _context() -> Any:
    """How worker processes start.

    Forks of this process may hang if it has used torch's threads. Forks of a server that only
    imports the package are safe, and start much faster than a new interpreter.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # What nearly every task imports, once for all workers; the package itself imports nothing.
    context.set_forkserver_preload([__name__, "counterfactual_training.tables.estimators"])
    return context


@contextlib.contextmanager
def _pool(payload: str, workers: int) -> Iterator[tuple[ProcessPoolExecutor, Any]]:
    """Worker processes that exit when this process does and are stopped with the iteration; and
    what they set once the first of them is ready."""
    context = _context()
    # Workers hold the reading end. It closes when this process closes its end, or dies, even by
    # kill -9.
    theirs, lifeline = context.Pipe(duplex=False)
    started = context.Event()
    initial = (payload, theirs, started, dict(os.environ))
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=initial)
    try:
        yield pool, started
    except BaseException:  # somebody stopped iterating: do not wait for unfinished items
        lifeline.close()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for end in (lifeline, theirs):
            end.close()


def _check_started(started: Any) -> None:
    """Raise if no process got as far as its first item: another attempt would fail as well."""
    if not started.is_set():
        raise CounterfactualTrainingError(
            "The worker processes failed to start. If a script of yours started them, put its "
            "work under "
            '`if __name__ == "__main__":`; otherwise memory may be short. One worker needs no '
            "other processes."
        )


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Processes started inside never receive Ctrl-C, not even while they import: this process
    decides.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- in the worker -------------------------------------------------------------------------------

_payload: list[Path] = []


def _begin(
    payload: str, lifeline: Connection, started: Any, environment: dict[str, str]
) -> None:
    _payload.append(Path(payload))
    # The server that this process was forked from may have an older one.
    os.environ.update(environment)
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
    # Not security-sensitive: the process that started this one wrote the file, in a folder that
    # only the user may read.
    return pickle.loads(_payload[0].read_bytes())  # noqa: S301
