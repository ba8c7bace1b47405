"""The only module with private names of torch; what a version of torch lacks is replaced here.

Two kernels save a good part of the time of a small network. What else is read has no public name:
the hooks of tensors and modules, versions of tensors, and two marks of optimizers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.optim import Optimizer
from torch.optim.adam import adam

EPSILON = 1e-8  # of torch's Adam
_KINDS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Where torch has another name for hooks: there may be some, and they must be called.
_UNKNOWN = ("unknown",)


def _kernel(name: str, *args: Any, **options: Any) -> Callable[..., Any] | None:
    """torch's function of that name; ``None`` if there is none that takes these arguments."""
    function = getattr(torch, name, None)
    if function is None:
        return None
    try:
        function(*args, **options)
    except (TypeError, RuntimeError):
        return None
    return function


def _adam_options(numbers: tuple[float, float, float], bad: Tensor | None) -> dict[str, Any]:
    rate, beta1, beta2 = numbers
    return {
        "lr": rate,
        "beta1": beta1,
        "beta2": beta2,
        "weight_decay": 0.0,
        "eps": EPSILON,
        "amsgrad": False,
        "maximize": False,
        "found_inf": bad,
    }


def _some() -> Tensor:
    return torch.zeros(1, 1, dtype=torch.float32)


_LOG_SOFTMAX_BACKWARD = _kernel(
    "_log_softmax_backward_data", _some(), _some(), -1, torch.float32
)
_FUSED_ADAM = _kernel(
    "_fused_adam_",
    *([_some()], [_some()], [_some()], [_some()], [], [torch.ones((), dtype=torch.float32)]),
    **_adam_options((0.1, 0.9, 0.9), None),
)


def log_softmax_backward(grad: Tensor, log_probability: Tensor, dim: int) -> Tensor:
    """∂/∂logits, given ∂/∂log-probabilities and the log-probabilities.

    By the kernel that autograd calls, so to the same bits; without it, the same up to rounding.
    """
    if _LOG_SOFTMAX_BACKWARD is not None:
        return _LOG_SOFTMAX_BACKWARD(grad, log_probability, dim, log_probability.dtype)
    return grad - log_probability.exp() * grad.sum(dim, keepdim=True)


def fused_adam(
    weights: list[Tensor],
    grads: list[Tensor],
    moments: tuple[list[Tensor], list[Tensor]],
    count: Tensor,
    numbers: tuple[float, float, float],
    bad: Tensor | None,
) -> None:
    """One update of Adam, in place, unless ``bad`` ``()`` is 1.0.

    Args:
        moments: running means of the gradients and of their squares.
        count: ``()`` updates made, this one included; it stays as it is.
        numbers: rate, β₁ and β₂.
    """
    mean, square = moments
    options = _adam_options(numbers, bad)
    if _FUSED_ADAM is not None:
        _FUSED_ADAM(weights, grads, mean, square, [], [count] * len(weights), **options)
        return
    counts = [count - 1 for _ in weights]  # torch counts by itself, for every tensor
    adam(weights, grads, mean, square, [], counts, fused=True, **options)


def tensor_hooked(tensor: Tensor) -> bool:
    """Whether a gradient of the tensor calls hooks."""
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return any(getattr(tensor, kind, _UNKNOWN) for kind in kinds)


def tensor_version(tensor: Tensor) -> int:
    """How often the tensor has been changed in place."""
    return tensor._version


def module_hooks(module: nn.Module) -> list[list[Any]]:
    """The hooks that are called with the module, by kind."""
    return [list(getattr(module, kind, {}).values()) for kind in _KINDS]


def module_hooked(module: nn.Module) -> bool:
    """Whether calling the module runs hooks, of its own or registered for all modules."""
    everywhere = any(getattr(torch_module, f"_global{kind}", _UNKNOWN) for kind in _KINDS)
    return everywhere or any(getattr(module, kind, _UNKNOWN) for kind in _KINDS)


def mark_stepped(optimizer: Optimizer) -> None:
    """Tell schedulers, which would warn, that the optimizer steps, if not by its own ``step``."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


def skips_by_flag(optimizer: Optimizer) -> bool:
    """Whether its ``step`` looks at ``found_inf``, on the device; others must not be called."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))
