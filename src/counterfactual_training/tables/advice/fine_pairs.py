"""Changes of two columns, by all their values, for people whom the coarser ones do not help."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from counterfactual_training.tables.advice.candidates import COLUMN, Candidates, places

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.beam import Beam

# Two moves promise enough if what they gain alone adds up to this share of what is missing.
_SHARE = 0.4
# Pairs of all people that are looked at together: more would not stay in the processor's cache.
_TOGETHER = 2**17


def find_fine_pairs(beam: Beam, people: np.ndarray) -> Candidates:
    """Pairs of moves in two columns that the model lets pass, of some people.

    Where gate or relations leave a narrow band, no coarser value may lie in it. As of triples,
    whether a pair promises enough depends on its own moves, not on what else a question allows.
    """
    moves = beam.moves
    none = np.zeros((0, 2), dtype=np.int64)
    parts = [beam.passing(moves, none[:, 0], none, np.zeros(0), np.zeros(0, dtype=bool))]
    first, second = np.triu_indices(len(moves.feature), 1)
    apart = moves.feature[first] != moves.feature[second]
    first = first[apart]
    second = second[apart]
    size = max(1, _TOGETHER // max(1, len(first)))
    for start in range(0, len(people), size):
        some = people[start : start + size]
        usable = moves.usable[some]
        least = np.where(usable, moves.least[some], math.inf)
        gain = np.where(usable, beam.odds_alone[some] - beam.odds_before[some, None], -math.inf)
        need = _SHARE * (beam.oracle.enough - beam.odds_before[some])
        worth = gain.take(first, 1) + gain.take(second, 1) >= need[:, None]
        worth &= (
            least.take(first, 1) + least.take(second, 1)
            < (beam.best[some] - 2 * COLUMN)[:, None]
        )
        who, pair = places(worth)
        sets = np.stack([first[pair], second[pair]], 1)
        person = some[who]
        parts.append(beam.passing(moves, person, sets, *beam.ask_sets(moves, person, sets)))
    return Candidates.joined(parts)
