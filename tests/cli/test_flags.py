"""Messages of the library in the words of the command line."""

import shlex

import pandas as pd
import pytest

from counterfactual_training.cli import make_parser
from counterfactual_training.cli.flags import in_flags
from counterfactual_training.cli.parsing import assignments, columns, numbers, pasted
from counterfactual_training.errors import InputError
from counterfactual_training.tables.columns.schema import Schema
from counterfactual_training.tables.estimators import CounterfactualClassifier


def said(call) -> str:
    with pytest.raises(InputError) as error:
        call()
    return in_flags(str(error.value))


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


def test_codes_are_stated_by_a_flag():
    text = (
        'late holds -9: if it stands for "no record", state special={"late": [-9, -8], "age": '
        "[999]}"
    )
    assert in_flags(text).endswith("add --special late=-9,-8 age=999")


def test_hints_can_be_pasted_into_a_shell():
    text = 'state special={"Days late {now}": [-9, -8]}'
    assert shlex.split(in_flags(text)) == ["add", "--special", "Days late {now}=-9,-8"]
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
    assert (asked.drop, asked.protect) == (["a,b", "c"], ["d", "e"])
    assert make_parser(["train"]).parse_args(["train", "loan", "--protect"]).protect == []
    # What follows is the model, as ever.
    words = ["explain", "--lock", "age", "m"]
    assert make_parser(words).parse_args(words).model == "m"


def test_numbers_after_a_flag():
    assert assignments(["a=-9,-8.5"], "special", value=numbers) == {"a": [-9, -8.5]}
    with pytest.raises(InputError, match="--special takes COLUMN=VALUE"):
        assignments(["a=-9,none"], "special", value=numbers)
