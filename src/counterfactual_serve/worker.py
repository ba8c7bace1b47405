"""Processes that search and audit: each has the models, takes one task at a time and sends back
plain values.

Work is done there, so that the process that talks to clients always answers, and so that a task
that takes far too long can be ended by ending its process.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import torch

from counterfactual_serve.served import Served
from counterfactual_training.errors import CounterfactualTrainingError

# Seconds after which a thread that waits for a process looks whether it still should.
_GLANCE = 0.05
# Gives free memory back to the system; glibc has it, other libraries do so by themselves or not at
# all.
if sys.platform == "linux":
    _TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)
else:
    _TRIM = None
# What a task comes to: a result, or an error.
Reply = tuple[Any, Exception | None]


class TooLongError(CounterfactualTrainingError):
    """A task did not end in time, and its process was ended."""


class GoneError(CounterfactualTrainingError):
    """No request waits for a task any more, and its process was ended."""


class DiedError(CounterfactualTrainingError):
    """The process of a task ended by itself: out of memory, or killed."""


class TaskError(CounterfactualTrainingError):
    """A task failed unexpectedly; the message names the type of the error and
    nothing of the data.
    """


def make_workers(served: Served, number: int) -> list[Worker]:
    """Workers that share what the models, rows and imports take of memory; to be called before
    there are threads.
    """
    nursery = _Nursery(served)
    return [Worker(nursery.start_process) for _ in range(number)]


class Worker:
    """The parent's end of a process. One thread at a time may ask it.

    Args:
        start_process: starts one, and returns the pipe to it.
    """

    def __init__(self, start_process: Callable[[], Connection]) -> None:
        self._start_process = start_process
        self._pipe: Connection | None = None
        self.starts = 0

    def start(self) -> None:
        """Start the process, unless it runs."""
        # A process says nothing unasked: what there is to read is its end.
        if self._pipe is not None and self._pipe.poll():
            self.stop()
        if self._pipe is None:
            self._pipe = self._start_process()
            self.starts += 1

    def ask(
        self, task: Callable[..., Any], *arguments: Any, seconds: float, gone: threading.Event
    ) -> Any:
        """``task(served, *arguments)`` in the process.

        The process is ended after so many seconds (:class:`TooLongError`), and once ``gone`` is
        set, because no request waits for the answer any more (:class:`GoneError`).
        """
        self.start()
        try:
            result, error = self._reply((task, arguments), seconds, gone)
        except (EOFError, OSError):
            self.stop()
            raise DiedError("The process that worked on this ended unexpectedly.") from None
        except (TooLongError, GoneError):
            self.stop()
            raise
        if error is not None:
            raise error
        return result

    def _reply(self, work: Any, seconds: float, gone: threading.Event) -> Reply:
        assert self._pipe is not None  # noqa: S101 - `start` made it
        until = time.monotonic() + seconds
        self._pipe.send(work)
        while not self._pipe.poll(_GLANCE):
            if gone.is_set():
                raise GoneError("No request waits for this any more.")
            if time.monotonic() > until:
                raise TooLongError(f"This took longer than {seconds:.0f} s and was given up.")
        reply: Reply = self._pipe.recv()
        return reply

    def stop(self) -> None:
        """End the process, whatever it does: it ends when its pipe is closed."""
        if self._pipe is not None:
            self._pipe.close()
        self._pipe = None


# ---- the processes -------------------------------------------------------------------------------


class _Nursery:
    """Starts processes.

    On Linux, a process without threads forks them. It is forked itself as soon as this object is
    made, and shares all memory with this one: a new process takes milliseconds, and little memory
    of its own. Elsewhere, and where there is a GPU, libraries that have been used do not work in a
    fork, and processes start over.
    """

    def __init__(self, served: Served) -> None:
        self._served = served
        self._lock = threading.Lock()
        self._pipe: Connection | None = None
        if sys.platform == "linux" and not torch.cuda.is_available():
            self._pipe, theirs = multiprocessing.Pipe()
            # What the first search took would stay here, unused, for good: from now on, others
            # search.
            _tidy()
            # Collecting garbage writes into what it looks at, and processes share pages until
            # somebody writes.
            gc.freeze()
            with theirs:
                if os.fork() == 0:
                    _alone(_nurse, theirs, served)

    def start_process(self) -> Connection:
        """The pipe to a new process."""
        ours, theirs = multiprocessing.Pipe()
        with theirs:
            if self._pipe is None:
                context = multiprocessing.get_context("spawn")
                context.Process(target=_work, args=(theirs, self._served), daemon=True).start()
            else:
                with self._lock:
                    send_handle(self._pipe, theirs.fileno(), 0)
        return ours


def _nurse(pipe: Connection, served: Served) -> None:
    """Fork a process for every pipe that comes, until the other end is closed."""
    # How they ended does not matter.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        while True:
            with Connection(recv_handle(pipe)) as theirs:
                if os.fork() == 0:
                    _alone(_work, theirs, served)


def _alone(
    function: Callable[[Connection, Served], None], pipe: Connection, served: Served
) -> None:
    """Run this in a process that was just forked, and end it."""
    try:
        # A copy of the server's socket would keep its port, and one of another pipe would keep that
        # open.
        os.closerange(3, pipe.fileno())
        os.closerange(pipe.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        # Ctrl-C reaches all processes of a terminal; the parent decides when this one ends.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        function(pipe, served)
    finally:
        os._exit(0)


def _work(pipe: Connection, served: Served) -> None:
    """Answer tasks until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # notes on unknown categories are the parent's
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, tasks), daemon=True).start()
    while True:
        task, arguments = tasks.get()
        reply: Reply
        try:
            reply = task(served, *arguments), None
        except CounterfactualTrainingError as error:
            # A copy has no traceback, which cannot be sent.
            reply = None, copy.copy(error)
        except Exception as error:
            # No message: it may hold values of rows, which do not belong into logs.
            reply = None, TaskError(type(error).__name__)
        with contextlib.suppress(OSError):  # no request waits for it
            pipe.send(reply)
        # Left to itself, Python keeps the tensors of many tasks, and the C library what the largest
        # one took.
        _tidy()


def _tidy() -> None:
    """Collect garbage, and give what is free back to the system."""
    gc.collect()
    if _TRIM is not None:
        _TRIM(0)


def _listen(pipe: Connection, tasks: queue.SimpleQueue[Any]) -> None:
    """Take tasks, and end the process, whatever it does, when no process is left to
    give them.
    """
    try:
        while True:
            tasks.put(pipe.recv())
    finally:
        os._exit(0)
