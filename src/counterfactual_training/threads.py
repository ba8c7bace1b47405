"""Choose the number of CPU threads.

Small tensors gain nothing from a second thread, and lose much if another process competes for the
core (measured: 10 to 100 times slower). Small work therefore runs on one thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from counterfactual_training.errors import InputError

# Multiply-adds of one forward pass below which one thread is used.
_SMALL_FORWARD = 200_000_000


@contextmanager
def sensible_threads(model: nn.Module, x: Tensor, threads: int | None = None) -> Iterator[None]:
    """Context manager: torch uses the given number of threads, by default one if the model and the
    batch x are small.

    The previous number is restored afterwards. Has no effect on an accelerator. More threads than
    processors raise an error, because torch would start all of them.
    """
    before = torch.get_num_threads()
    most = max(os.cpu_count() or 1, before)
    if threads is None:
        parameters = sum(p.numel() for p in model.parameters())
        if x.dim():
            rows = x.shape[0]
        else:
            rows = 1
        if parameters * rows < _SMALL_FORWARD:
            threads = 1
        else:
            threads = before
    elif not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= most:
        raise InputError(
            f"threads must be an integer from 1 to {most}, the number of processors here, or "
            "None to let the size of "
            f"the work decide; got {threads!r}."
        )
    if x.device.type != "cpu" or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
