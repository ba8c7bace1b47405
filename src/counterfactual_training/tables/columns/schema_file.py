"""Schemas as JSON and TOML files, written by hand or saved with a model.

    [education]
    kind = "ordinal"
    categories = ["HS-grad", "Bachelors", "Masters"]
    mutability = "increase"

A file may hold a complete schema, or only what the data does not tell. Relations between columns
are one list, before the first table: ``relations = ["satisfactory <= total"]``. If a column is
called ``relations``, the key is ``relations_``.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from counterfactual_training.errors import FileError, InputError, check_name
from counterfactual_training.persistence import atomic_write
from counterfactual_training.tables.columns.dtypes import from_plain, to_plain
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.columns.relations import check_texts

_RELATIONS = re.compile("relations_*")
FIELDS = tuple(field.name for field in fields(Feature) if field.name != "name")


def feature_to_dict(feature: Feature) -> dict[str, Any]:
    """The fields that differ from their defaults, as JSON."""
    stated = {
        f.name: getattr(feature, f.name)
        for f in fields(feature)
        if getattr(feature, f.name) != f.default
    }
    for name in {"domain", "categories", "allowed", "special"} & set(stated):
        stated[name] = [None if value is None else to_plain(value) for value in stated[name]]
    if "forbidden" in stated:
        stated["forbidden"] = [[to_plain(a), to_plain(b)] for a, b in feature.forbidden]
    return {name: stated[name] for name in FIELDS if name in stated}


def fields_from_dict(name: str, spec: Any) -> dict[str, Any]:
    """Keyword arguments of :class:`Feature` from what a user states about one column."""
    if not isinstance(spec, Mapping):
        raise InputError(
            f"The schema of {name!r} must be a dict of {', '.join(FIELDS)}, got {spec!r}."
        )
    for key in spec:
        check_name(f"field in the schema of {name!r}:", key, FIELDS)
    return {key: _untag(value) for key, value in spec.items() if value is not None}


def split_relations(
    content: Mapping[str, Any],
) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """What is stated by column, checked, and the relations between columns."""
    keys = [
        key
        for key, value in content.items()
        if isinstance(value, (list, tuple)) and _RELATIONS.fullmatch(str(key))
    ]
    relations = tuple(text for key in keys for text in check_texts(content[key], key))
    return {
        name: fields_from_dict(name, spec) for name, spec in content.items() if name not in keys
    }, relations


def relations_key(columns: Collection[str]) -> str:
    """The key of the relations beside these columns."""
    key = "relations"
    while key in columns:
        key += "_"
    return key


def _untag(value: Any) -> Any:
    if isinstance(value, list):
        return [_untag(entry) for entry in value]
    return from_plain(value)


def read_features(path: str | Path) -> dict[str, Any]:
    """What a ``.toml`` or ``.json`` file states, by column, and its list of relations."""
    path = Path(path)
    suffix = _suffix(path)
    try:
        # Editors on Windows put a mark before the first line, which TOML does not allow.
        text = path.read_bytes().decode("utf-8-sig")
        if suffix == ".toml":
            content = tomllib.loads(text)
        else:
            content = json.loads(text)
    except FileNotFoundError:
        raise FileError(f"There is no schema file {str(path)!r}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(
            f"{str(path)!r} is not readable as {suffix[1:].upper()}: {error}"
        ) from None
    if not isinstance(content, Mapping):
        raise FileError(
            f"{str(path)!r} must hold one table per column, got {type(content).__name__}."
        )
    try:
        split_relations(content)  # checks it
        return {str(name): value for name, value in content.items()}
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None


def write_features(path: str | Path, features: Mapping[str, Any]) -> None:
    """Write a file that :func:`read_features` reads."""
    path = Path(path)
    if _suffix(path) == ".json":
        text = json.dumps(features, indent=1, ensure_ascii=False) + "\n"
    else:
        tables = []
        for name, spec in features.items():
            if isinstance(spec, list):  # of relations
                tables.append(
                    f"{name} = [\n" + "".join(f"    {toml(text)},\n" for text in spec) + "]\n"
                )
                continue
            lines = [f"{key} = {toml(value, key)}" for key, value in spec.items()]
            tables.append("\n".join([f"[{toml_key(name)}]", *lines, ""]))
        text = "\n".join(tables)
    atomic_write(path, text.encode())


def _suffix(path: Path) -> str:
    if path.suffix.lower() not in (".toml", ".json"):
        raise FileError(f"A schema file ends in .toml or .json, got {path.name!r}.")
    return path.suffix.lower()


def toml_key(name: str) -> str:
    """The name of a table, in quotes where TOML needs them."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", name):
        return name
    return toml(name)


def toml(value: Any, key: str = "") -> str:
    """A value of a field; the standard library reads TOML, but does not write it."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{name} = {toml(entry)}" for name, entry in value.items()) + " }"
        )
    if isinstance(value, list):
        if key == "domain":  # TOML has no null
            value = [
                end if bound is None else bound
                for bound, end in zip(value, (-math.inf, math.inf), strict=True)
            ]
        return "[" + ", ".join(toml(entry) for entry in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
