"""Columns that people cannot change, recognised by their names: age, sex, origin; and numbers that
count rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from counterfactual_training.errors import InputWarning, Remedy
from counterfactual_training.tables.columns.column import Column
from counterfactual_training.tables.columns.labels import is_code, words_of
from counterfactual_training.tables.columns.schema import Schema


def _listed(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORDS = _listed(
    "age sex gender race ethnic ethnicity hispanic caste nationality dob yob birthday birthdate "
    "birthyear birthplace "
    "agegroup ageband agerange marital foreign foreigner country state province region earliest"
)
# Neighbouring words, in either order: "birth" alone is in birth_rate and birth_control, too.
_PAIRS = frozenset(
    {
        ("birth", word)
        for word in _listed("date day days month year country place city state weight order")
    }
    | {
        ("country", "native"),
        ("language", "native"),
        ("country", "origin"),
        ("national", "origin"),
    }
    | {("mother", "tongue"), ("blood", "type"), ("blood", "group")}
)
# Words for things, whose age is not a person's. Any other word counts as a person, because an
# unnecessary warning does less harm than advice to become younger.
_THINGS = _listed(
    "account asset auto battery bike boat bridge building business car card case claim company "
    "computer contract "
    "credit debt device document domain dwelling employer engine enterprise equipment file firm "
    "flat history home "
    "house housing inventory invoice item job line listing loan machine membership mortgage "
    "motor order organisation "
    "organization part phone pipe plant policy post product property record relationship roof "
    "server shop site stock "
    "store subscription ticket trade tree truck vehicle website"
)
# These, too, may be said of a thing: order_state.
_ALSO_OF_THINGS = frozenset({"age", "state", "region"})
# Words that change the meaning of the one before: race_time, gender_gap, sex_partners.
_OTHERWISE = _listed("distance education gap partner partners ratio time track")
# Words that do not tell whose age it is: oldest_account_age, housing_median_age.
_STATISTICS = _listed("average avg mean median min max oldest newest")

# Rows from which on numbers that are all different say something, and how many of the numbers
# between the first and the last may be missing: as many as there are, at most.
_FEWEST = 50
_SPARSE = 2


def cannot_change(name: str) -> bool:
    """Whether a column's name says that nobody can change it: ``age``, ``applicant_sex``,
    ``DateOfBirth``.
    """
    # "PatientAge", "DOBYear" and "AGE_YEARS" are two words each.
    words = [word for word in words_of(name) if word not in _STATISTICS]
    if any(
        tuple(sorted(pair)) in _PAIRS
        for pair in pairwise(word for word in words if word not in ("of", "in"))
    ):
        return True
    if is_code(name):
        return True
    return any(
        word in _WORDS and not _of_something_else(words, place)
        for place, word in enumerate(words)
    )


def _of_something_else(words: list[str], place: int) -> bool:
    """Whether the words around it show that it is not about a person: ``account_age``, ``age of
    car``, ``race_time``.
    """
    before = words[max(place - 1, 0) : place]
    after = words[place + 1 : place + 2]
    if words[place] in _ALSO_OF_THINGS:  # "age_at_loan" is a person's, "age of the car" is not
        if after == ["of"]:
            after = words[place + 2 :]
        if any(word.removesuffix("s") in _THINGS for word in (*before, *after)):
            return True
    return not _OTHERWISE.isdisjoint(after)


def counts_rows(column: Column, cells: pd.Series) -> bool:
    """Whether whole numbers are all different and close to each other, as those that somebody gave
    to rows, one after the other.

    Amounts that close to each other would repeat.
    """
    n = len(cells)
    if n < _FEWEST or column.feature.is_category or column.feature.special:
        return False
    # Cheap, and true of few columns: only their values are compared.
    if not n <= column.high - column.low + 1 <= _SPARSE * n:
        return False
    numbers = cells.to_numpy(dtype=np.float64, na_value=np.nan)
    return bool((numbers % 1 == 0).all()) and len(np.unique(numbers)) == n


def unchangeable_warning(schema: Schema, counting: Sequence[str] = ()) -> InputWarning | None:
    """What to state about such columns; ``None`` if there are none, or the user has stated what may
    change.

    Args:
        counting: columns that only count rows, see :func:`counts_rows`.
    """
    if any(feature.mutability != "both" for feature in schema):
        return None
    by_name = [feature.name for feature in schema if cannot_change(feature.name)]
    names = [name for name in schema.names if name in by_name or name in counting]
    if not names:
        return None
    listed = ", ".join(json.dumps(name, ensure_ascii=False) for name in names)
    if set(names) <= set(by_name):
        evidence = "by the name"
    else:
        evidence = "by the name, or by numbers that only count rows"
    return InputWarning(
        f"{listed}: nobody can change this, judging {evidence}, but advice may ask for it; ",
        Remedy("hold", tuple(names)),
    )
