"""Numbers that are shared by all members of a fleet, or differ between members."""

from __future__ import annotations

from torch import Tensor

Number = float | Tensor


def per_member(value: Number, trailing: int) -> Number:
    """A plain number unchanged; a tensor ``(members,)`` with trailing dimensions of size one
    appended.
    """
    # A tensor without dimensions is a plain number too: it broadcasts as it is.
    if isinstance(value, Tensor) and value.dim():
        return value.reshape(value.shape + (1,) * trailing)
    return value
