"""Memory that is kept once it was asked for.

Small stacked models spend more time on page faults than on arithmetic while the allocator returns its pages after every
step.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # glibc's malloc.h
_MEGABYTE = 2**20


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
