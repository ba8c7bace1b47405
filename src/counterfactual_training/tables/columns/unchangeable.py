"""Columns that people cannot change, recognised by their names: age, sex, origin."""

from __future__ import annotations

import json
import re
from itertools import pairwise

from counterfactual_training.errors import InputWarning, Remedy
from counterfactual_training.tables.columns.schema import Schema


def _listed(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORDS = _listed(
    "age sex gender race ethnic ethnicity hispanic caste nationality dob yob birthday birthdate "
    "birthyear birthplace "
    "agegroup ageband agerange"
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
# Words that change the meaning of the one before: race_time, gender_gap, sex_partners.
_OTHERWISE = _listed("distance education gap partner partners ratio time track")
# Words that do not tell whose age it is: oldest_account_age, housing_median_age.
_STATISTICS = _listed("average avg mean median min max oldest newest")


def cannot_change(name: str) -> bool:
    """Whether a column's name says that nobody can change it: ``age``, ``applicant_sex``,
    ``DateOfBirth``.
    """
    # "PatientAge", "DOBYear" and "AGE_YEARS" are two words each; numbers are none.
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    words = [word for word in words if word not in _STATISTICS]
    if any(
        tuple(sorted(pair)) in _PAIRS
        for pair in pairwise(word for word in words if word not in ("of", "in"))
    ):
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
    if words[place] == "age":  # "age_at_loan" is a person's, "age of the car" is not
        if after == ["of"]:
            after = words[place + 2 :]
        if any(word.removesuffix("s") in _THINGS for word in (*before, *after)):
            return True
    return not _OTHERWISE.isdisjoint(after)


def unchangeable_warning(schema: Schema) -> InputWarning | None:
    """What to state about such columns; ``None`` if there are none, or the user has stated what may
    change.
    """
    if any(feature.mutability != "both" for feature in schema):
        return None
    names = [feature.name for feature in schema if cannot_change(feature.name)]
    if not names:
        return None
    listed = ", ".join(json.dumps(name, ensure_ascii=False) for name in names)
    return InputWarning(
        f"{listed}: nobody can change this, judging by the name, but advice may ask for it; ",
        Remedy("hold", tuple(names)),
    )
