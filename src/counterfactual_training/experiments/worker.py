"""Inside a process that the project started: how it is set up, and how it does one item.

The library itself never calls :func:`settle`: threads and memory of a process belong to whoever started it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from counterfactual_training.experiments.engine import Failed, reason

Task = Callable[[Any, Any], Any]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # glibc's malloc.h
_MEGABYTE = 2**20


def settle() -> None:
    """One thread, and memory that is kept once it was asked for.

    Two processes of one thread each use two cores well; two threads that compete do not. And small stacked models spend
    more time on page faults than on arithmetic while the allocator returns its pages after every step.
    """
    torch.set_num_threads(1)
    keep_memory()


def keep_memory() -> bool:
    """Raise the thresholds above which glibc gives freed memory back; whether that was possible.

    Other C libraries have no such thresholds, and there nothing happens.
    """
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - missing in every other C library
        mallopt = library.mallopt
    except (AttributeError, OSError, TypeError):
        return False
    settings = {
        _M_TRIM_THRESHOLD: 512 * _MEGABYTE,
        _M_TOP_PAD: 16 * _MEGABYTE,
        _M_MMAP_THRESHOLD: 32 * _MEGABYTE,  # the largest that glibc takes
    }
    return all(mallopt(ctypes.c_int(name), ctypes.c_int(value)) == 1 for name, value in settings.items())


def attempt(task: Task, shared: Any, item: Any) -> Any | Failed:
    """The task's result; an error in it belongs to this item only."""
    try:
        return task(shared, item)
    except (Exception, SystemExit) as error:
        return Failed(reason(error))
