"""Messages of the library in the words of the command line."""

import argparse
import inspect
import shlex
from typing import get_args

import pandas as pd
import pytest

from counterfactual_training.cli import make_parser
from counterfactual_training.cli.commands import COMMANDS
from counterfactual_training.cli.flags import FLAGS, REMEDIES, in_flags
from counterfactual_training.cli.parsing import assignments, columns, numbers, pasted
from counterfactual_training.errors import (
    Action,
    Argument,
    InputError,
    InputWarning,
    Remedy,
    bad_value,
    check_name,
)
from counterfactual_training.evaluation.protocol import EvaluationProtocol
from counterfactual_training.tables.audits import audit
from counterfactual_training.tables.columns.schema import Schema
from counterfactual_training.tables.columns.special import codes_warning
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier


def said(call) -> str:
    with pytest.raises(InputError) as error:
        call()
    return in_flags(error.value)


def test_what_the_library_says_of_frames_is_said_of_flags():
    """The messages are the library's own, so that this fails when they change."""
    ids = pd.DataFrame({"name": [f"p{i}" for i in range(60)]})
    assert (
        "leave it out with --drop" in (text := said(lambda: Schema.infer(ids)))
        and "--schema" in text
    )
    assert "schema={" not in text
    grades = pd.DataFrame({"grade": ["a", "b", "c"] * 4})
    text = said(lambda: Schema.infer(grades, mutability={"grade": "increase"}))
    assert (
        "write ['grade'] and below it categories = [lowest, …, highest] into a file for --schema"
        in text
    )
    blanks = pd.DataFrame({"a": [1.0, None, 3.0, 4.0]})
    assert "--missing impute" in said(
        lambda: CounterfactualClassifier().fit(blanks, [0, 1, 0, 1])
    )


def test_every_remedy_and_every_flag_of_the_table_exists():
    assert set(REMEDIES) == set(get_args(Action))
    assert set(FLAGS.values()) <= {flag for _, flag in options()}


# Of the library, these are something else: a network, a class, and how an audit measures.
ANOTHER = {"model", "target", "protocol"}


def test_every_option_that_is_an_argument_of_the_library_is_in_the_table():
    places = (
        CounterfactualClassifier,
        CounterfactualClassifier.fit,
        CounterfactualClassifier.explain,
        CounterfactualClassifier.tune,
        audit,
        EvaluationProtocol,
    )
    arguments = {name for place in places for name in inspect.signature(place).parameters}
    shared = {(name, flag) for name, flag in options() if name in arguments - ANOTHER}
    assert len(shared) > 30
    assert sorted(shared - set(FLAGS.items())) == []


def options() -> set[tuple[str, str]]:
    """The options of all commands: the name of each in Python, and as people type it."""
    parsers = [make_parser([command]) for command in COMMANDS]
    found = set()
    while parsers:
        for action in parsers.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
            else:
                found |= {(action.dest, flag) for flag in action.option_strings}
    return found


def test_arguments_are_called_by_their_flags():
    """An argument without a flag keeps its name, and text is never rewritten."""
    assert (
        in_flags(bad_value("n_options", "positive", 0)) == "--options must be positive, got 0."
    )
    assert in_flags(bad_value("random_state", "positive", -1)).startswith("--seed must be")
    assert in_flags(bad_value("ridge", "positive", 0)) == "ridge must be positive, got 0."
    assert (
        in_flags(InputError("epochs must: state special={}")) == "epochs must: state special={}"
    )
    assert in_flags(InputError("see ", Argument("missing", "impute"))) == "see --missing impute"
    with pytest.raises(InputError) as error:
        check_name("column", "agee", ["age"], argument="lock")
    assert in_flags(error.value).startswith(
        "Unknown column in --lock: 'agee'. Did you mean 'age'?"
    )


def test_codes_are_stated_by_a_flag():
    warning = codes_warning({"late": {-9: 12, -8: 10}, "age": {999: 30}})
    assert in_flags(warning).endswith("add --special late=-9,-8 age=999")
    assert str(warning).endswith('state special={"late": [-9, -8], "age": [999]}')


def test_hints_can_be_pasted_into_a_shell():
    codes = InputWarning(Remedy("state_codes", {"Days late {now}": [-9, -8]}))
    assert shlex.split(in_flags(codes)) == ["add", "--special", "Days late {now}=-9,-8"]
    left_out = InputError(Remedy("drop", "Case ID"))
    assert in_flags(left_out) == "leave it out with --drop 'Case ID'"
    assert pasted("--keep", ["Case ID", "age"]) == "--keep 'Case ID' age"


def test_a_name_with_a_comma_stands_alone():
    known = ["x,y", "x", "age"]
    assert columns(["x,y"], known, "--lock") == ["x,y"] and columns(
        ["x,age"], known, "--lock"
    ) == ["x", "age"]
    assert columns(["age", "x,y"], known, "--lock") == ["age", "x,y"]
    with pytest.raises(
        InputError, match=r"'y'.*A name with a comma stands alone: --lock x,y\."
    ):
        columns(["x,y,age"], known, "--lock")


def test_options_given_again_add_to_each_other():
    words = [
        "explain",
        "m",
        "--lock",
        "x,y",
        "--lock",
        "age",
        "--step",
        "a=1",
        "--step",
        "b=2",
        "--vary",
        "c,d",
    ]
    asked = make_parser(words).parse_args(words)
    assert (asked.lock, asked.step, asked.vary) == (["x,y", "age"], ["a=1", "b=2"], ["c,d"])
    words = [
        "train",
        "a.csv",
        "--drop",
        "a,b",
        "--drop",
        "c",
        "--immutable",
        "d",
        "--immutable",
        "e",
    ]
    asked = make_parser(words).parse_args(words)
    assert (asked.drop, asked.immutable) == (["a,b", "c"], ["d", "e"])
    assert make_parser(["train"]).parse_args(["train", "loan", "--immutable"]).immutable == []
    # What follows is the model, as ever.
    words = ["explain", "--lock", "age", "m"]
    assert make_parser(words).parse_args(words).model == "m"


def test_numbers_after_a_flag():
    assert assignments(["a=-9,-8.5"], "special", value=numbers) == {"a": [-9, -8.5]}
    with pytest.raises(InputError, match="--special takes COLUMN=VALUE"):
        assignments(["a=-9,none"], "special", value=numbers)
