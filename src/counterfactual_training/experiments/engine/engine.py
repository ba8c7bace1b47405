"""Where work runs, and what is left of work that did not succeed."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Literal, get_args

from counterfactual_training.errors import CounterfactualTrainingError, InputError, unknown

EngineName = Literal["processes", "ray"]


@dataclass(frozen=True)
class Engine:
    """Where the items of :func:`launch` are worked on.

    Attributes:
        name: processes of this machine, or tasks of a Ray cluster.
        workers: items worked on at once; with one, everything happens in the calling process. A Ray cluster that was
            there before decides this itself, one item per processor: see :func:`capacity`.
        address: of the Ray cluster: ``auto``, ``host:port`` or ``ray://host:port``. Without one, the environment
            variable ``RAY_ADDRESS`` counts, and without that Ray is started on this machine.
        max_retries: how often an item is begun again after its worker or node was lost. An item that raises is not.
    """

    name: EngineName = "processes"
    workers: int = 2
    address: str | None = None
    max_retries: int = 3

    def __post_init__(self) -> None:
        if self.name not in get_args(EngineName):
            raise InputError(unknown("engine", self.name, get_args(EngineName)))
        if self.workers < 1:
            raise InputError(f"workers must be 1 or more, got {self.workers}.")
        if self.max_retries < 0:
            raise InputError(f"max_retries must be 0 or more, got {self.max_retries}.")
        if self.address is not None and self.name != "ray":
            raise InputError(f"The address {self.address!r} is one of a Ray cluster: choose the engine 'ray' with it.")


@dataclass(frozen=True)
class Failed:
    """What an item gave instead of a result."""

    reason: str


def reason(error: BaseException) -> str:
    """One line: the message of our own errors, type and message of others."""
    text = " ".join(str(error).split())
    if isinstance(error, CounterfactualTrainingError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Agenda:
    """Which items are still to be begun; those whose worker was lost come again, last, when there may be more room."""

    def __init__(self, count: int, max_retries: int) -> None:
        self.max_retries = max_retries
        self._waiting = deque(range(count))
        self._losses = Counter[int]()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def next(self) -> int:
        return self._waiting.popleft()

    def lost(self, index: int, how: str) -> list[Failed]:
        """Note the loss of an item's worker: nothing to report while the item may begin again."""
        self._losses[index] += 1
        if self._losses[index] <= self.max_retries:
            self._waiting.append(index)
            return []
        times = "once" if self._losses[index] == 1 else f"{self._losses[index]} times"
        failed = Failed(
            f"Lost {times}, last because {how}. Most often memory ran out: take fewer workers, smaller fleets or a "
            "larger machine."
        )
        return [failed]
