"""The rules of a schema as constraints in model space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.constraints import (
    CategoryProjection,
    Constraints,
    Domain,
    Lattice,
    OneHotGroup,
)
from counterfactual_training.constraints.mutability import Direction, direction_from
from counterfactual_training.errors import ConstraintError
from counterfactual_training.tables.columns.column import Column, unique_names
from counterfactual_training.tables.columns.dtypes import value_range
from counterfactual_training.tables.columns.relate import build_relations
from counterfactual_training.tables.columns.relations import RelationBook

# A grid finer than this, in model space, makes no difference to a model.
_FINEST_GRID = 1e-6


@dataclass(frozen=True, eq=False)
class OrdinalLattice(Lattice):
    """A lattice of ranks where ``transitions[i, j]`` says whether rank i may become rank j."""

    transitions: Tensor | None = None

    def snap(self, v: Tensor, factual: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """The reachable rank next to v: the next one away from the factual if there is one, else
        the nearest.
        """
        assert self.values is not None and self.transitions is not None  # noqa: S101 - see `_lattice`
        values = self.values.to(v)
        tolerance = 1e-5 * (1 + values.abs())
        at = (factual.unsqueeze(-1) - values).abs() <= tolerance
        inside = (values >= lower.unsqueeze(-1) - tolerance) & (
            values <= upper.unsqueeze(-1) + tolerance
        )
        # An unseen category is at no rank: it may become whatever some other rank may become.
        may = self.transitions.to(v.device)
        entered = (may & ~torch.eye(len(may), dtype=torch.bool, device=v.device)).any(0)
        reachable = (
            torch.where(at.any(-1, keepdim=True), may[at.long().argmax(-1)], entered) & inside
        )
        gap = values - v.unsqueeze(-1)
        if len(values) > 1:
            step = values.diff().min()
        else:
            step = torch.ones((), dtype=v.dtype)
        outward = torch.where((v >= factual).unsqueeze(-1), gap, -gap) >= -tolerance
        # The next rank outward beats the nearer one inward, which would undo the change.
        cost = gap.abs() - step * (outward & (gap.abs() < step))
        best = cost.masked_fill(~reachable, torch.inf).argmin(-1)
        snapped = torch.where(reachable.any(-1), values[best], factual)
        stays = ((v - factual).abs() <= 1e-6) | at.gather(-1, best.unsqueeze(-1)).squeeze(-1)
        return torch.where(stays, factual, snapped)


def build_constraints(
    columns: Sequence[Column],
    book: RelationBook,
    num_std: float,
    category_projection: CategoryProjection,
    keep_sign: bool,
    keep_outside: bool,
    bulk: bool,
) -> Constraints:
    """Constraints on the encoded columns and relations between them; arguments as in
    :meth:`Encoder.constraints`.
    """
    widths = [column.width for column in columns]
    placed = list(zip(columns, np.cumsum([0, *widths[:-1]]).tolist(), strict=True))
    directions: list[Direction] = []
    boxes: list[tuple[float, float]] = []
    for column in columns:
        # Columns that are computed from others never move by themselves, and the search neither
        # limits nor rounds them.
        if column.feature.name in book.following:
            direction: Direction = "none"
            box = (-np.inf, np.inf)
        else:
            direction = _direction(column)
            box = _box(column, num_std, keep_sign, bulk)
        # Advice never leads to a special code, and cells that hold one keep it.
        codes = len(column.feature.special)
        directions += [direction] * (column.width - codes)
        directions += ["none"] * codes
        boxes += [box] * (column.width - codes)
        boxes += [(0.0, 1.0)] * codes
    lower, upper = torch.tensor(boxes, dtype=torch.float64).unbind(1)
    # An open side is inferred, so factuals beyond it are allowed; Schema.check rejects those beyond
    # a stated one.
    inferred = np.repeat([None in (c.feature.domain or (None,)) for c in columns], widths)
    free = [
        (column, start) for column, start in placed if column.feature.name not in book.following
    ]
    built = Constraints.build(
        len(directions),
        directions,
        Domain(lower, upper, torch.from_numpy(inferred)),
        [group for column, start in placed if (group := _group(column, start)) is not None],
        [
            lattice
            for column, start in free
            if (lattice := _lattice(column, start, bulk)) is not None
        ],
        unique_names(columns),
        category_projection,
    )
    coded = tuple(
        (start, tuple(range(start + 1, start + c.width)))
        for c, start in placed
        if c.feature.special
    )
    relations = build_relations(book, columns, [start for _, start in placed])
    return replace(
        built,
        reach=_reach(columns),
        keep_outside=keep_outside,
        coded=coded,
        relations=relations,
    )


def _reach(columns: Sequence[Column]) -> Tensor | None:
    """How far each encoded column may move ``(d,)``; ``None`` if all may move anywhere."""
    most = [c.feature.reach / c.scale for c in columns]
    if not np.isfinite(most).any():
        return None
    return torch.tensor(np.repeat(most, [c.width for c in columns]), dtype=torch.float64)


def _targets(column: Column) -> np.ndarray:
    """Positions, ascending, of the categories to recommend: the allowed ones, else those seen in
    training.
    """
    levels = column.feature.levels
    if column.feature.allowed is not None:
        return np.array(sorted(levels.index(level) for level in column.feature.allowed))
    if column.seen is None:
        return np.arange(len(levels))
    return np.array(column.seen)


def transition_matrix(column: Column) -> np.ndarray:
    """``(k, k)``: whether category i may become category j, by direction, allowed, forbidden and
    seen values.
    """
    feature = column.feature
    levels = feature.levels
    k = len(levels)
    may = np.zeros((k, k), dtype=bool)
    may[:, _targets(column)] = True
    for a, b in feature.forbidden:
        may[levels.index(a), levels.index(b)] = False
    if feature.mutability not in ("both", "increase"):
        may &= ~np.triu(np.ones((k, k), dtype=bool), 1)
    if feature.mutability not in ("both", "decrease"):
        may &= ~np.tril(np.ones((k, k), dtype=bool), -1)
    np.fill_diagonal(may, True)
    return may


def may_become(column: Column) -> np.ndarray:
    """``(k + 1, k)``: whether advice may lead from category i to category j, by all rules of the
    column.

    The last line is for categories never seen in training. Every category may stay what it is.
    """
    may = transition_matrix(column)
    k = len(may)
    itself = np.eye(k, dtype=bool)
    # A category that was never seen may become what some other one may.
    table = np.vstack([may, (may & ~itself).any(0)])
    if column.feature.kind == "ordinal":
        ranks = np.arange(k)
        low, high = column.feature.limits
        # Outside the domain, on the way back into it, a rank may stay.
        table[:k] &= (ranks >= np.minimum(low, ranks)[:, None]) & (
            ranks <= np.maximum(high, ranks)[:, None]
        )
        table[k] &= (ranks >= low) & (ranks <= high)
        table[:k] &= np.abs(ranks[:, None] - ranks) <= column.feature.reach
    if _direction(column) == "none":
        table[:] = False
    table[:k] |= itself
    return table


def _direction(column: Column) -> Direction:
    """Direction of the feature; for one-hot columns the transition matrix holds it."""
    feature = column.feature
    if column.constant:
        return "none"
    if feature.kind == "categorical":
        if feature.mutability == "none":
            return "none"
        return "both"
    if feature.kind != "binary":
        return feature.mutability
    may = transition_matrix(column)
    return direction_from(bool(may[0, 1]), bool(may[1, 0]))


def _box(column: Column, num_std: float, keep_sign: bool, bulk: bool) -> tuple[float, float]:
    if column.feature.kind in ("binary", "categorical"):
        return 0.0, 1.0
    low, high = column.feature.limits
    seen_low, seen_high = _seen_ends(column, num_std, keep_sign, bulk)
    # A stated side may lie beyond the bulk.
    low, high = (
        (low if np.isfinite(low) else min(seen_low, high) if bulk else seen_low),
        (high if np.isfinite(high) else max(seen_high, low) if bulk else seen_high),
    )
    if low > high:
        raise ConstraintError(
            f"The domain of {column.feature.name!r} is empty: stated {column.feature.domain}, "
            f"the data reaches from {column.low:g} to {column.high:g}."
        )
    # Not by encode: a bound may be a special code.
    return float((low - column.center) / column.scale), float(
        (high - column.center) / column.scale
    )


def _seen_ends(
    column: Column, num_std: float, keep_sign: bool, bulk: bool
) -> tuple[float, float]:
    """The range of a column by the training rows alone, in the user's units."""
    low = min(column.mean - num_std * column.std, column.low)  # Eq. 12
    high = max(column.mean + num_std * column.std, column.high)
    if bulk and num_std == 0 and column.bulk is not None:
        low, high = column.bulk
    if keep_sign:
        if column.low >= 0:
            low = max(low, 0.0)
        if column.high <= 0:
            high = min(high, 0.0)
    if column.feature.kind in ("integer", "pixel"):
        smallest, largest = value_range(column.dtype)
        low = max(low, smallest)
        high = min(high, largest)
    return low, high


def _group(column: Column, start: int) -> OneHotGroup | None:
    if column.feature.kind == "binary":
        return OneHotGroup((start,))
    if not column.one_hot or column.width == 1:
        return None
    may = transition_matrix(column)
    return OneHotGroup(
        tuple(range(start, start + column.width)), None if may.all() else torch.from_numpy(may)
    )


def _lattice(column: Column, start: int, bulk: bool) -> Lattice | None:
    """The values that a column may take; with ``bulk``, also by the training data alone."""
    feature = column.feature
    if feature.kind == "ordinal":
        if feature.forbidden:
            ranks = np.arange(len(feature.levels))
            may = torch.from_numpy(transition_matrix(column))
            return OrdinalLattice(start, values=_points(column, ranks), transitions=may)
        # Ranks that may not be recommended are skipped.
        return Lattice(start, values=_points(column, _targets(column)))
    if feature.is_category:
        return None
    if bulk:
        values = column.advised
    else:
        values = feature.named
    if values is not None:
        return Lattice(start, values=_points(column, np.array(values, dtype=np.float64)))
    if bulk:
        grid = column.advised_grid
    else:
        grid = column.grid
    if grid is None or feature.kind == "pixel" or grid / column.scale < _FINEST_GRID:
        return None
    # Counting from the grid point nearest the centre keeps float32 exact over the widest range.
    anchor = np.rint(column.center / grid) * grid
    return Lattice(
        start, offset=float((anchor - column.center) / column.scale), step=grid / column.scale
    )


def _points(column: Column, values: np.ndarray) -> Tensor:
    return torch.from_numpy(column.encode(values)[:, 0].copy())
