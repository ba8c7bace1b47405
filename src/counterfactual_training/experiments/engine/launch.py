"""Run many independent items: in this process, in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from counterfactual_training.allocator import keep_memory
from counterfactual_training.errors import CounterfactualTrainingError, InputError, check_name

EngineName = Literal["processes", "ray"]
# Called as ``task(shared, item)``.
Task = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Engine:
    """Where :func:`launch` runs its items.

    Attributes:
        name: processes of this machine, or tasks of a Ray cluster.
        workers: items run at once; with one, everything runs in the calling process. An existing Ray cluster decides
            this itself, one item per processor: see :func:`capacity`.
        address: of the Ray cluster: ``auto``, ``host:port`` or ``ray://host:port``. Without one, the environment
            variable ``RAY_ADDRESS`` counts, and without that Ray is started on this machine.
        max_retries: how often an item is started again after its worker or node died. An item that raises is not.
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
            raise InputError(f"The address {self.address!r} is one of a Ray cluster: choose the engine 'ray' with it.")


@dataclass(frozen=True)
class Failed:
    """The result of an item that failed."""

    reason: str


_DEFAULT = Engine()


def launch(
    task: Task, items: Sequence[Any], shared: Any = None, *, engine: Engine = _DEFAULT
) -> Iterator[tuple[Any, Any | Failed]]:
    """Run ``task(shared, item)`` for each item; yields item and result as they finish, each item exactly once.

    An item that raises gives :class:`Failed`, and so does one whose worker died too often; the others continue.
    Closing the iterator stops the work. Workers of a cluster share no disk with the caller, so the caller should write
    the results.

    Args:
        task: a function of a module, so that workers can import it; must not change ``shared``.
        items: what differs between the calls; small.
        shared: what they have in common, such as the data; sent once to each worker or node.
        engine: where to run. More than one worker means processes that import the caller's main module: a script needs
            its ``if __name__ == "__main__":``.
    """
    if not items:
        return iter(())
    if engine.name == "ray":
        from counterfactual_training.experiments.engine.ray_engine import on_ray, require_ray

        require_ray()
        return on_ray(task, items, shared, engine)
    if engine.workers == 1:
        return ((item, attempt(task, shared, item)) for item in items)
    from counterfactual_training.experiments.engine.processes import in_processes

    return in_processes(task, items, shared, engine)


def capacity(engine: Engine) -> int:
    """How many items run at once.

    A cluster is asked, so an address that does not answer raises here, before anything has been prepared.
    """
    if engine.name == "processes":
        return engine.workers
    from counterfactual_training.experiments.engine.ray_engine import num_processors

    return num_processors(engine)


# ---- what both kinds of workers share -------------------------------------------------------------------------------


def reason(error: BaseException) -> str:
    """One line: the message of our own errors, type and message of others."""
    text = " ".join(str(error).split())
    if isinstance(error, CounterfactualTrainingError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def lost(times: int) -> Failed:
    """The result of an item whose worker died too often."""
    count = "once" if times == 1 else f"{times} times"
    return Failed(
        f"Its worker process died {count}. Most often memory ran out: use fewer workers, smaller fleets or a larger "
        "machine."
    )


def set_up_worker() -> None:
    """One thread, and freed memory is kept.

    Two processes of one thread each use two cores well; threads that compete do not. The library itself never calls
    this: threads and memory of a process belong to whoever started it.
    """
    torch.set_num_threads(1)
    keep_memory()


def attempt(task: Task, shared: Any, item: Any) -> Any | Failed:
    """The task's result; an error in it concerns this item only."""
    try:
        return task(shared, item)
    except (Exception, SystemExit) as error:
        return Failed(reason(error))
