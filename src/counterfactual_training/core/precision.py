"""Which precision numbers are summed in: as fine as the device allows, whatever the model computes in."""

from __future__ import annotations

import torch
from torch import Tensor

# Kinds of device whose tensors cannot be float64.
_WITHOUT_FLOAT64 = ("mps",)


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """float64 where the device has it, else float32."""
    return torch.float32 if device.type in _WITHOUT_FLOAT64 else torch.float64


def accumulating(x: Tensor) -> Tensor:
    """The values in the dtype that sums of them are made in."""
    return x.to(accumulation_dtype(x.device))


def at_least_single(x: Tensor) -> Tensor:
    """bfloat16 and float16, whose means would keep three digits, as float32; anything else as it is."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def full_precision(device: torch.device) -> torch.autocast:
    """Context in which a caller's ``torch.autocast`` does not reach: formulas are not to be rounded, only models."""
    return torch.autocast(device.type, enabled=False)
