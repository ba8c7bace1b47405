"""Columns that nobody can change, told by their names: age, sex, origin."""

from __future__ import annotations

import re
from itertools import pairwise

from counterfactual_training.tabular.schema import Schema

_WORDS = frozenset({"age", "sex", "gender", "race", "ethnic", "ethnicity", "nationality", "dob", "birthday"})
_PAIRS = frozenset({("date", "birth"), ("birth", "date"), ("birth", "year"), ("native", "country")})
_BETWEEN = ("of", "at", "in")


def cannot_change(name: str) -> bool:
    """Whether a column's name says that nobody can change it: ``age``, ``applicant_sex``, ``DateOfBirth``."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)]
    words = [word for word in words if word not in _BETWEEN]
    return not _WORDS.isdisjoint(words) or not _PAIRS.isdisjoint(pairwise(words))


def unchangeable_in_words(schema: Schema) -> str | None:
    """What to state about such columns; ``None`` if there are none, or the user has stated what may change."""
    if any(feature.mutability != "both" for feature in schema):
        return None
    names = [feature.name for feature in schema if cannot_change(feature.name)]
    if not names:
        return None
    listed = ", ".join(f'"{name}"' for name in names)
    rules = ", ".join(f'"{name}": "none"' for name in names)
    return (
        f"{listed}: nobody can change this, judging by the name, but advice may ask for it; "
        f"state mutability={{{rules}}}, or mutability={{}} if all columns may change"
    )
