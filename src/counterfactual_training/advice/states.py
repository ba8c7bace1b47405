"""One person's beam: sets of moves, and which of their extensions promise most."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from counterfactual_training.advice.candidates import COLUMN
from counterfactual_training.advice.moves import Moves

# Sets that stay in the beam, and extensions put to the model per level.
_WIDTH, _ASKED = 48, 240


@dataclass
class States:
    """One person's beam.

    Attributes:
        sets: ``(b, s)`` moves; with their odds, the gate's odds and their cost, ``(b,)`` each.
        gain_odds, gain_gate, costs: ``(M,)`` of every move alone; −inf, 0 and +inf where it is not allowed.
    """

    moves: Moves
    person: int
    sets: np.ndarray
    odds: np.ndarray
    gate: np.ndarray
    gain_odds: np.ndarray
    gain_gate: np.ndarray
    costs: np.ndarray
    odds0: float
    gate0: float
    enough: float
    over: bool = False

    @classmethod
    def first(
        cls,
        moves: Moves,
        person: int,
        move: np.ndarray,
        odds: np.ndarray,
        gate: np.ndarray,
        odds0: float,
        gate0: float,
        enough: float,
    ) -> States:
        size = len(moves.feature)
        gain_odds = np.full(size, -math.inf)
        gain_gate = np.zeros(size)  # the gate's odds are infinite where there is none
        gain_odds[move] = odds - odds0
        gain_gate[move] = np.where(np.isfinite(gate), gate - gate0 if np.isfinite(gate0) else 0.0, 0.0)
        costs = np.full(size, math.inf)
        costs[move] = moves.cost[person, move]
        return cls(moves, person, move[:, None], odds, gate, gain_odds, gain_gate, costs, odds0, gate0, enough)

    def _missing(self, odds: np.ndarray, gate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What is missing of the odds and of the gate, as shares of what was missing at first."""
        whole = max(self.enough - self.odds0, 1e-9)
        first = np.maximum(self.enough - odds, 0) / whole
        if not np.isfinite(self.gate0):
            return first, np.zeros_like(first)
        second = np.maximum(-gate, 0) / max(-self.gate0, 1.0)
        return first, second

    def _rates(self) -> tuple[float, float]:
        """The most that a unit of cost buys of either share."""
        whole = max(self.enough - self.odds0, 1e-9)
        with np.errstate(invalid="ignore", divide="ignore"):
            odds = np.nanmax(np.where(np.isfinite(self.costs), self.gain_odds / self.costs, 0.0)) / whole
            gate = np.nanmax(np.where(np.isfinite(self.costs), self.gain_gate / self.costs, 0.0))
        return max(odds, 1e-9), max(gate / max(-self.gate0, 1.0) if np.isfinite(self.gate0) else 1.0, 1e-9)

    def extensions(self, best: float) -> np.ndarray:
        """The most promising sets ``(e, s + 1)`` of one more move that may be cheaper than the best answer so far."""
        if self.over or len(self.sets) == 0:
            return np.zeros((0, self.sets.shape[1] + 1), dtype=np.int64)
        rate_odds, rate_gate = self._rates()
        cost = self.costs[self.sets].sum(1)
        first, second = self._missing(self.odds, self.gate)
        need = np.maximum(first / rate_odds, second / rate_gate)
        kept = both(cost + need, first + second, _WIDTH)
        sets = self.sets[kept]
        inside = (self.moves.feature[sets][:, :, None] == self.moves.feature[None, None]).any(1)
        total = cost[kept, None] + self.costs[None]
        first, second = self._missing(self.odds[kept, None] + self.gain_odds, self.gate[kept, None] + self.gain_gate)
        need = np.maximum(first / rate_odds, second / rate_gate)
        price = total + need + COLUMN * (sets.shape[1] + 1)
        barred = inside | ~np.isfinite(total) | (price >= best)
        score = np.where(barred, math.inf, total + 1.5 * need).ravel()
        reach = np.where(
            barred, math.inf, first + second + 0.02 * total / max(total[np.isfinite(total)].max(initial=1.0), 1e-9)
        ).ravel()
        chosen = both(score, reach, _ASKED)
        chosen = chosen[np.isfinite(score[chosen])]
        which, move = np.unravel_index(chosen, inside.shape)
        found = np.sort(np.concatenate([sets[which], move[:, None]], 1), 1)
        return np.unique(found, axis=0)

    def move_on(self, sets: np.ndarray, odds: np.ndarray, gate: np.ndarray, done: bool) -> None:
        """Go on from these sets, or not at all."""
        self.sets, self.odds, self.gate = sets, odds, gate
        self.over = done


def both(one: np.ndarray, other: np.ndarray, size: int) -> np.ndarray:
    """Places of the lowest of two scores, half by one and half by the other, each place once."""
    half = min(size // 2, len(one))
    if half == 0:
        return np.zeros(0, dtype=np.int64)
    return np.unique(np.concatenate([_lowest(one, half), _lowest(other, half)]))


def _lowest(score: np.ndarray, size: int) -> np.ndarray:
    if len(score) > size:
        # To sort all of them takes most of the time of a search.
        few = np.flatnonzero(score <= np.partition(score, size - 1)[size - 1])
        return few[np.argsort(score[few], kind="stable")[:size]]
    # Stable, so that a person's answer does not depend on who is asked about beside.
    return np.argsort(score, kind="stable")
