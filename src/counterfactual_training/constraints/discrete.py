"""Features with certain values only: one-hot groups for categories, lattices for integers and
listed values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from counterfactual_training.errors import ConstraintError

# Smaller changes are rounding errors.
_NOISE = 1e-6


@dataclass(frozen=True, eq=False)
class OneHotGroup:
    """The columns that together one-hot encode one categorical feature.

    Attributes:
        columns: their places in a row; a single column is a binary feature, rounded to {0, 1}.
        transitions: ``transitions[i, j]`` says whether category i may become category j; ``None``
            allows every change.

    Examples:
        >>> import torch
        >>> import counterfactual_training as ct
        >>> upwards = torch.ones(3, 3, dtype=torch.bool).triu()  # to later categories only
        >>> education = ct.OneHotGroup((1, 2, 3), upwards)
        >>> rules = ct.Constraints.build(4, groups=[education])
        >>> x = torch.tensor([[0.2, 0.0, 1.0, 0.0]])
        >>> education.category(x), rules.categories(education, x)
        (tensor([1]), tensor([[False,  True,  True]]))
    """

    columns: tuple[int, ...]
    transitions: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.columns or len(set(self.columns)) != len(self.columns):
            raise ConstraintError(
                f"A one-hot group needs distinct columns, got {self.columns}."
            )
        k = self.num_categories
        if self.transitions is not None and tuple(self.transitions.shape) != (k, k):
            raise ConstraintError(
                f"transitions must be {k} × {k}, got {tuple(self.transitions.shape)}."
            )

    @property
    def num_categories(self) -> int:
        """Two for a single column, else one per column."""
        return max(len(self.columns), 2)

    @cached_property
    def index(self) -> slice | list[int]:
        """Index of the columns: a slice if they are adjacent, because indexing by a slice makes no
        copy.
        """
        first = self.columns[0]
        k = len(self.columns)
        if self.columns == tuple(range(first, first + k)):
            return slice(first, first + k)
        return list(self.columns)

    def category(self, x: Tensor) -> Tensor:
        """Index ``(..., n)`` of each row's category, or of the nearest one.

        It is −1 for a row without a category. Encoders write unseen categories like that: all
        zeros, or a binary 0.5.
        """
        part = x[..., self.index]
        if len(self.columns) == 1:
            value = part[..., 0]
            return torch.where(value == 0.5, -1, (value > 0.5).long())
        return torch.where((part == 0).all(-1), -1, part.argmax(-1))

    def own(self, x: Tensor) -> Tensor:
        """Mask ``(..., n, max(k, 2))`` of the category that each row is in."""
        return self._one_hot_mask(self.category(x))

    def _one_hot_mask(self, category: Tensor) -> Tensor:
        return category.unsqueeze(-1) == torch.arange(
            self.num_categories, device=category.device
        )

    def encode(self, category: Tensor, dtype: torch.dtype) -> Tensor:
        """Columns ``(..., n, k)`` of the given categories ``(..., n)``."""
        if len(self.columns) == 1:
            return category.unsqueeze(-1).to(dtype)
        return torch.nn.functional.one_hot(category, len(self.columns)).to(dtype)

    def reachable(self, x: Tensor) -> Tensor:
        """Mask ``(..., n, max(k, 2))`` of the categories that ``transitions`` let rows x take,
        their own included.

        ``transitions`` has no line for a row without a category; it may take every category that
        some other one may.
        """
        if self.transitions is None:
            return torch.ones(
                *x.shape[:-1], self.num_categories, dtype=torch.bool, device=x.device
            )
        category = self.category(x)
        # Category −1 reads the last line.
        return self._may_become.to(x.device)[category] | self._one_hot_mask(category)

    @cached_property
    def _may_become(self) -> Tensor:
        """The transitions, with one more line for rows without a category."""
        assert self.transitions is not None  # noqa: S101 - `reachable` asks only if there are some
        may = self.transitions.bool()
        # Categories that some other one may become: those are open to rows without a category.
        entered = (may & ~torch.eye(len(may), dtype=torch.bool, device=may.device)).any(0)
        return torch.cat([may, entered.unsqueeze(0)])

    def narrow(self, x: Tensor, lower: Tensor, upper: Tensor) -> None:
        """Remove from the box ``(..., n, d)`` around rows x, in place, the categories that
        ``transitions`` forbid.
        """
        columns = self.index
        reachable = self.reachable(x)
        factual = x[..., columns]
        low = lower[..., columns]
        high = upper[..., columns]
        # A single column has the categories (0, 1), of which the last one is "may be 1"; wider
        # groups, one per column.
        may_be_1 = reachable[..., -len(self.columns) :]
        may_be_0 = reachable[..., :1]
        high = torch.where(may_be_1, high, torch.minimum(high, factual))
        # A binary that may not leave 0 or 1 is not pulled back into the domain either.
        if len(self.columns) == 1:
            low = torch.where(may_be_1, low, torch.minimum(low, factual))
            low = torch.where(may_be_0, low, torch.maximum(low, factual))
            high = torch.where(may_be_0, high, torch.maximum(high, factual))
            lower[..., columns] = low
        upper[..., columns] = high

    def possible(
        self, x: Tensor, lower: Tensor, upper: Tensor, up: Tensor, down: Tensor
    ) -> Tensor:
        """Mask ``(..., n, max(k, 2))`` of the categories that the factuals x ``(..., n, d)`` may
        take.

        To change category, one column falls from 1 to 0 and another rises from 0 to 1. Each column
        must be free to go from its value to the 0 or 1 of the new category, the box must contain
        that value, and the transitions allow it. Box and directions are those of this group's
        columns, broadcastable to ``(..., n, k)``.
        """
        part = x[..., self.index]

        def may_be(value: float) -> Tensor:
            inside = (lower <= value) & (upper >= value)
            # A value already there, up to rounding, needs no permission to move.
            return inside & ((part >= value - _NOISE) | up) & ((part <= value + _NOISE) | down)

        may_be_0 = may_be(0.0)
        may_be_1 = may_be(1.0)
        if len(self.columns) == 1:
            return torch.cat([may_be_0, may_be_1], -1) & self.reachable(x)
        # All columns but this one can be 0: the only one that cannot, if any, is this one itself.
        others_may_be_0 = (~may_be_0).sum(-1, keepdim=True) == (~may_be_0).long()
        return may_be_1 & others_may_be_0 & self.reachable(x)

    def settle(self, x_cf: Tensor, home: Tensor, choices: Tensor) -> Tensor:
        """Columns ``(..., n, k)`` of the choice nearest to a relaxed point ``(..., n, d)``.

        ``home`` and ``choices`` are as in :class:`Bounds`; the last of the ``max(k, 2) + 1``
        choices is "no category".
        """
        part = x_cf[..., self.index]
        if len(self.columns) == 1:
            score = torch.cat([1 - part, part], -1)
        else:
            score = part
        # Without a category, a row is all zeros: one column above 0.5 is nearer to its category
        # than to zero. A binary without one is 0.5, and is nearer to 0 or 1 if its score exceeds
        # 0.75.
        none = torch.full_like(score[..., :1], 0.75 if len(self.columns) == 1 else 0.5)
        chosen = torch.cat([score, none], -1).masked_fill_(~choices, -torch.inf).argmax(-1)
        # A group that keeps its category keeps its exact values too, even if they are no clean
        # one-hot.
        stays = (chosen == self.category(home)) | (chosen == self.num_categories)
        # "No category" has no code; clamped here, it is replaced by home below.
        moved = self.encode(chosen.clamp_max(self.num_categories - 1), x_cf.dtype)
        return torch.where(stays.unsqueeze(-1), home[..., self.index], moved)


@dataclass(frozen=True, eq=False)
class Lattice:
    """A column whose values are ``offset + step·i``, or the given ascending ``values``."""

    column: int
    offset: float = 0.0
    step: float = 1.0
    values: Tensor | None = None

    def __post_init__(self) -> None:
        if self.values is None and self.step <= 0:
            raise ConstraintError(
                f"The lattice of column {self.column} needs a positive step, got {self.step}."
            )
        if self.values is not None and (
            self.values.numel() == 0 or bool((self.values.diff() <= 0).any())
        ):
            raise ConstraintError(
                f"The allowed values of column {self.column} must be ascending and not empty."
            )

    def neighbours(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The lattice points at or below v, and at or above v."""
        if self.values is None:
            index = (v - self.offset) / self.step
            near = index.round()
            # A value within rounding error of a lattice point is on it. In units of a fine step,
            # that error is larger.
            error = 4 * torch.finfo(v.dtype).eps * (v.abs() + abs(self.offset)) / self.step
            on = (index - near).abs() <= error.clamp(1e-4, 0.5)
            low = torch.where(on, near, index.floor())
            high = torch.where(on, near, index.ceil())
            return self.offset + self.step * low, self.offset + self.step * high
        values = self.values.to(v)
        # Listed values come through scaling, so a value counts as on the list if it misses an entry
        # by rounding only.
        slack = 1e-5 * values.abs().max().clamp_min(1.0)
        high = torch.searchsorted(values, (v - slack).contiguous()).clamp_max(len(values) - 1)
        low = (torch.searchsorted(values, (v + slack).contiguous(), right=True) - 1).clamp_min(
            0
        )
        return values[low], values[high]

    def beside(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The next lattice points strictly below and above v; v itself beyond the ends of listed
        values.
        """
        low, high = self.neighbours(v)
        if self.values is None:
            return torch.where(low == high, low - self.step, low), torch.where(
                low == high, high + self.step, high
            )
        values = self.values.to(v)
        on = (low == high).long()
        # On a listed value, one further; between two of them, low and high already are the
        # neighbours.
        below = torch.searchsorted(values, low.contiguous()) - on
        above = torch.searchsorted(values, high.contiguous()) + on
        return values[below.clamp_min(0)], values[above.clamp_max(len(values) - 1)]

    def snap(self, v: Tensor, factual: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """The lattice point next to v inside the bounds, rounded away from the factual so as not to
        undo the change.

        A value that did not change is kept. One without a lattice point inside the bounds returns
        to the factual.
        """
        low, high = self.neighbours(v)
        outward = torch.where(v >= factual, high, low)
        inward = torch.where(v >= factual, low, high)
        # Bounds and lattice are computed differently: the last lattice point before a bound may
        # miss it by rounding.
        tolerance = 1e-6 * (1 + v.abs())

        def inside(u: Tensor) -> Tensor:
            return (u >= lower - tolerance) & (u <= upper + tolerance)

        snapped = torch.where(
            inside(outward), outward, torch.where(inside(inward), inward, factual)
        )
        return torch.where((v - factual).abs() <= 1e-6, factual, snapped)


def check_columns(
    groups: Sequence[OneHotGroup], lattices: Sequence[Lattice], num_features: int
) -> None:
    """Raise unless all groups and lattices are about different columns that exist."""
    columns = [column for group in groups for column in group.columns]
    columns += [lattice.column for lattice in lattices]
    if len(set(columns)) != len(columns) or any(not 0 <= c < num_features for c in columns):
        valid = f"0..{num_features - 1}"
        raise ConstraintError(
            f"Groups and lattices must name different columns in {valid}: {columns}."
        )
