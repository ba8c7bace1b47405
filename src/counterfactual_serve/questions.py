"""What may be asked: the fields of every request, and rows as frames."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from counterfactual_serve.reading import (
    Anything,
    ByName,
    Either,
    Fields,
    Flag,
    Kind,
    Many,
    Maybe,
    Number,
    OneOf,
    RefusedError,
    Scalar,
    Text,
    shown_value,
)
from counterfactual_serve.served import Model, Served
from counterfactual_training import defaults
from counterfactual_training.errors import unknown
from counterfactual_training.rules import stated_in, with_trait
from counterfactual_training.tables.advice.rules import Rules
from counterfactual_training.tables.advice.words import plain_value
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier

# An unknown category is shown again in notes, so it is not to fill the screen.
_LONGEST_CATEGORY = 200
# Larger numbers could not be told from their neighbours.
_LARGEST = 5e14
_MOST_FILTERS = 50
_MOST_VALUES = 1000
_MOST_RELATIONS = 20
# Of witnesses, which never are all sure; 0 asks for what is just enough.
_SHARES = (0.0, 0.99)


@dataclass(frozen=True)
class Limits:
    """What one request may ask for.

    Attributes:
        rows: of one request; and of one page of the people.
        options: plans per row.
        body: bytes.
        seconds: of a search, which then answers with what it has found; requests that wait longer
            are refused.
        queue: rows that wait; further ones are refused.
        people: rows shown.
        audited: people who an audit asks for.
        audit_seconds: until an audit is cancelled.
    """

    rows: int = defaults.MAX_ROWS
    options: int = 10
    body: int = defaults.MAX_BODY
    seconds: float = defaults.MAX_SECONDS
    queue: int = defaults.MAX_WAITING
    people: int = defaults.MAX_PEOPLE
    audited: int = 2000
    audit_seconds: float = 300.0

    def document(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "options": self.options,
            "body": self.body,
            "seconds": self.seconds,
            "people": self.people,
            "audited": self.audited,
        }


@dataclass(frozen=True)
class GroupColumns:
    """A column to tell groups apart by, or two that cross: ``sex*race``."""

    columns: Sequence[str]

    def read(self, value: Any, where: str) -> str:
        text = Text().read(value, where)
        # A name may hold a star itself.
        for part in [text] if text in self.columns else text.split("*", 1):
            OneOf(self.columns, "column").read(part, where)
        return text

    def schema(self) -> dict[str, Any]:
        names = "|".join(
            re.sub(r"([\\^$.*+?()\[\]{}|/])", r"\\\1", name) for name in self.columns
        )
        pattern = rf"^(?:{names})(?:\*(?:{names}))?$"
        return {"type": "string", "maxLength": Text().longest, "pattern": pattern}


@dataclass(frozen=True)
class ColumnValue:
    """A value of one column, as a model takes it; null, if the model fills in what is missing."""

    value: Kind
    imputed: bool

    def read(self, value: Any, where: str) -> Any:
        if value is not None:
            return self.value.read(value, where)
        if not self.imputed:
            raise RefusedError(
                f"{where} is null; this model needs a value in every column.", where
            )
        return None

    def schema(self) -> dict[str, Any]:
        if self.imputed:
            return Maybe(self.value).schema()
        return self.value.schema()


def _cell(feature: Feature, classifier: CounterfactualClassifier) -> ColumnValue:
    value: Kind = Number(-_LARGEST, _LARGEST, integer=feature.kind == "integer")
    if feature.is_category:
        value = OneOf([plain_value(level) for level in feature.levels], "category")
        # Real rows may hold categories that training never saw: for the model, none of its own.
        if classifier.unseen != "error":
            value = Either([value, Text(_LONGEST_CATEGORY)])
    return ColumnValue(value, classifier.missing == "impute")


def _row(served: Served) -> Fields:
    """A row with all columns, as one of the models takes it."""
    if served.against is None:
        models = [served.model]
    else:
        models = [served.model, served.against]
    classifiers = [model.classifier for model in models]
    names = served.model.classifier.schema_.names
    cells = {name: Either([_cell(c.schema_[name], c) for c in classifiers]) for name in names}
    return Fields(cells, names)


def make_bodies(served: Served, limits: Limits) -> dict[str, Fields]:
    """The fields of each request with a body, by the name of its path."""
    names = list(served.model.classifier.schema_.names)
    row = _row(served)
    model = OneOf(["main", "against"] if served.against is not None else ["main"])
    rules = rule_fields(names, served.model.classes)
    rows = Many(row, limits.rows, 1)
    if served.rows is None:
        columns = names
    else:
        columns = [str(name) for name in served.rows.frame.columns]
    question_fields: dict[str, Kind] = {
        "options": Number(1, limits.options, integer=True),
        "lasting": Maybe(Number(*_SHARES)),
        "model": model,
    }
    pair = Many(Maybe(Number()), 2, 2)
    filters = Fields(
        {"column": OneOf(names, "column"), "between": pair, "in": Many(Scalar(), _MOST_VALUES)},
        ["column"],
        one_of=["between", "in"],
    )
    page: dict[str, Kind] = {
        "offset": Number(0, 1e9, integer=True),
        "limit": Number(1, 500, integer=True),
        "sort": OneOf(["row", "decision", "confidence", "label", *names]),
        "descending": Flag(),
        "decision": Maybe(OneOf(served.model.classes)),
        "search": Maybe(Text(200)),
        "filters": Many(filters, _MOST_FILTERS),
    }
    main = {"model": "main"}
    return {
        "rows": Fields(
            page,
            defaults={
                "offset": 0,
                "limit": 50,
                "sort": "row",
                "descending": False,
                "filters": [],
            },
        ),
        "predict": Fields({"rows": rows, "model": model}, ["rows"], main),
        "explain": Fields(
            {"rows": Many(row, limits.rows), **rules, **question_fields},
            ["rows"],
            {**main, "options": 1},
        ),
        "map": Fields(
            {
                "row": row,
                "columns": Maybe(Many(OneOf(names, "column"), 2, 2, unique=True)),
                "plans": Many(row, limits.options),
                "model": model,
                "size": Number(2, 80, integer=True),
            },
            ["row"],
            {**main, "plans": [], "size": 40},
        ),
        "audit": Fields(
            {
                "groups": Many(GroupColumns(columns), 5, 1),
                "people": Number(10, limits.audited, integer=True),
                "model": model,
                "target": Maybe(OneOf(served.model.classes)),
            },
            ["groups"],
            {**main, "people": min(defaults.CARD_PEOPLE, limits.audited)},
        ),
        "receipt": Fields(
            {"row": row, "plan": row, "question": Fields(rules), "model": model},
            ["row", "plan"],
            {**main, "question": {}},
        ),
        "verify": Fields({"receipt": Anything()}, ["receipt"]),
    }


def rule_fields(names: Sequence[str], classes: Sequence[Any]) -> dict[str, Kind]:
    """The rules of one question: see ``CounterfactualClassifier.explain``."""
    return {
        "target": Maybe(OneOf(classes)),
        "confidence": Maybe(Number(1e-6, 1.0)),
        "vary": Maybe(Many(OneOf(names, "column"), len(names), 1)),
        "lock": Maybe(Many(OneOf(names, "column"), len(names))),
        "domain": Maybe(ByName(names, Many(Scalar(), _MOST_VALUES, 1))),
        **{
            rule: Maybe(ByName(names, _BOUNDS.get(rule, _POSITIVE)))
            for rule in with_trait("number")
        },
        "max_changes": Maybe(Number(1, len(names), integer=True)),
        "relations": Maybe(Many(Text(500), _MOST_RELATIONS)),
    }


@dataclass(frozen=True)
class PageQuestion:
    """How rows are to be explained; rows of one question are searched together.

    Attributes:
        model: ``"main"`` or ``"against"``.
        target: the class to reach; ``None`` is the next most probable one.
        rules: arguments of ``explain``, without those that are not stated.
        lasting: share of witnesses that should accept the plan; 0 for what is just enough, ``None``
            for what ``explain`` does by default.
    """

    model: str
    options: int
    confidence: float | None
    target: Any
    rules: Mapping[str, Any]
    lasting: float | None = None


def question_of(body: Mapping[str, Any], model: Model) -> PageQuestion:
    """The question of a request, its rules checked against those that the model was trained
    under.
    """
    if body["lasting"] and model.classifier.witnesses_ is None:
        raise RefusedError(
            f"{model.name} has no witnesses to ask whether plans last: leave lasting out, or train "
            "it with witnesses (ct train --witnesses 10).",
            "lasting",
            code="no_witnesses",
        )
    rules = rules_of(body, model.classifier)
    # A rule that contradicts the schema is reported at once, not after a wait in the queue.
    Rules(**rules).narrow(model.classifier.schema_)
    if body["target"] is None:
        target = plain_value(model.wanted)
    else:
        target = body["target"]
    return PageQuestion(
        body["model"], body["options"], body["confidence"], target, rules, body["lasting"]
    )


def rules_of(body: Mapping[str, Any], classifier: CounterfactualClassifier) -> dict[str, Any]:
    """Arguments of ``explain`` for the rules that a request states."""
    stated = {name: body.get(name) for name in _RULES}
    rules = {name: value for name, value in stated.items() if value}
    if "domain" in rules:
        rules["domain"] = {
            name: _range(classifier.schema_[name], ends)
            for name, ends in rules["domain"].items()
        }
    return rules


_RULES = stated_in("question")
_POSITIVE = Number(1e-12)
# Beyond that, costs would no longer be numbers.
_BOUNDS = {"difficulty": Number(1e-6, 1e6)}


def _range(feature: Feature, values: Sequence[Any]) -> list[Any]:
    """Two ends of a number or of ordered categories; or a list of categories, as the schema knows
    them.
    """
    where = f"domain.{feature.name}"
    if feature.kind in ("binary", "categorical"):
        return [_level(feature, value, where) for value in values]
    if len(values) != 2:
        raise RefusedError(
            f"{where} must hold two ends, either of them null, got {len(values)} values.", where
        )
    if feature.kind == "ordinal":
        return [None if value is None else _level(feature, value, where) for value in values]
    return [None if value is None else Number().read(value, where) for value in values]


def _level(feature: Feature, value: Any, where: str) -> Any:
    plain_levels = [plain_value(level) for level in feature.levels]
    for level, plain in zip(feature.levels, plain_levels, strict=True):
        if plain == value and isinstance(value, bool) == isinstance(plain, bool):
            return level
    raise RefusedError(
        f"{where}: {unknown('category', shown_value(value), plain_levels)}", where
    )


# ---- rows ----------------------------------------------------------------------------------------


def _check_complete(row: Mapping[str, Any], names: Sequence[str], place: str) -> None:
    """Raise if a row lacks a column."""
    absent = [name for name in names if name not in row]
    if absent:
        raise RefusedError(
            f"{place} lacks {', '.join(map(repr, absent[:5]))}: every column is needed.", place
        )


def request_frame(
    rows: Sequence[Mapping[str, Any]],
    classifier: CounterfactualClassifier,
    places: Sequence[str] = (),
) -> tuple[pd.DataFrame, list[list[str]]]:
    """Rows as a frame like that of the training, and notes on what the model does not know of each.

    Args:
        places: where each row stands in the request, for messages; by default ``rows[0]``,
            ``rows[1]``, …
    """
    places = places or [f"rows[{i}]" for i in range(len(rows))]
    notes: list[list[str]] = [[] for _ in rows]
    for row, place in zip(rows, places, strict=True):
        _check_complete(row, classifier.schema_.names, place)
    columns = {}
    for feature in classifier.schema_:
        name = feature.name
        cell = _cell(feature, classifier)
        cells = zip(rows, places, strict=True)
        values = [cell.read(row[name], f"{place}.{name}") for row, place in cells]
        if not feature.is_category:
            columns[name] = pd.Series(
                [math.nan if value is None else value for value in values]
            )
            continue
        levels = {plain_value(level): level for level in feature.levels}
        columns[name] = pd.Series([levels.get(value, value) for value in values], dtype=object)
        _note_unseen(name, values, levels, notes)
    return pd.DataFrame(columns), notes


def _note_unseen(
    name: str, values: Sequence[Any], levels: Mapping[Any, Any], notes: Sequence[list[str]]
) -> None:
    """Add a note to each row whose category training never saw."""
    for value, note in zip(values, notes, strict=True):
        if value is not None and value not in levels:
            message = f"{name} {value!r} did not occur in training"
            note.append(f"{message}: it counts as none of the known categories.")
