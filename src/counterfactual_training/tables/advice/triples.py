"""Changes of three columns: every one that promises enough and may be cheaper than the best."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from counterfactual_training.tables.advice.candidates import COLUMN, Candidates, places

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.beam import Beam

# Three moves promise enough if what they gain alone adds up to this share of what is missing. Of
# triples that became answers 95 in 100 did; with a lower share, twice as many are asked about.
_SHARE = 0.7
# … and if the gate's log-odds, forecast in the same way, miss the bar by no more than this. Of the
# triples that the gate let pass 96 in 100 did, of all that the model did one in seven.
_DOUBT = 4.0
# Pairs of all people that are extended together, each in both orders: more would not stay in the
# processor's cache.
_TOGETHER = 2**17


def find_triples(beam: Beam, people: np.ndarray) -> Candidates:
    """Triples of coarser moves in three columns that the model lets pass, of some people.

    Whether a triple promises enough depends on its own moves, not on what else a question allows:
    a freer question has all triples of a tighter one that may be cheaper than its best answer.
    """
    moves = beam.coarse
    none = np.zeros((0, 3), dtype=np.int64)
    parts = [beam.passing(moves, none[:, 0], none, np.zeros(0), np.zeros(0, dtype=bool))]
    size = max(1, _TOGETHER // max(1, len(moves.feature) ** 2))
    for start in range(0, len(people), size):
        some = people[start : start + size]
        who, sets = _promising(beam, some)
        person = some[who]
        parts.append(beam.passing(moves, person, sets, *beam.ask_sets(moves, person, sets)))
    return Candidates.joined(parts)


def _promising(beam: Beam, people: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Who, by position, may make which triples ``(t, 3)`` that promise enough and may be cheap
    enough.
    """
    moves = beam.coarse
    size = len(moves.feature)
    criteria = _criteria(beam, people)
    behind = np.searchsorted(moves.feature, moves.feature, side="right")
    later = np.arange(size) >= behind[:, None]
    # Of pairs, those that the best move of a later column could complete. Whole rows of moves are
    # compared, earlier columns too: to pick the pairs first takes longer.
    worth = np.broadcast_to(later, (len(people), size, size))
    for value, need in criteria:
        more = value + _best_from(value)[:, behind]
        worth = worth & (value[:, :, None] + more[:, None] >= need[:, None, None])
    row, second = places(worth.reshape(-1, size))
    who, first = np.divmod(row, size)
    # Each with all moves of later columns.
    fine = later[second]
    for value, need in criteria:
        missing = need[who] - value[who, first] - value[who, second]
        fine &= value[who] >= missing[:, None]
    at, third = places(fine)
    return who[at], np.stack([first[at], second[at], third], 1)


def _criteria(beam: Beam, people: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Values ``(n, M)`` of the coarser moves, and what those of a triple must add up to ``(n,)``:
    the cost that is spared, what the model gives and what the gate gives.
    """
    moves = beam.coarse
    room = beam.best[people] - 3 * COLUMN
    least = np.where(moves.usable[people], moves.least[people], math.inf)
    gain = beam.coarse_gains[people]
    criteria = [
        (-least, -room),
        (gain, _SHARE * (beam.oracle.enough - beam.odds_before[people])),
    ]
    if beam.oracle.gated:
        tried = (least < room[:, None]).nonzero()
        person = people[tried[0]]
        before = beam.oracle.gate_odds(people, beam.x[torch.from_numpy(people)])
        alone = beam.oracle.gate_odds(person, beam.points(moves, person, tried[1][:, None]))
        plausible = np.full(gain.shape, -math.inf)
        plausible[tried] = alone - before[tried[0]]
        criteria.append((plausible, beam.oracle.enough_of_gate - _DOUBT - before))
    # Half the digits take half the time.
    return [(value.astype(np.float32), need.astype(np.float32)) for value, need in criteria]


def _best_from(values: np.ndarray) -> np.ndarray:
    """The best of values ``(n, M)`` from each place on ``(n, M + 1)``; the worst at the end."""
    padded = np.pad(values, ((0, 0), (0, 1)), constant_values=-math.inf)
    return np.maximum.accumulate(padded[:, ::-1], 1)[:, ::-1]
