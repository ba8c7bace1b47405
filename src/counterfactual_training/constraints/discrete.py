"""Features that know only certain values: one-hot groups of a categorical column, lattices of an integer one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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

    @property
    def num_categories(self) -> int:
        return max(len(self.columns), 2)

    @cached_property
    def index(self) -> slice | list[int]:
        """Index of the columns; a slice, which copies nothing, where they are neighbours."""
        first, k = self.columns[0], len(self.columns)
        return slice(first, first + k) if self.columns == tuple(range(first, first + k)) else list(self.columns)

    def category(self, x: Tensor) -> Tensor:
        """Index of the category ``(..., n)`` that each row is (nearest to) in.

        It is −1 for a row without one, which is how encoders write a category never seen: all zeros, or a binary 0.5.
        """
        part = x[..., self.index]
        if len(self.columns) == 1:
            value = part[..., 0]
            return torch.where(value == 0.5, -1, (value > 0.5).long())
        return torch.where((part == 0).all(-1), -1, part.argmax(-1))

    def own(self, x: Tensor) -> Tensor:
        """Mask ``(..., n, max(k, 2))`` of the category that each row is in."""
        return self.category(x).unsqueeze(-1) == torch.arange(self.num_categories, device=x.device)

    def encode(self, category: Tensor, dtype: torch.dtype) -> Tensor:
        """Columns ``(..., n, k)`` of the given categories ``(..., n)``."""
        if len(self.columns) == 1:
            return category.unsqueeze(-1).to(dtype)
        return torch.nn.functional.one_hot(category, len(self.columns)).to(dtype)

    def reachable(self, x: Tensor) -> Tensor:
        """Mask ``(..., n, max(k, 2))`` of the categories that the rows x may become; their own always counts.

        A row without a category may become whatever some other category may become: ``transitions`` has no line for
        it, but a category that nobody may enter is closed to it as well.
        """
        if self.transitions is None:
            return torch.ones(*x.shape[:-1], self.num_categories, dtype=torch.bool, device=x.device)
        may = self.transitions.to(x.device).bool()
        entered = (may & ~torch.eye(len(may), dtype=torch.bool, device=x.device)).any(0)
        return torch.cat([may, entered.unsqueeze(0)])[self.category(x)] | self.own(x)  # −1 is the last line

    def nearest(self, x_cf: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Category ``(..., n)`` nearest to a relaxed point, among the allowed ones ``(..., n, max(k, 2))``."""
        score = self._score(x_cf)
        return (score if allowed is None else score.masked_fill(~allowed, -torch.inf)).argmax(-1)

    def settle(self, x_cf: Tensor, home: Tensor, choices: Tensor) -> Tensor:
        """Columns ``(..., n, k)`` of the choice nearest to a relaxed point ``(..., n, d)``.

        Args:
            home: ``(..., n, d)`` the rows as they are if they keep their category, or remain without one.
            choices: ``(..., n, max(k, 2) + 1)`` categories to choose from; the last one is to remain without.
        """
        score = self._score(x_cf)
        # Seen from all zeros a category is the nearer point above 0.5, seen from a binary 0.5 above 0.75.
        none = torch.full_like(score[..., :1], 0.75 if len(self.columns) == 1 else 0.5)
        chosen = torch.cat([score, none], -1).masked_fill_(~choices, -torch.inf).argmax(-1)
        stays = (chosen == self.category(home)) | (chosen == self.num_categories)
        moved = self.encode(chosen.clamp_max(self.num_categories - 1), x_cf.dtype)
        return torch.where(stays.unsqueeze(-1), home[..., self.index], moved)

    def _score(self, x_cf: Tensor) -> Tensor:
        part = x_cf[..., self.index]
        return torch.cat([1 - part, part], -1) if len(self.columns) == 1 else part


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

    def beside(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The next lattice points below and above v; of given values, at their ends v's own."""
        low, high = self.neighbours(v)
        if self.values is None:
            return torch.where(low == high, low - self.step, low), torch.where(low == high, high + self.step, high)
        values, on = self.values.to(v), (low == high).long()
        below = torch.searchsorted(values, low.contiguous()) - on
        above = torch.searchsorted(values, high.contiguous()) + on
        return values[below.clamp_min(0)], values[above.clamp_max(len(values) - 1)]

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
