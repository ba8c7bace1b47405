"""Precision of sums: as high as the device allows, whatever the model's precision is."""

from __future__ import annotations

import torch
from torch import Tensor

# Kinds of device whose tensors cannot be float64.
_WITHOUT_FLOAT64 = ("mps",)


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """float64 where the device has it, else float32."""
    if device.type in _WITHOUT_FLOAT64:
        return torch.float32
    return torch.float64


def accumulating(x: Tensor) -> Tensor:
    """The values in the dtype for sums."""
    return x.to(accumulation_dtype(x.device))


def at_least_single(x: Tensor) -> Tensor:
    """bfloat16 and float16 as float32, because their means would keep three digits only; others
    unchanged.
    """
    if x.dtype in (torch.bfloat16, torch.float16):
        return x.float()
    return x


def full_precision(device: torch.device) -> torch.autocast:
    """Context that switches off a caller's ``torch.autocast``, which is meant for models, not for
    formulas.
    """
    return torch.autocast(device.type, enabled=False)
