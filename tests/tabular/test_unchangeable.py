"""Columns that nobody can change are pointed out by their names, unless the user has said what may change."""

import warnings

import numpy as np
import pandas as pd
import pytest

import counterfactual_training as ct
from counterfactual_training.cli.flags import in_flags
from counterfactual_training.tabular.unchangeable import cannot_change, unchangeable_in_words


@pytest.mark.parametrize("name", ["age", "Age", "customer_age", "SEX", "DateOfBirth", "birth year", "native-country"])
def test_names_that_say_so(name):
    assert cannot_change(name)


@pytest.mark.parametrize("name", ["mileage", "wage", "sexton", "average", "country", "pages", "date", "year_of_sale"])
def test_names_that_do_not(name):
    assert not cannot_change(name)


def test_fit_points_them_out_once_and_says_what_to_write():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(20, 70, 80), "debt": rng.normal(size=80)})
    y = frame["debt"] > 0
    settings = {"epochs": 1, "gate": "none", "progress": False}
    with pytest.warns(UserWarning, match=r'"age": nobody can change this.*state mutability=\{"age": "none"\}'):
        ct.CounterfactualClassifier(**settings).fit(frame, y)
    for stated in ({}, {"debt": "decrease"}):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            ct.CounterfactualClassifier(**settings, mutability=stated).fit(frame, y)


def test_the_command_speaks_of_its_flag():
    schema = ct.Schema.infer(pd.DataFrame({"age": [1, 2, 3, 4], "sex": ["f", "m", "f", "m"]}))
    assert in_flags(str(unchangeable_in_words(schema))).endswith("; add --immutable age,sex")
