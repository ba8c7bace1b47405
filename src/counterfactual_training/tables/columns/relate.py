"""Relations between columns on data: in model space to search, exactly on numbers to print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch

from counterfactual_training.constraints.relations import (
    ELSEWHERE,
    Follower,
    Implication,
    Relations,
)
from counterfactual_training.errors import ConstraintError
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.columns.limits import (
    against,
    held_ends,
    outside,
    precision_of,
    too_far,
)
from counterfactual_training.tables.columns.relations import Follows, Linear, RelationBook

if TYPE_CHECKING:
    from counterfactual_training.tables.columns.column import Column

# float32 codes of columns that are not rounded are known to this share of a standard deviation.
_CODE = 1e-6
# A strict inequality keeps this far from its bound, in standard deviations.
_STRICT = 1e-4
# What follows others is rounded from a result that is off by about this share.
_SUMS = 1e-12
Numbers = Mapping[str, np.ndarray]
Masks = Mapping[str, np.ndarray]


# ---- before any data -----------------------------------------------------------------------------


def check_feasible(book: RelationBook, features: Sequence[Feature]) -> None:
    """Raise if no row at all can keep the linear relations within the stated domains."""
    rules = [
        *book.flat,
        *_domains_of_followers(book, {feature.name: feature for feature in features}),
    ]
    if not rules or _feasible(rules, features):
        return
    needed = _contradicting(rules, features)
    relations = " and ".join(repr(text) for text in dict.fromkeys(rule.text for rule in needed))
    within = {name for rule in needed for name in rule.columns}
    stated = [f for f in features if f.name in within and f.domain is not None]
    domains = ", ".join(f"{feature.name!r} in {feature.domain!r}" for feature in stated)
    raise ConstraintError(
        f"No row can keep {relations}{f' with {domains}' if domains else ''}: they contradict each "
        "other."
    )


def _contradicting(rules: Sequence[Linear], features: Sequence[Feature]) -> list[Linear]:
    """Only the rules that contradict each other: one after the other is left out as long as the
    rest do.
    """
    needed = list(rules)
    for rule in rules:
        fewer = [other for other in needed if other is not rule]
        if not _feasible(fewer, features):
            needed = fewer
    return needed


def _feasible(rules: Sequence[Linear], features: Sequence[Feature]) -> bool:
    """Whether a linear program over the columns of the rules has a solution."""
    from scipy.optimize import linprog  # slow to import, and few schemas have relations

    if not rules:
        return True
    names = list(dict.fromkeys(name for rule in rules for name in rule.columns))
    limits = {feature.name: feature.limits for feature in features if feature.name in names}
    lines = np.array([[rule.weights.get(name, 0.0) for name in names] for rule in rules])
    bounds = np.array([rule.bound for rule in rules])
    equal = np.array([rule.sign == "=" for rule in rules])
    solution = linprog(
        np.zeros(len(names)),
        A_ub=lines[~equal],
        b_ub=bounds[~equal],
        A_eq=lines[equal],
        b_eq=bounds[equal],
        bounds=[limits[name] for name in names],
    )
    return int(solution.status) != 2


def _domains_of_followers(book: RelationBook, features: Mapping[str, Feature]) -> list[Linear]:
    """The stated domains of columns that follow others, as relations between the others, if these
    are linear.
    """
    domains = []
    for rule in book.follows:
        low, high = features[rule.column].limits
        for sign, end in ((1.0, high), (-1.0, low)):
            if np.isfinite(end):
                domains.append(Linear(rule.text, {rule.column: sign}, "<=", sign * end))
    return list(RelationBook(tuple(domains), book.follows).flat)


# ---- model space ---------------------------------------------------------------------------------


def build_relations(
    book: RelationBook, columns: Sequence[Column], starts: Sequence[int]
) -> Relations | None:
    """The relations between encoded columns that begin at ``starts``; ``None`` without any."""
    if not book:
        return None
    placed = {
        column.feature.name: (column, start)
        for column, start in zip(columns, starts, strict=True)
    }
    features = {column.feature.name: column.feature for column in columns}
    width = sum(column.width for column in columns)
    normals = []
    lower = []
    upper = []
    texts = []
    for rule in (*book.flat, *_domains_of_followers(book, features)):
        normal = np.zeros(width)
        bound = rule.bound
        for name, weight in rule.weights.items():
            column, start = placed[name]
            normal[start] = weight * column.scale
            bound -= weight * column.center
        size = float(np.linalg.norm(normal))
        if rule.sign == "<":
            # Between whole numbers the next one is a whole step away: aim at the middle of it.
            bound -= 0.5 * _are_integers(rule, features) + _STRICT * size
        bound /= size
        normals.append(normal / size)
        lower.append(bound if rule.sign == "=" else -np.inf)
        upper.append(bound)
        texts.append(rule.text)
    lines, low, high = (
        np.array(values, dtype=np.float64) for values in (normals, lower, upper)
    )
    followers = tuple(_follower(rule, placed) for rule in book.follows)
    implications = tuple(
        Implication(
            rule.text,
            *_code(rule.condition, rule.category, placed),
            *_code(rule.needed, rule.needed_category, placed),
        )
        for rule in book.requires
    )
    shaped = torch.from_numpy(lines.reshape(-1, width))
    return Relations(
        tuple(texts),
        shaped,
        torch.from_numpy(low),
        torch.from_numpy(high),
        followers,
        implications,
    )


def _are_integers(rule: Linear, features: Mapping[str, Feature]) -> bool:
    """Whether both sides of a relation are whole numbers."""
    return all(
        features[name].kind == "integer" and weight % 1 == 0
        for name, weight in rule.weights.items()
    )


def _follower(rule: Follows, placed: Mapping[str, tuple[Column, int]]) -> Follower:
    affine = {
        name: (start, column.center, column.scale) for name, (column, start) in placed.items()
    }
    start, center, scale = affine[rule.column]
    inputs = {name: affine[name] for name in rule.expression.columns}
    column = placed[rule.column][0]
    feature = column.feature
    lower, upper = ((end - center) / scale for end in feature.limits)
    return Follower(
        start,
        rule.expression,
        inputs,
        center,
        scale,
        _rounding(column),
        rule.text,
        lower,
        upper,
        feature.reach / scale,
        feature.mutability in ("both", "increase"),
        feature.mutability in ("both", "decrease"),
    )


def _code(
    name: str, category: int, placed: Mapping[str, tuple[Column, int]]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Encoded columns of a feature, and what they hold for a category."""
    column, start = placed[name]
    code = column.encode(np.array([float(category)]))[0]
    return tuple(range(start, start + column.width)), tuple(code.tolist())


# ---- numbers -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Broken:
    """A relation, and the mask ``(n,)`` of the rows that break it."""

    text: str
    columns: tuple[str, ...]
    rows: np.ndarray


def kept(
    book: RelationBook,
    columns: Mapping[str, Column],
    before: Numbers,
    after: Numbers,
    filled: Masks = MappingProxyType({}),
) -> np.ndarray:
    """Mask ``(n,)`` of rows that break no relation more than before a change.

    Args:
        before, after: by column, numbers ``(n,)`` in the user's units; positions of categories.
        filled: by column that follows, mask ``(n,)`` of rows that did not match before only because
            of blanks, all of which are filled now; by default none.
    """
    fine = np.ones(len(next(iter(before.values()))), dtype=bool)
    for broken in worsened(book, columns, before, after, filled):
        fine &= ~broken.rows
    for follows in book.follows:
        fine &= _follows_allowed(columns[follows.column], before, after)
    return fine


def worsened(
    book: RelationBook,
    columns: Mapping[str, Column],
    before: Numbers,
    after: Numbers,
    filled: Masks = MappingProxyType({}),
) -> list[Broken]:
    """Every relation, with the rows that break it more; arguments as in :func:`kept`."""
    violations = []
    # Rows may break a rule from the start; advice must not make it worse.
    for rule in book.linear:
        then, noise = rule.breach(before)
        now, _ = rule.breach(after)
        if rule.sign == "=":
            chosen = [
                abs(w) * _uncertain(columns[name], after[name])
                for name, w in rule.weights.items()
            ]
            noise = noise + sum(chosen)
            worse = (now > noise) & (now > then + noise)
        else:
            worse = rule.broken(after) & (now > then)
        violations.append(Broken(rule.text, rule.columns, worse))
    for needs in book.requires:
        violations.append(
            Broken(needs.text, needs.columns, needs.broken(after) & ~needs.broken(before))
        )
    for follows in book.follows:
        blanks = filled.get(follows.column, False)
        strayed = _strayed(follows, columns[follows.column], before, after, blanks)
        violations.append(Broken(follows.text, follows.columns, strayed))
    return violations


def _moved(rule: Follows, before: Numbers, after: Numbers) -> np.ndarray:
    """Mask ``(n,)`` of rows in which something that a column follows has changed."""
    return np.any([after[name] != before[name] for name in rule.expression.columns], axis=0)


def _uncertain(column: Column, v: np.ndarray) -> np.ndarray:
    """How exactly a printed number can be chosen: to all digits, unless it is not rounded."""
    if column.grid is not None and column.grid / column.scale >= _CODE:
        return np.zeros_like(v)
    return _CODE * (np.abs(v - column.center) + column.scale)


def _follows_allowed(column: Column, before: Numbers, after: Numbers) -> np.ndarray:
    """Mask ``(n,)``: what follows stays within the rules of its own column."""
    feature = column.feature
    old = before[feature.name]
    new = after[feature.name]
    wrong = against(feature, old, new) | outside(*held_ends(feature, column.dtype), old, new)
    return ~(wrong | too_far(feature.reach, old, new, precision_of(column.dtype)))


def followed(
    rule: Follows, column: Column, before: Numbers, after: Numbers, filled: np.ndarray | bool
) -> np.ndarray:
    """What a column that follows others holds ``(n,)`` once these changed, before it is rounded.

    Not finite where it cannot be computed, as after a division by zero. ``filled`` as in
    :func:`kept`.
    """
    computed = rule.value(after)
    expected = rule.value(before)
    # A factual that does not match keeps its difference: people are not asked to correct it.
    off = mismatched(rule, column, before) & np.isfinite(expected) & np.logical_not(filled)
    return np.where(off, before[rule.column] + computed - expected, computed)


def _strayed(
    rule: Follows, column: Column, before: Numbers, after: Numbers, filled: np.ndarray | bool
) -> np.ndarray:
    """Mask ``(n,)`` of rows whose column does not hold what it follows, but for rounding.

    Where nothing changed that it follows, it stays as it was.
    """
    now = after[rule.column]
    computed = followed(rule, column, before, after, filled)
    with np.errstate(invalid="ignore"):
        share = _SUMS + 2 * precision_of(column.dtype)
        slack = _rounding(column) + _uncertain(column, now) + share * np.abs(computed)
        fits = np.isfinite(computed) & (np.abs(now - computed) <= slack)
    return ~np.where(_moved(rule, before, after), fits, now == before[rule.column])


def breaks(
    book: RelationBook, columns: Mapping[str, Column], values: Numbers
) -> list[tuple[str, tuple[str, ...], np.ndarray]]:
    """Relations that some rows break: text, columns, and the mask ``(n,)`` of these rows."""
    relations = [(rule.text, rule.columns, rule.broken(values)) for rule in book.linear]
    relations += [(needs.text, needs.columns, needs.broken(values)) for needs in book.requires]
    for rule in book.follows:
        relations.append(
            (rule.text, rule.columns, mismatched(rule, columns[rule.column], values))
        )
    return [entry for entry in relations if entry[2].any()]


def mismatched(rule: Follows, column: Column, values: Numbers) -> np.ndarray:
    """Mask ``(n,)`` of rows whose column is not what it should follow, beyond rounding."""
    expected = rule.value(values)
    with np.errstate(all="ignore"):
        slack = _rounding(column) + ELSEWHERE * np.abs(expected)
        return ~(np.abs(values[rule.column] - expected) <= slack)


def _rounding(column: Column) -> float:
    """How far rounding may take a number of the column, and a little more."""
    return 0.51 * (column.grid or 0.0)
