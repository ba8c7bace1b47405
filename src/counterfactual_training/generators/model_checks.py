"""Raise clear errors for inputs and models that would otherwise give wrong results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from counterfactual_training.errors import InputError, ModelError

_BLOCK_VALUES = 2**22


def check_inputs(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Check that x ``(..., n, *features)`` are finite floats, y ``(..., n)`` classes, both on the
    model's device.
    """
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        kinds = f"{type(x).__name__} and {type(y).__name__}"
        raise InputError(
            f"x and y must be torch tensors, got {kinds}; convert them with torch.as_tensor."
        )
    if not x.is_floating_point():
        raise InputError(f"x must be floating point, got {x.dtype}; convert it with x.float().")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InputError(
            f"Classes are given as integer indices, got {y.dtype}; convert them with y.long()."
        )
    if y.dim() == 0 or x.dim() <= y.dim() or x.shape[: y.dim()] != y.shape:
        raise InputError(
            f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}; expected x (n, *features) and "
            "one class per row."
        )
    _check_device("y", y, x)
    _check_parameters(model, x)
    check_finite(x.flatten(y.dim()))


def _check_parameters(model: nn.Module, x: Tensor) -> None:
    """Raise if the model is on another device than x, or of another precision."""
    # A model without parameters works on any device.
    parameter = next(model.parameters(), None)
    if parameter is not None:
        _check_device("the model", parameter, x)
        if parameter.is_floating_point() and parameter.dtype != x.dtype:
            raise InputError(
                f"x is {x.dtype} but the model {parameter.dtype}; convert one of them."
            )


def _check_device(name: str, value: Tensor, x: Tensor) -> None:
    if value.device != x.device:
        raise InputError(
            f"x is on {x.device} but {name} on {value.device}; move them together with "
            ".to(device)."
        )


def check_finite(x: Tensor) -> None:
    """Raise if x ``(..., n, d)`` contains NaN or infinity; says which columns and how many rows.

    Works on blocks of rows, because x may be mapped from a file larger than memory.
    """
    if x.dim() > 1:
        rows = x.shape[-2]
    else:
        rows = 1
    block = max(1, _BLOCK_VALUES // max(1, x.numel() // max(1, rows)))
    bad_rows = 0
    first = 0
    bad_columns = torch.zeros(x.shape[-1], dtype=torch.bool, device=x.device)
    for i, part in enumerate(x.split(block, -2) if x.dim() > 1 else (x,)):
        # One sum says that all is well, without a mask as large as the block.
        if bool(torch.isfinite(part.sum())):
            continue
        # A sum may be infinite though no value is.
        bad = ~torch.isfinite(part).reshape(-1, *part.shape[-2:])
        if not bad_rows and bool(bad.any()):
            first = i * block + int(bad.any(-1).any(0).nonzero()[0])
        bad_rows += int(bad.any(-1).sum())
        bad_columns |= bad.flatten(0, -2).any(0)
    if not bad_rows:
        return
    columns = bad_columns.nonzero().flatten().tolist()
    shown = ", ".join(map(str, columns[:10]))
    if len(columns) > 10:
        more = f" and {len(columns) - 10} more"
    else:
        more = ""
    raise InputError(
        f"NaN or infinity in column(s) {shown}{more}, {bad_rows} row(s) of "
        f"{x.numel() // x.shape[-1]}, first in row "
        f"{first}. Drop or impute these rows first."
    )


def first_logits(
    model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, num_classes: int | None = None
) -> Tensor:
    """The model's first output, checked; an error inside the model is raised again with the shape
    of its input.
    """
    try:
        logits = model(x)
    # torch reports wrong shapes as RuntimeError; other errors are the model's own and say more
    # themselves.
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ModelError(
            f"The model fails on an input of shape {tuple(x.shape)}: {reason}. Does it expect "
            "other features?"
        ) from error
    check_logits(logits, y, num_classes)
    return logits


def finite_logits(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The output of a model that was checked before; its weights may have become unusable."""
    logits = model(x)
    check_finite_logits(logits)
    return logits


class UnusableModelError(ModelError):
    """A model returned NaN or infinity.

    Attributes:
        unusable: ``(members,)`` mask of the models of a stack that did, whose logits are
            ``(members, n, k)``; one alone is ``(1,)``.
    """

    def __init__(self, logits: Tensor) -> None:
        super().__init__("The model returned NaN or infinity; its weights are unusable.")
        stack = logits.reshape(-1, *logits.shape[-2:])
        self.unusable = ~torch.isfinite(stack).flatten(1).all(-1)


def check_finite_logits(logits: Tensor) -> None:
    """Raise if a model's output, of any shape, holds NaN or infinity."""
    if not bool(torch.isfinite(logits).all()):
        raise UnusableModelError(logits)


def check_logits(logits: Tensor, y: Tensor, num_classes: int | None = None) -> None:
    """Check a model's output ``(..., n, k)`` for classes y ``(..., n)``: finite logits with enough
    columns.
    """
    check_tensor(logits)
    if logits.shape[:-1] != y.shape:
        shapes = f"{tuple(logits.shape)} for {tuple(y.shape)} rows"
        raise ModelError(f"The model returned {shapes}; expected logits (n, num_classes).")
    k = logits.shape[-1]
    if k < 2:
        raise ModelError(
            "The model returns one column; a binary classifier needs two logits, one per class."
        )
    if num_classes is not None and k != num_classes:
        raise ModelError(
            f"The model returns {k} columns but the data has {num_classes} classes."
        )
    if y.numel() and not (int(y.min()) >= 0 and int(y.max()) < k):
        raise InputError(f"Classes must lie in 0..{k - 1}, got {int(y.min())}..{int(y.max())}.")
    values = logits.detach()
    check_finite_logits(values)
    # A single row may sum to 1 by chance, and so may copies of it, from which several answers are
    # searched.
    if (
        bool((values != values.reshape(-1, k)[:1]).any())
        and bool((values >= 0).all())
        and bool(((values.sum(-1) - 1).abs() < 1e-4).all())
    ):
        raise ModelError(
            "The model's outputs are probabilities (rows sum to 1); return logits instead, "
            "without the final softmax."
        )


def check_tensor(output: Any) -> Tensor:
    """The model's output; raise if it is not a tensor."""
    if isinstance(output, Tensor):
        return output
    described = type(output).__name__
    if isinstance(output, Mapping):
        described += f" with keys {', '.join(map(repr, output))}"
    elif isinstance(output, tuple | list):
        described += f" of {len(output)}"
    elif hasattr(output, "logits"):
        described += " with the attribute 'logits'"
    raise ModelError(
        f"The model returned {described}; expected a tensor of logits (n, num_classes). "
        "Wrap it in a module whose forward returns that tensor alone."
    )


def check_broadcast(name: str, value: Tensor, x: Tensor) -> None:
    """Refuse a value that does not broadcast to the shape of x."""
    try:
        value.expand_as(x)
    except RuntimeError:
        sizes = f"{name} {tuple(value.shape)} does not broadcast to x {tuple(x.shape)}"
        raise InputError(f"{sizes}; give one per feature.") from None
