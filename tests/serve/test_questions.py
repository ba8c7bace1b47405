"""Requests as arguments of ``explain``."""

from types import SimpleNamespace

import pytest

from counterfactual_serve.questions import rules_of

NOBODY = SimpleNamespace(schema_={})


@pytest.mark.parametrize(
    ("body", "lock"),
    [
        ({"lock": ["age"]}, ["age"]),
        ({"locks": ["age"]}, ["age"]),
        ({"lock": ["age", "sex"], "locks": ["sex", "job"]}, ["age", "sex", "job"]),
    ],
)
def test_locks_is_another_word_for_lock(body, lock):
    assert rules_of(body, NOBODY) == {"lock": lock}


def test_what_is_not_stated_is_no_rule():
    body = {"lock": [], "ranges": None, "max_changes": None, "vary": None}
    assert rules_of(body, NOBODY) == {}
