"""One process at a time: a lock on a file that the system releases when its holder ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from counterfactual_training.errors import FileError


@contextmanager
def locked(path: Path, timeout: float) -> Iterator[None]:
    """Hold the lock; wait up to ``timeout`` seconds for another process to release it."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        raise FileError(f"Another process has held {path} for {timeout:g} s. Wait for it, or end it.") from None
    except (OSError, NotImplementedError) as error:
        raise FileError(f"{path} cannot be locked ({error}); use a folder on a local file system.") from error
    try:
        yield
    finally:
        lock.release()
