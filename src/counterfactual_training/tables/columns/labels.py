"""Whole numbers that name something: years, postcodes, numbers of customers."""

from __future__ import annotations

import re

# A name with one of these words holds a year, if the values are such …
_TIMES = frozenset({"year", "yr", "date", "since", "built", "opened", "founded", "born", "yob"})
_YEARS = (1000, 2999)
# … and without a name, these values are years.
_RECENT = (1800, 2100)
# Fewer than so many years apart, numbers may be anything.
_APART = 5
_CODES = frozenset({"id", "ids", "zip", "zipcode", "postcode", "postal", "plz", "ssn", "iban"})
# The last word of a name: "customer_number", not "number_of_loans".
_LAST = frozenset({"number", "no", "nr"})


def words_of(name: str) -> list[str]:
    """``["dob", "year"]`` of ``DOBYear``, in small letters; numbers are no words."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def is_code(name: str) -> bool:
    """Whether a column's name says that its numbers name somebody, or a place: ``customer_id``,
    ``zip``.
    """
    words = words_of(name)
    return not _CODES.isdisjoint(words) or (len(words) > 1 and words[-1] in _LAST)


def is_label(name: str, low: float, high: float) -> bool:
    """Whether whole numbers from ``low`` to ``high`` are labels: codes or years.

    Labels are written without thousands separators.
    """
    words = words_of(name)
    if is_code(name) or words[-1:] == ["code"]:
        return True
    if not _TIMES.isdisjoint(words):
        first, last = _YEARS
    else:
        first, last = _RECENT
        if high - low < _APART:
            return False
    return first <= low and high <= last
