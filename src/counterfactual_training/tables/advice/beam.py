"""The advice engine: a beam search over sets of moves, on the values that people read.

A candidate is a person and a set of moves (:mod:`moves`). All people are searched at once, level by
level:

1. Every single move.
2. Every pair of a coarser choice of moves that may be cheaper than what is known; then every pair
   of all moves that promises enough and may be cheaper (:mod:`fine_pairs`).
3. Every triple of these that promises enough, of model and gate, and may be cheaper
   (:mod:`triples`).
4. For those whom three columns do not help: a beam of larger sets. Half of it is chosen by the cost
   so far and what is probably still missing, half by how much is reached. What an extension gives
   is forecast as the sum of what its moves give alone; only the most promising are put to the
   model.
5. In tables of hundreds of columns, for those whom three columns do not help: where a search along
   gradients arrives. For those who still have no answer: real rows of the target class. Of either,
   columns are taken back. At last, values around best efforts (:mod:`efforts`).

Whom levels 1 to 3 help gets answers of up to three columns from them alone.

A candidate that reaches the bar is eased: each number goes back towards the person's own, as far as
the bar allows. Easing ends above the next coarser value, so that a bound on its result is known
before. Candidates are eased in the
order of their bounds, until no bound is below the best result: of these candidates the best one is
found exactly.
Of one number that only the model accepts, the nearest value that it accepts is tried too: a gate or
a relation may leave no more than a narrow band.

The model is asked about many points at once, the gate only about those that the model lets pass.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.generators import Generator
from counterfactual_training.tables.advice.candidates import (
    COLUMN,
    Candidates,
    Pool,
    is_first,
    places,
    rank_within,
)
from counterfactual_training.tables.advice.easing import Easing
from counterfactual_training.tables.advice.efforts import fall_back, note_effort
from counterfactual_training.tables.advice.fine_pairs import find_fine_pairs
from counterfactual_training.tables.advice.moves import MoveBook, Moves
from counterfactual_training.tables.advice.oracle import Oracle
from counterfactual_training.tables.advice.points import Factuals
from counterfactual_training.tables.advice.states import Reached, States
from counterfactual_training.tables.advice.swaps import swap_columns
from counterfactual_training.tables.advice.triples import find_triples

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.find import Finder

# Pairs of moves per person, which decide how many moves of a column take part in pairs; and the
# fewest, and most.
_PAIRS = 10_000
_COARSEST = 6
_FINEST = 12
# Pairs of all people that are looked at together: more would not stay in the processor's cache.
_TOGETHER = 2**17
# Pairs of a person that are put to the model first.
_NEAR = 800
# Columns up to which the levels try every set that may be the answer.
TRIED = 3
# Candidates of a person that are eased at a time: few first, because most of the others are then
# known to cost more.
_EASED = (32, 256, 1024)
# The largest sets of columns, and moves of a column that take part in sets of three and more.
_DEEPEST = 48
_DEEP = 16
# Levels without a cheaper answer after which larger sets of a person with an answer are left alone:
# hardly any improves on it then.
_PATIENCE = 4
# Larger sets of a person that are shortened at a time, of those that arrive.
_KEPT = 3
# Sets of columns that are looked at for further options.
_SUPPORTS = 12


class Beam:
    """The search for n people who do not have their target yet.

    Args:
        finder: model, gate and rules.
        factuals: the people.
        y: ``(n,)`` their target classes.
        threshold: to reach.
        max_changes: the largest number of columns; ``None`` for any.
        features: ``(f,)`` those to try, by position; ``None`` for all.
        num_columns: that a person may change at most, whatever the question says; ``None`` for all.
        generator: a search along gradients, for tables of hundreds of columns; ``None`` does
            without.
    """

    def __init__(
        self,
        finder: Finder,
        factuals: Factuals,
        y: Tensor,
        threshold: float,
        max_changes: int | None,
        features: np.ndarray | None = None,
        num_columns: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        self.finder = finder
        # Of many columns, which of them are searched depends on the question anyway, and sets of
        # three take longer than the rest.
        self.tried = TRIED if features is None else TRIED - 1
        if num_columns is None:
            self.num_columns = len(finder.encoder.columns_)
        else:
            self.num_columns = num_columns
        self.generator = generator
        self.oracle = Oracle(
            finder, factuals, y, threshold, finder.movable if features is None else features
        )
        self.window = self.oracle.window
        self.x = self.window.own
        self.book = MoveBook(finder, self.oracle.factuals, self.window)
        self.easing = Easing(self.oracle, self.book)
        self.moves = self.book.all_moves()
        if max_changes is None:
            self.most = len(self.book.free)
        else:
            self.most = min(max_changes, len(self.book.free))
        n = len(self.x)
        self.best = np.full(n, math.inf)  # the lowest price so far, and the answer that has it
        self.answer = self.x.clone()
        self.pool = Pool()
        self.levels: list[Candidates] = []
        # Pairs that can cost less than this were asked about in the first round.
        self._border = np.full(n, math.inf)
        # Whom one or two columns help, and whom up to three do.
        self._helped_by_two = np.zeros(n, dtype=bool)
        self._helped = np.zeros(n, dtype=bool)
        self.effort = self.x.clone()
        self.effort_score = np.full(n, -math.inf)

    # ---- the levels ------------------------------------------------------------------------------

    def run(self, num_options: int) -> None:
        """Fill the pool."""
        with self.oracle.asking():
            self.oracle.check()
            for level in (self.singles, self.near_pairs, self.far_pairs):
                candidates = level(num_options)
                self.levels.append(candidates)
                self.settle(candidates, num_options)
            if self.most > 1 and not self.finder.late:
                # For the best answer only: options are of the coarser choice.
                self.settle(find_fine_pairs(self), 1)
            if self.tried == TRIED and self.most >= TRIED and not self.finder.late:
                self._helped_by_two = np.isfinite(self.best)
                everybody = np.arange(len(self.x))
                self.settle(find_triples(self, everybody), num_options)
            self._go_further(np.ones(len(self.x), dtype=bool))

    def run_alone(self, num_options: int) -> Pool:
        """What the model alone asks for, whatever the gate says: of people with an answer, only if
        it is cheaper.
        """
        plausible = self.pool
        self.pool = Pool()
        # Best efforts stay those that the gate has seen.
        effort = self.effort.clone()
        score = self.effort_score.copy()
        self.oracle.gated = False
        with self.oracle.asking():
            before = self.best.copy()
            missed = np.isinf(before)
            for candidates in self.levels:
                self._settle_alone(candidates, missed, num_options)
            if self.tried == TRIED and self.most >= TRIED and not self.finder.late:
                people = np.flatnonzero(missed | (self.best == before))
                self._settle_alone(find_triples(self, people), missed, num_options)
            # A second opinion on a plausible answer is not worth a search of larger sets.
            self._go_further(missed)
        alone = self.pool
        self.pool = plausible
        self.effort = effort
        self.effort_score = score
        self.oracle.gated = self.finder.gate is not None
        return alone

    def _settle_alone(
        self, candidates: Candidates, missed: np.ndarray, num_options: int
    ) -> None:
        """Ease candidates that may be the best; of people with no answer that the gate lets pass,
        those that may be further options, too.
        """
        self.settle(candidates, 1)
        rows = np.flatnonzero(missed[candidates.person])
        if num_options > 1 and len(rows):
            self._settle_others(candidates.take(rows), num_options)

    def _go_further(self, demanding: np.ndarray) -> None:
        """Larger sets and other columns, for those who have no answer and, of the ``demanding``
        people ``(n,)``, for those who might find a cheaper one.

        Then gradients, real rows, and looks around best efforts, for those without.
        """
        hopeful = np.isinf(self.best)
        helpless = np.flatnonzero(hopeful)
        self._helped = ~hopeful
        if self.most > self.tried:
            hopeful |= demanding & (self._hope() < self.best)
        if hopeful.any() and self.most > 0 and not self.finder.late:
            self.deepen(np.flatnonzero(hopeful))
        if len(helpless) and self.generator is not None and not self.finder.late:
            self.from_gradients(helpless, self.generator)
        swap_columns(self, np.flatnonzero(hopeful))
        fall_back(self)

    def _hope(self) -> np.ndarray:
        """A price ``(n,)`` that four or more columns may reach, if what they gain adds up.

        Columns are taken in the order of what a unit of cost buys at best, each as far as it leads.
        """
        n = len(self.x)
        if self.moves.feature.size == 0:
            return np.full(n, math.inf)
        gained = np.where(self.moves.allowed, self.odds_alone - self.odds_before[:, None], 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(gained > 0, gained / self.moves.cost, 0.0)
        starts = np.flatnonzero(is_first(self.moves.feature))
        gain = np.maximum.reduceat(gained, starts, 1)
        rate = np.maximum.reduceat(rate, starts, 1)
        order = np.argsort(-rate, 1, kind="stable")
        gain = np.take_along_axis(gain, order, 1)
        rate = np.maximum(np.take_along_axis(rate, order, 1), 1e-12)
        missing = (self.oracle.enough - self.odds_before)[:, None]
        before = np.cumsum(gain, 1) - gain
        part = np.clip(missing - before, 0.0, gain)
        size = np.maximum((part > 0).sum(1), self.tried + 1)
        price = (part / rate).sum(1) + COLUMN * size
        return np.where(gain.sum(1) >= missing[:, 0], price, math.inf)

    def singles(self, num_options: int) -> Candidates:
        """Level 1: every move of everybody."""
        everybody = np.arange(len(self.x))
        self.odds_before = self.oracle.odds(everybody, self.x)
        self.odds_alone = np.full(self.moves.usable.shape, -math.inf)
        person, move = places(self.moves.usable)
        odds, kept = self.ask_sets(self.moves, person, move[:, None])
        self.odds_alone[person, move] = odds
        return self.passing(self.moves, person, move[:, None], odds, kept)

    def near_pairs(self, num_options: int) -> Candidates:
        """Level 2: of all pairs of coarser moves in two columns, those that can be cheapest."""
        return self._pairs(num_options, near=True)

    def far_pairs(self, num_options: int) -> Candidates:
        """The others, for people whose options so far are not all cheaper."""
        return self._pairs(num_options, near=False)

    def _pairs(self, num_options: int, near: bool) -> Candidates:
        moves = self.coarse
        first, second = self.pairs
        if self.most < 2:
            first = first[:0]
            second = second[:0]
        limit = self.limit(num_options)
        people = max(1, _TOGETHER // max(1, len(first)))
        none = np.zeros((0, 2), dtype=np.int64)
        found = [self.passing(moves, none[:, 0], none, np.zeros(0), np.zeros(0, dtype=bool))]
        for start in range(0, len(self.x), people):
            rows = slice(start, start + people)
            alone = np.where(moves.usable[rows], moves.least[rows], math.inf)
            least = alone.take(first, 1) + alone.take(second, 1) + 2 * COLUMN
            if near:
                if least.shape[1] > _NEAR:
                    self._border[rows] = np.partition(least, _NEAR, 1)[:, _NEAR]
                # Whom no column helps alone needs most pairs anyway.
                self._border[rows][np.isinf(self.best[rows])] = math.inf
                self._border[rows] = np.minimum(self._border[rows], limit[rows])
            border = self._border[rows, None]
            if near:
                worth = least < border
            else:
                worth = (least >= border) & (least < limit[rows, None])
            person, pair = places(worth)
            sets = np.stack([first[pair], second[pair]], 1)
            found.append(
                self.passing(
                    moves, person + start, sets, *self.ask_sets(moves, person + start, sets)
                )
            )
        return Candidates.joined(found)

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """The first and the second move ``(p,)`` of all pairs of coarser moves in two columns."""
        first, second = np.triu_indices(len(self.coarse.feature), 1)
        apart = self.coarse.feature[first] != self.coarse.feature[second]
        return first[apart], second[apart]

    @property
    def _coarseness(self) -> int:
        """How many moves of a column take part in pairs and triples."""
        # Of all columns, not of those that this question leaves: its bounds must not change the
        # values.
        m = max(self.num_columns, 2)
        size = math.sqrt(2 * _PAIRS / (m * (m - 1)))
        return int(min(max(size, _COARSEST), _FINEST))

    @cached_property
    def coarse_gains(self) -> np.ndarray:
        """Log-odds ``(n, M)`` that each of the coarser moves gains alone; −∞ if not usable."""
        odds = self.odds_alone[:, self.moves.spread(self._coarseness)]
        # Values beyond a bound, of which not all were tried alone.
        person, move = (self.coarse.usable & np.isinf(odds)).nonzero()
        odds[person, move] = self.ask_sets(self.coarse, person, move[:, None])[0]
        return np.where(self.coarse.usable, odds - self.odds_before[:, None], -math.inf)

    @cached_property
    def coarse(self) -> Moves:
        """The moves that take part in pairs and triples."""
        most = self._coarseness
        # Of columns with more categories than that, those that gain something alone: the others
        # hardly ever help.
        few = self.book.is_number | (
            np.bincount(self.moves.feature, minlength=len(self.book.columns)) <= most
        )
        gains = few[self.moves.feature] | (self.odds_alone > self.odds_before[:, None])
        return replace(self.moves, allowed=self.moves.allowed & gains).thinned(most)

    def limit(self, num_options: int) -> np.ndarray:
        """The price of everybody's last option so far ``(n,)``, which others must beat; or ∞."""
        if num_options == 1:
            return self.best
        person, points, price = self.pool.joined(self.x.shape[1], self.x)
        order = np.lexsort((price, person))
        changed = self.easing.changed(person, points)[order]
        person = person[order]
        price = price[order]
        # Everybody's cheapest, then the cheapest that neither changes all of its columns nor only
        # some of them.
        last = np.full(len(self.x), math.inf)
        for _ in range(num_options):
            first = is_first(person)
            last[:] = math.inf
            last[person[first]] = price[first]
            chosen = np.zeros((len(self.x), changed.shape[1]), dtype=bool)
            chosen[person[first]] = changed[first]
            apart = (chosen[person] & ~changed).any(1) & (changed & ~chosen[person]).any(1)
            person = person[apart]
            changed = changed[apart]
            price = price[apart]
        return last

    # ---- candidates that reach the bar -----------------------------------------------------------

    def passing(
        self,
        moves: Moves,
        person: np.ndarray,
        sets: np.ndarray,
        odds: np.ndarray,
        kept: np.ndarray,
    ) -> Candidates:
        """Those of the sets ``(c, s)`` that the model lets pass, by person and by the least that
        they can cost.
        """
        good = np.flatnonzero(odds >= self.oracle.enough)
        least = moves.least[person[good, None], sets[good]].sum(1) + COLUMN * sets.shape[1]
        order = np.lexsort((least, person[good]))
        good = good[order]
        edge = moves.at_edge(person[good], sets[good])
        found = Candidates(
            moves, person[good], sets[good], least[order], odds[good], kept[good], edge
        )
        return found.take(np.flatnonzero(found.kept | edge))

    def settle(self, found: Candidates, num_options: int) -> None:
        """Ease candidates, those that can cost least first, until no other can be cheaper."""
        left = np.ones(len(found.person), dtype=bool)
        for size in (*_EASED, len(left) + 1):
            hopeful = np.flatnonzero(left & (found.least < self.best[found.person]))
            tried = hopeful[rank_within(found.person[hopeful]) < size]
            if len(tried) == 0:
                break
            left[tried] = False
            self._ease_sets(found.take(tried))
        if num_options > 1:
            self._settle_others(found.take(np.flatnonzero(left)), num_options)

    def _settle_others(self, rest: Candidates, num_options: int) -> None:
        """Ease the best candidates of further sets of columns, for who wants several options."""
        rest = rest.take(np.flatnonzero(rest.least < self.limit(num_options)[rest.person]))
        key = rest.person.astype(np.int64)
        for column in np.sort(rest.moves.feature[rest.sets], 1).T:
            key = key * len(self.book.columns) + column
        # Two of each set of columns, of as many sets as may become options.
        order = np.lexsort((rest.least, key))
        first = order[rank_within(key[order]) < 2]
        first = first[np.lexsort((rest.least[first], rest.person[first]))]
        first = first[rank_within(rest.person[first]) < 2 * _SUPPORTS]
        self._ease_sets(rest.take(first), only_others=True)

    def _ease_sets(self, found: Candidates, only_others: bool = False) -> None:
        """Ease candidates that arrive: pairs in both orders of their moves, and the cheaper counts;
        of triples the dearest changes first.

        With ``only_others``, all of them are eased, for the sake of other options, and none becomes
        the best answer: that is the one of a question for one option.
        """
        points = self.points(found.moves, found.person, found.sets)
        # The model lets them pass already.
        arrived = self.oracle.passes(found.person, points, found.odds, found.kept)
        rows = np.flatnonzero(arrived)
        self._ease_arrived(
            found.take(rows), points.index_select(0, torch.from_numpy(rows)), only_others
        )
        if not only_others:
            rows = np.flatnonzero(~arrived & found.edge)
            self._ease_edge(found.take(rows), points.index_select(0, torch.from_numpy(rows)))

    def _ease_edge(self, found: Candidates, points: Tensor) -> None:
        """Ease candidates of one number that only the model lets pass, as far as it does.

        Where gate and relations leave a narrow band, no value of a table may lie in it. The next
        one back misses the bar, so that the nearest number that reaches it lies between the two.
        """
        rows = np.flatnonzero(found.least < self.best[found.person])
        if len(rows) == 0:
            return
        found = found.take(rows)
        points = points.index_select(0, torch.from_numpy(rows))
        person = found.person
        # The number stands first.
        eases = found.moves.book.eases(found.moves.feature[found.sets])
        sets = np.take_along_axis(found.sets, np.argsort(~eases, 1, kind="stable"), 1)
        feature = found.moves.feature[sets]
        number = found.moves.number[person[:, None], sets].copy()
        inner = found.moves.inner[person, sets[:, 0]]
        every = np.arange(len(person))
        most = self._most(person, feature, number, every * 0)
        with self.oracle.model_only():
            number[:, 0] = self.easing.ease(
                person, points, every, feature[:, 0], inner, number[:, 0], most
            )
        hopeful = self._price(person, feature, number) < self.best[person]
        hopeful &= self.book.keeps_rules(feature[:, 0], person, number[:, 0])
        hopeful &= found.moves.allowed[person[:, None], sets][:, 1:].all(1)
        rows = np.flatnonzero(hopeful)
        rows = rows[
            self.oracle.arrives(person[rows], points.index_select(0, torch.from_numpy(rows)))
        ]
        self._add_points(
            person[rows],
            self.easing.undo(person[rows], points.index_select(0, torch.from_numpy(rows))),
        )

    def _ease_arrived(self, found: Candidates, points: Tensor, only_others: bool) -> None:
        moves = found.moves
        person = found.person
        sets = found.sets
        if len(person) == 0:
            return
        size = sets.shape[1]
        # One after the other for each candidate, but all candidates and both orders at once.
        if size == 2:
            turn = np.repeat([[0, 1], [1, 0]], len(person), axis=0)
            person = np.tile(person, 2)
            sets = np.tile(sets, (2, 1))
            points = points.repeat(2, 1)
        feature = moves.feature[sets]
        number = moves.number[person[:, None], sets].copy()
        inner = moves.inner[person[:, None], sets]
        room = moves.cost[person[:, None], sets] - moves.least[person[:, None], sets]
        if size != 2:
            turn = np.argsort(-room, 1, kind="stable")
        rows = np.arange(len(person))
        for step in range(size):
            at = turn[rows, step]
            room[rows, at] = 0.0
            most = None
            if not only_others:
                most = self._most(person[rows], feature[rows], number[rows], at)
                most += room[rows].sum(1)
            number[rows, at] = self.easing.ease(
                person[rows],
                points,
                rows,
                feature[rows, at],
                inner[rows, at],
                number[rows, at],
                most,
            )
            if not only_others:
                # Whoever cannot get below the best price by what is left is left alone.
                hope = self._price(person[rows], feature[rows], number[rows]) - room[rows].sum(
                    1
                )
                rows = rows[hope < self.best[person[rows]]]
        fine = np.ones(len(rows), dtype=bool)
        allowed = moves.allowed[person[:, None], sets]
        for at in range(size):
            # What is eased from an allowed value is allowed.
            doubt = np.flatnonzero(fine & ~allowed[rows, at])
            own = rows[doubt]
            fine[doubt] = self.book.keeps_rules(feature[own, at], person[own], number[own, at])
        rows = rows[fine]
        person = person[rows]
        points = points.index_select(0, torch.from_numpy(rows))
        if size == 1:
            self.add(
                person, points, self._price(person, feature[rows], number[rows]), only_others
            )
        else:
            # Eased, one of the changes may no longer be needed.
            points = self.easing.undo(person, points)
            if size > 2:
                # Whom two columns help has the best of such answers already, see shorten.
                few = self.easing.changed(person, points).sum(1) <= 2
                rows = np.flatnonzero(~(few & self._helped_by_two[person]))
                person = person[rows]
                points = points.index_select(0, torch.from_numpy(rows))
            self._add_points(person, points, only_others)

    def _price(self, person: np.ndarray, feature: np.ndarray, number: np.ndarray) -> np.ndarray:
        who = np.broadcast_to(person[:, None], feature.shape)
        return self.book.cost(feature, who, number).sum(1) + COLUMN * feature.shape[1]

    def _most(
        self, person: np.ndarray, feature: np.ndarray, number: np.ndarray, at: np.ndarray
    ) -> np.ndarray:
        """What one of the numbers ``(a, s)``, the one at ``at``, may cost below the best price."""
        line = np.arange(len(person))
        own = self.book.cost(feature[line, at], person, number[line, at])
        return self.best[person] - self._price(person, feature, number) + own

    def add(
        self, person: np.ndarray, points: Tensor, price: np.ndarray, only_others: bool = False
    ) -> None:
        """Put answers into the pool; with ``only_others``, those no better than the best."""
        if only_others:
            rows = np.flatnonzero(price >= self.best[person])
            person = person[rows]
            points = points.index_select(0, torch.from_numpy(rows))
            price = price[rows]
        self.pool.add(person, points, price)
        order = np.lexsort((price, person))
        order = order[is_first(person[order])]
        better = order[price[order] < self.best[person[order]]]
        self.best[person[better]] = price[better]
        self.answer[torch.from_numpy(person[better])] = points[torch.from_numpy(better)]

    # ---- larger sets -----------------------------------------------------------------------------

    def deepen(self, people: np.ndarray) -> None:
        """Larger sets, for people whom two columns do not help or who may find a cheaper answer;
        finds best efforts.
        """
        moves = self.moves.thinned(_DEEP)
        states = self._first_states(moves, people)
        # The price of everybody's best answer, and the level that found it.
        price = self.best.copy()
        level = np.ones(len(price), dtype=np.int64)
        for size in range(2, min(self.most, _DEEPEST) + 1):
            level[self.best < price] = size - 1
            price = self.best.copy()
            patient = np.isinf(price) | (size - level <= _PATIENCE)
            states = [state for state in states if patient[state.person]]
            picks = [state.extensions(self.best[state.person]) for state in states]
            states = [state for state, pick in zip(states, picks, strict=True) if len(pick)]
            picks = [pick for pick in picks if len(pick)]
            if not picks or self.finder.late:
                break
            self._extend(moves, states, picks)

    def _first_states(self, moves: Moves, people: np.ndarray) -> list[States]:
        """Everybody's beam of single moves."""
        start = self.x[torch.from_numpy(people)]
        own = Reached(*self.oracle.margins(people, start))
        note_effort(self, people, start, *own)
        who, move = moves.allowed[people].nonzero()
        points = self.points(moves, people[who], move[:, None])
        alone = Reached(*self.oracle.margins(people[who], points))
        kept = self.oracle.keeps(people[who], points)
        note_effort(
            self, people[who], points, alone.odds, np.where(kept, alone.gate, -math.inf)
        )
        states = []
        ends = np.searchsorted(who, np.arange(len(people) + 1))
        for i, person in enumerate(people.tolist()):
            mine = np.arange(ends[i], ends[i + 1])
            states.append(
                States(
                    moves, person, move[mine], alone.take(mine), own.take(i), self.oracle.enough
                )
            )
        return states

    def _extend(self, moves: Moves, states: list[States], picks: list[np.ndarray]) -> None:
        """Ask about the extensions picked for each beam, and move the beams on to them."""
        person = np.concatenate(
            [np.full(len(p), state.person) for p, state in zip(picks, states, strict=True)]
        )
        sets = np.concatenate(
            [state.move[pick] for pick, state in zip(picks, states, strict=True)]
        )
        odds, kept = self.ask_sets(moves, person, sets)
        # What breaks a relation has reached nothing, or the beam would fill with such sets.
        odds = np.where(kept, odds, np.minimum(odds, self.odds_before[person]))
        ends = np.cumsum([len(pick) for pick in picks])
        parts = np.split(odds, ends[:-1])
        judged = [
            s.worth_judging(p, own) for s, p, own in zip(states, picks, parts, strict=True)
        ]
        some = np.concatenate(
            [own + end - len(p) for own, end, p in zip(judged, ends, picks, strict=True)]
        )
        gate = self._judge(moves, person[some], sets[some], odds[some])
        ends = np.cumsum([len(own) for own in judged])
        reached = Reached(odds[some], gate)
        for state, pick, own, end in zip(states, picks, judged, ends, strict=True):
            state.move_on(pick[own], reached.take(slice(end - len(own), end)))

    def _judge(
        self,
        moves: Moves,
        person: np.ndarray,
        sets: np.ndarray,
        odds: np.ndarray,
    ) -> np.ndarray:
        """The gate's odds ``(a,)`` of sets; everybody's cheapest that arrive are shortened."""
        points = self.points(moves, person, sets)
        gate = self.oracle.gate_odds(person, points)
        kept = self.oracle.keeps(person, points)
        note_effort(self, person, points, odds, np.where(kept, gate, -math.inf))
        arrived = np.flatnonzero(kept & self.oracle.reached(odds, gate))
        if len(arrived):
            cost = moves.cost[person[arrived, None], sets[arrived]].sum(1)
            order = arrived[np.lexsort((cost, person[arrived]))]
            chosen = order[rank_within(person[order]) < _KEPT]
            self.shorten(person[chosen], points.index_select(0, torch.from_numpy(chosen)))
        return gate

    def from_gradients(self, people: np.ndarray, generator: Generator) -> None:
        """Start where gradients arrive in any number of columns, and take columns back."""
        rows = torch.from_numpy(people)
        factuals = self.oracle.factuals.take(rows).to(self.oracle.device)
        if self.oracle.gated:
            finder = self.finder
        else:
            finder = replace(self.finder, gate=None)
        found = finder.descend(
            factuals, self.oracle.y[rows].to(self.oracle.device), generator, False
        )[0]
        points = found.cpu()[:, self.window.columns]
        fine = np.flatnonzero(self.oracle.arrives(people, points))
        self.shorten(people[fine], points.index_select(0, torch.from_numpy(fine)))

    # ---- fewer and smaller changes ---------------------------------------------------------------

    def shorten(self, person: np.ndarray, points: Tensor) -> None:
        """Put points ``(a, d)`` that arrive into the pool, without what they do not need.

        Whom up to three columns help has the best of such answers from the levels, where a freer
        question has all candidates of a tighter one: a point of finer values would break that.
        """
        if len(person) == 0:
            return
        points = self.easing.undo(person, points.clone())
        changed = self.easing.changed(person, points)
        for at in range(int(changed.sum(1).max(initial=0))):
            size = self.easing.costs(person, points)
            order = np.argsort(-size, 1, kind="stable")
            feature = order[:, at]
            own = self.book.base[person, feature]
            now = self.easing.numbers(points, feature)
            rows = np.flatnonzero(
                np.take_along_axis(changed, order, 1)[:, at] & self.book.is_number[feature]
            )
            if len(rows):
                self.easing.ease(
                    person[rows], points, rows, feature[rows], own[rows], now[rows]
                )
        points = self.easing.undo(person, points)
        few = self.easing.changed(person, points).sum(1) <= self.tried
        rows = np.flatnonzero(~(few & self._helped[person]))
        self._add_points(person[rows], points.index_select(0, torch.from_numpy(rows)))

    def _add_points(
        self, person: np.ndarray, points: Tensor, only_others: bool = False
    ) -> None:
        """Put points ``(a, d)`` of few enough changes into the pool."""
        cost = self.easing.costs(person, points)
        count = (cost > 0).sum(1)
        fine = np.flatnonzero((count <= self.most) & (count > 0))
        self.add(
            person[fine],
            points.index_select(0, torch.from_numpy(fine)),
            cost.sum(1)[fine] + COLUMN * count[fine],
            only_others,
        )

    def points(self, moves: Moves, person: np.ndarray, sets: np.ndarray) -> Tensor:
        """Points ``(c, d)`` of people who make all moves of a set ``(c, s)``."""
        points = moves.put(self.x.index_select(0, torch.from_numpy(person)), person, sets)
        return self.oracle.follow(person, points)

    def ask_sets(
        self, moves: Moves, person: np.ndarray, sets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The model's odds ``(c,)`` of candidates, and whether they keep relations."""
        odds = np.empty(len(person))
        kept = np.empty(len(person), dtype=bool)
        size = self.oracle.together
        for start in range(0, len(person), size):
            # Of several columns, what is not looked at in time is left out; single columns are
            # looked at in any case.
            if sets.shape[1] > 1 and self.finder.late:
                odds[start:] = -math.inf
                kept[start:] = False
                break
            part = slice(start, start + size)
            # Of single moves, a table would be used once.
            if sets.shape[1] > 1:
                known = self.oracle.odds_of_sets(moves, person[part], sets[part])
            else:
                known = None
            if known is not None:
                odds[part] = known
                kept[part] = True
                continue
            points = self.points(moves, person[part], sets[part])
            odds[part] = self.oracle.odds(person[part], points)
            kept[part] = self.oracle.keeps(person[part], points)
        return odds, kept
