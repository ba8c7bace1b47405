"""The features of a table: inferred from a frame, corrected by hand, saved with the model.

>>> import pandas as pd
>>> frame = pd.DataFrame({"age": [31, 47, 58], "degree": ["BSc", "none", "MSc"]})
>>> print(Schema.infer(frame, {"age": {"unit": "years"}}, mutability={"age": "none"}))
feature  kind         unit   mutability  values
age      integer      years  none
degree   categorical         both        'BSc', 'MSc', 'none'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from counterfactual_training.errors import InputError, lookup
from counterfactual_training.tables.columns.feature import Feature, show, stated_values
from counterfactual_training.tables.columns.frame import as_frame, match_columns
from counterfactual_training.tables.columns.infer import (
    combined,
    complete_feature,
    infer_feature,
    infer_plain,
    is_open,
    needs_order,
    read_columns,
)
from counterfactual_training.tables.columns.plain import PlainNumbers
from counterfactual_training.tables.columns.relate import check_feasible
from counterfactual_training.tables.columns.relations import (
    RelationBook,
    check_texts,
    read_relations,
)
from counterfactual_training.tables.columns.schema_file import (
    feature_to_dict,
    read_features,
    relations_key,
    split_relations,
    write_features,
)
from counterfactual_training.text import align, one_line

# What a user states about columns: a table per column, or a file that holds one.
Stated = Mapping[str, Any] | str | Path | None


@dataclass(frozen=True)
class Schema:
    """The features of a table, in the order of its columns, and relations between them.

    :meth:`infer` makes one from data; ``schema["age"]`` is one feature, and iterating gives all.

    Attributes:
        features: a :class:`Feature` per column.
        relations: between columns, as text, such as ``"satisfactory <= total"``, ``"ratio = debt /
            income"`` or ``"job = pilot requires licence = yes"``.

    Examples:
        >>> import counterfactual_training as ct
        >>> people = ct.loan(300).frame
        >>> schema = ct.Schema.infer(
        ...     people, {"debt": {"unit": "thousand dollars"}}, mutability={"age": "none"}
        ... )
        >>> print(schema)
        feature  kind     unit              mutability  values
        age      integer                    none
        debt     numeric  thousand dollars  both
        >>> schema["debt"].unit
        'thousand dollars'
    """

    features: tuple[Feature, ...]
    relations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        object.__setattr__(self, "relations", check_texts(self.relations))
        if not self.names or len(set(self.names)) != len(self.names):
            raise InputError(
                f"A schema needs features of different names, got {show(self.names)}."
            )
        # Otherwise, rules that contradict each other would only show as searches without an answer.
        check_feasible(self.book, self.features)

    @cached_property
    def book(self) -> RelationBook:
        """The relations, read and checked."""
        if self.relations:
            return read_relations(self.relations, self.features)
        return RelationBook()

    @classmethod
    def infer(
        cls,
        frame: Any,
        schema: Stated = None,
        *,
        mutability: Mapping[str, object] | None = None,
        domain: Mapping[str, tuple[Any, Any]] | None = None,
        special: Mapping[str, Any] | None = None,
        relations: Sequence[str] | None = None,
    ) -> Schema:
        """A schema from a frame (or array) and what the user states; the data decides the rest.

        Whole numbers are integers (also where a missing value made pandas store floats), 0/1 (also
        0.0/1.0) and two categories are binary, an ordered categorical dtype is ordinal, other text
        is categorical. Floats are numeric; a column of whole floats is rounded to whole floats.

        Args:
            frame: the data.
            schema: a dict with a table per column, such as ``{"age": {"unit": "years"}}``, or a
                ``.toml`` or ``.json`` file of the same form, as :meth:`save` writes it. Its fields
                are those of :class:`Feature`. A list under ``"relations"`` (``"relations_"``, if a
                column is called that) relates columns.
            mutability, domain, special: by column; they win over the schema. A direction may also
                be −1, 0 or +1, as in scikit-learn's ``monotonic_cst``.
            relations: on top of those of the schema, such as ``["satisfactory <= total"]``.
        """
        table = as_frame(frame)
        if len(table) == 0:
            raise InputError("There are no rows to infer a schema from.", code="no_rows")
        by_column = {"mutability": mutability, "domain": domain, "special": special}
        stated, related = _stated(schema, list(table.columns), relations, by_column)
        features = []
        problems = []
        numbers = PlainNumbers(table)
        for name in table.columns:
            try:
                plain = infer_plain(name, numbers, stated[name])
                features.append(
                    infer_feature(table[name], stated[name]) if plain is None else plain
                )
                _check_order(features[-1], stated[name])
            except InputError as error:
                problems.append(error)
        if problems:
            raise combined(problems, "The columns need attention")
        inferred = cls(tuple(features), related)
        # Stated categories may lack some of the data's; those of text that were not stated are the
        # data's.
        dtypes = dict(table.dtypes)
        doubtful = [
            feature
            for feature in features
            if not feature.is_category
            or "categories" in stated[feature.name]
            or not isinstance(dtypes[feature.name], pd.StringDtype)
        ]
        read_columns(doubtful, table, "The data contradicts the schema")
        return inferred

    def override(
        self,
        schema: Stated = None,
        *,
        mutability: Mapping[str, object] | None = None,
        domain: Mapping[str, tuple[Any, Any]] | None = None,
        special: Mapping[str, Any] | None = None,
        relations: Sequence[str] | None = None,
    ) -> Schema:
        """The schema with the stated parts replaced and everything else kept.

        Args:
            schema: a dict with a table per column, or a file, as in :meth:`infer`.
            mutability, domain, special: by column; they win over ``schema``.
            relations: on top of those that are there.
        """
        by_column = {"mutability": mutability, "domain": domain, "special": special}
        stated, related = _stated(schema, self.names, relations, by_column)
        features = tuple(_override(feature, stated[feature.name]) for feature in self.features)
        return Schema(features, (*self.relations, *related))

    # ---- against data ----------------------------------------------------------------------------

    def complete(self, frame: Any) -> Schema:
        """The schema with categories and pixel ranges of the data where none are stated.

        Args:
            frame: the data; it needs all columns of the schema.
        """
        table = match_columns(as_frame(frame, self.names), self.names, stated=True)
        features = tuple(
            complete_feature(feature, table[feature.name]) if is_open(feature) else feature
            for feature in self.features
        )
        return Schema(features, self.relations)

    def check(self, frame: Any, domain: bool = True) -> None:
        """Raise if the frame contradicts the schema: columns, kinds, categories, domains.

        Args:
            frame: the data.
            domain: whether rows outside a domain are an error. A domain limits where advice may
                lead, so the encoder accepts such rows.
        """
        table = match_columns(as_frame(frame, self.names), self.names, stated=True)
        read_columns(self.features, table, "The data contradicts the schema", domain=domain)

    # ---- as a collection -------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, in their order."""
        return tuple(feature.name for feature in self.features)

    def __getitem__(self, name: str) -> Feature:
        return lookup("feature", name, {feature.name: feature for feature in self.features})

    def __iter__(self) -> Iterator[Feature]:
        return iter(self.features)

    def __len__(self) -> int:
        return len(self.features)

    # ---- to read and to keep ---------------------------------------------------------------------

    def table(self) -> pd.DataFrame:
        """A row per feature, for people."""
        rows = [
            (f.name, f.kind, f.unit or "", f.mutability, stated_values(f))
            for f in self.features
        ]
        return pd.DataFrame(rows, columns=["feature", "kind", "unit", "mutability", "values"])

    def __str__(self) -> str:
        table = self.table()
        lines = align([list(table.columns), *table.to_numpy().tolist()])
        return "\n".join([*lines, *map(one_line, self.relations)])

    def to_dict(self) -> dict[str, Any]:
        """As JSON: a table per column, in order; and the list of relations, if there are any."""
        tables: dict[str, Any] = {
            feature.name: feature_to_dict(feature) for feature in self.features
        }
        return {
            **({relations_key(tables): list(self.relations)} if self.relations else {}),
            **tables,
        }

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> Schema:
        """The inverse of :meth:`to_dict`.

        Args:
            spec: a table per column, each with its ``kind``; and the list of relations, if there
                are any.
        """
        features, relations = split_relations(spec)
        open_kinds = [name for name, fields in features.items() if "kind" not in fields]
        if open_kinds:
            raise InputError(
                f"No kind is stated for {show(open_kinds)}. A partial schema is completed by data: "
                "Schema.infer(frame, schema)."
            )
        return cls(
            tuple(Feature(name=name, **fields) for name, fields in features.items()), relations
        )

    @classmethod
    def from_file(cls, path: str | Path) -> Schema:
        """A complete schema from a file; give a partial one to :meth:`infer`.

        Args:
            path: a ``.toml`` or ``.json`` file with a table per column, each with its ``kind``.
        """
        return cls.from_dict(read_features(path))

    def save(self, path: str | Path) -> None:
        """Write the schema, for :meth:`from_file`.

        Args:
            path: ends in ``.toml`` or ``.json``.
        """
        write_features(path, self.to_dict())


def _stated(
    schema: Stated,
    names: Sequence[str],
    relations: Sequence[str] | None,
    by_column: Mapping[str, Mapping[str, Any] | None],
) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """What the user states, with an entry for every column, and the relations; fields by column win
    over the schema.
    """
    features = dict[str, dict[str, Any]]()
    related = tuple[str, ...]()
    if isinstance(schema, (str, Path)):
        schema = read_features(schema)
    if isinstance(schema, Mapping):
        features, related = split_relations(schema)
    elif schema is not None:
        raise InputError(
            f"schema must be a dict by column or a file name, got {type(schema).__name__}."
        )
    stated: dict[str, dict[str, Any]] = {name: {} for name in names}
    for name, fields in features.items():
        lookup("column", name, stated).update(fields)
    for field, values in by_column.items():
        if values is not None and not isinstance(values, Mapping):
            raise InputError(f"{field} must be a dict by column, got {values!r}.")
        for name, value in (values or {}).items():
            lookup("column", name, stated)[field] = value
    return stated, (*related, *check_texts(relations))


def _override(feature: Feature, stated: Mapping[str, Any]) -> Feature:
    fields = dict(stated)
    kind = fields.get("kind", feature.kind)
    if kind != feature.kind:
        # Rules that only made sense for the old kind are dropped, unless they are stated again.
        blank = Feature(feature.name, kind)
        # Categories keep their meaning whether or not they have an order; ranges of numbers do not.
        if not (blank.is_category and feature.is_category):
            fields = {
                "categories": None,
                "domain": None,
                "allowed": None,
                "forbidden": (),
                "special": (),
                **fields,
            }
        elif kind != "ordinal":
            fields = {"domain": None, **fields}
    changed = replace(feature, **fields)
    _check_order(
        changed, stated, needed=kind == "ordinal" and feature.kind in ("binary", "categorical")
    )
    return changed


def _check_order(feature: Feature, stated: Mapping[str, Any], needed: bool = False) -> None:
    """Raise if an order is needed, or a direction stated, and the only order is alphabetical, which
    means nothing.
    """
    if feature.kind in ("binary", "categorical") and feature.mutability in (
        "increase",
        "decrease",
    ):
        needed |= "mutability" in stated
    levels = feature.categories or ()
    if not needed or "categories" in stated or len(levels) < 2:
        return
    if all(isinstance(level, str) for level in levels) and list(levels) == sorted(levels):
        raise needs_order(feature)
