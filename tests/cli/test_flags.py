"""Messages of the library in the words of the command line."""

import pandas as pd
import pytest

from counterfactual_training.cli.flags import in_flags
from counterfactual_training.cli.parsing import numbers
from counterfactual_training.errors import InputError
from counterfactual_training.estimator import CounterfactualClassifier
from counterfactual_training.tabular.schema import Schema


def said(call) -> str:
    with pytest.raises(InputError) as error:
        call()
    return in_flags(str(error.value))


def test_what_the_library_says_of_frames_is_said_of_flags():
    """The messages are the library's own, so that this fails when they change."""
    ids = pd.DataFrame({"name": [f"p{i}" for i in range(60)]})
    assert "leave it out with --drop" in (text := said(lambda: Schema.infer(ids))) and "--schema" in text
    assert "schema={" not in text
    grades = pd.DataFrame({"grade": ["a", "b", "c"] * 4})
    text = said(lambda: Schema.infer(grades, mutability={"grade": "increase"}))
    assert "write ['grade'] and below it categories = [lowest, …, highest] into a file for --schema" in text
    blanks = pd.DataFrame({"a": [1.0, None, 3.0, 4.0]})
    assert "--missing impute" in said(lambda: CounterfactualClassifier().fit(blanks, [0, 1, 0, 1]))


def test_codes_are_stated_by_a_flag():
    text = 'late holds -9: if it stands for "no record", state special={"late": [-9, -8], "age": [999]}'
    assert in_flags(text).endswith("add --special late=-9,-8 age=999")


def test_numbers_after_a_flag():
    assert numbers("-9,-8.5", "--special") == [-9, -8.5]
    with pytest.raises(InputError, match="--special takes numbers"):
        numbers("-9,none", "--special")
