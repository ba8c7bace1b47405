"""Groups from columns: categories, bands at round numbers, crossings, and what cannot be a
group.
"""

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.errors import InputError
from counterfactual_training.tables.audits import make_groupings, usual_groups
from counterfactual_training.tables.audits.groups import round_edges
from counterfactual_training.tables.columns.schema import Schema


def grouped(values, name="a"):
    (grouping,) = make_groupings(pd.DataFrame({name: values}), [name])
    return grouping


def test_bands_are_cut_at_round_numbers_and_keep_everybody():
    age = np.random.default_rng(0).integers(17, 90, 4000)
    bands = grouped(age)
    assert bands.kind == "bands"
    assert bands.names[0].startswith("under ") and bands.names[-1].endswith(" and over")
    assert all(int(name.split()[0]) % 5 == 0 for name in bands.names[1:])
    assert bands.sizes.sum() == len(age)
    # Similar sizes: quintiles, moved by the rounding.
    assert bands.sizes.min() > 0.1 * len(age)


def test_an_edge_belongs_to_the_band_above():
    bands = grouped(np.repeat(np.arange(100), 3))
    first = int(bands.names[0].removeprefix("under "))
    place = np.repeat(np.arange(100), 3)
    assert (bands.codes[place < first] == 0).all()
    assert (bands.codes[place == first] == 1).all()


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).lognormal(8, 2, 500),
        np.r_[np.zeros(450), np.arange(1, 51)],
        np.random.default_rng(0).normal(0, 1e-4, 300),
        np.arange(1990, 2020).repeat(4),
        np.array([-5.0] * 10 + [1e9] * 10 + list(range(10))),
    ],
)
def test_no_band_is_empty_whatever_the_scale(values):
    bands = grouped(values)
    assert (bands.sizes > 0).all()
    assert len(bands.names) >= 2


def test_rounding_keeps_quintiles_apart():
    edges = round_edges(np.r_[np.full(5, 20.0), np.linspace(26, 50, 40)])
    assert len(np.unique(edges)) == len(edges)


def test_few_numbers_are_categories_and_rare_ones_are_others():
    assert grouped([1, 2, 1, 2, 3]).names == ("1", "2", "3")
    many = grouped([f"c{j:02}" for j in range(20) for _ in range(20 - j)])
    assert len(many.names) == 8
    assert many.names[-1] == "others"
    assert many.sizes[-1] == sum(20 - j for j in range(7, 20))


def test_missing_values_are_a_group():
    assert grouped(["f", None, "m", "f"]).names == ("f", "m", "missing")
    ages = grouped([*range(40), np.nan])
    assert ages.names[-1] == "missing" and ages.sizes[-1] == 1


def test_infinite_and_tiny_numbers():
    values = np.r_[np.inf, -np.inf, np.linspace(-1, 1, 98)]
    bands = grouped(values)
    assert bands.names[-1] == "missing" and bands.sizes[-1] == 2
    assert not any("−0 " in name or name.endswith("−0") for name in bands.names)
    assert len(grouped(np.linspace(-1, 1, 100) * 1e-300).names) == 5


def test_two_columns_cross():
    frame = pd.DataFrame({"sex": list("ffmm"), "race": list("abaa")})
    (crossed,) = make_groupings(frame, ["sex*race"])
    assert crossed.kind == "crossed"
    assert dict(zip(crossed.names, crossed.sizes.tolist(), strict=True)) == {
        "f, a": 1,
        "f, b": 1,
        "m, a": 2,
    }


def test_a_column_may_be_called_like_a_crossing():
    frame = pd.DataFrame({"a*b": list("xyxy"), "a": [1, 2, 1, 2], "b": [1, 1, 2, 2]})
    assert make_groupings(frame, ["a*b"])[0].names == ("x", "y")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["sxe"], "Did you mean 'sex'"),
        (["only"], "one value"),
        (["name"], "too many for groups"),
        (["sex*sex"], "two different columns"),
        ("sex", "list of columns"),
    ],
)
def test_what_cannot_be_a_group(columns, said):
    n = 100
    frame = pd.DataFrame(
        {"sex": ["f", "m"] * (n // 2), "only": ["x"] * n, "name": [f"p{i}" for i in range(n)]}
    )
    with pytest.raises(InputError, match=said):
        make_groupings(frame, columns)


def test_usual_groups_are_what_people_cannot_change():
    frame = pd.DataFrame(
        {"age": range(60), "sex": ["f", "m"] * 30, "debt": range(60), "one": ["x"] * 60}
    )
    schema = Schema.infer(frame, mutability={"age": "none", "sex": "none", "one": "none"})
    assert usual_groups(frame, schema) == ["sex", "age"]
