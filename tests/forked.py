"""Another process without the seconds that it takes to import torch: a fork of this one."""

import multiprocessing
from collections.abc import Callable


def fork(function: Callable[..., object], *args: object) -> multiprocessing.Process:
    """The started process; its ``exitcode`` is minus the signal that killed it."""
    process = multiprocessing.get_context("fork").Process(
        target=function, args=args, daemon=True
    )
    process.start()
    return process
