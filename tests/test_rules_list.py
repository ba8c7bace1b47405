"""Every rule is described once, in ``rules.py``; whoever tells of it uses these words."""

import contextlib
import dataclasses
import inspect
import io
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

from counterfactual_serve.document import rule_meanings
from counterfactual_serve.questions import rule_fields
from counterfactual_serve.reading import Fields
from counterfactual_training.cli import main as run_ct
from counterfactual_training.constraints.mutability import DIRECTIONS
from counterfactual_training.rules import RULES, WAYS, meaning, stated_in
from counterfactual_training.tables.advice.explains import Explains
from counterfactual_training.tables.advice.rules import Rules
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.columns.plan_judge import NUMBER_RULES
from counterfactual_training.tables.columns.relations import RelationBook

ROOT = Path(__file__).parent.parent
# Fields of a feature that are no rules.
NO_RULES = {"name", "unit"}
# Rules that options of `ct` state.
OPTIONS = {
    "explain": stated_in("question"),
    "train": ("mutability", "domain", "special"),
    "tune": ("mutability", "domain", "special"),
}


def test_names_are_unique_and_sentences_end_without_a_stop():
    names = [rule.name for rule in RULES if rule.name != "relations"]
    assert len(set(names)) == len(names)
    assert len({rule.meaning for rule in RULES}) == len(RULES)
    assert all(rule.meaning and not rule.meaning.endswith(".") for rule in RULES)


def test_every_kind_of_relation_is_a_check():
    kinds = {field.name for field in dataclasses.fields(RelationBook)}
    kept_by = {rule.kept_by.split(".")[3].lower() for rule in RULES if rule.sort == "check"}
    assert kept_by == kinds


def test_every_rule_of_a_column_has_an_entry_and_every_entry_a_field():
    fields = {field.name for field in dataclasses.fields(Feature)} - NO_RULES
    assert {*fields, "relations"} == set(stated_in("fit"))


def test_every_rule_of_a_question_has_an_entry_and_every_entry_a_field():
    fields = {field.name for field in dataclasses.fields(Rules)}
    assert fields == set(stated_in("question"))
    assert fields <= set(inspect.signature(Explains.explain).parameters)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kept_by)
def test_the_function_that_keeps_a_rule_exists(rule):
    tables, folder, module, *names = rule.kept_by.split(".")
    home = import_module(f"counterfactual_training.{tables}.{folder}.{module}")
    found = reduce(getattr, names, home)
    assert callable(found)


def test_what_the_judge_filters_numbers_by_are_filters():
    assert set(NUMBER_RULES) <= {rule.name for rule in RULES if rule.sort == "filter"}


def test_every_mutability_has_words():
    assert set(WAYS) == set(DIRECTIONS)


def test_the_reference_page_describes_every_rule():
    page = (ROOT / "docs" / "reference" / "rules.md").read_text(encoding="utf-8")
    assert [
        rule.name for rule in RULES if f"| `{rule.name}` | {rule.meaning} |" not in page
    ] == []


@pytest.mark.parametrize("command", OPTIONS)
def test_help_describes_the_rules_that_options_state(command):
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        run_ct([command, "--help"])
    text = " ".join(told.getvalue().split())
    # argparse breaks lines behind hyphens, too.
    assert [
        name for name in OPTIONS[command] if meaning(name) not in text.replace("- ", "-")
    ] == []


def test_the_document_of_the_api_describes_every_rule_of_a_question():
    fields = rule_fields(["age"], ["no", "yes"])
    told = rule_meanings(Fields(fields))
    assert set(fields) - set(told) == {"target", "confidence"}
    assert set(told.values()) == {meaning(name) for name in stated_in("question")}
