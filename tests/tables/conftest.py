"""The loan book, and classifiers of it."""

from loan_book import (
    by_hand,
    fitted,
    loans,
    make_finder,
    make_quick,
    points,
    rejected,
    schema,
    sentence,
)

__all__ = [
    "by_hand",
    "fitted",
    "loans",
    "make_finder",
    "make_quick",
    "points",
    "rejected",
    "schema",
    "sentence",
]
