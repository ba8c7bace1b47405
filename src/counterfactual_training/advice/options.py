"""Other answers for the same person: within a number of columns, and several that change different columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from counterfactual_training.advice.closest import come_closer
from counterfactual_training.advice.digits import in_few_digits
from counterfactual_training.advice.find import Finder
from counterfactual_training.advice.points import DIGITS, Counterfactuals, Factuals
from counterfactual_training.advice.singles import single_changes
from counterfactual_training.advice.supports import top, vital_columns
from counterfactual_training.search import Generator, Status

# Sets of columns tried per row and round.
_TRIED = 3
# Of each answer, only its largest changes are locked in turn.
_LARGEST = 4


@dataclass(frozen=True, eq=False)
class Question:
    """How a finder is asked: arguments of :meth:`Finder.find`, and the largest number of columns to change."""

    generator: Generator
    fall_back: bool = True
    sparsify: bool = True
    max_changes: int | None = None

    def ask(self, finder: Finder, factuals: Factuals, y: Tensor) -> Counterfactuals:
        """A counterfactual for every row, of at most ``max_changes`` columns."""
        found = finder.find(factuals, y, self.generator, self.fall_back, self.sparsify)
        if self.max_changes is None:
            return found
        # Most answers are short anyway; only the others are searched again.
        rows = (finder.num_changes(found.x_cf, factuals.x) > self.max_changes).nonzero().squeeze(-1)
        if len(rows):
            part = factuals.take(rows)
            found.put(rows, _within(finder, part, y[rows], found.x_cf[rows], self), torch.ones_like(rows).bool())
        return found


def _within(finder: Finder, factuals: Factuals, y: Tensor, x_cf: Tensor, question: Question) -> Counterfactuals:
    """Counterfactuals of rows whose first answer x_cf ``(n, d)`` changes too many columns.

    Three sets of columns are tried per row: the largest changes of the first answer, those whose changes matter most to
    it, and those that help most on their own. Everything else is held, so the limit is exact.
    """
    most, x, threshold = int(question.max_changes or 1), factuals.x, float(question.generator.decision_threshold)
    floor = torch.full_like(x[:, 0], threshold)
    alone = single_changes(finder, factuals, y, floor).best
    limit = torch.full_like(y, most)
    supports = [*vital_columns(finder, factuals, y, x_cf, limit), top(alone, limit)]
    n, tries = len(x), len(supports)
    # All three sets of all rows in one search, as rows of one batch.
    rows = torch.arange(n, device=x.device).repeat(tries)
    again = factuals.take(rows).holding(~torch.cat(supports)[:, finder.owner.to(x.device)])
    # Without the limit, which the held cells already keep.
    found = replace(question, max_changes=None).ask(finder, again, y[rows])
    # Reached before missed, then cheap before dear; of those that missed, the most probable.
    rank = torch.where(
        found.reached, finder.cost(found.x_cf, again.x).double(), 1e9 - finder.confidence(found.x_cf, y[rows]).double()
    )
    # Behind every plausible answer, but before every miss.
    rank += 1e6 * (found.status == int(Status.IMPLAUSIBLE))
    best = rank.view(tries, n).argmin(0) * n + torch.arange(n, device=x.device)
    return Counterfactuals(found.x_cf[best], found.status[best], found.num_steps.view(tries, n).sum(0))


# ---- several options -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Options:
    """Answers in the order of the rows, and of cost within a row.

    Attributes:
        row: ``(e,)`` the row that each answers.
        found: of the e answers.
    """

    row: Tensor
    found: Counterfactuals


def find_options(finder: Finder, factuals: Factuals, y: Tensor, question: Question, num_options: int) -> Options:
    """Up to ``num_options`` answers per row, no two of which change the same columns.

    The first is the answer of :meth:`Question.ask`. Then come single columns that suffice, what the model alone asks
    for if there is a gate, and rounds in which one column of every answer so far is locked: whatever is found there
    changes other columns. No answer changes all columns of another one and more; but what the model alone asks for may.
    """
    threshold = float(question.generator.decision_threshold)
    first = question.ask(finder, factuals, y)
    if finder.closest and question.fall_back:
        come_closer(finder, factuals, y, first, threshold, question.sparsify)
    first = in_few_digits(finder, factuals, y, first, threshold, question.sparsify)
    rows = torch.arange(len(y), device=y.device)
    # Rows that the first answer does not help will not be helped by locking more.
    asked = rows[first.reached]
    if num_options == 1 or len(asked) == 0 or finder.late:
        return Options(rows, first)
    pool = _Pool(finder, factuals, y, threshold, question.sparsify, rows, first)
    part = factuals.take(asked)
    floor = torch.full_like(part.x[:, 0], threshold + DIGITS)
    singles = single_changes(finder, part, y[asked], floor)
    converged = torch.full_like(singles.row, int(Status.CONVERGED))
    pool.add(asked[singles.row], Counterfactuals(singles.point, converged, torch.zeros_like(singles.row)))
    if finder.gate is not None and not finder.late:
        # What the model alone asks for is often cheaper, and stands beside plausible answers.
        plain = question.ask(replace(finder, gate=None), part, y[asked])
        pool.add(asked, plain)
    # Each round should bring one more option to every row.
    for _ in range(num_options - 1):
        owners, locks = pool.locks(asked, num_options)
        if not locks or finder.late:
            break
        again = factuals.take(owners).holding(torch.stack(locks)[:, finder.owner.to(y.device)])
        pool.add(owners, question.ask(finder, again, y[owners]))
    return pool.chosen(num_options)


class _Pool:
    """All answers found so far, by row."""

    def __init__(
        self,
        finder: Finder,
        factuals: Factuals,
        y: Tensor,
        threshold: float,
        sparsify: bool,
        rows: Tensor,
        first: Counterfactuals,
    ) -> None:
        self.finder, self.factuals, self.y, self.threshold, self.sparsify = finder, factuals, y, threshold, sparsify
        # The answers at places 0 … n − 1 are the first ones of rows 0 … n − 1; :meth:`chosen` counts on it.
        self.row, self.found = rows, first
        # What was locked before would find the same answer again.
        self.locked: set[tuple[int, frozenset[int]]] = set()

    def add(self, rows: Tensor, found: Counterfactuals) -> None:
        """Add answers to these rows, if they answer."""
        # Best efforts are no options.
        good = (found.status == int(Status.CONVERGED)).nonzero().squeeze(-1)
        status = found.status[good]
        if self.finder.gate is not None and len(good):  # an answer of the model alone may miss the gate
            passes = self.finder.confidence(found.x_cf[good], self.y[rows[good]]) >= self.threshold
            status = torch.where(passes, status, int(Status.IMPLAUSIBLE))
        rows, found = rows[good], replace(found.take(good), status=status)
        own, goal = self.factuals.take(rows), self.y[rows]
        found = in_few_digits(self.finder, own, goal, found, self.threshold, self.sparsify)
        self.row = torch.cat([self.row, rows])
        self.found = Counterfactuals(
            torch.cat([self.found.x_cf, found.x_cf]),
            torch.cat([self.found.status, found.status]),
            torch.cat([self.found.num_steps, found.num_steps]),
        )

    def _order(self) -> tuple[list[int], list[frozenset[int]]]:
        """Answers by cost, and the columns that each of them changes."""
        x = self.factuals.x[self.row]
        moved, cost = self.finder.distance(self.found.x_cf, x), self.finder.cost(self.found.x_cf, x)
        supports = [frozenset(line.nonzero().squeeze(-1).tolist()) for line in moved > 0]
        return cost.argsort(stable=True).tolist(), supports

    def chosen(self, num_options: int) -> Options:
        """The cheapest answers of each row that differ in their columns; always the first one, whatever its status.

        Beside plausible answers, one that is not may stand, if it is cheaper than the first.
        """
        order, supports = self._order()
        num_rows, status = len(self.y), self.found.status.tolist()
        rank = {place: i for i, place in enumerate(order)}
        kept: dict[int, list[int]] = {row: [row] for row in range(num_rows)}
        for place in order:
            row = int(self.row[place])
            own = kept[row]
            # First answers are kept already; an answer without a change is none.
            if place < num_rows or len(own) >= num_options or not supports[place]:
                continue
            alike = [other for other in own if status[other] == status[place]]
            doubtful = status[place] != status[row] and (alike or rank[place] > rank[row])
            # Of two that contain each other, the larger asks for more than is needed.
            nested = any(supports[other] <= supports[place] or supports[place] <= supports[other] for other in alike)
            if not doubtful and not nested:
                own.append(place)
        places = [place for row in range(num_rows) for place in sorted(kept[row], key=rank.__getitem__)]
        index = torch.tensor(places, device=self.y.device, dtype=torch.long)
        return Options(self.row[index], self.found.take(index))

    def locks(self, rows: Tensor, num_options: int) -> tuple[Tensor, list[Tensor]]:
        """Rows that still need options, and masks ``(m,)`` of features to lock: one of every answer chosen so far."""
        options = self.chosen(num_options)
        moved = self.finder.distance(options.found.x_cf, self.factuals.x[options.row])
        by_row: dict[int, list[Tensor]] = {}
        for row, line in zip(options.row.tolist(), moved, strict=True):
            by_row.setdefault(row, []).append(line)
        owners, masks = [], []
        for row in rows.tolist():
            answers = by_row[row]
            if len(answers) >= num_options:
                continue
            tops = [line.topk(min(_LARGEST, len(line))) for line in answers]
            largest = [top.indices[top.values > 0].tolist() for top in tops]
            tried = 0
            # One column of every answer so far: whatever is found then differs from each of them.
            for columns in product(*largest):
                lock = (row, frozenset(columns))
                if lock in self.locked or tried >= _TRIED:
                    continue
                self.locked.add(lock)
                tried += 1
                owners.append(row)
                mask = torch.zeros_like(moved[0], dtype=torch.bool)
                mask[list(columns)] = True
                masks.append(mask)
        return torch.tensor(owners, device=self.y.device, dtype=torch.long), masks
