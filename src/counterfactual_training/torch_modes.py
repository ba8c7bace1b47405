"""Modes of torch that a caller may have set: ``no_grad``, ``inference_mode``, ``autocast``, or
another default dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

_Function = TypeVar("_Function", bound=Callable[..., Any])
_DEVICES = ("cpu", "cuda", "mps", "xpu")  # kinds that autocast knows


@contextmanager
def gradients_on() -> Iterator[None]:
    """Context: gradients can be taken, whatever the caller has switched off."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Context manager: eval mode inside; afterwards every module is back in the mode it had."""
    # Module by module, because parts of a model may be in eval mode on purpose.
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def plain_torch() -> Iterator[None]:
    """Context: as :func:`gradients_on`, in full precision, whatever autocast says."""
    with gradients_on(), ExitStack() as stack:
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def single_precision() -> Iterator[None]:
    """Context: modules made inside have float32 weights, whatever torch's default dtype is."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def with_gradients(function: _Function) -> _Function:
    """Decorator: the function runs in :func:`gradients_on`, with :func:`ordinary` arguments."""
    return _inside(gradients_on, function)


def in_plain_torch(function: _Function) -> _Function:
    """Decorator: the function runs in :func:`plain_torch`, with :func:`ordinary` arguments."""
    return _inside(plain_torch, function)


def _inside(context: Callable[[], AbstractContextManager[None]], function: Any) -> Any:
    # Not contextlib's own decorator: from_outside() would take its frame for the caller's.
    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        with context():
            taken = [ordinary(value) for value in args]
            named = {name: ordinary(value) for name, value in options.items()}
            return function(*taken, **named)

    return run


def ordinary(value: Any) -> Any:
    """What gradients can be taken with: tensors of ``inference_mode`` are copied.

    A model made in ``inference_mode`` gets ordinary weights, in place.
    """
    if isinstance(value, nn.Module):
        for tensor in (*value.parameters(), *value.buffers()):
            if tensor.is_inference():
                _replace(tensor)
    if isinstance(value, Tensor) and value.is_inference():
        return value.clone()
    if type(value) in (tuple, list) and isinstance(next(iter(value), None), Tensor | nn.Module):
        return type(value)(ordinary(part) for part in value)
    return value


def _replace(tensor: Tensor) -> None:
    """Make a model's tensor an ordinary one; who holds it, such as an optimizer, holds it still."""
    copy = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        copy = nn.Parameter(copy, tensor.requires_grad)
    torch.utils.swap_tensors(tensor, copy)
