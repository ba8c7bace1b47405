"""Work on its way: what is sent to a worker and what comes back, as bytes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from counterfactual_training.errors import InputError
from counterfactual_training.experiments.engine.engine import Failed, reason
from counterfactual_training.experiments.engine.worker import Task, attempt

# Nothing of this touches a disk: one of our processes packs, another one that it started unpacks.
_UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError)


def pack_luggage(task: Task, shared: Any, dumps: Callable[..., bytes] = pickle.dumps) -> bytes:
    """What every worker needs once."""
    try:
        return dumps((task, shared), protocol=pickle.HIGHEST_PROTOCOL)
    except _UNPICKLABLE as error:
        raise InputError(
            f"The work cannot be sent to other processes ({reason(error)}): the task must be a function of a module, "
            "and what is shared plain data. With one worker in this process it need not be sent."
        ) from error


def pack_item(item: Any) -> bytes:
    try:
        return pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL)
    except _UNPICKLABLE as error:
        return pickle.dumps(Failed(f"This item cannot be sent to another process ({reason(error)})."))


def unpack(_: None, content: Any) -> Any:
    """The object again; a task for :func:`attempt`."""
    return pickle.loads(content)  # noqa: S301


def open_result(content: bytes) -> Any | Failed:
    """A result, as it reaches the caller."""
    return attempt(unpack, None, content)


def answer(luggage: tuple[Task, Any] | Failed, content: bytes) -> bytes:
    """On the worker: unpack an item, do it, pack the result."""
    item = attempt(unpack, None, content)
    if isinstance(luggage, Failed):
        result: Any = luggage
    else:
        result = item if isinstance(item, Failed) else attempt(*luggage, item)
    try:
        return pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return pickle.dumps(Failed(f"The result cannot be sent back ({reason(error)})."))
