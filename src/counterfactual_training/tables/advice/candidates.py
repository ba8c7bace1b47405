"""Sets of moves that may become answers, and answers found so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.tables.advice.moves import Moves

# What one more column counts beside the cost of its change: of two answers that cost about the
# same, people want the one that changes fewer columns.
COLUMN = 0.4


@dataclass
class Pool:
    """Answers found so far: a person, a point as printed, and its price."""

    person: list[np.ndarray] = field(default_factory=list)
    point: list[Tensor] = field(default_factory=list)
    price: list[np.ndarray] = field(default_factory=list)

    def add(self, person: np.ndarray, point: Tensor, price: np.ndarray) -> None:
        if len(person):
            self.person.append(person)
            self.point.append(point)
            self.price.append(price)

    def joined(self, d: int, like: Tensor) -> tuple[np.ndarray, Tensor, np.ndarray]:
        """Everybody's answers: persons ``(a,)``, points ``(a, d)``, prices ``(a,)``."""
        if not self.person:
            return np.zeros(0, dtype=np.int64), like.new_zeros(0, d), np.zeros(0)
        return np.concatenate(self.person), torch.cat(self.point), np.concatenate(self.price)


@dataclass(frozen=True, eq=False)
class Candidates:
    """Sets of moves ``(c, s)`` of some people ``(c,)`` that the model lets pass.

    Attributes:
        least: ``(c,)`` that each can cost.
        odds: ``(c,)`` that the model gives it.
        kept: ``(c,)`` whether it keeps relations between columns.
        edge: ``(c,)`` whether it has one number, and is no candidate at the next value back.
    """

    moves: Moves
    person: np.ndarray
    sets: np.ndarray
    least: np.ndarray
    odds: np.ndarray
    kept: np.ndarray
    edge: np.ndarray

    def take(self, rows: np.ndarray) -> Candidates:
        return Candidates(self.moves, *(getattr(self, name)[rows] for name in _ARRAYS))

    @classmethod
    def joined(cls, parts: Sequence[Candidates]) -> Candidates:
        return cls(
            parts[0].moves,
            *(np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS),
        )


_ARRAYS = [entry.name for entry in fields(Candidates) if entry.name != "moves"]


def rank_within(groups: np.ndarray) -> np.ndarray:
    """The place of each entry within its group, of sorted groups ``(a,)``."""
    place = np.arange(len(groups))
    # Where the group of each entry starts: the last start so far.
    return place - np.maximum.accumulate(np.where(is_first(groups), place, 0))


def is_first(groups: np.ndarray) -> np.ndarray:
    """Mask ``(a,)`` of the first entry of each group, of sorted groups."""
    first = np.ones(len(groups), dtype=bool)
    np.not_equal(groups[1:], groups[:-1], out=first[1:])
    return first


def places(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the true cells of a mask ``(a, b)``, in their order.

    As its ``nonzero()``, which takes several times as long.
    """
    row, column = np.divmod(np.flatnonzero(mask), max(1, mask.shape[1]))
    return row, column
