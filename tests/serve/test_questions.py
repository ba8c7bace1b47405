"""Requests as arguments of ``explain``."""

from types import SimpleNamespace

from counterfactual_serve.questions import rules_of

NOBODY = SimpleNamespace(schema_={})


def test_rules_have_the_names_of_explain():
    body = {"lock": ["age"], "max_changes": 2, "vary": ["job"]}
    assert rules_of(body, NOBODY) == body


def test_what_is_not_stated_is_no_rule():
    body = {"lock": [], "domain": None, "max_changes": None, "vary": None}
    assert rules_of(body, NOBODY) == {}
