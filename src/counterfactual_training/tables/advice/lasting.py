"""Advice that lasts: answers that other models of the same rows would accept.

Advice that ends just past the boundary is a coin flip once the model is trained again. How much
margin it takes differs from table to table, so the margin is not asked for: witnesses are. One half
of them steers, by asking for more confidence until they agree; the other half, which had no part in
it, says how often the answer holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from counterfactual_training.tables.advice.answer import joined_frames, numbered, shortfalls
from counterfactual_training.tables.advice.explanation import Explanation
from counterfactual_training.tables.advice.options import is_nested
from counterfactual_training.tables.advice.testimony import Array, Lasting, Witnesses, chance

# What is asked for in turn, after the decision.
BARS = (0.6, 0.7, 0.8, 0.9, 0.95)
# Of what misses its bar, or no real row looks like: not advised, whatever witnesses say of it.
_NEVER = -1.0

#: Explains all rows, as the question itself asks for it; or with a confidence, some rows by number
#: and the classes that these are to get.
Search = Callable[..., Explanation]


def lasting_advice(
    search: Search, index: pd.Index, witnesses: Witnesses, share: float, num_options: int
) -> Explanation:
    """Advice that witnesses find probable to last, and beside it what would be just enough.

    A row is asked for more and more confidence until, for the witnesses that steer, the probability
    that one more of them accepts is at least ``share``. Where no confidence suffices, the answer is
    the one that they agreed to most.

    Args:
        search: the question.
        index: of all rows ``(n,)``.
        witnesses: at least four.
        share: of witnesses that should accept.
        num_options: answers per row, at most, each with other columns.
    """
    steering, reporting = witnesses.halves()
    first = search()
    found = _Found(steering, share, num_options)
    found.add(first, np.arange(len(index)))
    entries, _ = first_entries(first)
    for bar in BARS:
        rows = found.in_doubt
        if not len(rows) or not found.answers[-1].complete:
            break
        if bar > (first.asked or 0.0):
            found.add(search(bar, rows, list(first.target[entries[rows]])), rows)
    enough = gathered(found.answers, entries, index, several=False)
    told = _told(found, enough, entries, reporting)
    enough = replace(enough, lasting=told)
    chosen = found.chosen()
    row = found.row[chosen]
    own_index = numbered(index[row], row) if first.several else index
    advice = gathered(found.answers, chosen, own_index, first.several)
    if first.several:
        advice = _with_notes(advice, first, row, index, num_options)
    told = _told(found, advice, chosen, reporting)
    # The first of a row's options is compared with what is just enough.
    leads = np.diff(row, prepend=-1) > 0
    lasting = told.beside(enough, row, leads & (chosen != entries[row]))
    return replace(advice, lasting=lasting)


def _told(
    found: _Found, explanation: Explanation, entries: NDArray[np.int64], reporting: Witnesses
) -> Lasting:
    """What the witnesses that report say of these entries."""
    odds = reporting.log_odds(explanation.frame, explanation.target)
    return Lasting.of(odds, found.agreed[entries] >= found.share, reporting.kind)


class _Found:
    """The answers so far, and the rows whose answers leave the witnesses that steer in doubt.

    Attributes:
        answers: the explanations, each of the rows that the one before left in doubt; their entries
            are numbered on, from the first to the last.
        row: ``(e,)`` the row of each entry.
        agreed: ``(e,)`` the probability that a further witness accepts it.
        cost, distance: ``(e,)`` and ``(e, m)``, as in :class:`Explanation`.
        in_doubt: numbers of rows, ascending.
    """

    def __init__(self, steering: Witnesses, share: float, num_options: int) -> None:
        self.steering = steering
        self.share = share
        self.num_options = num_options
        self.answers: list[Explanation] = []
        self.row = np.zeros(0, dtype=np.int64)
        self.agreed: Array = np.zeros(0)
        self.cost: Array = np.zeros(0)
        self.distance: Array = np.zeros((0, 0))
        self.in_doubt = np.zeros(0, dtype=np.int64)
        self._wanted = np.zeros(0, dtype=np.int64)
        self._entries: list[list[int]] = []

    def add(self, answer: Explanation, rows: NDArray[np.int64]) -> None:
        """Take in answers about some rows; first about all of them."""
        entries, row = first_entries(answer)
        agreed = chance(self.steering.log_odds(answer.frame, answer.target))
        agreed = np.where(answer.converged, agreed, _NEVER)
        if not self.answers:
            # More options than for the decision are not to be had.
            plausible = np.bincount(row[answer.converged], minlength=len(rows))
            self._wanted = plausible.clip(1, self.num_options)
            self._entries = [[] for _ in range(len(rows))]
            self.distance = answer.distance[:0]
        for place, r in enumerate(rows[row].tolist()):
            self._entries[r].append(len(self.row) + place)
        self.answers.append(answer)
        self.row = np.concatenate([self.row, rows[row]])
        self.agreed = np.concatenate([self.agreed, agreed])
        self.cost = np.concatenate([self.cost, answer.cost])
        self.distance = np.concatenate([self.distance, answer.distance])
        # Who cannot get this cannot get more, and who has it is asked to change nothing.
        gets = answer.answered[entries] & (answer.status[entries] != "already_there")
        lacks = [len(self._lasting(r)) < self._wanted[r] for r in rows.tolist()]
        self.in_doubt = rows[gets & np.array(lacks, dtype=bool)]

    def chosen(self) -> NDArray[np.int64]:
        """The entries to show, row after row: those that last, the cheapest first; or else the one
        that witnesses agreed to most.
        """
        shown: list[int] = []
        for row in range(len(self._wanted)):
            lasting = self._lasting(row)
            if not lasting:
                own = self._entries[row]
                lasting = [own[int(self.agreed[own].argmax())]]
            shown += lasting
        return np.array(shown, dtype=np.int64)

    def _lasting(self, row: int) -> list[int]:
        """The entries of a row that last, none of which changes all columns of another."""
        own = [entry for entry in self._entries[row] if self.agreed[entry] >= self.share]
        kept: list[int] = []
        columns: list[frozenset[int]] = []
        for entry in sorted(own, key=lambda entry: float(self.cost[entry])):
            moved = frozenset(np.flatnonzero(self.distance[entry] > 0).tolist())
            if not is_nested(moved, columns) and len(kept) < self.num_options:
                kept.append(entry)
                columns.append(moved)
        return kept


def first_entries(explanation: Explanation) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every row's first entry ``(n,)``; and the row of every entry ``(e,)``."""
    if not explanation.several:
        every = np.arange(len(explanation))
        return every, every
    first = np.asarray(explanation.frame.index.get_level_values(-1)) == 1
    return np.flatnonzero(first), np.cumsum(first) - 1


def gathered(
    answers: Sequence[Explanation], entries: NDArray[np.int64], index: pd.Index, several: bool
) -> Explanation:
    """Entries of several explanations, counted from the first to the last, as one.

    It asks for what the first one asks for.
    """
    parts, places = _parts_of(answers, entries)
    own: dict[str, Any] = {}
    for name in _ARRAYS:
        own[name] = np.concatenate([getattr(part, name) for part in parts])[places]
    for name in _LISTS:
        whole = [value for part in parts for value in getattr(part, name)]
        own[name] = [whole[place] for place in places.tolist()]
    encoder = answers[0].encoder
    for name in _FRAMES:
        frame = joined_frames(encoder, [getattr(part, name) for part in parts])
        own[name] = frame.iloc[places].set_axis(index)
    changed = pd.concat([part.changed for part in parts])
    own["changed"] = changed.iloc[places].set_axis(index)
    complete = all(answer.complete for answer in answers)
    return replace(answers[0], **own, several=several, complete=complete)


def _parts_of(
    answers: Sequence[Explanation], entries: NDArray[np.int64]
) -> tuple[list[Explanation], NDArray[np.int64]]:
    """The explanations that have a part in these entries, because frames are slow to join; and the
    places of the entries in these.
    """
    ends = np.cumsum([len(answer) for answer in answers])
    whose = np.searchsorted(ends, entries, side="right")
    used = sorted({0, *whose.tolist()})
    # What the explanations that are left out would have taken.
    left_out = np.zeros(len(answers), dtype=np.int64)
    for k in set(range(len(answers))) - set(used):
        left_out[k:] += len(answers[k])
    return [answers[k] for k in used], entries - left_out[whose]


_ARRAYS = (
    "target",
    "decision",
    "prediction",
    "confidence",
    "plausibility",
    "status",
    "answered",
    "cost",
    "num_steps",
    "distance",
)
_LISTS = ("obstacles", "max_changes", "strangers")
_FRAMES = ("original", "frame")


def _with_notes(
    advice: Explanation,
    first: Explanation,
    row: NDArray[np.int64],
    index: pd.Index,
    num_options: int,
) -> Explanation:
    """With notes on options that are lacking now, instead of those for the decision."""
    before = set(shortfalls(index, first_entries(first)[1], first.status, num_options))
    others = [note for note in first.notes if note not in before]
    own = shortfalls(index, row, advice.status, num_options)
    return replace(advice, notes=(*own, *others))
