"""Inside a process that the project started: how it is set up, and how it does one item.

The library itself never calls :func:`settle`: threads and memory of a process belong to whoever started it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from counterfactual_training.allocator import keep_memory
from counterfactual_training.experiments.engine.engine import Failed, reason

Task = Callable[[Any, Any], Any]


def settle() -> None:
    """One thread, and memory that is kept once it was asked for.

    Two processes of one thread each use two cores well; two threads that compete do not.
    """
    torch.set_num_threads(1)
    keep_memory()


def attempt(task: Task, shared: Any, item: Any) -> Any | Failed:
    """The task's result; an error in it belongs to this item only."""
    try:
        return task(shared, item)
    except (Exception, SystemExit) as error:
        return Failed(reason(error))
