"""Relations between the columns of a schema: checked, and exact on numbers in the user's units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np

from counterfactual_training.constraints.expression import Expression
from counterfactual_training.errors import ConstraintError, unknown
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.columns.relation_text import (
    Comparison,
    Condition,
    read_relation,
)

# Sums of decimals are off by less than this share of their terms.
_NOISE = 1e-12


@dataclass(frozen=True)
class Linear:
    """``Σ weights · columns <= bound``, or ``<``, or ``=``."""

    text: str
    weights: dict[str, float]
    sign: str
    bound: float

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.weights)

    def breach(self, values: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """How much rows break it ``(n,)``, negative if kept, and how exact that is."""
        terms = [weight * values[name] for name, weight in self.weights.items()]
        excess = np.sum(terms, 0) - self.bound
        noise = _NOISE * (np.abs(self.bound) + np.sum(np.abs(terms), 0))
        # What is equal up to noise keeps <= and =, and breaks <.
        return (np.abs(excess) if self.sign == "=" else excess) + (
            noise if self.sign == "<" else -noise
        ), noise

    def broken(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        breach, _ = self.breach(values)
        if self.sign == "<":
            return breach >= 0
        return breach > 0


@dataclass(frozen=True)
class Follows:
    """A column that is computed from others."""

    text: str
    column: str
    expression: Expression

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column, *self.expression.columns)

    def value(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """``(n,)``; not finite after a division by zero."""
        with np.errstate(all="ignore"):
            return np.broadcast_to(self.expression(values), values[self.column].shape).astype(
                np.float64
            )


@dataclass(frozen=True)
class Requires:
    """Where one column has a category, another must have a certain one; both by position, −2 before
    the categories are known.
    """

    text: str
    condition: str
    category: int
    needed: str
    needed_category: int

    @property
    def columns(self) -> tuple[str, ...]:
        return self.condition, self.needed

    def broken(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Mask ``(n,)``, of columns read as positions of categories."""
        return (values[self.condition] == self.category) & (
            values[self.needed] != self.needed_category
        )


@dataclass(frozen=True)
class RelationBook:
    """All relations of a schema; a column comes after those that it follows."""

    linear: tuple[Linear, ...] = ()
    follows: tuple[Follows, ...] = ()
    requires: tuple[Requires, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.linear or self.follows or self.requires)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """All columns that take part."""
        parts: Iterable[Any] = (*self.linear, *self.follows, *self.requires)
        return tuple(dict.fromkeys(name for part in parts for name in part.columns))

    @cached_property
    def following(self) -> tuple[str, ...]:
        return tuple(rule.column for rule in self.follows)

    def sources(self, column: str) -> tuple[str, ...]:
        """The columns that one which follows is computed from in the end, none of which follows
        others itself.
        """
        rules = {rule.column: rule for rule in self.follows}
        if column not in rules:
            return (column,)
        return tuple(
            dict.fromkeys(
                source
                for name in rules[column].expression.columns
                for source in self.sources(name)
            )
        )

    @cached_property
    def flat(self) -> tuple[Linear, ...]:
        """The linear relations in terms of columns that do not follow others; those that stay
        linear then.
        """
        by_name = {rule.column: rule.expression.linear() for rule in self.follows}
        return tuple(
            rule
            for rule in (_without_followers(rule, by_name) for rule in self.linear)
            if rule is not None
        )


def _without_followers(
    rule: Linear, by_name: Mapping[str, tuple[dict[str, float], float] | None]
) -> Linear | None:
    weights = dict(rule.weights)
    bound = rule.bound
    # Terminates, because no column follows itself.
    while any(name in by_name for name in weights):
        name = next(name for name in weights if name in by_name)
        weight = weights.pop(name)
        parts = by_name[name]
        if parts is None:
            return None
        bound -= weight * parts[1]
        for other, share in parts[0].items():
            weights[other] = weights.get(other, 0.0) + weight * share
    weights = {name: weight for name, weight in weights.items() if weight}
    if weights:
        return Linear(rule.text, weights, rule.sign, bound)
    return None


# ---- from text -----------------------------------------------------------------------------------


def check_texts(relations: Any, what: str = "relations") -> tuple[str, ...]:
    """A list of relations, each once."""
    if relations is None:
        return ()
    if isinstance(relations, (str, bytes)) or not isinstance(relations, Sequence):
        raise ConstraintError(
            f"{what} must be a list of text, such as ['a <= b'], got {relations!r}."
        )
    for text in relations:
        if not isinstance(text, str):
            raise ConstraintError(f"A relation is text such as {'a <= b'!r}, got {text!r}.")
    return tuple(dict.fromkeys(relations))


def read_relations(texts: Sequence[str], features: Sequence[Feature]) -> RelationBook:
    """The relations between columns, or an error that says which of them cannot be."""
    by_name = {feature.name: feature for feature in features}
    linear = list[Linear]()
    follows = list[Follows]()
    requires = list[Requires]()
    for text in texts:
        relation = read_relation(text, by_name)
        if not isinstance(relation, Comparison):
            requires.append(_requirement(text, *relation, by_name))
            continue
        for name in (*relation.left.columns, *relation.right.columns):
            if by_name[name].is_category:
                raise ConstraintError(
                    f"The relation {text!r} computes with {name!r}, which is {by_name[name].kind}; "
                    "'a = x requires b = y' relates categories."
                )
        if relation.sign != "=" or relation.left.op != "column":
            linear.append(_linear(text, relation))
        elif relation.right.columns:
            _check_free(text, by_name[relation.left.value])
            follows.append(Follows(text, relation.left.value, relation.right))
        else:
            name = relation.left.value
            raise ConstraintError(
                f"The relation {text!r} holds {name!r} at one number; use the domain of {name!r} "
                "for that."
            )
    return RelationBook(tuple(linear), _in_order(follows), tuple(requires))


def _linear(text: str, comparison: Comparison) -> Linear:
    linear = comparison.left.joined("-", comparison.right).linear()
    if linear is None:
        raise ConstraintError(
            f"The relation {text!r} is not linear: columns are multiplied or divided by columns. "
            "Write a <= 0.4 * b "
            "instead of a / b <= 0.4, or add a column that follows, such as 'ratio = a / b', and "
            "limit its domain."
        )
    if comparison.sign in (">=", ">"):
        sign = -1.0
    else:
        sign = 1.0
    weights = {name: sign * weight for name, weight in linear[0].items() if weight}
    if not weights:
        raise ConstraintError(f"The relation {text!r} says nothing about any column.")
    return Linear(
        text,
        weights,
        {">=": "<=", ">": "<"}.get(comparison.sign, comparison.sign),
        -sign * linear[1],
    )


def _check_free(text: str, feature: Feature) -> None:
    """Raise for rules that name the values of a column: one that is computed takes those that come
    out.
    """
    for field in ("step", "allowed"):
        if getattr(feature, field) is not None:
            raise ConstraintError(
                f"The relation {text!r} computes {feature.name!r}, so its {field} cannot be "
                "kept; leave it out, or "
                "state one for what it follows. Its other rules are kept."
            )


def _requirement(
    text: str, antecedent: Condition, needed: Condition, by_name: Mapping[str, Feature]
) -> Requires:
    if antecedent.column == needed.column:
        raise ConstraintError(
            f"The relation {text!r} relates {antecedent.column!r} to itself; it needs two "
            "columns."
        )
    positions = []
    for condition in (antecedent, needed):
        feature = by_name[condition.column]
        if not feature.is_category:
            raise ConstraintError(
                f"The relation {text!r}: {feature.name!r} is {feature.kind} and has no categories."
            )
        positions.append(_position(text, condition, feature))
    return Requires(text, antecedent.column, positions[0], needed.column, positions[1])


def _position(text: str, condition: Condition, feature: Feature) -> int:
    """Where a category stands among those of a column; −2 before they are known (−1 is an unseen
    one).
    """
    if feature.categories is None:
        return -2
    names = [str(level) for level in feature.levels]
    answers = [{"True": "yes", "False": "no"}.get(name, name) for name in names]
    for level_names in (names, answers):
        if condition.category in level_names:
            return level_names.index(condition.category)
    # A file may write 1 as 1.0, or 1.0 as 1.
    numbers = [
        float(level) if isinstance(level, (int, float)) else None for level in feature.levels
    ]
    try:
        return numbers.index(float(condition.category))
    except ValueError:
        message = unknown(f"category of {feature.name!r}:", condition.category, feature.levels)
        raise ConstraintError(f"The relation {text!r}: {message}") from None


def _in_order(follows: Sequence[Follows]) -> tuple[Follows, ...]:
    """Columns after those that they follow; an error if two rules compute one column, or a column
    follows itself.
    """
    by_name: dict[str, Follows] = {}
    for rule in follows:
        if rule.column in by_name:
            first = by_name[rule.column].text
            raise ConstraintError(
                f"{rule.column!r} follows from both {first!r} and {rule.text!r}; keep one of them."
            )
        by_name[rule.column] = rule
    try:
        order = list(
            TopologicalSorter(
                {name: rule.expression.columns for name, rule in by_name.items()}
            ).static_order()
        )
    except CycleError as error:
        circle = " from ".join(reversed(error.args[1]))
        raise ConstraintError(
            f"Columns follow each other in a circle: {circle}. One of them must be free."
        ) from None
    return tuple(by_name[name] for name in order if name in by_name)
