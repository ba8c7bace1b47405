"""Moves: for every person and column, the values that advice may name, with code and cost.

A move changes one column of one person to one value. Values are numbers as a person would write
them, or categories. Which values are tried depends on the column and the person, not on the bounds
that a question states: a question leaves some values out. There is one exception: bounds so narrow
that numbers need more digits than a person would write, in a column whose numbers are not multiples
of another one. So a freer question has more moves, and where one or two columns decide, its advice
does not cost more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.tables.advice.points import Factuals, stored
from counterfactual_training.tables.advice.window import Window
from counterfactual_training.tables.columns.column import Column
from counterfactual_training.tables.columns.constrain import may_become
from counterfactual_training.tables.columns.frame import UNSEEN
from counterfactual_training.tables.columns.limits import outside
from counterfactual_training.tables.columns.rounding import narrow_type, round_to, seen_decimals

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.find import Finder

# Values of a number, spread over its range; a column that can be written in no more than _ALL ways
# gets them all.
_SPREAD = 25
_ALL = 64
# Steps around the person's own value: the range halved so many times, to either side.
_HALVINGS = 14
# Codes beyond this count as this, or the costs of two values could not be told apart.
FARTHEST = 1e6
# A number is written to at most this share of its range: three digits, as a person would.
_FINEST = 1e-3
# Bounds of a question need at least so many values between them.
_FEWEST = 20
# Where a stated domain reaches beyond the usual range: the range doubled so many times, at most.
_BEYOND = 8


@dataclass(frozen=True, eq=False)
class Notation:
    """How the numbers of one column are written.

    Attributes:
        grid: numbers are multiples of this; 0 of a column whose values are listed.
        decimals: that multiples are rounded to.
        values: ascending, the values that everybody may try.
        span: the length of the usual range.
        below, above: how many of the values lie on either side of the usual range.
    """

    column: Column
    grid: float
    decimals: int
    values: np.ndarray
    span: float
    below: int = 0
    above: int = 0

    @classmethod
    def of(cls, column: Column, low: float, high: float, num_values: int) -> Notation:
        """The notation of a column whose advice may lead from ``low`` to ``high``."""
        if column.advised is not None:
            values = np.array(column.advised, dtype=np.float64)
            return cls(column, 0.0, 0, values, float(values[-1] - values[0]))
        if column.bulk is not None:
            first, last = column.bulk
        else:
            first = column.low
            last = column.high
        span = max(last - first, np.finfo(np.float64).tiny)
        grid = _grid(column, span, high - low)
        decimals = _decimals(grid)
        inside: np.ndarray = np.linspace(first, last, max(_SPREAD, num_values))
        if span / grid <= _ALL:
            inside = np.arange(math.floor(first / grid), math.ceil(last / grid) + 1) * grid
        # A domain that is stated may reach beyond what was seen. The steps do not depend on where
        # it ends: a wider one has all values of a narrower one, and more.
        steps = span * 2.0 ** np.arange(-3, _BEYOND)
        below = first - steps
        above = last + steps
        values = np.concatenate([_up_to(below, low, -1), inside, _up_to(above, high, 1)])
        blank = cls(column, grid, decimals, inside[:0], span)
        values = np.unique(blank.write(values[np.isfinite(values)]))
        ends = blank.write(inside[[0, -1]])
        return replace(
            blank,
            values=values,
            below=int((values < ends[0]).sum()),
            above=int((values > ends[1]).sum()),
        )

    def write(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers, of any shape, as they are written."""
        if not self.grid:
            return self.values[np.abs(numbers[..., None] - self.values).argmin(-1)]
        # Adding 0 makes a plain zero of a negative one.
        return round_to(np.rint(numbers / self.grid) * self.grid, self.decimals) + 0.0

    def around(self, own: np.ndarray) -> np.ndarray:
        """Values ``(n, v)``, ascending, that people whose numbers are ``own`` ``(n,)`` may try."""
        shared = np.broadcast_to(self.values, (len(own), len(self.values)))
        usual = self.values[self.below : len(self.values) - self.above]
        if not self.grid or len(usual) > 2 * _ALL or self.span / self.grid <= _ALL:
            return shared
        steps = self.span * 2.0 ** -np.arange(0, _HALVINGS)
        steps = np.append(steps[steps > self.grid], self.grid)
        near = self.write(own[:, None] + np.concatenate([-steps, steps]))
        if math.isinf(self.column.feature.reach):
            # Nothing is known of what lies between an outlier and the range.
            near = near.clip(usual[0], usual[-1])
        return np.sort(np.concatenate([shared, near], 1), 1)

    def thinned(self, size: int, most: int) -> np.ndarray:
        """Places of the values that are kept of ``size``, as :meth:`around` orders them."""
        usual = np.arange(self.below, size - self.above)
        if len(usual) > most:
            usual = usual[np.unique(np.rint(np.linspace(0, len(usual) - 1, most)).astype(int))]
        beyond = np.arange(size - self.above, size)
        return np.concatenate([np.arange(self.below), usual, beyond])


def _up_to(values: np.ndarray, end: float, way: int) -> np.ndarray:
    """Values up to an end, and the first beyond it, from which easing leads back."""
    beyond = int((way * values < way * end).sum())
    if way * values[0] <= way * end:
        return values[: beyond + 1]
    return values[:0]


def _grid(column: Column, span: float, width: float) -> float:
    """The distance between neighbouring numbers."""
    if column.feature.step is not None:
        return column.feature.step
    given = column.advised_grid or 0.0
    room = min(width, column.feature.reach)
    finest = min(_FINEST * span, room / _FEWEST)
    if finest > 0:
        nice = 10.0 ** math.floor(math.log10(finest))
    else:
        nice = 1.0
    if not given:
        return nice
    # A multiple of what the data are multiples of; 10 and 2.5 have none in common that is a power
    # of ten.
    return given * max(1.0, math.floor(nice / given + 1e-9))


def _decimals(grid: float) -> int:
    found = seen_decimals(np.array([grid]), np.float64)
    if found is None:
        return 15
    return found


@dataclass(frozen=True, eq=False)
class Moves:
    """All moves of n people; M of each, some of which are not allowed.

    Attributes:
        feature: ``(M,)`` the feature that each changes.
        number: ``(n, M)`` to what: a number, or the position of a category.
        inner: ``(n, M)`` the next value on the way back to the person's own; itself for categories.
        cost: ``(n, M)`` L1 in model space times difficulty.
        least: ``(n, M)`` the cost at ``inner``, below which easing the move cannot get.
        allowed: ``(n, M)`` whether the rules allow it.
        usable: ``(n, M)`` whether they allow it, or what easing may make of it.
        code: ``(n, M)`` what stands in the encoded column ``place`` ``(M,)`` then.
    """

    book: MoveBook
    feature: np.ndarray
    number: np.ndarray
    inner: np.ndarray
    cost: np.ndarray
    least: np.ndarray
    allowed: np.ndarray
    usable: np.ndarray
    code: Tensor
    place: np.ndarray

    def put(self, points: Tensor, person: np.ndarray, sets: np.ndarray) -> Tensor:
        """Make all moves of a set ``(a, s)``, no two in one column, in the points ``(a, d)``, in
        place.
        """
        self.book.clear(points, self.feature[sets])
        index = torch.from_numpy(sets)
        points[torch.arange(len(points)).unsqueeze(-1), torch.from_numpy(self.place)[index]] = (
            self.code[torch.from_numpy(person).unsqueeze(-1), index]
        )
        return points

    def at_edge(self, person: np.ndarray, sets: np.ndarray) -> np.ndarray:
        """Mask ``(c,)`` of the sets of one number whose neighbour, one value nearer to the own, is
        not among them.
        """
        feature = self.feature[sets]
        eases = self.book.eases(feature)
        single = np.flatnonzero(eases.sum(1) == 1)
        edge = np.zeros(len(sets), dtype=bool)
        if len(single) == 0:
            return edge
        size = len(self.feature) + 2
        which = eases[single].argmax(1)
        line = np.arange(len(single))
        move = sets[single, which]
        own = self.book.base[person[single], self.feature[move]]
        back = sets[single].copy()
        back[line, which] += np.where(self.number[person[single], move] > own, -1, 1)
        edge[single] = ~np.isin(
            _key(person[single], np.sort(back, 1), size), _key(person, np.sort(sets, 1), size)
        )
        return edge

    def thinned(self, most: int) -> Moves:
        """At most so many moves of each number in its usual range, spread over all; the rest are
        neighbours.

        How far a question reaches beyond the range does not change which moves in it are kept.
        """
        index = self.spread(most)
        return self.book.make(
            self.feature[index], self.number[:, index], self.allowed[:, index]
        )

    def spread(self, most: int) -> np.ndarray:
        """Places of the moves that :meth:`thinned` keeps."""
        kept = []
        for j in np.unique(self.feature):
            own = np.flatnonzero(self.feature == j)
            if self.book.is_number[j]:
                own = own[self.book.notations[j].thinned(len(own), most)]
            kept.append(own)
        if not kept:
            return np.zeros(0, dtype=np.int64)
        return np.concatenate(kept)


def _key(person: np.ndarray, sets: np.ndarray, size: int) -> np.ndarray:
    """One number ``(c,)`` for each person and set; positions in sets start at −1."""
    key = person.astype(np.int64)
    for move in sets.T:
        key = key * size + move + 1
    return key


class MoveBook:
    """The moves of some people, and numbers between them.

    Args:
        finder: whose rules hold.
        factuals: the n people.
        window: the features that may change; a feature is known by its position among them.
    """

    def __init__(self, finder: Finder, factuals: Factuals, window: Window) -> None:
        self.finder = finder
        self.factuals = factuals
        self.window = window
        encoder = finder.encoder
        self.columns = [encoder.columns_[j] for j in window.features.tolist()]
        self.starts = window.starts
        # Where the features start in whole rows.
        self._whole = window.columns.numpy()[self.starts]
        self.is_number = np.array([not c.feature.is_category for c in self.columns], dtype=bool)
        self.one_hot = np.array([c.one_hot and c.width > 1 for c in self.columns])
        self.own = factuals.numbers[factuals.place][:, window.features]
        self.base = np.where(np.isnan(self.own), [c.fill for c in self.columns], self.own)
        self.center = np.array([c.center for c in self.columns])
        self.scale = np.array([c.scale for c in self.columns])
        # What stands in the first encoded column of each feature.
        self.codes = (
            window.own[:, torch.from_numpy(self.starts)]
            .double()
            .numpy()
            .clip(-FARTHEST, FARTHEST)
        )
        self.weight = finder.difficulty.double().numpy()[window.features]
        self.judge = finder.judge

    @cached_property
    def notations(self) -> dict[int, Notation]:
        """Of the numbers, by feature."""
        return {
            j: self.finder.notation(int(self.window.features[j]))
            for j in self.free
            if self.is_number[j]
        }

    @cached_property
    def free(self) -> list[int]:
        """Features that somebody may change by a move."""
        following = set(self.window.following.tolist())
        fixed = [self.judge.fixed(column.feature.name) for column in self.columns]
        return [j for j in range(len(self.columns)) if j not in following and not fixed[j]]

    @cached_property
    def held(self) -> np.ndarray:
        """Mask ``(n, m)`` of cells that this question holds."""
        if self.factuals.held is None:
            return np.zeros(self.own.shape, dtype=bool)
        return self.factuals.held[:, torch.from_numpy(self._whole)].cpu().numpy()

    def all_moves(self) -> Moves:
        """Every move of everybody."""
        feature = []
        number = []
        allowed = []
        for j in self.free:
            if self.is_number[j]:
                values, fine = self._numbers(j)
            else:
                values, fine = self._categories(j)
            feature.append(np.full(values.shape[1], j))
            number.append(values)
            allowed.append(fine & ~self.held[:, j, None])
        n = len(self.own)
        if not feature:
            return self.make(
                np.zeros(0, dtype=np.int64), np.zeros((n, 0)), np.zeros((n, 0), dtype=bool)
            )
        return self.make(np.concatenate(feature), np.hstack(number), np.hstack(allowed))

    def _numbers(self, j: int) -> tuple[np.ndarray, np.ndarray]:
        values = self.notations[j].around(self.base[:, j])
        return values, self.keeps_rules(
            np.full(values.size, j),
            np.repeat(np.arange(len(values)), values.shape[1]),
            values.ravel(),
        ).reshape(values.shape)

    def _categories(self, j: int) -> tuple[np.ndarray, np.ndarray]:
        table = may_become(self.columns[j])
        k = table.shape[1]
        source = np.where(
            self.base[:, j] == UNSEEN, k, np.clip(np.floor(self.base[:, j] + 0.5), 0, k - 1)
        ).astype(int)
        values = np.broadcast_to(np.arange(k, dtype=np.float64), (len(source), k))
        return values, table[source] & (values != self.base[:, j, None])

    def keeps_rules(
        self, feature: np.ndarray, person: np.ndarray, number: np.ndarray
    ) -> np.ndarray:
        """Mask ``(a,)`` of the numbers that the rules of their columns allow."""
        fine = np.ones(len(number), dtype=bool)
        for j in np.unique(feature):
            here = np.flatnonzero(feature == j)
            name = self.columns[j].feature.name
            base = self.base[person[here], j]
            # The judge leaves ends that were not stated some slack; there is no reason to use it.
            inside = ~outside(*self.judge.learned_ends(name), base, number[here])
            fine[here] = inside & self.judge.allows(
                name, self.own[person[here], j], number[here]
            )
        return fine

    def make(self, feature: np.ndarray, number: np.ndarray, allowed: np.ndarray) -> Moves:
        """Moves with their costs; those of a feature are next to each other, in ascending order."""
        n, size = number.shape
        code = self.encode(np.broadcast_to(feature, number.shape), number)
        if size:
            own = self.base[:, feature]
        else:
            own = number
        allowed = allowed & (number != own)
        cost = self.cost(
            np.broadcast_to(feature, number.shape),
            np.repeat(np.arange(n), size).reshape(n, size),
            number,
        )
        inner = own.copy()
        if size:
            same = np.diff(feature) == 0
            # Above the own value, the neighbour below is nearer to it; and the other way round.
            up = np.zeros_like(number)
            up[:, 1:] = np.where(same, number[:, :-1], own[:, 1:])
            up[:, :1] = own[:, :1]
            down = np.zeros_like(number)
            down[:, :-1] = np.where(same, number[:, 1:], own[:, :-1])
            down[:, -1:] = own[:, -1:]
            inner = np.where(number > own, np.maximum(up, own), np.minimum(down, own))
            # Beside an outlier's own value, the first of its values has no neighbour.
            apart = self.eases(feature) & ~((inner == own) & self._far(feature, own))
            inner = np.where(apart, inner, number)
        least = self.cost(
            np.broadcast_to(feature, number.shape),
            np.repeat(np.arange(n), size).reshape(n, size),
            inner,
        )
        usable = allowed | self._anchors(feature, number, inner, allowed, own)
        if size:
            place = self.starts[feature] + np.where(
                self.one_hot[feature], number[0] if n else 0, 0
            ).astype(int)
        else:
            place = feature
        return Moves(
            self,
            feature,
            number,
            inner,
            cost,
            least,
            allowed,
            usable,
            torch.from_numpy(code).to(self.factuals.x),
            place,
        )

    def _far(self, feature: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Mask ``(n, M)`` of own numbers beyond all values of a column."""
        low = np.full(len(self.columns), -np.inf)
        high = np.full(len(self.columns), np.inf)
        for j, notation in self.notations.items():
            if math.isinf(notation.column.feature.reach) and len(notation.values):
                low[j] = notation.values[0]
                high[j] = notation.values[-1]
        return (own < low[feature]) | (own > high[feature])

    def _anchors(
        self,
        feature: np.ndarray,
        number: np.ndarray,
        inner: np.ndarray,
        allowed: np.ndarray,
        own: np.ndarray,
    ) -> np.ndarray:
        """Mask ``(n, M)`` of moves just beyond a bound: easing may bring them back within it."""
        beyond = ~allowed & (number != own) & self.eases(feature)
        fine = np.zeros_like(beyond)
        person, move = beyond.nonzero()
        if len(person) == 0:
            return fine
        start = inner[person, move]
        # The person's own value is always allowed, so that the first move beyond it is such a one.
        kept = (start == own[person, move]) | self.keeps_rules(feature[move], person, start)
        free = ~self.held[person, feature[move]]
        fine[person, move] = (
            kept & free & self._may_go(feature[move], person, number[person, move])
        )
        return fine

    def _may_go(
        self, feature: np.ndarray, person: np.ndarray, number: np.ndarray
    ) -> np.ndarray:
        """Mask ``(a,)`` of numbers that lie in a direction their columns may take, of cells without
        a special code.
        """
        fine = np.zeros(len(number), dtype=bool)
        for j in np.unique(feature):
            here = np.flatnonzero(feature == j)
            base = self.base[person[here], j]
            may = self.columns[j].feature.mutability
            fine[here] = np.where(
                number[here] > base, may in ("both", "increase"), may in ("both", "decrease")
            )
            if self.columns[j].feature.special:
                fine[here] &= ~self.columns[j].feature.coded(self.own[person[here], j]).any(1)
        return fine

    def eases(self, feature: np.ndarray) -> np.ndarray:
        """Mask, like feature, of those whose numbers lie between others."""
        return self.grids[feature] > 0

    @cached_property
    def grids(self) -> np.ndarray:
        """Numbers are multiples of this ``(m,)``; 0 of features with listed values."""
        table = np.zeros(len(self.columns))
        for j, notation in self.notations.items():
            table[j] = notation.grid
        return table

    @cached_property
    def _decimals(self) -> np.ndarray:
        """That numbers are rounded to ``(m,)``."""
        table = np.zeros(len(self.columns), dtype=np.int64)
        for j, notation in self.notations.items():
            table[j] = notation.decimals
        return table

    def encode(self, feature: np.ndarray, number: np.ndarray) -> np.ndarray:
        """What stands in the encoded column of a move; of a one-hot feature 1."""
        if feature.size == 0:
            return np.zeros(number.shape)
        code = (self.stored(feature, number) - self.center[feature]) / self.scale[feature]
        return np.where(self.one_hot[feature], 1.0, code)

    def stored(self, feature: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Numbers as cells of their columns hold them: float32 has fewer digits."""
        if not self._narrow:
            return number
        held = number.copy()
        for j in self._narrow:
            here = feature == j
            held[here] = stored(self.columns[j], number[here])
        return held

    @cached_property
    def _narrow(self) -> list[int]:
        """Features of numbers in fewer bits than float64."""
        return [j for j in self.notations if narrow_type(self.columns[j].dtype) is not None]

    def cost(self, feature: np.ndarray, person: np.ndarray, number: np.ndarray) -> np.ndarray:
        """What it costs people to have these numbers; all of one shape."""
        if feature.size == 0:
            return np.zeros(number.shape)
        own = self.base[person, feature]
        far = np.abs(
            (number - self.center[feature]) / self.scale[feature] - self.codes[person, feature]
        )
        # One category falls and another rises; a category never seen has none to fall.
        swap = np.where(own == UNSEEN, 1.0, 2.0)
        far = np.where(self.one_hot[feature], swap, far)
        return np.where(number == own, 0.0, far) * self.weight[feature]

    def written(self, feature: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Numbers ``(a,)`` as they are written; NaN where that is a special code."""
        found = np.empty(len(feature))
        grid = self.grids[feature]
        # All at once, as Notation.write does it; but for values that are listed.
        lies = grid > 0
        if lies.all():
            found = self._on_grid(feature, number, grid)
        else:
            found[lies] = self._on_grid(feature[lies], number[lies], grid[lies])
            for j in np.unique(feature[~lies]):
                here = feature == j
                found[here] = self.notations[j].write(number[here])
        for j in self._special:
            here = np.flatnonzero(feature == j)
            coded = self.columns[j].feature.coded(found[here]).any(1)
            found[here[coded]] = np.nan
        return found

    def _on_grid(self, feature: np.ndarray, number: np.ndarray, grid: np.ndarray) -> np.ndarray:
        """Numbers as multiples of their grids; adding 0 makes a plain zero of a negative one."""
        return round_to(np.rint(number / grid) * grid, self._decimals[feature]) + 0.0

    @cached_property
    def _special(self) -> list[int]:
        """Features of numbers with special codes."""
        return [j for j in self.notations if self.columns[j].feature.special]

    def clear(self, points: Tensor, feature: np.ndarray) -> None:
        """Take the categories of some features ``(a, s)`` out of the points ``(a, d)``, in
        place.
        """
        row, at = self.one_hot[feature].nonzero()
        if len(row) == 0:
            return
        hot = feature[row, at]
        for j in np.unique(hot):
            here = torch.from_numpy(row[hot == j])
            points[here, self.starts[j] : self.starts[j] + self.columns[j].width] = 0.0

    def set_numbers(
        self, points: Tensor, row: np.ndarray, feature: np.ndarray, number: np.ndarray
    ) -> None:
        """Write numbers, not categories, into some rows ``(a,)`` of points, in place."""
        code = torch.from_numpy(self.encode(feature, number)).to(points)
        points[torch.from_numpy(row), torch.from_numpy(self.starts[feature])] = code
