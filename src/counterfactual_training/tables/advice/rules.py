"""Rules that hold for one question, on top of those of ``fit``, for all rows or one set per row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_training.errors import (
    Argument,
    ConstraintError,
    InputError,
    bad_value,
    check_count,
    check_name,
)
from counterfactual_training.rules import with_trait
from counterfactual_training.tables.columns.feature import Feature, show
from counterfactual_training.tables.columns.relations import Follows, RelationBook, check_texts
from counterfactual_training.tables.columns.schema import Schema

# Two steps may differ from a multiple by so much of the smaller one.
_CLOSE = 1e-9
# What is stated by column: ends, and one number of each of these rules.
_BY_COLUMN = ("domain", *with_trait("number"))
# Of these numbers, those that say how far a column may go: the smaller one holds.
_REACHES = with_trait("number", "reach")


@dataclass(frozen=True)
class Rules:
    """What one question allows; :data:`RULES` describes each rule. ``None`` states nothing.

    Attributes:
        domain, step, max_change, difficulty: by column.
    """

    vary: Sequence[str] | None = None
    lock: Sequence[str] | None = None
    domain: Mapping[str, Any] | None = None
    step: Mapping[str, float] | None = None
    max_change: Mapping[str, float] | None = None
    difficulty: Mapping[str, float] | None = None
    max_changes: int | None = None
    relations: Sequence[str] | None = None

    def narrow(self, schema: Schema) -> Schema:
        """The schema under these rules. Those stated in ``fit`` hold as well."""
        return self._by_name(schema.names)._narrow(schema)

    def _by_name(self, names: Sequence[str]) -> Rules:
        """The same rules with the schema's names: a frame's column 1 is ``"1"``."""

        def name(column: Any) -> Any:
            if isinstance(column, (int, np.integer)) and str(column) in names:
                return str(column)
            return column

        changes: dict[str, Any] = {}
        for field in ("vary", "lock"):
            listed = getattr(self, field)
            if isinstance(listed, (list, tuple)):
                changes[field] = [name(c) for c in listed]
            else:
                changes[field] = listed
        for field in _BY_COLUMN:
            stated = getattr(self, field)
            if isinstance(stated, Mapping):
                changes[field] = {name(c): v for c, v in stated.items()}
            else:
                changes[field] = stated
        return replace(self, **changes)

    def _narrow(self, schema: Schema) -> Schema:
        self._check(schema)
        # The very same object tells callers that nothing was stated; max_changes is no rule of a
        # column.
        if all(
            getattr(self, field.name) is None
            for field in fields(self)
            if field.name != "max_changes"
        ):
            return schema
        related = (*schema.relations, *check_texts(self.relations))
        # Read before anything is locked: what follows others may still do so, whatever varies.
        book = Schema(schema.features, related).book
        self._check_vary(schema, book)
        return Schema(
            tuple(self._feature(feature, feature.name in book.following) for feature in schema),
            related,
        )

    def _check(self, schema: Schema) -> None:
        self._check_kinds(schema)
        if self.max_changes is not None:
            check_count("max_changes", self.max_changes)
        # Sorted, so that the message is the same in every run.
        both = sorted(set(self.vary or ()) & set(self.lock or ()))
        if both:
            raise ConstraintError(
                f"{show(both)}: both in ",
                Argument("vary"),
                " and in ",
                Argument("lock"),
                ". A column cannot be free and held at once.",
                field="lock",
            )

    def _check_kinds(self, schema: Schema) -> None:
        """Raise unless lists are lists and dicts are dicts, all of existing columns."""
        for name in ("vary", "lock"):
            listed = getattr(self, name)
            if isinstance(listed, str) or not (listed is None or isinstance(listed, Sequence)):
                raise bad_value(
                    name, f"a list of columns, such as [{schema.names[0]!r}]", listed
                )
            _check_columns(name, listed or (), schema)
        for name in _BY_COLUMN:
            stated = getattr(self, name)
            if stated is not None and not isinstance(stated, Mapping):
                raise bad_value(
                    name, f"a dict by column, such as {{{schema.names[0]!r}: …}}", stated
                )
            _check_columns(name, stated or (), schema)

    def _check_vary(self, schema: Schema, book: RelationBook) -> None:
        """Raise if ``vary`` lists nothing that may change by itself."""
        varied = [name for name in self.vary or () if name not in (self.lock or ())]
        if self.vary is None or any(
            schema[name].mutability != "none" and name not in book.following for name in varied
        ):
            return
        follower = next((rule for rule in book.follows if rule.column in varied), None)
        if follower is not None:
            raise _bad_vary(_only_follows(follower, schema, book))
        if self.vary:
            held = f"fit was told that {show(self.vary)} may not change"
        else:
            held = "it lists no column"
        raise _bad_vary(f"{held}.")

    def _feature(self, feature: Feature, follows: bool) -> Feature:
        """The feature with what this question states of it."""
        stated = {
            rule: getattr(self, rule)[feature.name]
            for rule in _BY_COLUMN
            if feature.name in (getattr(self, rule) or {})
        }
        changes = dict[str, Any]()
        if self._holds(feature.name, follows):
            changes["mutability"] = "none"
        if "domain" in stated:
            changes |= _narrower(feature, stated["domain"])
        if "step" in stated:
            changes["step"] = _coarser(feature, stated["step"])
        for rule in _REACHES:
            if rule in stated:
                changes[rule] = _tighter(feature, rule, stated[rule])
        if "difficulty" in stated:
            changes["difficulty"] = stated["difficulty"]
        if changes:
            return replace(feature, **changes)
        return feature

    def _holds(self, name: str, follows: bool) -> bool:
        """Whether this question holds a column where it is."""
        if name in (self.lock or ()):
            return True
        return self.vary is not None and name not in self.vary and not follows


def _check_columns(rule: str, columns: Iterable[str], schema: Schema) -> None:
    """Raise if a rule names an unknown column."""
    for column in columns:
        check_name("column", column, schema.names, argument=rule)


def _coarser(feature: Feature, wanted: Any) -> float:
    """A step by which that of ``fit`` holds too: multiples of a multiple are multiples."""
    step = replace(feature, step=wanted).step or 1.0  # checks it
    if (
        feature.step is not None
        and abs(step / feature.step - round(step / feature.step)) > _CLOSE
    ):
        raise ConstraintError(
            f"step of {feature.name!r}: {step:g} is not a multiple of {feature.step:g}, which "
            "fit was told."
        )
    return step


def _tighter(feature: Feature, rule: str, wanted: Any) -> float:
    """The smaller of this question's number and that of ``fit``: nothing becomes freer."""
    checked = getattr(replace(feature, **{rule: wanted}), rule)
    return min(checked or np.inf, getattr(feature, rule) or np.inf)


def _fewer_categories(feature: Feature, wanted: Any) -> dict[str, Any]:
    """The categories that are both asked for and allowed by ``fit``."""
    values = replace(feature, allowed=wanted).allowed or ()
    kept = [value for value in values if feature.allowed is None or value in feature.allowed]
    if not kept:
        raise _bad_domain(
            feature,
            f"{show(values)} contradicts fit, which allows {show(feature.allowed or ())}",
        )
    return {"allowed": tuple(kept)}


def _narrower(feature: Feature, domain: Any) -> dict[str, Any]:
    """Fields of a feature whose advice keeps the rules of this question and those of ``fit``."""
    if feature.kind in ("binary", "categorical"):
        return _fewer_categories(feature, domain)
    # Checked without the feature's own list and step: a narrower domain may well leave out some of
    # its values.
    wanted = replace(feature, domain=domain, allowed=None, step=None)
    (low, high), (fit_low, fit_high) = wanted.limits, feature.limits
    low = max(low, fit_low)
    high = min(high, fit_high)
    if low > high:
        raise _bad_domain(
            feature, f"{domain!r} contradicts fit, which was told {feature.domain!r}"
        )
    # Limits are numbers; a feature states an open end as None, and an ordinal one by its level.
    ends: list[Any] = [None if np.isinf(end) else end for end in (low, high)]
    if feature.kind == "ordinal":
        ends = [feature.levels[int(end)] for end in (low, high)]
    changes: dict[str, Any] = {"domain": tuple(ends) if ends != [None, None] else None}
    if feature.allowed is not None and not feature.is_category:
        inside = tuple(value for value in feature.allowed if low <= value <= high)
        if not inside:
            raise _bad_domain(feature, f"{domain!r} holds none of its allowed values")
        changes["allowed"] = inside
    return changes


def _only_follows(rule: Follows, schema: Schema, book: RelationBook) -> str:
    """Why a column does not vary by itself, and what to vary instead."""
    inputs = [name for name in book.sources(rule.column) if schema[name].mutability != "none"]
    if inputs:
        advice = f"Vary {show(inputs)} instead."
    else:
        advice = "None of these may change."
    return f"{rule.column!r} only follows other columns, by {rule.text!r}. {advice}"


def _bad_vary(problem: str) -> ConstraintError:
    return ConstraintError(
        Argument("vary"), f" leaves nothing that may change: {problem}", field="vary"
    )


def _bad_domain(feature: Feature, problem: str) -> ConstraintError:
    return ConstraintError(
        Argument("domain"),
        f" of {feature.name!r}: {problem}.",
        field=f"domain.{feature.name}",
    )


def ask(rows: pd.Index, **stated: Any) -> list[tuple[np.ndarray, Rules]]:
    """Row numbers that share the same rules, and these rules.

    Args:
        rows: the index of the rows.
        stated: of :class:`Rules`, each for all rows, or a list with one entry per row.
    """
    by_row = {name: _by_row(name, value, len(rows)) for name, value in stated.items()}
    per_row = [name for name, entries in by_row.items() if entries is not None]
    shared = {name: value for name, value in stated.items() if name not in per_row}
    if not per_row:
        return [(np.arange(len(rows)), Rules(**shared))]
    groups: dict[str, tuple[list[int], Rules]] = {}
    for i in range(len(rows)):
        # Rows with equal rules are searched together. Dicts and lists cannot be keys, but their
        # repr can.
        of_row = {name: (by_row[name] or [])[i] for name in per_row}
        key = repr(sorted(of_row.items()))
        members, _ = groups.setdefault(key, ([], Rules(**shared, **of_row)))
        members.append(i)
    return [(np.array(members), rules) for members, rules in groups.values()]


def _by_row(name: str, value: Any, num_rows: int) -> list[Any] | None:
    """The entries of a rule that is stated row by row; ``None`` if it holds for all rows."""
    if isinstance(value, (np.ndarray, pd.Series)):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        return None
    # Columns are listed for all rows, so one entry per row is a list of lists there.
    if name in ("vary", "lock", "relations") and not any(
        isinstance(entry, (list, tuple, set)) for entry in value
    ):
        return None
    if len(value) != num_rows:
        raise InputError(
            f"{name} has {len(value)} entries for {num_rows} rows; give one for all rows, or one "
            "per row."
        )
    return list(value)
