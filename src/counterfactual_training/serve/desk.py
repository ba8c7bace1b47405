"""Takes questions, puts those that can be searched together into one batch, and gives batches to free workers.

Questions that arrive while all workers are busy wait, and are then searched together: the more clients, the larger the
batches, and a search of fifty rows takes a few times as long as that of one.

A question leaves with the client who asked it: out of the queue, or out of its worker, if nobody
else waits for the same batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd

from counterfactual_training.errors import CounterfactualTrainingError
from counterfactual_training.serve.metrics import Metrics
from counterfactual_training.serve.questions import Question
from counterfactual_training.serve.reading import RefusedError
from counterfactual_training.serve.worker import (
    DiedError,
    GoneError,
    TaskError,
    TooLongError,
    Worker,
    explain,
)

# Rows of one search. More would not be faster per row, and others would wait longer.
_BATCH = 64
# Rows of one request that are searched at once, of three options each: a large request is cut, so that small ones come
# in between.
_PART, _OPTIONS = 16, 3
# Seconds to wait for company: at least, and at most, if a worker has just answered many. They tend to ask again at
# once, and without them it would go on with a smaller batch each time.
_LEAST_LINGER, _MOST_LINGER = 0.01, 0.25
# A later part of a large request lets others go first, for so many seconds.
_PATIENCE = 3.0
# Seconds beyond its time limit after which a search that does not end is ended; and what even a late one gets.
GRACE, _LEAST = 20.0, 0.5


@dataclass(eq=False)
class Part:
    """Rows of one request that wait for their answers."""

    question: Question
    frame: pd.DataFrame
    targets: list[Any]
    until: float
    done: asyncio.Future[tuple[list[dict[str, Any]], bool, int]] = field(repr=False)
    key: str = ""
    owner: object = None
    turn: int = 0
    arrived: float = field(default_factory=time.monotonic)
    alone: bool = False

    @property
    def left(self) -> float:
        """Seconds."""
        return self.until - time.monotonic()

    @property
    def order(self) -> float:
        """The lowest goes first: the first part of a request, and who has waited longest."""
        return self.turn * _PATIENCE + self.arrived

    def goes_with(self, other: Part) -> bool:
        """Whether both can be searched at once: the same question, and about as much time for it."""
        if self.alone or other.alone or self.key != other.key or self.owner is other.owner:
            return False
        # A batch has the time of its most hurried part; nobody is to lose more than half of theirs to others.
        mine, theirs = max(self.left, _LEAST), max(other.left, _LEAST)
        return max(mine, theirs) <= 2 * min(mine, theirs)


class Desk:
    """The queue and its workers; for one event loop.

    Args:
        workers: search.
        auditor: a worker for what takes minutes, so that nobody's plan waits for an audit.
        most_waiting: rows; further ones are refused with "busy".
        together: ``False`` searches every request alone, to measure what batches are worth.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        auditor: Worker,
        metrics: Metrics,
        most_waiting: int,
        together: bool = True,
    ) -> None:
        self._workers = workers
        self._auditor = auditor
        self._auditing = asyncio.Lock()
        self._audit_gone = threading.Event()
        self._stopping = False
        self._threads = ThreadPoolExecutor(len(workers) + 1, thread_name_prefix="desk")
        self._waiting: list[Part] = []
        self._arrived = asyncio.Condition()
        self._most_waiting, self._together, self._metrics = most_waiting, together, metrics
        self._tasks: list[asyncio.Task[None]] = []
        self._searching = 0  # rows

    async def start(self) -> None:
        """Start the processes: the first question is not to wait for them."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._threads, worker.start) for worker in self._workers))
        self._tasks = [asyncio.create_task(self._attend(worker)) for worker in self._workers]

    async def stop(self) -> None:
        """End all processes; the server has answered everybody by now, or given up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.stop_soon()
        # First the threads, which wait for nobody any more: one at a time may use a worker.
        await asyncio.to_thread(self._threads.shutdown)
        for worker in (*self._workers, self._auditor):
            worker.stop()

    @property
    def waiting(self) -> int:
        """Rows in the queue."""
        return sum(len(part.frame) for part in self._waiting)

    # ---- questions -------------------------------------------------------------------------------------------------

    async def explain(
        self, question: Question, frame: pd.DataFrame, targets: Sequence[Any], seconds: float
    ) -> tuple[list[dict[str, Any]], bool, int]:
        """An answer per row, whether all are as good as they could be, and the rows of the largest batch."""
        if self.waiting + len(frame) > self._most_waiting:
            raise RefusedError("Too many questions are waiting; try again in a few seconds.", code="busy", status=503)
        loop, until = asyncio.get_running_loop(), time.monotonic() + seconds
        parts, owner = [], object()
        size = max(1, _PART * _OPTIONS // max(_OPTIONS, question.options))
        for turn, first in enumerate(range(0, len(frame), size)):
            rows, own = frame.iloc[first : first + size], list(targets[first : first + size])
            parts.append(Part(question, rows, own, until, loop.create_future(), question.key, owner, turn))
        async with self._arrived:
            self._waiting.extend(parts)
            self._arrived.notify(len(parts))
        try:
            found = await asyncio.gather(*(part.done for part in parts))
        finally:
            # Nobody waits for the rest of a request whose client has gone, or of which a part failed.
            for part in parts:
                part.done.cancel()
            self._waiting = [part for part in self._waiting if part.owner is not owner]
        answers: list[dict[str, Any]] = []
        for result in found:
            answers += [{**answer, "row": len(answers) + i} for i, answer in enumerate(result[0])]
        return answers, all(result[1] for result in found), max(result[2] for result in found)

    async def audit(self, task: Callable[..., Any], *arguments: Any, seconds: float, wait: bool = False) -> Any:
        """A task that takes long, in its own process; one at a time."""
        if self._auditing.locked() and not wait:
            raise RefusedError("Another audit is running; try again when it has ended.", code="busy", status=409)
        async with self._auditing:
            self._audit_gone = threading.Event()
            try:
                if self._stopping:
                    raise GoneError
                gone = self._audit_gone
                return await self._ask(self._auditor, gone, task, *arguments, seconds=seconds)
            except GoneError:
                raise RefusedError("The server is stopping.", code="stopping", status=503) from None
            except TooLongError:
                said = f"This took longer than {seconds:.0f} s and was given up; ask for fewer people or groups."
                raise RefusedError(said, code="too_long", status=503) from None
            finally:
                # Audits hold copies of rows and models; nobody knows when the next one comes.
                self._auditor.stop()

    def stop_soon(self) -> None:
        """The server is told to stop: audits, which take minutes, are given up at once."""
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
        """What a task comes to.

        Its worker gives it up once ``gone`` is set, or whoever called this is cancelled.
        """
        loop = asyncio.get_running_loop()
        ask = partial(worker.ask, task, *arguments, seconds=seconds, gone=gone)
        work = loop.run_in_executor(self._threads, ask)
        try:
            await asyncio.wait([work])
        finally:
            gone.set()
            # Only now is the worker free for others, also where nobody reads what came of this.
            await asyncio.wait([work])
            work.exception()
        return work.result()

    # ---- batches ---------------------------------------------------------------------------------------------------

    async def _attend(self, worker: Worker) -> None:
        """Give one worker batch after batch."""
        answered = 0
        while True:
            batch = await self._take(answered)
            starts = worker.starts
            try:
                await self._answer(worker, batch)
            except Exception:  # whatever happens, nobody waits for an answer that never comes
                for part in batch:
                    self._give_up(part)
            answered = sum(len(part.frame) for part in batch if not part.done.cancelled())
            self._metrics.restarted(max(0, worker.starts - max(starts, 1)))

    async def _take(self, answered: int) -> list[Part]:
        """The part whose turn it is, and all that can be searched with it; ``answered`` rows were in the last batch."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self._waiting) > 0)
        if self._together:
            await self._linger(answered)
        most = self._fair_share()
        batch: list[Part] = []
        rest: list[Part] = []
        rows = 0
        for part in sorted(self._waiting, key=lambda part: part.order):
            # With everybody in it, not only the first: of one request, only one part at a time, so that others get in.
            fits = not batch or (self._together and rows + len(part.frame) <= most)
            if fits and all(part.goes_with(other) for other in batch):
                batch.append(part)
                rows += len(part.frame)
            else:
                rest.append(part)
        self._waiting = rest
        return batch

    async def _linger(self, answered: int) -> None:
        """Wait a moment for others who ask the same."""
        until = time.monotonic() + _MOST_LINGER
        await asyncio.sleep(_LEAST_LINGER)
        while self.waiting < answered and time.monotonic() < until:
            await asyncio.sleep(_LEAST_LINGER)

    def _fair_share(self) -> int:
        """Rows that one worker may take, so that the others have as many."""
        outstanding = self.waiting + self._searching
        return min(_BATCH, max(_PART, math.ceil(outstanding / len(self._workers))))

    async def _answer(self, worker: Worker, batch: list[Part]) -> None:
        for part in [part for part in batch if part.left <= 0]:
            self._give_up(part)
        batch = [part for part in batch if not part.done.done()]
        if not batch:
            return
        frame = pd.concat([part.frame for part in batch], ignore_index=True)
        targets = [target for part in batch for target in part.targets]
        seconds = max(_LEAST, min(part.left for part in batch))
        self._metrics.searched(len(frame), len(batch))
        self._searching += len(frame)
        gone = _when_all_are_done(batch)
        question = batch[0].question
        try:
            found, complete = await self._ask(
                worker, gone, explain, question, frame, targets, seconds, seconds=seconds + GRACE
            )
        except GoneError:
            return
        except (CounterfactualTrainingError, OSError) as error:
            return await self._apart(worker, batch, error)
        finally:
            self._searching -= len(frame)
        place = 0
        for part in batch:
            own = found[place : place + len(part.frame)]
            place += len(part.frame)
            _settle(part, ([{**answer, "row": i} for i, answer in enumerate(own)], complete, len(frame)))

    async def _apart(self, worker: Worker, batch: list[Part], error: Exception) -> None:
        """Answer the parts of a batch that failed one by one: only one of them may be to blame.

        A lone part whose process died is asked once more: another one may have used up the memory.
        """
        if len(batch) > 1 or (isinstance(error, DiedError) and not batch[0].alone):
            for part in batch:
                part.alone = True
                await self._answer(worker, [part])
            return
        # What takes too long is answered with what is there, which is nothing.
        if isinstance(error, TooLongError):
            return self._give_up(batch[0])
        if isinstance(error, (DiedError, TaskError)):
            self._metrics.failed()
            error = RefusedError("The search failed; this is a fault of the server.", code="failed", status=500)
        if not batch[0].done.done():
            batch[0].done.set_exception(error)

    def _give_up(self, part: Part) -> None:
        """Time is over before a search began."""
        why = ["Time ran out before this row was searched."]
        nothing: list[dict[str, Any]] = [
            {"row": i, "searched": False, "plans": [], "target": target, "notes": why}
            for i, target in enumerate(part.targets)
        ]
        _settle(part, (nothing, False, len(part.frame)))


def _when_all_are_done(batch: Sequence[Part]) -> threading.Event:
    """Set when nobody waits for a batch any more: it is answered, or all clients have gone."""
    gone = threading.Event()

    def look(done: object) -> None:
        if all(part.done.done() for part in batch):
            gone.set()

    for part in batch:
        part.done.add_done_callback(look)
    return gone


def _settle(part: Part, result: tuple[list[dict[str, Any]], bool, int]) -> None:
    with contextlib.suppress(asyncio.InvalidStateError):  # its client has gone
        part.done.set_result(result)
