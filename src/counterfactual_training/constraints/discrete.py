"""Features that know only certain values: one-hot groups of a categorical column, lattices of an integer one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from counterfactual_training.errors import ConstraintError


@dataclass(frozen=True, eq=False)
class OneHotGroup:
    """The columns that together one-hot encode one categorical feature.

    ``transitions[i, j]`` says whether category i may become category j; ``None`` allows every change. A single column
    is a binary feature, rounded to {0, 1}.
    """

    columns: tuple[int, ...]
    transitions: Tensor | None = None

    def __post_init__(self) -> None:
        k = len(self.columns)
        if k == 0 or len(set(self.columns)) != k:
            raise ConstraintError(f"A one-hot group needs distinct columns, got {self.columns}.")
        if self.transitions is not None and tuple(self.transitions.shape) != (max(k, 2), max(k, 2)):
            raise ConstraintError(
                f"transitions must be {max(k, 2)} × {max(k, 2)}, got {tuple(self.transitions.shape)}."
            )

    def category(self, x: Tensor) -> Tensor:
        """Index of the category ``(..., n)`` that each row is (nearest to) in."""
        part = x[..., list(self.columns)]
        return (part[..., 0] >= 0.5).long() if len(self.columns) == 1 else part.argmax(-1)

    def encode(self, category: Tensor, dtype: torch.dtype) -> Tensor:
        """Columns ``(..., n, k)`` of the given categories ``(..., n)``."""
        if len(self.columns) == 1:
            return category.unsqueeze(-1).to(dtype)
        return torch.nn.functional.one_hot(category, len(self.columns)).to(dtype)

    def reachable(self, x: Tensor) -> Tensor:
        """Mask ``(..., n, max(k, 2))`` of the categories that the rows x may become; their own always counts."""
        own = self.category(x)
        k = max(len(self.columns), 2)
        here = torch.nn.functional.one_hot(own, k).bool()
        if self.transitions is None:
            return torch.ones_like(here)
        return self.transitions.to(x.device).bool()[own] | here

    def nearest(self, x_cf: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Category ``(..., n)`` nearest to a relaxed point, among the allowed ones ``(..., n, max(k, 2))``."""
        part = x_cf[..., list(self.columns)]
        score = torch.cat([1 - part, part], -1) if len(self.columns) == 1 else part
        return (score if allowed is None else score.masked_fill(~allowed, -torch.inf)).argmax(-1)


@dataclass(frozen=True, eq=False)
class Lattice:
    """A column that takes the given ascending values only, or all ``offset + step·i``."""

    column: int
    offset: float = 0.0
    step: float = 1.0
    values: Tensor | None = None

    def __post_init__(self) -> None:
        if self.values is None and self.step <= 0:
            raise ConstraintError(f"The lattice of column {self.column} needs a positive step, got {self.step}.")
        if self.values is not None and (self.values.numel() == 0 or bool((self.values.diff() <= 0).any())):
            raise ConstraintError(f"The allowed values of column {self.column} must be ascending and not empty.")

    def neighbours(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Lattice points at or below and at or above v."""
        if self.values is None:
            index = (v - self.offset) / self.step
            near = index.round()
            # A value within rounding error of a lattice point is on it; where steps are fine, float32 errs by more.
            error = 4 * torch.finfo(v.dtype).eps * (v.abs() + abs(self.offset)) / self.step
            on = (index - near).abs() <= error.clamp(1e-4, 0.5)
            low, high = torch.where(on, near, index.floor()), torch.where(on, near, index.ceil())
            return self.offset + self.step * low, self.offset + self.step * high
        values = self.values.to(v)
        slack = 1e-5 * values.abs().max().clamp_min(1.0)
        high = torch.searchsorted(values, (v - slack).contiguous()).clamp_max(len(values) - 1)
        low = (torch.searchsorted(values, (v + slack).contiguous(), right=True) - 1).clamp_min(0)
        return values[low], values[high]

    def snap(self, v: Tensor, factual: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Lattice point next to v, away from the factual so that the change is not undone, inside the bounds.

        A value that did not move stays as it is; one with no lattice point inside the bounds goes back to the factual.
        """
        low, high = self.neighbours(v)
        outward = torch.where(v >= factual, high, low)
        inward = torch.where(v >= factual, low, high)
        tolerance = 1e-6 * (1 + v.abs())

        def inside(u: Tensor) -> Tensor:
            return (u >= lower - tolerance) & (u <= upper + tolerance)

        snapped = torch.where(inside(outward), outward, torch.where(inside(inward), inward, factual))
        return torch.where((v - factual).abs() <= 1e-6, factual, snapped)
