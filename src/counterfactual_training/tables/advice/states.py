"""One person's beam: sets of moves, and which of their extensions promise most."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from counterfactual_training.tables.advice.candidates import COLUMN
from counterfactual_training.tables.advice.moves import Moves

# Sets that stay in the beam, and extensions put to the model per level.
_WIDTH = 32
_MAX_EXTENSIONS = 240
# Of these, the most promising are put to the gate, which is slow; and the cheapest that the model
# lets pass.
_JUDGED = 96
_CHEAPEST = 8


class Reached(NamedTuple):
    """Log-odds of model and gate, of one point or several ``(a,)``; ∞ without a gate."""

    odds: Any
    gate: Any

    def take(self, rows: np.ndarray | slice | int) -> Reached:
        return Reached(self.odds[rows], self.gate[rows])


class States:
    """One person's beam.

    Moves beside which another one of the column is as good in every way are left out. The others, u
    of them, are known by their number among these.

    Args:
        moves: of everybody.
        person: whose beam this is.
        move: ``(a,)`` the moves that the person may make.
        alone: what each of them reaches alone.
        start: what the person has without any.
        enough: the log-odds that the model must give.

    Attributes:
        sets: ``(b, s)`` moves by number.
        reached: by the sets.
    """

    def __init__(
        self,
        moves: Moves,
        person: int,
        move: np.ndarray,
        alone: Reached,
        start: Reached,
        enough: float,
    ) -> None:
        self.person = person
        self.start = start
        self.enough = enough
        # Relative to the start; without a gate, nothing is gained of it.
        odds = alone.odds - start.odds
        if np.isfinite(start.gate):
            gate = alone.gate - start.gate
        else:
            gate = np.zeros_like(odds)
        cost = moves.cost[person, move]
        kept = ~_dominated(moves.feature[move], cost, odds, gate)
        self.move = move[kept]
        self.feature = moves.feature[self.move]
        self.costs = cost[kept]
        self.gains = Reached(odds[kept], gate[kept])
        self.sets = np.arange(len(self.move))[:, None]
        self.reached = alone.take(kept)

    def extensions(self, best: float) -> np.ndarray:
        """The most promising sets ``(e, s + 1)`` of one more move that may be cheaper than the best
        answer so far.
        """
        size = self.sets.shape[1] + 1
        if len(self.sets) == 0:
            return np.zeros((0, size), dtype=np.int64)
        cost = self.costs[self.sets].sum(1)
        kept = both(*self._scores(cost, self.reached), _WIDTH)
        sets = self.sets[kept]
        changed = np.zeros((len(sets), int(self.feature.max()) + 1), dtype=bool)
        changed[np.arange(len(sets))[:, None], self.feature[sets]] = True
        inside = changed[:, self.feature]
        total = cost[kept, None] + self.costs[None]
        odds = self.reached.odds[kept, None] + self.gains.odds
        gate = self.reached.gate[kept, None] + self.gains.gate
        price, reach = self._scores(total, Reached(odds, gate))
        barred = inside | (price + COLUMN * size >= best)
        # What is missing counts half as much again as what is spent: it is bought at the best rate,
        # which rarely lasts.
        score = np.where(barred, math.inf, 1.5 * price - 0.5 * total).ravel()
        # Of sets that miss about as much, the cheaper one.
        reach = np.where(
            barred, math.inf, reach + 0.02 * total / max(total.max(), 1e-9)
        ).ravel()
        chosen = both(score, reach, _MAX_EXTENSIONS)
        chosen = chosen[np.isfinite(score[chosen])]
        which, move = np.unravel_index(chosen, inside.shape)
        extended = np.sort(np.concatenate([sets[which], move[:, None]], 1), 1)
        # Two sets may become the same. A sum of random numbers, one for each move, tells sets apart
        # in a tenth of the time.
        first = np.unique(self._marks[extended].sum(1), return_index=True)[1]
        return extended[np.sort(first)]

    def worth_judging(self, sets: np.ndarray, odds: np.ndarray) -> np.ndarray:
        """Places of the sets ``(e, s)`` with these odds that the gate should judge."""
        if not np.isfinite(self.start.gate):
            return np.arange(len(sets))
        cost = self.costs[sets].sum(1)
        forecast = Reached(odds, self.start.gate + self.gains.gate[sets].sum(1))
        chosen = np.zeros(len(sets), dtype=bool)
        chosen[both(*self._scores(cost, forecast), _JUDGED)] = True
        passing = np.flatnonzero(odds >= self.enough)
        chosen[passing[np.argsort(cost[passing], kind="stable")[:_CHEAPEST]]] = True
        return np.flatnonzero(chosen)

    def move_on(self, sets: np.ndarray, reached: Reached) -> None:
        """Go on from these sets."""
        self.sets = sets
        self.reached = reached

    def _scores(self, cost: np.ndarray, reached: Reached) -> tuple[np.ndarray, np.ndarray]:
        """What sets of this cost will probably cost in the end, and what they miss.

        What is missing of odds and gate is measured as a share of what was missing at the start. At
        the best rate of all moves, a unit of cost buys so much of either.
        """
        odds = np.maximum(self.enough - reached.odds, 0) / self._missing_at_start.odds
        gate = np.maximum(-reached.gate, 0) / self._missing_at_start.gate
        rates = self._rates
        return cost + np.maximum(odds / rates.odds, gate / rates.gate), odds + gate

    @cached_property
    def _marks(self) -> np.ndarray:
        """A random number ``(u,)`` for each move."""
        return np.random.default_rng(0).integers(2**62, size=len(self.move), dtype=np.uint64)

    @cached_property
    def _missing_at_start(self) -> Reached:
        """What was missing at the start."""
        return Reached(max(self.enough - self.start.odds, 1e-9), max(-self.start.gate, 1.0))

    @cached_property
    def _rates(self) -> Reached:
        """The most that a unit of cost buys of either share."""
        odds, gate = ((gain / self.costs).max(initial=0.0) for gain in self.gains)
        missing = self._missing_at_start
        return Reached(max(odds / missing.odds, 1e-9), max(gate / missing.gate, 1e-9))


def _dominated(feature: np.ndarray, cost: np.ndarray, *gains: np.ndarray) -> np.ndarray:
    """Mask ``(a,)`` of moves beside which another one of the feature costs no more and gives no
    less of anything.
    """
    as_good = (feature[:, None] == feature) & (cost <= cost[:, None])
    for gain in gains:
        as_good &= gain >= gain[:, None]
    # Of two that are alike, the first stays.
    alike = as_good & as_good.T
    place = np.arange(len(cost))
    return (as_good & ~(alike & (place >= place[:, None]))).any(1)


def both(one: np.ndarray, other: np.ndarray, size: int) -> np.ndarray:
    """Places of the lowest of two scores, half by one and half by the other, each place once."""
    half = min(size // 2, len(one))
    if half == 0:
        return np.zeros(0, dtype=np.int64)
    chosen = np.zeros(len(one), dtype=bool)
    chosen[_lowest(one, half)] = True
    chosen[_lowest(other, half)] = True
    return np.flatnonzero(chosen)


def _lowest(score: np.ndarray, size: int) -> np.ndarray:
    if len(score) > size:
        # To sort all of them takes most of the time of a search.
        few = np.flatnonzero(score <= np.partition(score, size - 1)[size - 1])
        return few[np.argsort(score[few], kind="stable")[:size]]
    # Stable, so that a person's answer does not depend on who is asked about beside.
    return np.argsort(score, kind="stable")
