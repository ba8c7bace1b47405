"""Numbers that may be one for all, or one per member of a fleet."""

from __future__ import annotations

from torch import Tensor

Number = float | Tensor


def per_member(value: Number, trailing: int) -> Number:
    """A plain number as it is; a tensor ``(members,)`` with the given count of trailing dimensions of size one."""
    return value.reshape(value.shape + (1,) * trailing) if isinstance(value, Tensor) and value.dim() else value
