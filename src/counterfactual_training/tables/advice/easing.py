"""Fewer and smaller changes: numbers taken back towards a person's own, columns left out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.tables.advice.candidates import is_first, places
from counterfactual_training.tables.advice.moves import FARTHEST, MoveBook
from counterfactual_training.tables.advice.oracle import Oracle

# Values between two others that are tried at a time when a number is eased.
_BETWEEN = 7
# What sums of costs may differ by.
_SLACK = 1e-9


class Easing:
    """Makes points that reach the bar cheaper; they still reach it afterwards.

    Attributes:
        oracle: says whether they do.
        book: knows how numbers are written, and what they cost.
    """

    def __init__(self, oracle: Oracle, book: MoveBook) -> None:
        self.oracle = oracle
        self.book = book

    def ease(
        self,
        person: np.ndarray,
        points: Tensor,
        place: np.ndarray,
        feature: np.ndarray,
        low: np.ndarray,
        high: np.ndarray,
        most: np.ndarray | None = None,
    ) -> np.ndarray:
        """Take a number of some points back from ``high`` towards ``low`` ``(a,)``, up to the bar.

        Changes the points at ``place`` ``(a,)``, and returns their numbers, of which the next one
        back misses the bar. ``low`` itself is not tried. A number that is known to cost ``most``
        ``(a,)`` or more is left there.
        """
        low = low.copy()
        high = high.copy()
        rows = np.flatnonzero(self.book.eases(feature) & (low != high))
        shares = np.arange(1, _BETWEEN + 1) / (_BETWEEN + 1)
        while len(rows):
            a = low[rows, None]
            b = high[rows, None]
            # Values between the two, and the next one back.
            back = b + np.sign(a - b) * self.book.grids[feature[rows], None]
            wanted = np.hstack([a + (b - a) * shares, back])
            size = wanted.shape[1]
            between = self.book.written(np.repeat(feature[rows], size), wanted.ravel())
            between = between.reshape(-1, size)
            inside = (between - a) * (b - between) > 0
            at, which = places(inside)
            if len(at) == 0:
                break
            trial = points.index_select(0, torch.from_numpy(place[rows[at]]))
            self.book.set_numbers(
                trial, np.arange(len(at)), feature[rows[at]], between[at, which]
            )
            trial = self.oracle.follow(person[rows[at]], trial)
            first, chosen = self._nearest(person[rows[at]], trial, at, which, len(rows))
            found = chosen >= 0
            rows = rows[found]
            first = first[found]
            line = np.flatnonzero(found)
            high[rows] = between[line, first]
            points[torch.from_numpy(place[rows])] = trial.index_select(
                0, torch.from_numpy(chosen[found])
            )
            # The next try is between the one found and the one before.
            low[rows] = np.where(first > 0, between[line, first - 1], low[rows])
            rows = rows[self._room(feature[rows], low[rows], high[rows])]
            if most is not None:
                least = self.book.cost(feature[rows], person[rows], low[rows])
                rows = rows[least < most[rows] + _SLACK]
        return high

    def _nearest(
        self, person: np.ndarray, trial: Tensor, line: np.ndarray, which: np.ndarray, size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of trials ``(t, d)``, several per line and in order, the first that arrives.

        Returns, for each of ``size`` lines, its number among those of the line and its place; −1 if
        none arrives.
        """
        odds = self.oracle.odds(person, trial)
        fine = (odds >= self.oracle.enough) & self.oracle.keeps(person, trial)
        first = np.zeros(size, dtype=np.int64)
        chosen = np.full(size, -1)
        good = np.flatnonzero(fine)
        # The gate is slow: it is asked about the nearest of each line, then about the others where
        # it objects.
        for ask_all in (False, True):
            if len(good) == 0:
                break
            ahead = is_first(line[good])
            if ask_all:
                tried = good
            else:
                tried = good[ahead]
            passed = self.oracle.passing(person, trial, odds, tried)
            passed = passed[is_first(line[passed])]
            chosen[line[passed]] = passed
            first[line[passed]] = which[passed]
            good = good[(chosen[line[good]] < 0) & ~ahead]
        return first, chosen

    def _room(self, feature: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Mask ``(a,)`` of intervals with a number between their ends that was not tried."""
        return np.abs(high - low) > 1.5 * self.book.grids[feature]

    def undo(self, person: np.ndarray, points: Tensor) -> Tensor:
        """Take whole columns back, the dearest that can go first, until none can."""
        rows = np.arange(len(person))
        while len(rows):
            cost = self.costs(person[rows], points.index_select(0, torch.from_numpy(rows)))
            at, feature = (cost > 0).nonzero()
            if len(at) == 0:
                break
            trial = self.without(
                person[rows[at]], points.index_select(0, torch.from_numpy(rows[at])), feature
            )
            fine = np.zeros_like(cost)
            fine[at, feature] = self.oracle.arrives(person[rows[at]], trial)
            saved = np.where(fine > 0, cost, -1.0)
            chosen = saved.argmax(1)
            goes = np.flatnonzero(saved.max(1) > 0)
            place = np.full(cost.shape, -1)
            place[at, feature] = np.arange(len(at))
            points[torch.from_numpy(rows[goes])] = trial[
                torch.from_numpy(place[goes, chosen[goes]])
            ]
            rows = rows[goes]
        return points

    def without(self, person: np.ndarray, points: Tensor, feature: np.ndarray) -> Tensor:
        """Points ``(a, d)`` with one feature each as the person has it."""
        mask = torch.from_numpy(self.oracle.window.owner[None] == feature[:, None])
        return self.oracle.follow(
            person,
            torch.where(mask, self.oracle.x.index_select(0, torch.from_numpy(person)), points),
        )

    def changed(self, person: np.ndarray, points: Tensor) -> np.ndarray:
        """Mask ``(a, m)`` of the features that points change."""
        return self.costs(person, points) > 0

    def costs(self, person: np.ndarray, points: Tensor) -> np.ndarray:
        """Cost ``(a, m)`` of each feature."""
        return self.oracle.window.distance(person, points, FARTHEST) * self.book.weight

    def numbers(self, points: Tensor, feature: np.ndarray) -> np.ndarray:
        """The number ``(a,)`` of one feature of each point, as written."""
        code = (
            points[torch.arange(len(points)), torch.from_numpy(self.book.starts[feature])]
            .double()
            .numpy()
        )
        number = code * self.book.scale[feature] + self.book.center[feature]
        found = number.copy()
        for j in np.unique(feature):
            if j in self.book.notations:
                here = feature == j
                found[here] = self.book.notations[j].write(number[here])
        return found
