"""Changes of two columns, by all their values: a narrow band may lie between coarser ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from counterfactual_training.tables.advice.candidates import COLUMN, Candidates, places

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.beam import Beam

# Two moves promise enough if what they gain alone adds up to this share of what is missing.
_SHARE = 0.7


def find_fine_pairs(beam: Beam) -> Candidates:
    """Pairs of moves in two columns that promise enough, may be cheaper than the best answer so
    far, and are let pass by the model.

    As of triples, whether a pair promises enough depends on its own moves, not on what else a
    question allows.
    """
    moves = beam.moves
    room = beam.best - 2 * COLUMN
    need = _SHARE * (beam.oracle.enough - beam.odds_before)
    persons = [np.zeros(0, dtype=np.int64)]
    pairs = [np.zeros((0, 2), dtype=np.int64)]
    for i in range(len(beam.x)):
        found = _promising(beam, i, float(room[i]), float(need[i]))
        persons.append(np.full(len(found), i))
        pairs.append(found)
    person = np.concatenate(persons)
    sets = np.concatenate(pairs)
    return beam.passing(moves, person, sets, *beam.ask_sets(moves, person, sets))


def _promising(beam: Beam, i: int, room: float, need: float) -> np.ndarray:
    """The pairs ``(p, 2)`` of person i whose least costs add up to less than ``room`` and whose
    gains to ``need``.
    """
    moves = beam.moves
    least = moves.least[i]
    gain = beam.odds_alone[i] - beam.odds_before[i]
    # Few moves can take part at all: with the cheapest other one, and the one that gains most.
    able = np.flatnonzero(moves.usable[i] & (least < room))
    if len(able) < 2:
        return np.zeros((0, 2), dtype=np.int64)
    able = able[least[able] + least[able].min() < room]
    able = able[gain[able] + gain[able].max(initial=-np.inf) >= need]
    least = least[able]
    gain = gain[able]
    feature = moves.feature[able]
    worth = (least[:, None] + least < room) & (gain[:, None] + gain >= need)
    worth &= feature[:, None] < feature
    first, second = places(worth)
    return np.stack([able[first], able[second]], 1)
