"""Rows of a frame as tensors in model space."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.errors import InputError
from counterfactual_training.tables.columns.encode import Encoder

# Beyond so many standard deviations, a row itself may be the reason why numbers overflow.
_FAR = 1e6


def device_and_dtype(model: nn.Module) -> Tensor:
    """A tensor of the device and precision that a model expects."""
    parameter = next(model.parameters(), None)
    if parameter is not None:
        return parameter
    return torch.empty(())


def encode_rows(encoder: Encoder, frame: pd.DataFrame, like: Tensor) -> Tensor:
    """Model space ``(n, d)``, with the device and precision of ``like``."""
    # Directly, because rows in double precision would take twice the memory of the result.
    dtype = np.float32 if like.dtype == torch.float32 else np.float64
    x = torch.as_tensor(encoder.transform(frame, dtype)).to(like)
    refuse_far(encoder, frame, x, x)
    return x


def read_rows(encoder: Encoder, frame: pd.DataFrame, like: Tensor) -> tuple[np.ndarray, Tensor]:
    """Rows as numbers ``(n, m)``, one column per feature, and in model space ``(n, d)``."""
    numbers, points = encoder.read_and_transform(frame)
    x = torch.as_tensor(points).to(like)
    refuse_far(encoder, frame, x, x)
    return numbers, x


def refuse_far(encoder: Encoder, frame: pd.DataFrame, x: Tensor, computed: Tensor) -> None:
    """Refuse rows x ``(n, d)`` so far outside the training data that what was ``computed`` ``(n,
    ...)`` is not finite.

    Rows near the data are not to blame for numbers that are not finite; then the model is.
    """
    if bool(computed.sum().isfinite()):  # nearly always
        return
    far = x.abs().nan_to_num(torch.inf)
    blamed = ~computed.isfinite().all(-1) & (far.amax(-1) > _FAR)
    if bool(blamed.any()):
        row = int(blamed.nonzero()[0])
        column = encoder.columns_[
            int(column_owner(encoder)[far[row].argmax().cpu()])
        ].feature.name
        raise InputError(
            f"Row {frame.index[row]}: {column!r} is {frame[column].iloc[row]}, so far outside "
            "anything else seen in "
            f"training that the model cannot compute with it. This affects {int(blamed.sum())} "
            f"of {len(frame)} row(s). "
            "Check the unit, or leave these rows out."
        )


def column_owner(encoder: Encoder) -> Tensor:
    """``(d,)`` the feature that each encoded column belongs to."""
    widths = torch.tensor([column.width for column in encoder.columns_])
    return torch.arange(len(widths)).repeat_interleave(widths)
