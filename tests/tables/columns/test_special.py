"""Special codes: stated, encoded beside the number, never an aim; and found where nobody stated
them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from counterfactual_training.constraints.stack_constraints import constraint_structure
from counterfactual_training.errors import ConstraintError, InputError
from counterfactual_training.tables.columns.column import Column
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.columns.schema import Schema
from counterfactual_training.tables.columns.special import codes_warning, find_codes

FRAME = pd.DataFrame(
    {
        "score": [40, -9, 55, 70, -8, 60],
        "months": [1.5, 2.5, -99.0, 10.0, 7.5, 3.5],
        "job": ["a", "b", "a", "b", "a", "c"],
    }
)
SPECIAL = {"score": [-9, -8], "months": -99}


def encoder(**stated) -> Encoder:
    return Encoder(Schema.infer(FRAME, special=SPECIAL, **stated)).fit(FRAME)


# ---- stated --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fields", "match"),
    [
        ("categorical", {"special": [-9]}, "one of its categories; list it in categories="),
        ("binary", {"special": [-9]}, "one of its categories"),
        ("pixel", {"special": [-9]}, "only numeric and integer"),
        ("numeric", {"special": ["none"]}, "must be numeric values, got 'none'"),
        ("numeric", {"special": [True]}, "must be numeric values, got True"),
        ("numeric", {"special": "-9"}, "must be a list, got '-9'"),
        ("numeric", {"special": [np.nan]}, "missing='impute'"),
        ("numeric", {"special": [np.inf]}, "must be numeric values, got inf"),
        ("integer", {"special": [-9.5]}, "must be integer values, got -9.5"),
        ("integer", {"special": [-9], "allowed": [-9, 4]}, "cannot be allowed as an aim"),
    ],
)
def test_codes_that_make_no_sense(kind, fields, match):
    with pytest.raises(ConstraintError, match=match):
        Feature("x", kind, **fields)


def test_codes_are_plain_sorted_numbers():
    assert Feature("x", "numeric", special=np.array([-8.0, -9.0, -9.0])).special == (-9, -8)
    assert Feature("x", "integer", special=-9).special == (-9,)


def test_text_with_codes_is_refused():
    with pytest.raises(ConstraintError, match="list it in categories="):
        Schema.infer(FRAME, special={"job": [-9]})


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_files_hold_codes(tmp_path, suffix):
    schema = Schema.infer(FRAME, {"score": {"special": [-9, -8]}, "months": {"special": [-99]}})
    path = tmp_path / f"schema{suffix}"
    schema.save(path)
    assert Schema.from_file(path) == schema == Schema.infer(FRAME, special=SPECIAL)
    assert "codes -9, -8, never advised" in str(schema)


def test_a_yes_or_no_column_with_codes_is_whole():
    frame = pd.DataFrame({"late": [0, 1, -9, 1, 0]})
    assert Schema.infer(frame)["late"].kind == "integer"
    for codes in ([-9], -9, np.array([-9])):
        feature = Schema.infer(frame, special={"late": codes})["late"]
        assert (feature.kind, feature.special) == ("integer", (-9,))
    measured = pd.DataFrame({"x": [0, 1, 0, 1]})
    assert Schema.infer(measured, special={"x": 0})["x"].kind == "integer"
    assert (
        Schema.infer(measured, special={"x": []})["x"].kind
        == Schema.infer(measured)["x"].kind
        == "binary"
    )
    assert Feature("x", "numeric", special=None).special == ()


def test_codes_outside_the_domain_are_no_mistake():
    schema = Schema.infer(FRAME, special=SPECIAL, domain={"score": (0, 100)})
    schema.check(FRAME)
    with pytest.raises(InputError, match="2 row"):
        schema.override(special={"score": ()}).check(FRAME)


# ---- encoded -------------------------------------------------------------------------------------


def test_codes_are_columns_of_their_own_and_teach_the_number_nothing():
    fitted = encoder()
    assert fitted.names_ == [
        "score",
        "score=-9",
        "score=-8",
        "months",
        "months=-99",
        "job=a",
        "job=b",
        "job=c",
    ]
    assert fitted.slices_["months"] == slice(3, 5)
    ordinary = FRAME[FRAME["score"] > 0][["score"]]
    alone = Encoder(Schema.infer(ordinary)).fit(ordinary).columns_[0]
    score = fitted.columns_[0]
    for field in ("center", "scale", "mean", "std", "low", "high", "fill", "bulk", "decimals"):
        assert getattr(score, field) == getattr(alone, field)
    z = fitted.transform(FRAME)
    np.testing.assert_array_equal(z[:, 1:3], [[0, 0], [1, 0], [0, 0], [0, 0], [0, 1], [0, 0]])
    assert z[1, 0] == z[4, 0] == (score.fill - score.center) / score.scale


def test_codes_decode_to_themselves():
    fitted = encoder()
    for points in (fitted.transform(FRAME), torch.as_tensor(fitted.transform(FRAME)).float()):
        pd.testing.assert_frame_equal(fitted.inverse_transform(points), FRAME)
        pd.testing.assert_frame_equal(fitted.inverse_transform(points, like=FRAME), FRAME)


def test_narrow_columns_hold_codes():
    frame = pd.DataFrame({"x": np.array([0.1, 5.0, 6.5, 7.0, 0.1], dtype=np.float32)})
    fitted = Encoder(Schema.infer(frame, special={"x": [0.1]})).fit(frame)
    assert fitted.transform(frame)[:, 1].tolist() == [1, 0, 0, 0, 1]
    pd.testing.assert_frame_equal(fitted.inverse_transform(fitted.transform(frame)), frame)


def test_a_number_that_lands_on_a_code_moves_off_it():
    feature = Feature("x", "integer", special=(0, 1))
    column = Column.fit(feature, np.dtype("int64"), np.arange(-20.0, 21.0), scale=True)
    own = np.array([10.0, -10.0, 2.0, 0.0])
    z = column.encode(own)
    z[:3, 0] = (np.array([0.0, 0.0, 1.0]) - column.center) / column.scale
    numbers, same = column.decode_like(z, 1e-16, own)
    assert numbers.tolist() == [2, -1, 2, 0]  # back towards where it came from, never past it
    assert same.tolist() == [False, False, True, True]
    assert not feature.coded(column.decode(z, 1e-16)[:3]).any()


def test_a_column_of_codes_alone_teaches_nothing():
    with pytest.raises(InputError, match="no value to learn from but special codes"):
        Encoder(Schema.infer(FRAME, special={"months": [1.5, 2.5, -99.0, 10.0, 7.5, 3.5]})).fit(
            FRAME
        )


def test_saved_encoders_know_their_codes():
    fitted = encoder()
    again = Encoder.from_dict(fitted.to_dict())
    np.testing.assert_array_equal(again.transform(FRAME), fitted.transform(FRAME))
    assert again.schema_ == fitted.schema_


# ---- constrained ---------------------------------------------------------------------------------


def test_a_code_is_no_aim_and_its_cell_stays():
    fitted = encoder(domain={"score": (-9, 100)})
    rules = fitted.constraints(num_std=3.0)
    assert rules.directions[:5] == ("both", "none", "none", "both", "none")
    x = torch.as_tensor(fitted.transform(FRAME))
    lower, upper = rules.interval(x)
    assert (lower[[1, 4], 0] == x[[1, 4], 0]).all() and (upper[[1, 4], 0] == x[[1, 4], 0]).all()
    assert (lower[[0, 2, 3, 5], 0] < x[[0, 2, 3, 5], 0]).all()
    moved = x.clone()
    moved[:, 0] += 1e-2
    assert rules.violations(moved, x)[[1, 4], 0].all()
    # In training, a mature counterfactual with a code is not drawn to another number.
    protected = rules.protect(x.flip(0), x)
    assert (protected[[1, 4], 0] == x[[1, 4], 0]).all() and (
        protected[:, 1:3] == x[:, 1:3]
    ).all()
    assert (protected[0, 0] == x[5, 0]).item()
    plain = Encoder(Schema.infer(FRAME)).fit(FRAME).constraints()
    assert plain.coded == () and constraint_structure(plain) != constraint_structure(rules)


# ---- found ---------------------------------------------------------------------------------------


def found(**columns) -> dict:
    frame = pd.DataFrame(columns)
    return find_codes(Schema.infer(frame), frame)


def test_codes_are_found_and_the_line_to_write_is_said():
    rng = np.random.default_rng(0)
    score = np.r_[rng.integers(30, 95, 400), np.full(12, -9), np.full(3, -8)]
    late = np.r_[rng.integers(0, 8, 403), np.full(12, 98)]
    pressure = np.r_[
        rng.normal(72, 12, 395).clip(40).round(), np.zeros(20)
    ]  # 0 is "not measured"
    assert found(pressure=pressure) == {"pressure": {0: 20}}
    codes = found(score=score, late=late)
    assert codes == {"score": {-9: 12, -8: 3}, "late": {98: 12}}
    said = str(codes_warning(codes))
    assert said.startswith('"score" holds -9 in 12 rows and -8 in 3 rows, far from')
    assert said.endswith('state special={"score": [-9, -8], "late": [98]}')
    one = codes_warning({"x": {-9: 312}})
    assert str(one) == (
        '"x" holds -9 in 312 rows, far from its other values: if it stands for "no record", '
        'state special={"x": [-9]}'
    )


@pytest.mark.parametrize(
    "values",
    [
        np.r_[np.arange(400), np.full(9, -99)],  # too rare
        np.r_[np.arange(400), np.full(20, -1)],  # next to the others
        np.r_[np.arange(400) / 7, -np.arange(30) / 7],  # many negative ones
        np.r_[np.full(300, 0), np.arange(50, 400)],  # zero is a number
        np.r_[np.arange(400), 10_000.0 + np.arange(20)],  # outliers that do not repeat
        np.r_[np.full(200, 0), np.full(200, 1), np.full(20, 99)],  # too few values to say
        np.r_[np.arange(400) / 7, np.full(20, 1e4 + 0.5)],  # no whole number
    ],
)
def test_no_false_alarm(values):
    assert found(x=values) == {}


@pytest.mark.parametrize("others", [np.arange(400), np.arange(400) / 7, np.arange(400) * 1e6])
def test_codes_are_counted_beside_whole_numbers_fractions_and_large_numbers(others):
    assert found(x=np.r_[others, np.full(20, -1e9)]) == {"x": {-(10**9): 20}}
    assert found(x=np.r_[others, np.full(20, 3e9), np.nan]) == {"x": {3 * 10**9: 20}}


def test_stated_codes_are_not_found_again():
    frame = pd.DataFrame({"x": np.r_[np.arange(400), np.full(20, -99)]})
    assert find_codes(Schema.infer(frame, special={"x": [-99]}), frame) == {}
