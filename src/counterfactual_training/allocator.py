"""Keep freed memory in the process.

By default glibc returns freed pages to the system after every step, and small stacked models spend more time on page
faults than on arithmetic. glibc can be told to keep the pages; with other C libraries nothing happens.
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
    _M_MMAP_THRESHOLD: 32 * _MEGABYTE,  # the largest that glibc accepts
}
# glibc adjusts its thresholds at run time, but no longer once they were set. Restoring its initial values would leave
# the process slower than before, so restore the values at which its adjustment ends.
_USUAL = {_M_TRIM_THRESHOLD: 64 * _MEGABYTE, _M_TOP_PAD: 0, _M_MMAP_THRESHOLD: 32 * _MEGABYTE}
_state = {"kept": False}


def keep_memory() -> bool:
    """Raise the thresholds above which glibc returns freed memory, for good; returns whether that was possible."""
    _state["kept"] = _set(_KEEPING)
    return _state["kept"]


@contextmanager
def keeping_memory(switch: bool = True) -> Iterator[None]:
    """Context manager: freed memory is kept (up to 512 MB); afterwards it is returned and the thresholds are reset.

    Has no effect after :func:`keep_memory`, or if glibc's environment variables are set.
    """
    told = any((name.startswith("MALLOC_") and name.endswith("_")) or name == "GLIBC_TUNABLES" for name in os.environ)
    if not switch or told or _state["kept"] or not _set(_KEEPING):
        yield
        return
    _state["kept"] = True  # a nested call leaves it to the outer one
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
    """glibc, or ``None`` with another C library."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version, library.mallopt, library.malloc_trim  # noqa: B018 - missing elsewhere
    except (AttributeError, OSError, TypeError):
        return None
    return library
