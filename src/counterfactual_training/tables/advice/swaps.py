"""Answers of three and more columns, made cheaper by other columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from counterfactual_training.tables.advice.candidates import COLUMN, rank_within

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.beam import Beam
    from counterfactual_training.tables.advice.moves import Moves

# How often a column of an answer is replaced, and how many of the cheapest replacements are tried
# to the end.
_ROUNDS = 4
_TRIED = 3
# Moves of a column that are tried: what arrives is eased afterwards.
_SPREAD = 12
# Points of all people that are looked at together; bounds memory.
_POINTS = 2**18


def swap_columns(beam: Beam, people: np.ndarray) -> None:
    """Replace a column of people's best answers by another, as long as that is cheaper.

    A beam forecasts what a set of moves reaches, so it may miss a cheaper one.
    """
    moves = None
    for _ in range(_ROUNDS):
        changed = beam.easing.changed(people, beam.answer[torch.from_numpy(people)])
        people = people[np.isfinite(beam.best[people]) & (changed.sum(1) > 2)]
        if len(people) == 0 or beam.finder.late:
            return
        if moves is None:
            moves = beam.moves.thinned(_SPREAD)
        before = beam.best[people]
        size = max(1, _POINTS // max(1, len(beam.book.columns) * moves.usable.shape[1]))
        for start in range(0, len(people), size):
            _swap_once(beam, moves, people[start : start + size])
        people = people[beam.best[people] < before]


def _swap_once(beam: Beam, moves: Moves, people: np.ndarray) -> None:
    """Try every move in place of every column of the best answers; finish the cheapest."""
    answer = beam.answer[torch.from_numpy(people)]
    cost = beam.easing.costs(people, answer)
    place, feature = (cost > 0).nonzero()
    # The answer without one of its columns, and what that costs.
    shorter = beam.easing.without(people[place], answer[torch.from_numpy(place)], feature)
    remaining = cost.sum(1)[place] - cost[place, feature] + COLUMN * (cost > 0).sum(1)[place]
    price = remaining[:, None] + moves.least[people[place]]
    fits = moves.allowed[people[place]] & (price < beam.best[people[place], None])
    # A move in the same column would only be eased back to what is there.
    fits &= ~(cost > 0)[place][:, moves.feature]
    at, move = fits.nonzero()
    person = people[place[at]]
    points = moves.put(shorter[torch.from_numpy(at)], person, move[:, None])
    points = beam.oracle.follow(person, points)
    odds = beam.oracle.odds(person, points)
    fine = np.flatnonzero((odds >= beam.oracle.enough) & beam.oracle.keeps(person, points))
    fine = fine[np.lexsort((price[at, move][fine], person[fine]))]
    # The gate is slow: the cheapest first.
    fine = fine[rank_within(person[fine]) < 4 * _TRIED]
    arrived = beam.oracle.passes(
        person[fine], points[torch.from_numpy(fine)], odds[fine], np.ones(len(fine), bool)
    )
    fine = fine[arrived]
    fine = fine[rank_within(person[fine]) < _TRIED]
    beam.shorten(person[fine], points[torch.from_numpy(fine)])
