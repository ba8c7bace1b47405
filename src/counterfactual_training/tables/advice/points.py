"""Rows and what was found for them, in model space and in the user's units."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.generators import Status, evaluating
from counterfactual_training.tables.columns.column import Column
from counterfactual_training.tables.columns.dtypes import restore_numbers
from counterfactual_training.tables.columns.frame import to_float
from counterfactual_training.threads import sensible_threads

# Rows that a model sees at once, and values in them: of wide rows, more would not stay in the
# processor's cache.
_CHUNK = 65_536
_VALUES = 2**20
# A probability is trusted to this many digits: the same row in another batch may differ in the last
# bit.
DIGITS = 1e-6
# … and a small one to this share.
_SHARE = 1e-4


@dataclass(frozen=True, eq=False)
class Factuals:
    """Rows to explain.

    Attributes:
        source: all rows asked about, in the user's units.
        place: ``(n,)`` positions of these rows among them. A frame of thousands of columns is slow
            to cut.
        x: ``(n, d)`` in model space.
        numbers: the columns read as numbers ``(…, m)``, of all rows asked about: these would be
            slow to copy as well.
        held: mask ``(n, d)`` of single cells that may not change; ``None`` holds none.
    """

    source: pd.DataFrame
    place: np.ndarray
    x: Tensor
    numbers: np.ndarray
    held: Tensor | None = None

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The rows in the user's units."""
        return self.source.iloc[self.place]

    def take(self, rows: Tensor) -> Factuals:
        """Some of the rows, by number; a row may be taken more than once."""
        # The frame itself is not cut: ``place`` says which of its rows these are.
        index = rows.cpu().numpy()
        if self.held is None:
            held = None
        else:
            held = self.held[rows]
        return Factuals(self.source, self.place[index], self.x[rows], self.numbers, held)

    def to(self, device: torch.device) -> Factuals:
        """The same rows on another device."""
        return replace(
            self, x=self.x.to(device), held=None if self.held is None else self.held.to(device)
        )

    def holding(self, mask: Tensor) -> Factuals:
        """The same rows with more cells ``(n, d)`` held."""
        return replace(self, held=mask if self.held is None else mask | self.held)


@dataclass(frozen=True, eq=False)
class Counterfactuals:
    """What was found for n rows with m features in d encoded columns.

    Attributes:
        x_cf: ``(n, d)`` encodings of rows as they are printed.
        status: ``(n,)`` values of :class:`Status`; rows that missed for other reasons are all
            ``EXHAUSTED`` here.
        num_steps: ``(n,)`` of all searches together.
    """

    x_cf: Tensor
    status: Tensor
    num_steps: Tensor

    @property
    def reached(self) -> Tensor:
        """Mask ``(n,)`` of the rows that get their target by a change, plausible or not."""
        return (self.status == int(Status.CONVERGED)) | (self.status == int(Status.IMPLAUSIBLE))

    def take(self, rows: Tensor) -> Counterfactuals:
        """Some of the rows, by number."""
        return Counterfactuals(self.x_cf[rows], self.status[rows], self.num_steps[rows])

    def put(self, rows: Tensor, other: Counterfactuals, mask: Tensor) -> None:
        """Replace rows under the mask by those of another result; count the steps of all."""
        self.num_steps[rows] += other.num_steps
        self.x_cf[rows[mask]] = other.x_cf[mask]
        self.status[rows[mask]] = other.status[mask]


def in_blocks(module: nn.Module, x: Tensor) -> Tensor:
    """The module's output for rows x, in eval mode, block by block, on the CPU."""
    block = max(1, min(_CHUNK, _VALUES * max(1, len(x)) // max(1, x.numel())))
    with evaluating(module), torch.no_grad(), sensible_threads(module, x[:block]):
        return torch.cat([module(part).cpu() for part in x.split(block)])


def columns_of(owner: Tensor, num_features: int) -> Tensor:
    """The encoded columns ``(m, w)`` of each feature, given the feature that owns each ``(d,)``.

    Features with fewer columns than others repeat their last one.
    """
    width = torch.bincount(owner, minlength=num_features)
    places = torch.arange(int(width.max()), device=owner.device).minimum(
        width.unsqueeze(-1) - 1
    )
    return owner.argsort(stable=True)[(width.cumsum(0) - width).unsqueeze(-1) + places]


def take_back(points: Tensor, x: Tensor, place: Tensor, columns: Tensor) -> Tensor:
    """Put the factuals' values x ``(p, d)`` back into points ``(p, d)``, in the columns ``(a, w)``
    at places ``(a,)``.

    Writes single cells: comparing all columns with the ones to change takes much longer where there
        are thousands.
    """
    cells = place.unsqueeze(-1), columns
    points[cells] = x[cells]
    return points


def stored(column: Column, numbers: np.ndarray) -> np.ndarray:
    """Numbers ``(n,)`` as a cell of the column's dtype holds them: float32 has fewer digits than a
    point.
    """
    if column.feature.is_category or column.dtype == np.float64:
        return numbers
    # As below for the usual narrow floats, without pandas: wide frames have thousands of columns.
    if isinstance(column.dtype, np.dtype) and column.dtype.kind == "f":
        narrow = numbers.astype(column.dtype).astype(np.float64)
        if np.isfinite(narrow).all():
            return narrow
        return numbers
    return to_float(
        restore_numbers(numbers, column.dtype, integers=column.feature.kind == "integer")
    )


def floor_of(confidence: Tensor, threshold: float) -> Tensor:
    """What shorter counterfactuals must keep of their confidence ``(n,)``.

    A best effort keeps every change that helps, and drops those that do not.
    """
    # Of a best effort, the last digits are noise: a change that adds no more than these helps
    # nothing.
    trusted = (_SHARE * confidence).clamp_max(DIGITS)
    return confidence.clamp_max(threshold + DIGITS) - trusted * (confidence < threshold)
