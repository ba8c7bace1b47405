"""A process that searches: it holds the models, takes one task at a time and sends back plain values.

Searches run here, so that the process that talks to clients always answers, and so that a search that takes far too
long, or that nobody waits for any more, can be ended by ending its process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import pandas as pd
import torch

from counterfactual_training.errors import CounterfactualTrainingError
from counterfactual_training.serve.answers import answers_of
from counterfactual_training.serve.questions import Question
from counterfactual_training.serve.served import Served

# Seconds to wait for a process that was asked to end.
_PATIENCE = 2.0
# Seconds after which a thread that waits for a process looks whether it still should.
_GLANCE = 0.05
# A fork of a server that has already imported torch starts in milliseconds; Windows can only spawn.
_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
# What a task comes to: a result, or an error.
Reply = tuple[Any, Exception | None]


class TooLongError(CounterfactualTrainingError):
    """A task did not end in time, and its process was ended."""


class GoneError(CounterfactualTrainingError):
    """Nobody waits for a task any more, and its process was ended."""


class DiedError(CounterfactualTrainingError):
    """The process of a task ended by itself: out of memory, or killed."""


class TaskError(CounterfactualTrainingError):
    """A task failed in a way that nobody foresaw; the message names the type of the error and nothing of the data."""


class Worker:
    """The parent's end of a process. One thread at a time may ask it."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None
        self.starts = 0

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self._process is not None and self._process.is_alive():
            return
        context: Any = multiprocessing.get_context(_METHOD)
        if _METHOD == "forkserver":
            context.set_forkserver_preload([__name__])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, self._served), daemon=True)
        self._process.start()
        theirs.close()
        self.starts += 1

    def ask(
        self,
        task: Callable[..., Any],
        *arguments: Any,
        seconds: float,
        gone: threading.Event,
    ) -> Any:
        """``task(served, *arguments)`` in the process.

        The process is ended after so many seconds (:class:`TooLongError`), and once ``gone`` is
        set, because nobody waits for the answer any more (:class:`GoneError`).
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
                raise GoneError("Nobody waits for this any more.")
            if time.monotonic() > until:
                raise TooLongError(f"This took longer than {seconds:.0f} s and was given up.")
        reply: Reply = self._pipe.recv()
        return reply

    def stop(self) -> None:
        """End the process, whatever it does."""
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self._process.kill()
            self._process.join(_PATIENCE)
            with contextlib.suppress(ValueError):  # it does not end; the system has to
                self._process.close()
        self._process = self._pipe = None


def _work(pipe: Connection, served: Served) -> None:
    """Answer tasks until the other end is closed."""
    # Ctrl-C reaches all processes of a terminal; the parent decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # notes on unknown categories are the parent's
    while True:
        try:
            task, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        reply: Reply
        try:
            reply = task(served, *arguments), None
        except CounterfactualTrainingError as error:
            reply = None, _portable(error)
        except Exception as error:
            # No message: it may hold values of rows, which do not belong into logs.
            reply = None, TaskError(type(error).__name__)
        pipe.send(reply)


def _portable(error: CounterfactualTrainingError) -> CounterfactualTrainingError:
    """The error without its traceback, in a type that has no other arguments than its message."""
    return type(error)(str(error))


# ---- tasks -----------------------------------------------------------------------------------------------------------


def explain(
    served: Served, question: Question, frame: pd.DataFrame, targets: list[Any], seconds: float
) -> tuple[list[dict[str, Any]], bool]:
    """Answers to the rows of a question, and whether time sufficed to try everything."""
    model = served.named(question.model)
    found = model.classifier.explain(
        frame.reset_index(drop=True),
        [model.label(target) for target in targets] if question.aimed else None,
        n_options=question.options,
        confidence=question.confidence,
        time_limit=seconds,
        **question.rules,
    )
    if question.model != "main":  # by one ruler, or costs could not be compared
        found = found.measured_by(served.model.classifier.encoder_, question.rules.get("difficulty"))
    answers = answers_of(found, len(frame))
    for plan in (plan for answer in answers for plan in answer["plans"]):
        if not plan["answered"] and not plan["binding"]:
            plan["binding"] = _stated(question.rules)
    return answers, found.complete


def _stated(rules: Mapping[str, Any]) -> list[dict[str, str]]:
    """The rules of a question that may be why nothing was found: those that its asker can take back."""
    stated = [(name, "is locked in this question") for name in rules.get("lock", ())]
    stated += [
        (name, "is limited in this question") for name in (*rules.get("domain", ()), *rules.get("max_change", ()))
    ]
    if "vary" in rules:
        stated += [(name, "may change, and nothing else may") for name in rules["vary"]]
    return [{"column": name, "reason": reason} for name, reason in stated]
