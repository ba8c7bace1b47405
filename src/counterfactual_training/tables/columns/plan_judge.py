"""The judge of plans: which rules a changed row breaks, in the user's units.

Everything that returns a plan calls it: ``explain`` before an answer leaves, receipts when they are
made and verified. Cells are compared as a person reads them. What may not change must be the same
value or category, to the last digit; so must directions, domains, lists and whole numbers. Only
sums and multiples get the last digits that binary arithmetic rounds off, and ends that were not
stated, such as the range of the training data, the precision of a search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError
from counterfactual_training.rules import WAYS
from counterfactual_training.tables.columns.column import Column
from counterfactual_training.tables.columns.constrain import (
    may_become,
    transition_matrix,
)
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.feature import plain, show
from counterfactual_training.tables.columns.frame import UNSEEN, as_frame, match_columns, read
from counterfactual_training.tables.columns.limits import (
    against,
    between_steps,
    fractional,
    held_ends,
    outside,
    precision_of,
    too_far,
    unlisted,
)
from counterfactual_training.tables.columns.relate import worsened

# Searches keep learned ends and grids to this share of a standard deviation.
_LEARNED = 1e-5
# Whole numbers below are all different as float64.
_EXACT = 2.0**53
# Cells of a frame up to which they are compared as objects.
_SMALL = 10_000
# Columns up to which they are compared one by one.
_FEW_COLUMNS = 32


@dataclass(frozen=True)
class Violation:
    """A rule that a plan breaks.

    Attributes:
        row: the number of the row, from 0.
        column: whose rule it is; of relations all their columns, of ``max_changes`` none.
        rule: its name in :data:`RULES`.
        came: what the plan says.
        expected: what the rule asks for, in words.
    """

    row: int
    column: str
    rule: str
    came: Any
    expected: str

    def __str__(self) -> str:
        if self.rule == "max_changes":
            return f"it changes {self.came} columns, expected {self.expected}"
        if self.rule == "relations":
            return f"{self.came}, expected {self.expected}"
        return f"{self.column} is {_shown(self.came)}, expected {self.expected}"


@dataclass(frozen=True, eq=False)
class PlanJudge:
    """The rules of a fit, with those of a question on top, as they apply to rows.

    Attributes:
        encoder: fitted; its schema holds the rules, see :meth:`Encoder.with_schema`.
        constraints: the same rules in model space. They hold what was learned instead of stated:
            where numbers end, and which of them the data write.
        max_changes: the largest number of columns that may change, without those that follow
            others.

    Examples:
        >>> import counterfactual_training as ct
        >>> people = ct.loan(300).frame
        >>> encoder = ct.Encoder(ct.Schema.infer(people, mutability={"age": "none"})).fit(people)
        >>> judge = PlanJudge(encoder, encoder.constraints(keep_outside=True))
        >>> older = people[:2].assign(age=people["age"][:2] + [0, 1])
        >>> [str(violation) for violation in judge(people[:2], older)]
        ['age is 62, expected 61: it may not change']
    """

    encoder: Encoder
    constraints: Constraints
    max_changes: int | None = None

    def __call__(
        self, before: Any, after: Any, columns: Sequence[str] | None = None
    ) -> list[Violation]:
        """Every rule that rows break; empty if they keep all.

        Args:
            before: the rows as they are.
            after: the same rows as planned, in the same order.
            columns: those that may differ, if the others are known to be the same; rows are then
                frames of all columns, in order.
        """
        if columns is None:
            before = self._rows(before)
            after = self._rows(after)
        trial = _Trial(self, before, after, columns)
        if len(trial.before) != len(trial.after):
            raise InputError(
                f"There are {len(trial.after)} plans for {len(trial.before)} rows."
            )
        violations = [
            violation for name in trial.differing for violation in trial.of_column(name)
        ]
        violations += [*trial.of_relations(), *trial.of_count(self.max_changes)]
        return sorted(violations, key=lambda violation: violation.row)

    def _rows(self, x: Any) -> pd.DataFrame:
        names = self.encoder.schema_.names
        return match_columns(as_frame(x, names), names)

    @cached_property
    def columns(self) -> dict[str, Column]:
        return {column.feature.name: column for column in self.encoder.columns_}

    @cached_property
    def following(self) -> frozenset[str]:
        """Columns that follow others: they have no list, step or learned range of their own."""
        return frozenset(self.encoder.schema_.book.following)

    def allows(self, name: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Mask ``(a,)`` of changes of a number, all of which the rules of its column allow."""
        fine = np.ones(len(after), dtype=bool)
        for _, wrong, _ in _number_rules(self, self.columns[name], before, after):
            fine &= ~wrong
        return fine

    def fixed(self, name: str) -> bool:
        """Whether nothing may change in a column: as stated, or training saw one value."""
        column = self.columns[name]
        constant = column.constant and name not in self.following
        return column.feature.mutability == "none" or constant

    def learned_ends(self, name: str) -> tuple[float, float]:
        """Where a search lets a number go on the sides where no domain is stated, in the user's
        units.
        """
        if name not in self._learned_ends:
            column = self.columns[name]
            start = self.encoder.slices_[name].start
            low, high = (
                float(bound[start]) * column.scale + column.center
                for bound in (self.constraints.domain.lower, self.constraints.domain.upper)
            )
            stated_low, stated_high = column.feature.limits
            self._learned_ends[name] = (
                low if np.isinf(stated_low) else -np.inf,
                high if np.isinf(stated_high) else np.inf,
            )
        return self._learned_ends[name]

    @cached_property
    def _learned_ends(self) -> dict[str, tuple[float, float]]:
        """Those that were asked for; a search asks for them again and again."""
        return {}

    def learned_values(self, name: str) -> tuple[np.ndarray | None, float | None]:
        """The few numbers that the data hold, or the number that theirs are multiples of; ``None``
        without such.
        """
        lattice = self._lattices.get(self.encoder.slices_[name].start)
        column = self.columns[name]
        if (
            lattice is None
            or column.feature.allowed is not None
            or column.feature.step is not None
        ):
            return None, None
        if lattice.values is not None:
            return np.array(column.values, dtype=np.float64), None
        return None, lattice.step * column.scale

    @cached_property
    def _lattices(self) -> dict[int, Any]:
        return {lattice.column: lattice for lattice in self.constraints.lattices}


@dataclass(frozen=True, eq=False)
class _Cells:
    """One column before and after, as numbers or positions; and which cells changed."""

    before: np.ndarray
    after: np.ndarray
    changed: np.ndarray


@dataclass(frozen=True, eq=False)
class _Trial:
    """Rows before and after, column by column."""

    judge: PlanJudge
    before: pd.DataFrame
    after: pd.DataFrame
    columns: Sequence[str] | None
    _cells: dict[str, _Cells] = field(default_factory=dict)

    # ---- cells -----------------------------------------------------------------------------------

    @cached_property
    def differing(self) -> list[str]:
        """The columns in which any cell differs, be it only in its type; often few of thousands."""
        if self.columns is not None and len(self.columns) < _FEW_COLUMNS:
            listed = [name for name in self.before.columns if name in self.columns]
            return [
                name
                for name in listed
                if not self.before[name].array.equals(self.after[name].array)
            ]
        places = sorted(self._differing_places())
        return [str(self.before.columns[place]) for place in places]

    def _differing_places(self) -> list[int]:
        """Their positions; numbers of one dtype are compared at once."""
        alike: dict[Any, list[int]] = {}
        differing = []
        pairs = zip(self.before.dtypes, self.after.dtypes, strict=True)
        for place, (dtype, planned) in enumerate(pairs):
            if isinstance(dtype, np.dtype) and dtype.kind in "biuf" and dtype == planned:
                alike.setdefault(dtype, []).append(place)
            elif not self.before.iloc[:, place].array.equals(self.after.iloc[:, place].array):
                differing.append(place)
        for places in alike.values():
            old, new = (_block(frame, places) for frame in (self.before, self.after))
            same = (old == new) | ((old != old) & (new != new))
            differing += [places[j] for j in np.flatnonzero(~same.all(0)).tolist()]
        return differing

    def cells(self, name: str) -> _Cells:
        if name not in self._cells:
            feature = self.judge.columns[name].feature
            old = self.before[name]
            new = self.after[name]
            numbers = read(feature, old)
            planned = read(feature, new)
            same = (numbers == planned) | (np.isnan(numbers) & np.isnan(planned))
            if feature.is_category:
                # All unseen categories read alike, but they are not the same.
                unseen = np.flatnonzero((numbers == UNSEEN) & (planned == UNSEEN))
                pairs = zip(old.array[unseen], new.array[unseen], strict=True)
                same[unseen] = [one == other for one, other in pairs]
            # float64 cannot tell whole numbers beyond 2^53 apart.
            elif (
                (np.abs(numbers) >= _EXACT).any()
                and types.is_integer_dtype(old.dtype)
                and types.is_integer_dtype(new.dtype)
            ):
                integers = [cell.to_numpy(dtype=np.int64, na_value=0) for cell in (old, new)]
                same &= integers[0] == integers[1]
            self._cells[name] = _Cells(numbers, planned, ~same)
        return self._cells[name]

    def _violations(
        self, name: str, rule: str, rows: np.ndarray, expected: str
    ) -> Iterator[Violation]:
        """One per row; in what was expected, ``{held}`` stands for what the row held."""
        for row in rows.tolist():
            held = _shown(_cell(self.before[name], row))
            came = _cell(self.after[name], row)
            yield Violation(row, name, rule, came, expected.replace("{held}", held))

    # ---- columns ---------------------------------------------------------------------------------

    def of_column(self, name: str) -> Iterator[Violation]:
        """The rules of one column."""
        cells = self.cells(name)
        column = self.judge.columns[name]
        rows = np.flatnonzero(cells.changed)
        if self.judge.fixed(name):
            stated = column.feature.mutability == "none"
            if stated:
                why = WAYS["none"]
            else:
                why = "had no other value in training"
            yield from self._violations(name, "mutability", rows, f"{{held}}: it {why}")
            return
        blank = np.isnan(cells.after[rows])
        yield from self._violations(name, "missing", rows[blank], "a value, not a blank")
        rows = rows[~blank]
        old = cells.before[rows]
        new = cells.after[rows]
        if column.feature.is_category:
            verdicts = _category_rules(column, old, new)
        else:
            verdicts = _number_rules(self.judge, column, old, new)
        for rule, mask, expected in verdicts:
            yield from self._violations(name, rule, rows[mask], expected)

    # ---- rows ------------------------------------------------------------------------------------

    def of_relations(self) -> Iterator[Violation]:
        """Relations between columns that rows break more than they did."""
        book = self.judge.encoder.schema_.book
        if not book or not set(book.columns) & set(self.differing):
            return
        before = {name: self._filled(name, self.cells(name).before) for name in book.columns}
        after = {name: self._filled(name, self.cells(name).after) for name in book.columns}
        filled = {rule.column: self._blanks_filled(rule.columns) for rule in book.follows}
        for relation in worsened(book, self.judge.columns, before, after, filled):
            for row in np.flatnonzero(relation.rows).tolist():
                parts = [
                    f"{name} {_shown(_cell(self.after[name], row))}"
                    for name in relation.columns
                ]
                columns = ", ".join(relation.columns)
                yield Violation(
                    row, columns, "relations", ", ".join(parts), repr(relation.text)
                )

    def _filled(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """Blanks count as what the model sees in their place."""
        column = self.judge.columns[name]
        return np.where(
            np.isnan(numbers), UNSEEN if column.feature.is_category else column.fill, numbers
        )

    def _blanks_filled(self, names: tuple[str, ...]) -> np.ndarray:
        """Rows with blanks among these columns, the first of which follows the others; now filled
        in these.
        """
        blank = {name: np.isnan(self.cells(name).before) for name in names}
        still_blank = [blank[name] & ~self.cells(name).changed for name in names[1:]]
        return np.any(list(blank.values()), 0) & ~np.any(still_blank, 0)

    def of_count(self, most: int | None) -> Iterator[Violation]:
        """Rows that change too many columns."""
        if most is None:
            return
        free = [name for name in self.differing if name not in self.judge.following]
        count = np.sum(
            [np.zeros(len(self.after), int), *(self.cells(name).changed for name in free)], 0
        )
        for row in np.flatnonzero(count > most).tolist():
            yield Violation(row, "", "max_changes", int(count[row]), f"at most {most}")


# ---- the rules of a column -----------------------------------------------------------------------

# Name, mask ``(n,)`` of the cells that break it, and what it asks for.
_Rule = tuple[str, np.ndarray, str]
# Masks ``(n,)`` of the numbers that break a rule of their column, each with what it asks for.
_BrokenCells = Iterator[tuple[np.ndarray, str]]


@dataclass(frozen=True, eq=False)
class _Numbers:
    """Numbers ``(n,)`` of one column that changed; ``base`` is ``old`` with what the model sees in
    place of blanks.
    """

    judge: PlanJudge
    column: Column
    old: np.ndarray
    base: np.ndarray
    new: np.ndarray

    @property
    def precision(self) -> float:
        return precision_of(self.column.dtype)

    @property
    def slack(self) -> float:
        """Tolerance of a search at learned ends and grids."""
        return _LEARNED * self.column.scale


def _special(cells: _Numbers) -> _BrokenCells:
    if not cells.column.feature.special:
        return
    for numbers, words in (
        (cells.old, "{held}: a special code stays"),
        (cells.new, "a number, not a special code"),
    ):
        yield np.any(cells.column.feature.coded(numbers), axis=1), words


def _mutability(cells: _Numbers) -> _BrokenCells:
    feature = cells.column.feature
    if feature.mutability != "both":
        if feature.mutability == "increase":
            bound = "at least"
        else:
            bound = "at most"
        words = f"{bound} {{held}}: it {WAYS[feature.mutability]}"
        yield against(feature, cells.base, cells.new), words


def _kind(cells: _Numbers) -> _BrokenCells:
    if cells.column.feature.kind == "integer":
        yield fractional(cells.new), "a whole number"


def _domain(cells: _Numbers) -> _BrokenCells:
    low, high = held_ends(cells.column.feature, cells.column.dtype)
    yield outside(low, high, cells.base, cells.new), _between(low, high)


def _max_change(cells: _Numbers) -> _BrokenCells:
    most = cells.column.feature.max_change
    if most is not None:
        yield (
            too_far(most, cells.base, cells.new, cells.precision),
            f"at most {most:.12g} away from {{held}}",
        )


def _allowed(cells: _Numbers) -> _BrokenCells:
    allowed = cells.column.feature.allowed
    if allowed is not None:
        yield unlisted(allowed, cells.new, cells.column.dtype), f"one of {show(allowed)}"


def _step(cells: _Numbers) -> _BrokenCells:
    step = cells.column.feature.step
    if step is not None:
        yield between_steps(step, cells.new, cells.precision), f"a multiple of {step:.12g}"


def _range(cells: _Numbers) -> _BrokenCells:
    low, high = cells.judge.learned_ends(cells.column.feature.name)
    beyond = outside(low - cells.slack, high + cells.slack, cells.base, cells.new)
    yield beyond, f"{_between(low, high)}, as in training"


def _digits(cells: _Numbers) -> _BrokenCells:
    new = cells.new
    values, grid = cells.judge.learned_values(cells.column.feature.name)
    if values is not None:
        apart = np.abs(new[:, None] - values).min(1) > cells.slack
        yield apart, f"one of {show(values.tolist())}, as in training"
    if grid is not None:
        off = np.abs(
            new - np.rint(new / grid) * grid
        ) > _LEARNED * grid + 8 * cells.precision * np.abs(new)
        yield off, f"a multiple of {grid:.6g}, as in training"


# By name, as in ``rules.py``: every filter of numbers.
NUMBER_RULES: dict[str, Callable[[_Numbers], _BrokenCells]] = {
    "special": _special,
    "mutability": _mutability,
    "kind": _kind,
    "domain": _domain,
    "max_change": _max_change,
    "allowed": _allowed,
    "step": _step,
    "range": _range,
    "digits": _digits,
}
# Not for a column that follows others: it takes the value that is computed.
_OF_FREE_COLUMNS = ("allowed", "step", "range", "digits")


def _number_rules(
    judge: PlanJudge, column: Column, old: np.ndarray, new: np.ndarray
) -> Iterator[_Rule]:
    """All rules on numbers ``(n,)`` that changed."""
    # Blanks count as what the model sees in their place, as in a search.
    base = np.where(np.isnan(old), column.fill, old)
    cells = _Numbers(judge, column, old, base, new)
    follows = column.feature.name in judge.following
    for name, rule in NUMBER_RULES.items():
        if follows and name in _OF_FREE_COLUMNS:
            continue
        for mask, words in rule(cells):
            yield name, mask, words


def _category_rules(column: Column, old: np.ndarray, new: np.ndarray) -> Iterator[_Rule]:
    """All rules on positions of categories ``(n,)`` that changed."""
    k = len(column.feature.levels)
    old = np.where(np.isnan(old), column.fill, old)
    is_level = np.isin(new, np.arange(k))
    yield "categories", ~is_level, f"one of {show(column.feature.levels)}"
    # A number beside the two of a yes-or-no column counts as the nearer one.
    source = np.where(old == UNSEEN, k, np.clip(np.floor(old + 0.5), 0, k - 1)).astype(int)
    target = np.where(is_level, new, 0).astype(int)
    backwards = against(column.feature, old, new) & (old != UNSEEN)
    wrong = is_level & (backwards | ~may_become(column)[source, target])
    # The rule is found cell by cell, because hardly any plan gets here.
    for place in np.flatnonzero(wrong).tolist():
        rule, expected = _forbidding(column, source[place], target[place], backwards[place])
        yield rule, np.arange(len(new)) == place, expected


def _forbidding(column: Column, source: int, target: int, backwards: bool) -> tuple[str, str]:
    """The rule that forbids a change between two categories by position, and what it asks for."""
    feature = column.feature
    # The last row of the transitions is for categories never seen.
    seen = source < len(feature.levels)
    if backwards:
        return "mutability", f"{{held}} or beyond: it {WAYS[feature.mutability]}"
    if feature.allowed is not None and feature.levels[target] not in feature.allowed:
        return "allowed", f"one of {show(feature.allowed)}"
    if feature.allowed is None and column.seen is not None and target not in column.seen:
        return "seen", "a category that training saw"
    if not seen or not transition_matrix(column)[source, target]:
        return "forbidden", "another category: {held} may not become this"
    if feature.max_change is not None and abs(target - source) > feature.max_change:
        return "max_change", f"at most {feature.max_change:g} ranks from {{held}}"
    low, high = (feature.levels[int(end)] for end in feature.limits)
    return "domain", f"from {low!r} to {high!r}"


def _block(frame: pd.DataFrame, places: list[int]) -> np.ndarray:
    """The columns at some places, all of one dtype, as ``(n, c)``."""
    # For few rows, pandas returns all cells as objects faster than single columns.
    if frame.size <= _SMALL:
        return frame.to_numpy(dtype=object)[:, places]
    return frame.iloc[:, places].to_numpy()


# ---- words ---------------------------------------------------------------------------------------


def _between(low: float, high: float) -> str:
    if np.isinf(low):
        return f"at most {high:.12g}"
    if np.isinf(high):
        return f"at least {low:.12g}"
    return f"from {low:.12g} to {high:.12g}"


def _cell(column: pd.Series, row: int) -> Any:
    """A cell as a Python object; ``None`` if it is missing."""
    value = plain(column.iloc[row])
    if pd.isna(value):
        return None
    return value


def _shown(value: Any) -> str:
    if value is None:
        return "missing"
    return repr(value)
