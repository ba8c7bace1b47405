"""One process at a time: an advisory lock on a file, on every platform."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from counterfactual_training.errors import FileError

POLL_SECONDS = 0.05


@contextmanager
def locked(path: Path, timeout: float) -> Iterator[None]:
    """Hold the lock, waiting for whoever has it. The system frees it when a process dies, so it is never stale."""
    deadline = time.monotonic() + timeout
    with path.open("a+b") as stream:
        while not _try_lock(stream):
            if time.monotonic() > deadline:
                raise FileError(f"Another process has held {path} for {timeout:g} s. Wait for it, or end it.")
            time.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            _unlock(stream)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(stream: IO[bytes]) -> bool:
        stream.seek(0)
        try:
            msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(stream: IO[bytes]) -> None:
        stream.seek(0)
        msvcrt.locking(stream.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(stream: IO[bytes]) -> bool:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise FileError(f"This file system knows no locks ({error}); set CT_CACHE to a local folder.") from error
        return True

    def _unlock(stream: IO[bytes]) -> None:
        fcntl.flock(stream, fcntl.LOCK_UN)
