"""The queue of questions: free workers get them in batches of requests that ask the same.

The more clients, the larger the batches, and rows that are searched together take less time each.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd

from counterfactual_serve.metrics import Metrics
from counterfactual_serve.questions import Limits, PageQuestion
from counterfactual_serve.reading import RefusedError
from counterfactual_serve.tasks import explain_served
from counterfactual_serve.worker import (
    DiedError,
    GoneError,
    TaskError,
    TooLongError,
    Worker,
)
from counterfactual_training.errors import CounterfactualTrainingError

# Rows of one search: others wait while it runs, and more would take more memory and answer no more
# a second.
BATCH = 16
# Seconds beyond its time limit after which a search that does not end is ended.
GRACE = 20.0


@dataclass(eq=False)
class Entry:
    """Rows of one request that wait for their answers."""

    question: PageQuestion
    frame: pd.DataFrame
    done: asyncio.Future[tuple[list[dict[str, Any]], bool]] = field(repr=False)
    arrived: float = field(default_factory=time.monotonic)


class Desk:
    """The queue and its workers; for one event loop.

    Args:
        workers: search.
        auditor: a worker for what takes minutes, so that no plan waits for an audit.
    """

    def __init__(
        self, workers: Sequence[Worker], auditor: Worker, metrics: Metrics, limits: Limits
    ) -> None:
        self._workers = workers
        self._auditor = auditor
        self._metrics = metrics
        self._limits = limits
        self._auditing = asyncio.Lock()
        self._audit_gone = threading.Event()
        self._stopping = False
        self._threads = ThreadPoolExecutor(len(workers) + 1, thread_name_prefix="desk")
        self._queue: list[Entry] = []
        self._arrived = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the processes before the first question arrives."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(
            *(loop.run_in_executor(self._threads, worker.start) for worker in self._workers)
        )
        self._tasks = [asyncio.create_task(self._attend(worker)) for worker in self._workers]

    async def stop(self) -> None:
        """End all processes; all requests are answered or cancelled by now."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.stop_soon()
        # First the threads, whose work is done: only one at a time may use a worker.
        await asyncio.to_thread(self._threads.shutdown)
        for worker in (*self._workers, self._auditor):
            worker.stop()

    @property
    def waiting(self) -> int:
        """Rows in the queue."""
        return sum(len(entry.frame) for entry in self._queue)

    # ---- questions -------------------------------------------------------------------------------

    async def explain(
        self, question: PageQuestion, frame: pd.DataFrame
    ) -> tuple[list[dict[str, Any]], bool]:
        """An answer per row, and whether all are as good as they could be."""
        if self.waiting + len(frame) > self._limits.queue:
            raise _busy()
        answers: list[dict[str, Any]] = []
        complete = True
        # A large request goes to the end of the queue after every batch, so that small ones come in
        # between.
        for first in range(0, len(frame), BATCH):
            batch_answers, batch_complete = await self._wait(
                question, frame.iloc[first : first + BATCH]
            )
            answers += batch_answers
            complete &= batch_complete
        return [{**answer, "row": i} for i, answer in enumerate(answers)], complete

    async def _wait(
        self, question: PageQuestion, frame: pd.DataFrame
    ) -> tuple[list[dict[str, Any]], bool]:
        entry = Entry(question, frame, asyncio.get_running_loop().create_future())
        async with self._arrived:
            self._queue.append(entry)
            self._arrived.notify()
        try:
            return await entry.done
        finally:
            # Its client may have gone.
            self._queue = [other for other in self._queue if other is not entry]

    async def audit(
        self, task: Callable[..., Any], *arguments: Any, seconds: float, wait: bool = False
    ) -> Any:
        """A task that takes long, in its own process; one at a time."""
        if self._auditing.locked() and not wait:
            raise RefusedError(
                "Another audit is running; try again when it has ended.",
                code="busy",
                status=409,
            )
        async with self._auditing:
            self._audit_gone = threading.Event()
            try:
                if self._stopping:
                    raise GoneError
                return await self._ask(
                    self._auditor, self._audit_gone, task, *arguments, seconds=seconds
                )
            except GoneError:
                raise RefusedError(
                    "The server is stopping.", code="stopping", status=503
                ) from None
            except TooLongError:
                message = (
                    f"This took longer than {seconds:.0f} s and was given up; ask for fewer "
                    "people or groups."
                )
                raise RefusedError(message, code="too_long", status=503) from None
            finally:
                # Audits hold copies of rows and models; and the next one may come late.
                self._auditor.stop()

    def stop_soon(self) -> None:
        """When the server stops: cancel audits, which take minutes, at once."""
        self._stopping = True
        self._audit_gone.set()

    async def _ask(
        self,
        worker: Worker,
        gone: threading.Event,
        task: Callable[..., Any],
        *arguments: Any,
        seconds: float,
    ) -> Any:
        """The result of a task.

        Its worker stops once ``gone`` is set or the caller is cancelled.
        """
        loop = asyncio.get_running_loop()
        ask = partial(worker.ask, task, *arguments, seconds=seconds, gone=gone)
        work = loop.run_in_executor(self._threads, ask)
        try:
            await asyncio.wait([work])
        finally:
            gone.set()
            # Only now is the worker free for others, also if no client waits for the answer.
            await asyncio.wait([work])
            work.exception()
        return work.result()

    # ---- batches ---------------------------------------------------------------------------------

    async def _attend(self, worker: Worker) -> None:
        """Give one worker batch after batch."""
        while True:
            batch = await self._take()
            starts = worker.starts
            try:
                await self._answer(worker, batch)
            except Exception:  # whatever happens, every waiting request gets an answer
                for entry in batch:
                    _refuse(entry, _failed())
            self._metrics.restarted(max(0, worker.starts - max(starts, 1)))

    async def _take(self) -> list[Entry]:
        """The request that has waited longest, and all that ask the same and fit into one batch."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self._queue) > 0)
            batch: list[Entry] = []
            rows = 0
            for entry in self._queue:
                if not batch or (
                    entry.question == batch[0].question and rows + len(entry.frame) <= BATCH
                ):
                    batch.append(entry)
                    rows += len(entry.frame)
            self._queue = [entry for entry in self._queue if entry not in batch]
        return batch

    async def _answer(self, worker: Worker, batch: list[Entry]) -> None:
        seconds = self._limits.seconds
        for entry in batch:
            if time.monotonic() - entry.arrived > seconds:
                _refuse(entry, _busy())
        batch = [entry for entry in batch if not entry.done.done()]
        if not batch:
            return
        frame = pd.concat([entry.frame for entry in batch], ignore_index=True)
        self._metrics.searched(len(frame))
        work = (explain_served, batch[0].question, frame, seconds)
        try:
            answers, complete = await self._ask(
                worker, threading.Event(), *work, seconds=seconds + GRACE
            )
        except (CounterfactualTrainingError, OSError) as error:
            return await self._answer_one_by_one(worker, batch, error)
        for entry in batch:
            entry_answers = answers[: len(entry.frame)]
            answers = answers[len(entry.frame) :]
            with contextlib.suppress(asyncio.InvalidStateError):  # its client has gone
                entry.done.set_result((entry_answers, complete))

    async def _answer_one_by_one(
        self, worker: Worker, batch: list[Entry], error: Exception
    ) -> None:
        """After a batch failed, answer its entries one by one: perhaps only one of them fails."""
        if len(batch) > 1:
            for entry in batch:
                await self._answer(worker, [entry])
            return
        if isinstance(error, TooLongError):
            error = RefusedError(
                "The search took too long and was given up.", code="too_long", status=503
            )
        if isinstance(error, (DiedError, TaskError)):
            self._metrics.failed()
            error = _failed()
        _refuse(batch[0], error)


def _refuse(entry: Entry, error: Exception) -> None:
    if not entry.done.done():
        entry.done.set_exception(error)


def _busy() -> RefusedError:
    return RefusedError(
        "Too many questions are waiting; try again in a few seconds.", code="busy", status=503
    )


def _failed() -> RefusedError:
    return RefusedError(
        "The search failed; this is a fault of the server.", code="failed", status=500
    )
