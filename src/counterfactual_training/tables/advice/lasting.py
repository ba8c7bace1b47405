"""Advice that lasts: answers that other models of the same rows would accept.

Advice that ends just past the boundary is a coin flip once the model is trained again. How much
margin it takes differs from table to table, so the margin is not asked for: witnesses are. One half
of them steers, by asking for more confidence until they agree; the other half, which had no part in
it, says how often the answer holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from counterfactual_training.tables.advice.answer import joined_frames, numbered, shortfalls
from counterfactual_training.tables.advice.explanation import Explanation
from counterfactual_training.tables.advice.options import is_nested
from counterfactual_training.tables.advice.testimony import (
    Array,
    Lasting,
    Witnesses,
    chance,
    margin,
)

# What may be asked for beside the decision: with three classes or a gate, less than a half, too.
BARS = np.array([0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97])
# Searches per row after the first, at most. Most rows need one or two.
_SEARCHES = 5
# How much the log-odds of witnesses rise with those that are asked for: on tables about as much,
# which is the guess before anything is measured.
_SLOPE = 1.0
_SLOPES = (0.3, 3.0)
# So much less than a guess is tried, in log-odds: what is dearer than needed is not noticed.
_SLACK = 0.2
# Where witnesses have no objection, but options are lacking: further by so much, in log-odds.
_FURTHER = 0.5
# Of what misses its bar, or no real row looks like: not advised, whatever witnesses say of it.
_NEVER = -1.0

#: Explains all rows, as the question itself asks for it; or with a confidence, some rows by number
#: and the classes that these are to get.
Search = Callable[..., Explanation]


def lasting_advice(
    search: Search, index: pd.Index, witnesses: Witnesses, share: float, num_options: int
) -> Explanation:
    """Advice that witnesses find probable to last, and beside it what would be just enough.

    A row is asked for the least confidence for which the witnesses that steer find it probable, at
    least by ``share``, that one more of them accepts. What they say of one answer tells about how
    much that will be; what they say of the next corrects it. Where no confidence suffices, the
    answer is the one that they agreed to most.

    Args:
        search: the question.
        index: of all rows ``(n,)``.
        witnesses: at least four.
        share: of witnesses that should accept; 0 for what is just enough, of which witnesses only
            say whether it will last.
        num_options: answers per row, at most, each with other columns.
    """
    steering, reporting = witnesses.halves()
    first = search()
    if not share:
        # As many report as of lasting advice, so that both can be compared.
        return replace(first, lasting=_told(first, first.converged, share, reporting))
    found = _Found(steering, share, num_options)
    found.add(first, np.arange(len(index)))
    entries, _ = first_entries(first)
    for _ in range(_SEARCHES):
        asked = found.next_bars()
        for bar in np.unique(asked[asked > 0]).tolist():
            if not found.answers[-1].complete:
                break
            rows = np.flatnonzero(asked == bar)
            found.add(search(bar, rows, list(first.target[entries[rows]])), rows, bar)
    enough = gathered(found.answers, entries, index, several=False)
    told = _told(enough, found.agreed[entries] >= share, share, reporting)
    enough = replace(enough, lasting=told)
    chosen = found.chosen()
    row = found.row[chosen]
    own_index = numbered(index[row], row) if first.several else index
    advice = gathered(found.answers, chosen, own_index, first.several)
    if first.several:
        advice = _with_notes(advice, first, row, index, num_options)
    told = _told(advice, found.agreed[chosen] >= share, share, reporting)
    # The first of a row's options is compared with what is just enough.
    leads = np.diff(row, prepend=-1) > 0
    lasting = told.beside(enough, row, leads & (chosen != entries[row]))
    return replace(advice, lasting=lasting)


def _told(
    explanation: Explanation, reached: NDArray[np.bool_], share: float, reporting: Witnesses
) -> Lasting:
    """What the witnesses that report say of its entries."""
    odds = reporting.log_odds(explanation.frame, explanation.target)
    return Lasting.of(odds, reached, share, reporting.kind)


class _Found:
    """The answers so far, and what the witnesses that steer say of them.

    Attributes:
        answers: the explanations, the first one of all rows; their entries are numbered on, from
            the first to the last.
        row: ``(e,)`` the row of each entry.
        agreed: ``(e,)`` the probability that a further witness accepts it.
        cost, distance: ``(e,)`` and ``(e, m)``, as in :class:`Explanation`.
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
        self._wanted = np.zeros(0, dtype=np.int64)
        self._entries: list[list[int]] = []
        self._guides: list[_Guide] = []

    def add(
        self, answer: Explanation, rows: NDArray[np.int64], bar: float | None = None
    ) -> None:
        """Take in answers about some rows; first about all of them, for no bar."""
        _, row = first_entries(answer)
        odds = self.steering.log_odds(answer.frame, answer.target)
        agreed = np.where(answer.converged, chance(odds), _NEVER)
        if not self.answers:
            # More options than for the decision are not to be had.
            plausible = np.bincount(row[answer.converged], minlength=len(rows))
            self._wanted = plausible.clip(1, self.num_options)
            self._entries = [[] for _ in range(len(rows))]
            self._guides = [_Guide(answer.asked or 0.0) for _ in range(len(rows))]
            self.distance = answer.distance[:0]
        for place, r in enumerate(rows[row].tolist()):
            self._entries[r].append(len(self.row) + place)
        self.answers.append(answer)
        self.row = np.concatenate([self.row, rows[row]])
        self.agreed = np.concatenate([self.agreed, agreed])
        self.cost = np.concatenate([self.cost, answer.cost])
        self.distance = np.concatenate([self.distance, answer.distance])
        self._guide(answer, rows, bar, margin(odds, self.share), agreed >= self.share)

    def _guide(
        self,
        answer: Explanation,
        rows: NDArray[np.int64],
        bar: float | None,
        beyond: Array,
        lasts: NDArray[np.bool_],
    ) -> None:
        """What these answers mean for what to ask next; ``beyond`` and ``lasts`` are of entries."""
        level = _level(answer)
        entries, row = first_entries(answer)
        ends = np.append(entries, len(row))[1:]
        single = self.num_options == 1
        for r, start, end in zip(rows.tolist(), entries.tolist(), ends.tolist(), strict=True):
            own = slice(start, end)
            guide = self._guides[r]
            # Several options that last are not asked for less, which would be for one of them.
            if lasts[start] if single else len(self._lasting(r)) >= self._wanted[r]:
                guide.enough(bar, level[start], beyond[start], single)
            elif not answer.converged[own].any() or answer.status[start] == "already_there":
                # Who has it is asked to change nothing.
                guide.too_much(bar)
            else:
                lacking = answer.converged[own] & (beyond[own] < 0)
                closest = np.where(lacking, beyond[own], -np.inf).argmax()
                guide.too_little(bar, level[own][closest], beyond[own][closest])

    def next_bars(self) -> Array:
        """What to ask for each row ``(n,)``; 0 for nothing more."""
        return np.array([guide.next_bar() for guide in self._guides])

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


class _Guide:
    """What to ask next for one row, given how far witnesses were from agreeing so far.

    Args:
        least: the confidence that the question itself asks for.
    """

    def __init__(self, least: float) -> None:
        self.floor = least
        self.ceiling = np.inf
        # Log-odds of what an answer has, and how far it lies beyond what witnesses ask for.
        self._below: tuple[float, float] | None = None
        self._above: tuple[float, float] | None = None
        self._slope = _SLOPE
        self._open = True

    def too_little(self, bar: float | None, level: float, beyond: float) -> None:
        """Witnesses did not agree to the answer."""
        self.floor = max(self.floor, bar or 0.0, level)
        point = _log_odds(level), float(beyond)
        self._learn(self._below, point)
        self._below = point

    def enough(self, bar: float | None, level: float, beyond: float, less: bool) -> None:
        """Witnesses agreed; perhaps to ``less``, too."""
        self._open = less and bar is not None
        self.ceiling = min(self.ceiling, bar or 0.0)
        point = _log_odds(level), float(beyond)
        self._learn(self._below, point)
        self._above = point

    def too_much(self, bar: float | None) -> None:
        """Nothing like this was found. Who cannot get this cannot get more."""
        self.ceiling = min(self.ceiling, bar or 0.0)

    def next_bar(self) -> float:
        """0 for nothing more."""
        bars = BARS[(self.floor + _SAME < BARS) & (self.ceiling - _SAME > BARS)]
        if not self._open or self._below is None or not len(bars):
            return 0.0
        level, beyond = self._below
        if beyond < 0:
            needed = _probability(level - beyond / self._slope - _SLACK)
        else:
            needed = _probability(level + _FURTHER)
        later = bars[bars >= needed - _SAME]
        if len(later):
            return float(later[0])
        if self._above is not None:
            return 0.0
        # As much as can be had, which is known only if nothing was out of reach so far.
        return float(bars[-1] if np.isinf(self.ceiling) else bars[len(bars) // 2])

    def _learn(self, before: tuple[float, float] | None, now: tuple[float, float]) -> None:
        """How much witnesses gave for what was asked for."""
        if before is not None and now[0] > before[0]:
            slope = (now[1] - before[1]) / (now[0] - before[0])
            self._slope = float(np.clip(slope, *_SLOPES))


# Of two confidences that differ by rounding.
_SAME = 1e-6


def _log_odds(probability: float) -> float:
    return math.log(probability / (1 - probability))


def _probability(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds))


def _level(answer: Explanation) -> Array:
    """What each entry has of what a confidence asks for ``(e,)``."""
    level = answer.confidence * np.nan_to_num(answer.plausibility, nan=1.0)
    return np.asarray(level, dtype=np.float64).clip(_SAME, 1 - _SAME)


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
