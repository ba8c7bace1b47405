"""Memory that is kept once it was asked for.

Small stacked models spend more time on page faults than on arithmetic while the allocator returns its pages after every
step. glibc can be told to keep them; other C libraries have no such thresholds, and there nothing happens.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # glibc's malloc.h
_MEGABYTE = 2**20
_KEEPING = {
    _M_TRIM_THRESHOLD: 512 * _MEGABYTE,
    _M_TOP_PAD: 16 * _MEGABYTE,
    _M_MMAP_THRESHOLD: 32 * _MEGABYTE,  # the largest that glibc takes
}
# Where glibc's own adjustment ends. It stops once a threshold was set, so that going back to where it starts would
# leave the process slower than before.
_USUAL = {_M_TRIM_THRESHOLD: 64 * _MEGABYTE, _M_TOP_PAD: 0, _M_MMAP_THRESHOLD: 32 * _MEGABYTE}
_state = {"kept": False}


def keep_memory() -> bool:
    """Raise the thresholds above which glibc gives freed memory back, for the rest of this process.

    Returns:
        Whether that was possible.
    """
    _state["kept"] = _set(_KEEPING)
    return _state["kept"]


@contextmanager
def keeping_memory(switch: bool = True) -> Iterator[None]:
    """Inside, freed memory is kept (up to 512 MB); afterwards it is given back and the thresholds are usual again.

    Nothing happens where the host has said what it wants: by :func:`keep_memory`, or by glibc's environment variables.
    """
    told = any((name.startswith("MALLOC_") and name.endswith("_")) or name == "GLIBC_TUNABLES" for name in os.environ)
    if not switch or told or _state["kept"] or not _set(_KEEPING):
        yield
        return
    _state["kept"] = True  # a fleet within a fleet leaves it to the outer one
    try:
        yield
    finally:
        _state["kept"] = False
        _set(_USUAL)
        _library().malloc_trim(ctypes.c_size_t(0))


def _set(thresholds: dict[int, int]) -> bool:
    library = _library()
    if library is None:
        return False
    return all(library.mallopt(ctypes.c_int(name), ctypes.c_int(value)) == 1 for name, value in thresholds.items())


def _library() -> Any:
    """glibc, or ``None`` where there is another C library."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version, library.mallopt, library.malloc_trim  # noqa: B018 - missing elsewhere
    except (AttributeError, OSError, TypeError):
        return None
    return library
