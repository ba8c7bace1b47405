"""Relations between columns on data: in model space for the search, exactly on numbers for what is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from counterfactual_training.constraints import Follower, Implication, Relations
from counterfactual_training.constraints.relations import ELSEWHERE
from counterfactual_training.errors import ConstraintError
from counterfactual_training.tabular.column import Column
from counterfactual_training.tabular.feature import Feature
from counterfactual_training.tabular.relations import Follows, Linear, RelationBook

# float32 codes of columns that are not rounded are known to this share of a standard deviation.
_CODE = 1e-6
# A strict inequality keeps this far from its bound, in standard deviations.
_STRICT = 1e-4
Numbers = Mapping[str, np.ndarray]


# ---- before any data -------------------------------------------------------------------------------------------------


def check_feasible(book: RelationBook, features: Sequence[Feature]) -> None:
    """Raise if no row at all can keep the linear relations within the stated domains."""
    rules = [*book.flat, *_domains_of_followers(book, {feature.name: feature for feature in features})]
    if not rules or _feasible(rules, features):
        return
    # Name only the rules that contradict each other: leave out one after the other as long as they do.
    needed = list(rules)
    for rule in rules:
        fewer = [other for other in needed if other is not rule]
        if not _feasible(fewer, features):
            needed = fewer
    said = " and ".join(repr(text) for text in dict.fromkeys(rule.text for rule in needed))
    within = {name for rule in needed for name in rule.columns}
    stated = [f for f in features if f.name in within and f.domain is not None]
    domains = ", ".join(f"{feature.name!r} in {feature.domain!r}" for feature in stated)
    raise ConstraintError(f"No row can keep {said}{f' with {domains}' if domains else ''}: they contradict each other.")


def _feasible(rules: Sequence[Linear], features: Sequence[Feature]) -> bool:
    """Whether a linear program over the columns of the rules has a solution."""
    from scipy.optimize import linprog  # slow to import, and few schemas have relations

    if not rules:
        return True
    names = list(dict.fromkeys(name for rule in rules for name in rule.columns))
    limits = {feature.name: feature.limits for feature in features if feature.name in names}
    lines = np.array([[rule.weights.get(name, 0.0) for name in names] for rule in rules])
    bounds, equal = np.array([rule.bound for rule in rules]), np.array([rule.sign == "=" for rule in rules])
    found = linprog(
        np.zeros(len(names)),
        A_ub=lines[~equal],
        b_ub=bounds[~equal],
        A_eq=lines[equal],
        b_eq=bounds[equal],
        bounds=[limits[name] for name in names],
    )
    return int(found.status) != 2


def _domains_of_followers(book: RelationBook, features: Mapping[str, Feature]) -> list[Linear]:
    """The stated domains of columns that follow others, as linear relations between the others, where they are."""
    found = []
    for rule in book.follows:
        low, high = features[rule.column].limits
        for sign, end in ((1.0, high), (-1.0, low)):
            if np.isfinite(end):
                found.append(Linear(rule.text, {rule.column: sign}, "<=", sign * end))
    return list(RelationBook(tuple(found), book.follows).flat)


# ---- model space -----------------------------------------------------------------------------------------------------


def build_relations(book: RelationBook, columns: Sequence[Column], starts: Sequence[int]) -> Relations | None:
    """The relations between encoded columns that begin at ``starts``; ``None`` without any."""
    if not book:
        return None
    placed = {column.feature.name: (column, start) for column, start in zip(columns, starts, strict=True)}
    features = {column.feature.name: column.feature for column in columns}
    width = sum(column.width for column in columns)
    normals, lower, upper, texts = [], [], [], []
    for rule in (*book.flat, *_domains_of_followers(book, features)):
        normal, bound = np.zeros(width), rule.bound
        for name, weight in rule.weights.items():
            column, start = placed[name]
            normal[start] = weight * column.scale
            bound -= weight * column.center
        size = float(np.linalg.norm(normal))
        if rule.sign == "<":
            # Between whole numbers the next one is a whole step away: aim at the middle of it.
            whole = all(features[name].kind == "integer" and weight % 1 == 0 for name, weight in rule.weights.items())
            bound -= 0.5 * whole + _STRICT * size
        bound /= size
        normals.append(normal / size)
        lower.append(bound if rule.sign == "=" else -np.inf)
        upper.append(bound)
        texts.append(rule.text)
    lines, low, high = (np.array(values, dtype=np.float64) for values in (normals, lower, upper))
    followers = tuple(_follower(rule, placed) for rule in book.follows)
    implications = tuple(
        Implication(
            rule.text, *_code(rule.given, rule.category, placed), *_code(rule.needed, rule.needed_category, placed)
        )
        for rule in book.requires
    )
    shaped = torch.from_numpy(lines.reshape(-1, width))
    return Relations(tuple(texts), shaped, torch.from_numpy(low), torch.from_numpy(high), followers, implications)


def _follower(rule: Follows, placed: Mapping[str, tuple[Column, int]]) -> Follower:
    affine = {name: (start, column.center, column.scale) for name, (column, start) in placed.items()}
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
        (feature.max_change or np.inf) / scale,
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


# ---- numbers ---------------------------------------------------------------------------------------------------------


def kept(book: RelationBook, columns: Mapping[str, Column], before: Numbers, after: Numbers) -> np.ndarray:
    """Mask ``(n,)`` of rows that keep every relation after a change, or break it no more than before.

    Args:
        before, after: by column, numbers ``(n,)`` in the user's units; positions of categories.
    """
    fine = np.ones(len(next(iter(before.values()))), dtype=bool)
    # Rows may break a rule from the start; advice must not make it worse.
    for rule in book.linear:
        then, noise = rule.breach(before)
        now, _ = rule.breach(after)
        if rule.sign == "=":
            noise = noise + sum(abs(w) * _uncertain(columns[name], after[name]) for name, w in rule.weights.items())
            fine &= (now <= noise) | (now <= then + noise)
        else:
            fine &= ~rule.broken(after) | (now <= then)
    for needs in book.requires:
        fine &= ~needs.broken(after) | needs.broken(before)
    for follows in book.follows:
        fine &= _follows_allowed(follows, columns[follows.column].feature, before, after)
    return fine


def _uncertain(column: Column, v: np.ndarray) -> np.ndarray:
    """How exactly a printed number of an equation can be chosen: to all digits, unless it is not rounded."""
    if column.grid is not None and column.grid / column.scale >= _CODE:
        return np.zeros_like(v)
    return _CODE * (np.abs(v - column.center) + column.scale)


def _follows_allowed(rule: Follows, feature: Feature, before: Numbers, after: Numbers) -> np.ndarray:
    """Mask ``(n,)``: what follows can be computed, and stays within the rules of its own column."""
    own, now = before[rule.column], after[rule.column]
    moved = np.any([after[name] != before[name] for name in rule.expression.columns], axis=0)
    fine = ~moved | np.isfinite(rule.value(after))
    low, high = feature.limits
    fine &= ((now >= low) | (now >= own)) & ((now <= high) | (now <= own))
    if feature.mutability not in ("both", "increase"):
        fine &= now <= own
    if feature.mutability not in ("both", "decrease"):
        fine &= now >= own
    if feature.max_change is not None:
        fine &= np.abs(now - own) <= feature.max_change * (1 + 1e-9)
    return fine


def breaks(
    book: RelationBook, columns: Mapping[str, Column], values: Numbers
) -> list[tuple[str, tuple[str, ...], np.ndarray]]:
    """Of each relation that some rows break: its text, its columns, and the mask ``(n,)`` of these rows."""
    found = [(rule.text, rule.columns, rule.broken(values)) for rule in book.linear]
    found += [(needs.text, needs.columns, needs.broken(values)) for needs in book.requires]
    for rule in book.follows:
        found.append((rule.text, rule.columns, mismatched(rule, columns[rule.column], values)))
    return [entry for entry in found if entry[2].any()]


def mismatched(rule: Follows, column: Column, values: Numbers) -> np.ndarray:
    """Mask ``(n,)`` of rows whose column is not what it should follow, beyond rounding."""
    expected = rule.value(values)
    with np.errstate(all="ignore"):
        slack = _rounding(column) + ELSEWHERE * np.abs(expected)
        return ~(np.abs(values[rule.column] - expected) <= slack)


def _rounding(column: Column) -> float:
    """How far rounding may take a number of the column, and a little more."""
    return 0.51 * (column.grid or 0.0)
