"""Which rule keeps a column from the change that would help, and who stated it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from counterfactual_training.generators.diagnosis import Obstacle
from counterfactual_training.rules import WAYS
from counterfactual_training.tables.advice.rules import Rules
from counterfactual_training.tables.advice.words import listed, say_number
from counterfactual_training.tables.columns.schema import Schema

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.find import Finder
    from counterfactual_training.tables.advice.moves import Notation

# Decimals of numbers in a reason, at most.
_DECIMALS = 6


class Hurdle(NamedTuple):
    """What forbids a change that would help.

    Attributes:
        feature: by position.
        kind: text is a relation to other columns that leaves no room.
        reason: to follow the name of the column: "may not change, by lock". Of a ``LIMIT`` it is
            empty if the column stands at the end of its range.
        rule: of the question, if it is what holds the column: ``lock`` or ``vary``.
    """

    feature: int
    kind: Obstacle | str
    reason: str
    rule: str = ""


@dataclass(frozen=True)
class Sources:
    """What one question holds and bounds, on top of what fit was told.

    Attributes:
        free: the columns that fit lets change.
        lock, vary, domain: names of columns; without ``vary`` all of them.
    """

    free: frozenset[str] = frozenset()
    lock: frozenset[str] = frozenset()
    vary: frozenset[str] | None = None
    domain: frozenset[str] = frozenset()

    @classmethod
    def of(cls, rules: Rules, schema: Schema) -> Sources:
        """Of the rules of a question about the schema of fit."""
        return cls(
            frozenset(feature.name for feature in schema if feature.mutability != "none"),
            frozenset(map(str, rules.lock or ())),
            None if rules.vary is None else frozenset(map(str, rules.vary)),
            frozenset(map(str, rules.domain or ())),
        )

    def rule(self, name: str) -> str:
        """The rule of the question that holds a column; nothing if fit was told that it may not
        change.
        """
        if name in self.lock & self.free:
            return "lock"
        if name in self.free and self.vary is not None and name not in self.vary:
            return "vary"
        return ""

    def fixed(self, name: str) -> str:
        """Why a column may not change."""
        rule = self.rule(name)
        if rule:
            return f"{WAYS['none']}, by {rule}"
        return WAYS["none"]

    def category(self, name: str) -> str:
        """Why a column may not become the category that would help."""
        if name in self.domain:
            return "may not become what would help, by domain"
        return "may not become what would help"


def limit(finder: Finder, feature: int, own: float, at: float) -> str:
    """Why a number has no value to go to, if rules leave none but its own, or if it has changed as
    much as it may; else nothing.

    Args:
        own: where the row stands.
        at: where its best effort stands.
    """
    column = finder.encoder.columns_[feature]
    if column.feature.is_category or math.isnan(own):
        return ""
    notation = finder.notation(feature)
    low, high = finder.ends(feature)
    reach = column.feature.reach
    near = _neighbours(notation, own, low, high)
    if len(near) and float(np.abs(near - own).min()) <= reach * (1 + 1e-9):
        # Within one step of the largest change, nothing is left to go to.
        if math.isfinite(reach) and abs(at - own) > max(reach - notation.grid, 0.5 * reach):
            return f"may change by at most {_say(reach)}"
        return ""
    if not notation.grid:
        values = listed([_say(value) for value in notation.values.tolist()], 6, "more")
        known = f"takes {values} only"
    elif column.feature.step is not None:
        known = f"takes multiples of {_say(notation.grid)} only"
    else:
        known = f"changes in steps of {_say(notation.grid)}"
    if len(near):
        return f"{known}, and max_change is {_say(reach)}"
    return f"{known}, none of them{_but(notation, own, low, high)} from {_say(low)} to {_say(high)}"


def _neighbours(notation: Notation, own: float, low: float, high: float) -> np.ndarray:
    """The values next to one's own, within the ends of the column."""
    if notation.grid:
        place = own / notation.grid
        values = notation.grid * np.array(
            [math.ceil(place - 1e-9) - 1, math.floor(place + 1e-9) + 1]
        )
    else:
        values = notation.values
    slack = 1e-9 * max(1.0, abs(low), abs(high)) if math.isfinite(high - low) else 0.0
    return values[(values >= low - slack) & (values <= high + slack) & (values != own)]


def _but(notation: Notation, own: float, low: float, high: float) -> str:
    """That one's own value is the only one."""
    listed_or_multiple = notation.write(np.array([own]))[0] == own
    if low <= own <= high and listed_or_multiple:
        return f" but {_say(own)}"
    return ""


def _say(value: float) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return say_number(value, _DECIMALS)


def in_words(
    hurdles: Sequence[Hurdle], names: Sequence[str], values: Sequence[str], most: int = 2
) -> str:
    """``age and sex may not change; debt is at its limit of 0 dollars``.

    Args:
        hurdles: the most harmful first.
        names, values: of all features; values are where the row stands, units included.
        most: columns that are named for each reason; of one more than that, all are.
    """
    # Shorter than a list of all columns.
    if len(hurdles) == len(names) and all(why.kind == Obstacle.FIXED for why in hurdles):
        return _all_fixed(hurdles)
    # What the question itself asks about comes first: rules that leave a column no value.
    special = [why for why in hurdles if why.kind == Obstacle.LIMIT and why.reason]
    plain = [why for why in hurdles if why not in special]
    parts = [f"{names[why.feature]} {why.reason}" for why in special[:most]]
    for kind in Obstacle:
        group = [why for why in plain if why.kind == kind]
        if kind == Obstacle.LIMIT:
            parts += _at_limits(group, names, values)[: most + 1]
        else:
            parts += _by_reason(group, names, most)
    parts += _related([why for why in plain if isinstance(why.kind, str)], names, values, most)
    return "; ".join(parts) or "the rules of the columns leave nothing that would help"


def _all_fixed(hurdles: Sequence[Hurdle]) -> str:
    """That no column may change, and how many of them by which rule of the question."""
    by = Counter(why.rule for why in hurdles)
    stated = [f"{number} of them by {rule}" for rule, number in by.items() if rule]
    return ", ".join(["none of the columns may change", *stated])


def _at_limits(
    group: Sequence[Hurdle], names: Sequence[str], values: Sequence[str]
) -> list[str]:
    """That columns stand at the end of their range."""
    return [f"{names[why.feature]} is at its limit of {values[why.feature]}" for why in group]


def _by_reason(group: Sequence[Hurdle], names: Sequence[str], most: int) -> list[str]:
    """Each reason once, with the columns that it holds."""
    parts = []
    for reason in dict.fromkeys(why.reason for why in group):
        held = [names[why.feature] for why in group if why.reason == reason]
        parts.append(f"{_some(held, most)} {reason}")
    return parts


def _related(
    group: Sequence[Hurdle], names: Sequence[str], values: Sequence[str], most: int
) -> list[str]:
    """Each relation once, with the columns that it keeps where they are."""
    parts = []
    for text in dict.fromkeys(why.kind for why in group):
        held = [
            f"{names[why.feature]} at {values[why.feature]}"
            for why in group
            if why.kind == text
        ]
        parts.append(f'"{text}" keeps {_some(held, most)}')
    return parts


def _some(names: list[str], most: int) -> str:
    if len(names) <= most + 1:
        return listed(names)
    return listed(names, most, "more")
