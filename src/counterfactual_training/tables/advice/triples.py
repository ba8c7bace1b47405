"""Changes of three columns: every one that promises enough and may be cheaper than the best."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from counterfactual_training.tables.advice.candidates import COLUMN, Candidates
from counterfactual_training.tables.advice.oracle import TOGETHER

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.beam import Beam

# Three moves promise enough if what they gain alone adds up to this share of what is missing. Of
# triples that became answers 95 in 100 did; with a lower share, twice as many are asked about.
_SHARE = 0.7


def find_triples(beam: Beam) -> Candidates:
    """Triples of coarser moves in three columns that the model lets pass.

    Whether a triple promises enough depends on its own moves, not on what else a question allows:
    a freer question has all triples of a tighter one that may be cheaper than its best answer.
    """
    moves = beam.coarse
    none = np.zeros((0, 3), dtype=np.int64)
    found = [beam.passing(moves, none[:, 0], none, np.zeros(0), np.zeros(0, dtype=bool))]
    size = max(1, TOGETHER // max(1, len(beam.pairs[0])))
    for start in range(0, len(beam.x), size):
        people = np.arange(start, min(start + size, len(beam.x)))
        who, sets = _promising(beam, people)
        person = people[who]
        found.append(beam.passing(moves, person, sets, *beam.ask_sets(moves, person, sets)))
    return Candidates.joined(found)


def _promising(beam: Beam, people: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Who, by position, may make which triples ``(t, 3)`` that promise enough and may be cheap
    enough.
    """
    moves = beam.coarse
    size = len(moves.feature)
    # Half the digits take half the time.
    gain = beam.coarse_gains[people].astype(np.float32)
    least = np.where(moves.usable[people], moves.least[people], math.inf).astype(np.float32)
    room = (beam.best[people] - 3 * COLUMN).astype(np.float32)
    need = (_SHARE * (beam.oracle.enough - beam.odds_before[people])).astype(np.float32)
    # Of pairs, those that the best move of a later column could complete.
    behind = np.searchsorted(moves.feature, moves.feature, side="right")
    more = gain + _later(gain, np.maximum)[:, behind]
    rest = least + _later(least, np.minimum)[:, behind]
    first, second = beam.pairs
    worth = least[:, first] + rest[:, second] < room[:, None]
    worth &= gain[:, first] + more[:, second] >= need[:, None]
    who, pair = worth.nonzero()
    first = first[pair]
    second = second[pair]
    # Each with all moves of later columns.
    start = behind[second]
    count = size - start
    place = np.repeat(np.arange(len(who)), count)
    third = np.arange(len(place)) - np.repeat(np.cumsum(count) - size, count)
    room = room[who] - least[who, first] - least[who, second]
    need = need[who] - gain[who, first] - gain[who, second]
    fine = least[who[place], third] < room[place]
    fine &= gain[who[place], third] >= need[place]
    place = place[fine]
    return who[place], np.stack([first[place], second[place], third[fine]], 1)


def _later(values: np.ndarray, best: np.ufunc) -> np.ndarray:
    """The best of values ``(n, M)`` from each place on ``(n, M + 1)``; the worst at the end."""
    if best is np.maximum:
        worst = -math.inf
    else:
        worst = math.inf
    return best.accumulate(np.pad(values, ((0, 0), (0, 1)), constant_values=worst)[:, ::-1], 1)[
        :, ::-1
    ]
