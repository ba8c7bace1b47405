"""The advice engine: a beam search over sets of moves, on the values that people read.

A candidate is a person and a set of moves (:mod:`moves`). All people are searched at once, level by level:

1. Every single move.
2. Every pair of a coarser choice of moves.
3. For those whom two columns do not help: a beam of larger sets. Half of it is chosen by the cost so far and what is
   probably still missing, half by how much is reached. What an extension gives is forecast as the sum of what its moves
   give alone; only the most promising are put to the model.
4. For those whom that does not help: real rows of the target class, from which columns are taken back.

A candidate that reaches the bar is eased: each number goes back towards the person's own, as far as the bar allows.
Easing ends above the next coarser value, so that a bound on its result is known before. Candidates are eased in the
order of their bounds, until no bound is below the best result: what one or two columns can do is found exactly.

The model is asked about many points at once, the gate only about those that the model lets pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.advice.moves import FARTHEST, MoveBook, Moves
from counterfactual_training.advice.points import DIGITS, Factuals
from counterfactual_training.gates.anchors import remembered_rows
from counterfactual_training.search import evaluating
from counterfactual_training.search.model_checks import check_finite_logits
from counterfactual_training.threads import sensible_threads

if TYPE_CHECKING:
    from counterfactual_training.advice.find import Finder

# What one more column counts beside the cost of its change: of two answers that cost about the same, people want the
# one that changes fewer columns.
COLUMN = 0.4
# Pairs of moves per person, which decide how many moves of a column take part in pairs; and the fewest, and most.
_PAIRS, _COARSEST, _FINEST = 5000, 4, 12
# Points of wide tables are large, so that fewer are tried: encoded values in all pairs, and pairs.
_PAIR_VALUES, _FEWEST_PAIRS = 2**19, 500
# Values between two others that are tried at a time when a number is eased.
_BETWEEN = 15
# Candidates of a person that are eased at a time: few first, because most of the others are then known to be dearer.
_EASED = (8, 64)
# States in the beam, extensions put to the model per level, and levels without any answer before the beam gives up.
_WIDTH, _ASKED, _DEEPEST = 48, 240, 16
# Moves of a column that take part in them.
_DEEP = 16
# Real rows tried per person, and how many that arrive are shortened.
_REAL, _KEPT = 400, 3
# Looks around a best effort, values on either side each time, and how much closer the next look is.
_LOOKS, _AROUND, _CLOSER = 4, 16, 8.0
# Sets of columns that are looked at for further options.
_SUPPORTS = 12
# Encoded values of all points asked about at once; bounds memory.
_TOGETHER = 2**21
# Points that a gate judges at a time: its kernels should stay in the processor's cache.
_JUDGED = 512


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
    """Sets of moves ``(c, s)`` of some people ``(c,)`` that the model lets pass, and the least each can cost."""

    moves: Moves
    person: np.ndarray
    sets: np.ndarray
    least: np.ndarray

    def take(self, rows: np.ndarray) -> Candidates:
        return Candidates(self.moves, self.person[rows], self.sets[rows], self.least[rows])

    @classmethod
    def joined(cls, parts: Sequence[Candidates]) -> Candidates:
        names = ("person", "sets", "least")
        return cls(parts[0].moves, *(np.concatenate([getattr(part, name) for part in parts]) for name in names))


class Beam:
    """The search for n people who do not have their target yet.

    Args:
        finder: model, gate and rules.
        factuals: the people.
        y: ``(n,)`` their target classes.
        threshold: to reach.
        max_changes: the largest number of columns; ``None`` for any.
        columns: the features to try, by position; ``None`` for all.
    """

    def __init__(
        self,
        finder: Finder,
        factuals: Factuals,
        y: Tensor,
        threshold: float,
        max_changes: int | None,
        columns: np.ndarray | None = None,
    ) -> None:
        self.finder = finder
        # Bookkeeping is done on the CPU; only questions to model and gate go to the device.
        self.device = factuals.x.device
        held = None if factuals.held is None else factuals.held.cpu()
        self.factuals = factuals = replace(factuals, x=factuals.x.cpu(), held=held)
        self.x = factuals.x
        self.y = y.cpu()
        self.threshold = threshold
        # Above the threshold by what another batch may differ.
        self.enough = _logit(min(threshold + DIGITS, 1 - 1e-9))
        self.book = MoveBook(finder, factuals, columns)
        self.moves = self.book.all_moves()
        self.gated = finder.gate is not None
        self.labels = self.y.numpy()
        self.most = len(self.book.free) if max_changes is None else min(max_changes, len(self.book.free))
        n = len(self.x)
        self.best = np.full(n, math.inf)  # the lowest price so far
        self.asked = np.zeros(n, dtype=np.int64)  # points that the model was asked about
        self.pool = Pool()
        self.levels: list[Candidates] = []
        self.effort = self.x.clone()
        self.effort_score = np.full(n, -math.inf)

    # ---- the levels ------------------------------------------------------------------------------------------------

    def run(self, num_options: int) -> None:
        """Fill the pool."""
        with self._asking():
            self._check()
            for level in (self.singles, self.pairs):
                candidates = level(num_options)
                self.levels.append(candidates)
                self.settle(candidates, num_options)
            self._go_further()

    def run_alone(self, num_options: int) -> Pool:
        """What the model alone asks for, whatever the gate says: of people with an answer, only if it is cheaper."""
        plausible, self.pool = self.pool, Pool()
        self.gated = False
        with self._asking():
            for candidates in self.levels:
                self.settle(candidates, 1)
                missed = np.isinf(self.best[candidates.person])
                if num_options > 1 and missed.any():
                    self._settle_others(candidates.take(np.flatnonzero(missed)))
            self._go_further()
        alone, self.pool = self.pool, plausible
        self.gated = self.finder.gate is not None
        return alone

    def _check(self) -> None:
        """Raise if model or gate cannot be computed with."""
        x = self.x.to(self.device)
        check_finite_logits(self.finder.model(x))
        if self.finder.gate is not None:
            check_finite_logits(self.finder.gate(x))

    def _go_further(self) -> None:
        """Larger sets, for those who have no answer or might find a cheaper one; then real rows."""
        hopeful = np.isinf(self.best)
        if self.most > 2:
            hopeful |= self._hope() < self.best
        if hopeful.any() and self.most > 0 and not self.finder.late:
            self.deepen(np.flatnonzero(hopeful))
        missed = np.flatnonzero(np.isinf(self.best))
        if len(missed) and self.most > 0 and not self.finder.late:
            self.from_real_rows(missed)
        missed = np.flatnonzero(np.isinf(self.best))
        if len(missed) and self.most > 0 and not self.finder.late:
            self.come_closer(missed)

    def _hope(self) -> np.ndarray:
        """A price ``(n,)`` that three columns may reach: if all of the way cost as little as the best part of it."""
        missing = self.enough - self.odds_before
        gained = self.odds_alone - self.odds_before[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(self.moves.allowed, gained / self.moves.cost, 0.0).max(1, initial=0.0)
        return np.where(rate > 0, missing / np.maximum(rate, 1e-12), math.inf) + 3 * COLUMN

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Model and gate ready to be asked, once for all questions."""
        model = self.finder.model
        with ExitStack() as stack:
            stack.enter_context(evaluating(model))
            if self.finder.gate is not None:
                stack.enter_context(evaluating(self.finder.gate))
            stack.enter_context(torch.no_grad())
            stack.enter_context(sensible_threads(model, self.x))
            yield

    def singles(self, num_options: int) -> Candidates:
        """Level 1: every move of everybody."""
        everybody = np.arange(len(self.x))
        self.odds_before = self.odds(everybody, self.x)
        self.odds_alone = np.full(self.moves.usable.shape, -math.inf)
        person, move = self.moves.usable.nonzero()
        odds, kept = self.ask_sets(self.moves, person, move[:, None])
        self.odds_alone[person, move] = odds
        return self.passing(self.moves, person, move[:, None], odds, kept)

    def pairs(self, num_options: int) -> Candidates:
        """Level 2: every pair of a coarser choice of moves in two columns."""
        m = max(len(self.book.free), 2)
        pairs = min(_PAIRS, max(_FEWEST_PAIRS, _PAIR_VALUES // self.x.shape[1]))
        size = math.sqrt(2 * pairs / (m * (m - 1)))
        self.coarse, _ = self.moves.thinned(int(min(max(size, _COARSEST), _FINEST)))
        moves = self.coarse
        first, second = np.triu_indices(len(moves.feature), 1)
        apart = moves.feature[first] != moves.feature[second]
        first, second = first[apart], second[apart]
        if self.most < 2:
            first, second = first[:0], second[:0]
        limit = self.best if num_options == 1 else np.full_like(self.best, math.inf)
        people = max(1, _TOGETHER // max(1, len(first)))
        found = [Candidates(moves, first[:0], np.zeros((0, 2), dtype=np.int64), np.zeros(0))]
        for start in range(0, len(self.x), people):
            rows = slice(start, start + people)
            least = moves.least[rows][:, first] + moves.least[rows][:, second] + 2 * COLUMN
            worth = moves.usable[rows][:, first] & moves.usable[rows][:, second] & (least < limit[rows, None])
            person, pair = worth.nonzero()
            sets = np.stack([first[pair], second[pair]], 1)
            found.append(self.passing(moves, person + start, sets, *self.ask_sets(moves, person + start, sets)))
        return Candidates.joined(found)

    # ---- candidates that reach the bar -----------------------------------------------------------------------------

    def passing(
        self, moves: Moves, person: np.ndarray, sets: np.ndarray, odds: np.ndarray, kept: np.ndarray
    ) -> Candidates:
        """Those of the sets ``(c, s)`` that the model lets pass, by person and by the least that they can cost."""
        good = np.flatnonzero(kept & (odds >= self.enough))
        least = moves.least[person[good, None], sets[good]].sum(1) + COLUMN * sets.shape[1]
        order = np.lexsort((least, person[good]))
        return Candidates(moves, person[good][order], sets[good][order], least[order])

    def settle(self, found: Candidates, num_options: int) -> None:
        """Ease candidates in the order of the least that they can cost, until no other can be cheaper."""
        left = np.ones(len(found.person), dtype=bool)
        for size in (*_EASED, len(left) + 1):
            hopeful = np.flatnonzero(left & (found.least < self.best[found.person]))
            tried = hopeful[_rank_within(found.person[hopeful]) < size]
            if len(tried) == 0:
                break
            left[tried] = False
            self._ease_sets(found.take(tried))
        if num_options > 1:
            self._settle_others(found.take(np.flatnonzero(left)))

    def _settle_others(self, rest: Candidates) -> None:
        """Ease the most promising candidates of further sets of columns, for people who want several options."""
        key = rest.person.astype(np.int64)
        for column in np.sort(rest.moves.feature[rest.sets], 1).T:
            key = key * len(self.book.columns) + column
        # Two of each set of columns, of as many sets as may become options.
        order = np.lexsort((rest.least, key))
        first = order[_rank_within(key[order]) < 2]
        first = first[np.lexsort((rest.least[first], rest.person[first]))]
        first = first[_rank_within(rest.person[first]) < 2 * _SUPPORTS]
        self._ease_sets(rest.take(first), all_of_them=True)

    def _ease_sets(self, found: Candidates, all_of_them: bool = False) -> None:
        """Ease candidates that arrive, in one order of their moves and the other; the cheaper result counts."""
        moves, person, sets = found.moves, found.person, found.sets
        points = self.points(moves, person, sets)
        if self.gated:
            arrived = np.flatnonzero(self.passes(person, points, self.odds(person, points), np.ones(len(person), bool)))
            person, sets, points = person[arrived], sets[arrived], points[torch.as_tensor(arrived)]
        if len(person) == 0:
            return
        size = sets.shape[1]
        orders = np.array([range(size), range(size - 1, -1, -1)][: min(size, 2)])
        # One after the other for each candidate, but all candidates and both orders at once.
        turn = np.repeat(orders, len(person), axis=0)
        person, sets = np.tile(person, len(orders)), np.tile(sets, (len(orders), 1))
        points = points.repeat(len(orders), 1)
        feature = moves.feature[sets]
        number = moves.number[person[:, None], sets].copy()
        inner = moves.inner[person[:, None], sets]
        room = moves.cost[person[:, None], sets] - moves.least[person[:, None], sets]
        rows = np.arange(len(person))
        for step in range(size):
            at = turn[rows, step]
            number[rows, at] = self.ease(
                person[rows], points, rows, feature[rows, at], inner[rows, at], number[rows, at]
            )
            room[rows, at] = 0.0
            if not all_of_them:
                # Whoever cannot get below the best price by what is left is left alone.
                hope = self._price(person[rows], feature[rows], number[rows]) - room[rows].sum(1)
                rows = rows[hope < self.best[person[rows]]]
        fine = np.ones(len(rows), dtype=bool)
        allowed = moves.allowed[person[:, None], sets]
        for at in range(size):
            # What is eased from an allowed value is allowed.
            doubt = np.flatnonzero(fine & ~allowed[rows, at])
            own = rows[doubt]
            fine[doubt] = self.book.keeps_rules(feature[own, at], person[own], number[own, at])
        rows = rows[fine]
        person, points = person[rows], points[torch.as_tensor(rows)]
        if size == 1:
            self.add(person, points, self._price(person, feature[rows], number[rows]))
        else:
            # Eased, one of the changes may no longer be needed.
            self._add_points(person, self.undo(person, points))

    def ease(
        self,
        person: np.ndarray,
        points: Tensor,
        place: np.ndarray,
        feature: np.ndarray,
        low: np.ndarray,
        high: np.ndarray,
    ) -> np.ndarray:
        """Take one number of some points back from ``high`` towards ``low`` ``(a,)``, as far as the bar allows.

        Changes the points at ``place`` ``(a,)``, and returns their numbers. ``low`` itself is not tried.
        """
        low, high = low.copy(), high.copy()
        rows = np.flatnonzero(self.book.eases(feature) & (low != high))
        shares = np.arange(1, _BETWEEN + 1) / (_BETWEEN + 1)
        while len(rows):
            a, b = low[rows, None], high[rows, None]
            wanted = np.repeat(feature[rows], _BETWEEN)
            between = self.book.written(wanted, (a + (b - a) * shares).ravel()).reshape(-1, _BETWEEN)
            inside = (between - a) * (b - between) > 0
            at, which = inside.nonzero()
            if len(at) == 0:
                break
            trial = points[torch.as_tensor(place[rows[at]])]
            self.book.set_numbers(trial, np.arange(len(at)), feature[rows[at]], between[at, which])
            trial = self.follow(person[rows[at]], trial)
            first, chosen = self._nearest(person[rows[at]], trial, at, which, len(rows))
            found = chosen >= 0
            line = np.arange(len(rows))
            done = rows[found]
            high[done] = between[line, first][found]
            points[torch.as_tensor(place[done])] = trial[torch.as_tensor(chosen[found])]
            # The next try is between the one found and the one before; or beyond the last, if none was enough.
            last = _BETWEEN - 1 - inside[:, ::-1].argmax(1)
            before = np.where(first > 0, between[line, np.maximum(first - 1, 0)], low[rows])
            inward = np.where(found, before, between[line, last])
            tighter = (inward - low[rows]) * (high[rows] - inward) > 0
            low[rows] = np.where(tighter, inward, low[rows])
            rows = rows[inside.any(1) & (found | tighter)]
            rows = rows[self._room(feature[rows], low[rows], high[rows])]
        return high

    def _nearest(
        self, person: np.ndarray, trial: Tensor, line: np.ndarray, which: np.ndarray, size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of trials ``(t, d)``, several per line and in order, the first that arrives.

        Returns, for each of ``size`` lines, its number among those of the line and its place; −1 if none arrives.
        """
        odds = self.odds(person, trial)
        fine = (odds >= self.enough) & self.keeps(person, trial)
        first, chosen = np.zeros(size, dtype=np.int64), np.full(size, -1)
        good = np.flatnonzero(fine)
        # The gate is slow: it is asked about the nearest of each line, then about the others where it objects.
        for ask_all in (False, True):
            if len(good) == 0:
                break
            rank = _rank_within(line[good])
            tried = good if ask_all else good[rank == 0]
            mask = np.zeros(len(trial), dtype=bool)
            mask[tried] = True
            passed = np.flatnonzero(self.passes(person, trial, odds, mask))
            passed = passed[_rank_within(line[passed]) == 0]
            chosen[line[passed]] = passed
            first[line[passed]] = which[passed]
            good = good[(chosen[line[good]] < 0) & ~mask[good]]
        return first, chosen

    def _room(self, feature: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Mask ``(a,)`` of intervals with a number between their ends that was not tried."""
        grids = np.array([self.book.notations[j].grid for j in feature.tolist()])
        return np.abs(high - low) > 1.5 * grids

    def _price(self, person: np.ndarray, feature: np.ndarray, number: np.ndarray) -> np.ndarray:
        who = np.broadcast_to(person[:, None], feature.shape)
        return self.book.cost(feature, who, number).sum(1) + COLUMN * feature.shape[1]

    def add(self, person: np.ndarray, points: Tensor, price: np.ndarray) -> None:
        """Put answers into the pool."""
        self.pool.add(person, points, price)
        np.minimum.at(self.best, person, price)

    # ---- larger sets -----------------------------------------------------------------------------------------------

    def deepen(self, people: np.ndarray) -> None:
        """Levels 3 and more, for people whom one or two columns do not help; also finds the best efforts."""
        moves, _ = self.moves.thinned(_DEEP)
        start = self.x[torch.as_tensor(people)]
        odds0, gate0 = self.margins(people, start)
        self._note_effort(people, start, odds0, gate0)
        person, move = moves.allowed[people].nonzero()
        points = self.points(moves, people[person], move[:, None])
        odds, gate = self.margins(people[person], points)
        kept = self.keeps(people[person], points)
        self._note_effort(people[person], points, odds, np.where(kept, gate, -math.inf))
        states = []
        for i in range(len(people)):
            mine = person == i
            alone = move[mine], odds[mine], gate[mine]
            states.append(_States.first(moves, people[i], *alone, odds0[i], gate0[i], self.enough))
        for _ in range(2, min(self.most, _DEEPEST) + 1):
            picks = [state.extensions(self.best[state.person]) for state in states]
            owners = np.concatenate([np.full(len(p), i) for i, p in enumerate(picks)])
            if len(owners) == 0 or self.finder.late:
                break
            sets = np.concatenate([p for p in picks if len(p)])
            points = self.points(moves, people[owners], sets)
            odds, gate = self.margins(people[owners], points)
            kept = self.keeps(people[owners], points)
            self._note_effort(people[owners], points, odds, np.where(kept, gate, -math.inf))
            arrived = np.flatnonzero(kept & self._reached(odds, gate))
            if len(arrived):
                # The cheapest of each person; what is not needed of it is then taken back.
                cost = moves.cost[people[owners[arrived], None], sets[arrived]].sum(1)
                order = arrived[np.lexsort((cost, owners[arrived]))]
                chosen = order[_rank_within(owners[order]) < _KEPT]
                self.shorten(people[owners[chosen]], points[torch.as_tensor(chosen)])
            for i, state in enumerate(states):
                mine = owners == i
                state.move_on(sets[mine], odds[mine], gate[mine], len(picks[i]) == 0)

    def _note_effort(self, person: np.ndarray, points: Tensor, odds: np.ndarray, gate: np.ndarray) -> None:
        """Remember the point of each person that comes closest to the bar."""
        score = np.minimum(odds - self.enough, gate)
        order = np.lexsort((-score, person))
        order = order[_rank_within(person[order]) == 0]
        better = order[score[order] > self.effort_score[person[order]]]
        self.effort_score[person[better]] = score[better]
        self.effort[torch.as_tensor(person[better])] = points[torch.as_tensor(better)]

    def come_closer(self, people: np.ndarray) -> None:
        """Move numbers of best efforts, and of the best single moves, to better values around them.

        Some targets hold in a narrow band only, such as an interval of a regression, and lie between two values.
        """
        self._look_around(people, self.effort[torch.as_tensor(people)].clone())
        allowed = np.where(self.moves.allowed[people], self.odds_alone[people], -math.inf)
        some = np.flatnonzero(np.isfinite(allowed.max(1, initial=-math.inf)) & np.isinf(self.best[people]))
        if len(some):
            best = allowed[some].argmax(1)[:, None]
            self._look_around(people[some], self.points(self.moves, people[some], best))

    def _look_around(self, people: np.ndarray, points: Tensor) -> None:
        """Improve points ``(a, d)``, one for each of the people, number by number, closer and closer."""
        shares = np.arange(-_AROUND, _AROUND + 1) / _AROUND
        odds, gate = self.margins(people, points)
        score = np.minimum(odds - self.enough, gate)
        for look in range(_LOOKS):
            for j, notation in self.book.notations.items():
                width = notation.span / _CLOSER ** (look + 1)
                self._look_at(people, points, score, j, width * shares)

    def _look_at(self, people: np.ndarray, points: Tensor, score: np.ndarray, j: int, steps: np.ndarray) -> None:
        """Try numbers of one feature around those of the points, and keep the best of each person."""
        changed = self.changed(people, points)
        some = np.flatnonzero(
            ~self.book.held[people, j] & (changed[:, j] | (changed.sum(1) < self.most)) & np.isinf(self.best[people])
        )
        now = self.numbers(points[torch.as_tensor(some)], np.full(len(some), j))
        now = np.where(changed[some, j], now, self.book.base[people[some], j])
        place = np.repeat(some, len(steps))
        who, feature = people[place], np.full(len(place), j)
        number = self.book.written(feature, (now[:, None] + steps).ravel())
        fine = np.isfinite(number) & (number != self.book.base[who, j])
        fine[fine] = self.book.keeps_rules(feature[fine], who[fine], number[fine])
        place, who, number = place[fine], who[fine], number[fine]
        if len(who) == 0:
            return
        trial = points[torch.as_tensor(place)]
        self.book.set_numbers(trial, np.arange(len(who)), feature[fine], number)
        trial = self.follow(who, trial)
        odds, gate = self.margins(who, trial)
        kept = self.keeps(who, trial)
        self._note_effort(who, trial, odds, np.where(kept, gate, -math.inf))
        arrived = np.flatnonzero(kept & self._reached(odds, gate))
        self.shorten(who[arrived], trial[torch.as_tensor(arrived)])
        found = np.where(kept, np.minimum(odds - self.enough, gate), -math.inf)
        order = np.lexsort((-found, place))
        order = order[_rank_within(place[order]) == 0]
        better = order[found[order] > score[place[order]]]
        score[place[better]] = found[better]
        points[torch.as_tensor(place[better])] = trial[torch.as_tensor(better)]

    def from_real_rows(self, people: np.ndarray) -> None:
        """Start from real rows of the target class that the rules allow, the nearest first, and take columns back."""
        for label in self.y[torch.as_tensor(people)].unique().tolist():
            own = people[self.y[torch.as_tensor(people)].numpy() == label]
            rows = self._real_rows(int(label))
            if rows is None or len(rows) == 0:
                continue
            for i in own.tolist():
                self._from_rows(i, rows)

    def _real_rows(self, label: int) -> Tensor | None:
        """Rows ``(r, d)`` of a class."""
        background = self.finder.background
        if background is not None:
            return background.x[background.y == label].to(self.x)
        if self.finder.gate is None:
            return None
        remembered = remembered_rows(self.finder.gate)
        if remembered is None:
            return None
        rows = remembered[label]
        return rows[~rows.isnan().any(-1)].to(self.x)

    def _from_rows(self, i: int, rows: Tensor) -> None:
        points = self.x[i].repeat(len(rows), 1)
        moves, mine = self.moves, self.moves.allowed[i]
        z = rows.double().numpy()
        for j in self.book.free:
            here = np.flatnonzero((moves.feature == j) & mine)
            if len(here) == 0:
                continue
            start = self.book.starts[j]
            if self.book.one_hot[j]:
                wanted = z[:, start : start + self.book.columns[j].width].argmax(1)
                place = {int(moves.number[i, k]): k for k in here.tolist()}
                hit = np.array([k in place for k in wanted.tolist()])
                chosen = np.array([place[k] for k in wanted[hit].tolist()], dtype=np.int64)
                part = points[torch.as_tensor(np.flatnonzero(hit))]
                points[torch.as_tensor(np.flatnonzero(hit))] = moves.put(part, np.full(len(chosen), i), chosen)
            else:
                # The allowed value nearest to the real one; its own, if that is nearer.
                codes = np.append(moves.code[i].double().numpy()[here], self.book.codes[i, j])
                near = np.abs(z[:, start, None] - codes).argmin(1)
                points[:, start] = torch.as_tensor(codes[near]).to(points)
        who = np.full(len(points), i)
        points = self.follow(who, points)
        distance = (points - self.x[i]).abs().sum(-1).numpy()
        order = np.argsort(distance, kind="stable")[:_REAL]
        points = points[torch.as_tensor(order)]
        fine = np.flatnonzero(self.arrives(who[order], points))[:_KEPT]
        self.shorten(who[: len(fine)], points[torch.as_tensor(fine)])

    # ---- fewer and smaller changes ---------------------------------------------------------------------------------

    def shorten(self, person: np.ndarray, points: Tensor) -> None:
        """Put points ``(a, d)`` that arrive into the pool, without what they do not need of columns and numbers."""
        if len(person) == 0:
            return
        points = self.undo(person, points.clone())
        changed = self.changed(person, points)
        for at in range(int(changed.sum(1).max(initial=0))):
            size = self._costs(person, points)
            order = np.argsort(-size, 1, kind="stable")
            feature = order[:, at]
            own, now = self.book.base[person, feature], self.numbers(points, feature)
            rows = np.flatnonzero(np.take_along_axis(changed, order, 1)[:, at] & self.book.is_number[feature])
            if len(rows):
                self.ease(person[rows], points, rows, feature[rows], own[rows], now[rows])
        self._add_points(person, self.undo(person, points))

    def _add_points(self, person: np.ndarray, points: Tensor) -> None:
        """Put points ``(a, d)`` of few enough changes into the pool."""
        cost = self._costs(person, points)
        count = (cost > 0).sum(1)
        fine = np.flatnonzero((count <= self.most) & (count > 0))
        self.add(person[fine], points[torch.as_tensor(fine)], cost.sum(1)[fine] + COLUMN * count[fine])

    def undo(self, person: np.ndarray, points: Tensor) -> Tensor:
        """Take whole columns back, the dearest that can go first, until none can."""
        rows = np.arange(len(person))
        while len(rows):
            cost = self._costs(person[rows], points[torch.as_tensor(rows)])
            at, feature = (cost > 0).nonzero()
            if len(at) == 0:
                break
            trial = self._without(person[rows[at]], points[torch.as_tensor(rows[at])], feature)
            fine = np.zeros_like(cost)
            fine[at, feature] = self.arrives(person[rows[at]], trial)
            saved = np.where(fine > 0, cost, -1.0)
            chosen = saved.argmax(1)
            goes = np.flatnonzero(saved.max(1) > 0)
            place = np.full(cost.shape, -1)
            place[at, feature] = np.arange(len(at))
            points[torch.as_tensor(rows[goes])] = trial[torch.as_tensor(place[goes, chosen[goes]])]
            rows = rows[goes]
        return points

    def _without(self, person: np.ndarray, points: Tensor, feature: np.ndarray) -> Tensor:
        """Points ``(a, d)`` with one feature each as the person has it."""
        owner = self.finder.owner.numpy()
        mask = torch.as_tensor(owner[None] == feature[:, None])
        return self.follow(person, torch.where(mask, self.x[torch.as_tensor(person)], points))

    def changed(self, person: np.ndarray, points: Tensor) -> np.ndarray:
        """Mask ``(a, m)`` of the features that points change."""
        return self._costs(person, points) > 0

    def _costs(self, person: np.ndarray, points: Tensor) -> np.ndarray:
        """Cost ``(a, m)`` of each feature."""
        x = self.x[torch.as_tensor(person)].double().clamp(-FARTHEST, FARTHEST)
        moved = self.finder.distance(points.double().clamp(-FARTHEST, FARTHEST), x)
        return (moved * self.finder.difficulty).cpu().numpy()

    def numbers(self, points: Tensor, feature: np.ndarray) -> np.ndarray:
        """The number ``(a,)`` of one feature of each point, as written."""
        code = points[torch.arange(len(points)), torch.as_tensor(self.book.starts[feature])].double().numpy()
        number = code * self.book.scale[feature] + self.book.center[feature]
        found = number.copy()
        for j in np.unique(feature):
            if j in self.book.notations:
                here = feature == j
                found[here] = self.book.notations[j].write(number[here])
        return found

    # ---- the model and the gate ------------------------------------------------------------------------------------

    def points(self, moves: Moves, person: np.ndarray, sets: np.ndarray) -> Tensor:
        """Points ``(c, d)`` of people who make all moves of a set ``(c, s)``."""
        points = self.x[torch.as_tensor(person)]
        for at in range(sets.shape[1]):
            moves.put(points, person, sets[:, at])
        return self.follow(person, points)

    def follow(self, person: np.ndarray, points: Tensor) -> Tensor:
        """The points with what follows other columns computed anew."""
        if self.finder.related is None:
            return points
        return self.finder.related.follow(points, self.factuals.take(torch.as_tensor(person)))

    def keeps(self, person: np.ndarray, points: Tensor) -> np.ndarray:
        """Mask ``(a,)`` of points that keep the relations between columns."""
        if self.finder.related is None or len(person) == 0:
            return np.ones(len(person), dtype=bool)
        return self.finder.keeps(points, self.factuals.take(torch.as_tensor(person))).numpy()

    def ask_sets(self, moves: Moves, person: np.ndarray, sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The model's odds ``(c,)`` of candidates, and whether they keep relations between columns."""
        odds, kept = np.empty(len(person)), np.empty(len(person), dtype=bool)
        size = max(1, _TOGETHER // self.x.shape[1])
        for start in range(0, len(person), size):
            part = slice(start, start + size)
            points = self.points(moves, person[part], sets[part])
            odds[part] = self.odds(person[part], points)
            kept[part] = self.keeps(person[part], points)
        return odds, kept

    def odds(self, person: np.ndarray, points: Tensor) -> np.ndarray:
        """The log-odds ``(a,)`` of everybody's target at points ``(a, d)``."""
        np.add.at(self.asked, person, 1)
        size = max(1, _TOGETHER // self.x.shape[1])
        if len(points) == 0:
            return np.zeros(0)
        logits = torch.cat([self.finder.model(part.to(self.device)).cpu() for part in points.split(size)])
        return self.finder.odds_of(logits, self.y[torch.as_tensor(person)]).double().numpy()

    def arrives(self, person: np.ndarray, points: Tensor) -> np.ndarray:
        """Mask ``(a,)`` of points that reach the bar and keep relations."""
        odds = self.odds(person, points)
        fine = (odds >= self.enough) & self.keeps(person, points)
        return self.passes(person, points, odds, fine)

    def passes(self, person: np.ndarray, points: Tensor, odds: np.ndarray, fine: np.ndarray) -> np.ndarray:
        """The mask ``(a,)`` without the points that the gate does not let pass."""
        rows = np.flatnonzero(fine)
        if not self.gated or len(rows) == 0:
            return fine
        gate = self.gate_odds(person[rows], points[torch.as_tensor(rows)])
        passed = fine.copy()
        passed[rows] = self._reached(odds[rows], gate)
        return passed

    def margins(self, person: np.ndarray, points: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Log-odds ``(a,)`` of the model and of the gate."""
        return self.odds(person, points), self.gate_odds(person, points)

    def gate_odds(self, person: np.ndarray, points: Tensor) -> np.ndarray:
        """Log-odds ``(a,)`` that points are plausible; plus infinity without a gate."""
        gate = self.finder.gate
        if gate is None or not self.gated:
            return np.full(len(person), math.inf)
        found = np.zeros(len(person))
        labels = self.labels[person]
        for label in np.unique(labels).tolist():
            rows = np.flatnonzero(labels == label)
            parts = points[torch.as_tensor(rows)].split(_JUDGED)
            log_p = torch.cat([gate.of_class(part.to(self.device), label).cpu() for part in parts]).double()
            log_p = log_p.clamp_max(-1e-9)
            found[rows] = (log_p - torch.log(-torch.expm1(log_p))).numpy()
        return found

    def _reached(self, odds: np.ndarray, gate: np.ndarray) -> np.ndarray:
        if self.finder.decision or not self.gated:
            return (odds >= self.enough) & (gate >= _logit(0.5 + DIGITS))
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-odds)) / (1 + np.exp(-gate)) >= self.threshold + DIGITS


@dataclass
class _States:
    """One person's beam.

    Attributes:
        sets: ``(b, s)`` moves; with their odds, the gate's odds and their cost, ``(b,)`` each.
        gain_odds, gain_gate, costs: ``(M,)`` of every move alone; −inf and +inf where it is not allowed.
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
    ) -> _States:
        size = len(moves.feature)
        gain_odds, gain_gate = np.full(size, -math.inf), np.full(size, -math.inf)
        gain_odds[move] = odds - odds0
        # Infinite without a gate.
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
        kept = _both(cost + need, first + second, _WIDTH)
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
        chosen = _both(score, reach, _ASKED)
        chosen = chosen[np.isfinite(score[chosen])]
        which, move = np.unravel_index(chosen, inside.shape)
        found = np.sort(np.concatenate([sets[which], move[:, None]], 1), 1)
        return np.unique(found, axis=0)

    def move_on(self, sets: np.ndarray, odds: np.ndarray, gate: np.ndarray, done: bool) -> None:
        """Go on from these sets, or not at all."""
        self.sets, self.odds, self.gate = sets, odds, gate
        self.over = done


def _both(one: np.ndarray, other: np.ndarray, size: int) -> np.ndarray:
    """Places of the lowest of two scores, half by one and half by the other, each place once."""
    half = min(size // 2, len(one))
    if half == 0:
        return np.zeros(0, dtype=np.int64)
    return np.unique(np.concatenate([_lowest(one, half), _lowest(other, half)]))


def _lowest(score: np.ndarray, size: int) -> np.ndarray:
    # Stable, so that a person's answer does not depend on who is asked about beside.
    return np.argsort(score, kind="stable")[:size]


def _rank_within(groups: np.ndarray) -> np.ndarray:
    """The place of each entry within its group, of sorted groups ``(a,)``."""
    if len(groups) == 0:
        return groups
    new = np.r_[True, groups[1:] != groups[:-1]]
    starts = np.flatnonzero(new)
    return np.arange(len(groups)) - np.repeat(starts, np.diff(np.r_[starts, len(groups)]))


def _logit(p: float) -> float:
    return math.log(p) - math.log1p(-p)
