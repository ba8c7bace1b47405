"""Points decode exactly, and rounding respects the rules."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from encoded import fitted, same
from hypothesis import assume
from hypothesis import strategies as st

from counterfactual_training.errors import InputError
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.schema import Schema
from covering import on_examples


@st.composite
def decimals(draw: st.DrawFn, n: int, dtype: str = "float64") -> pd.Series:
    """Numbers as people type them: one number of decimals per column, 14 digits at most."""
    places = draw(st.integers(0, 5))
    whole = draw(st.lists(st.integers(-(10**9), 10**9), min_size=n, max_size=n))
    return pd.Series([float(f"{w}e-{places}") for w in whole], dtype=dtype)


@st.composite
def integers(draw: st.DrawFn, n: int) -> pd.Series:
    dtype = draw(
        st.sampled_from(
            ["int8", "int16", "int32", "int64", "uint8", "uint64", "Int16", "Int64"]
        )
    )
    info = np.iinfo(dtype.lower())
    low, high = max(info.min, -(2**49)), min(info.max, 2**49)
    return pd.Series(
        draw(st.lists(st.integers(low, high), min_size=n, max_size=n)), dtype=dtype
    )


LEVELS = {
    "text": ["a", "b", "ä=", "", "None", "1"],
    "int": [3, -1, 7, 0],
    "float": [0.5, -2.25, 1e9],
    "mixed": ["a", 1, 2.5, ("t", 1)],
    "interval": [pd.Interval(0, 1), pd.Interval(1, 2), pd.Interval(2, 9)],
}


@st.composite
def choices(draw: st.DrawFn, n: int) -> pd.Series:
    """Categories in every storage."""
    of = draw(st.sampled_from(sorted(LEVELS)))
    levels = draw(st.permutations(LEVELS[of]))
    positions = draw(st.lists(st.integers(0, len(levels) - 1), min_size=n, max_size=n))
    values = np.empty(n, dtype=object)
    values[:] = [levels[i] for i in positions]
    storage = draw(
        st.sampled_from(
            ["object", "category", "ordered", *(["str", "string"] if of == "text" else [])]
        )
    )
    if storage in ("category", "ordered"):
        codes = pd.Index(levels, dtype=object, tupleize_cols=False)
        dtype = pd.CategoricalDtype(
            codes if of == "mixed" else codes.infer_objects(), ordered=storage == "ordered"
        )
        return pd.Series(pd.Categorical.from_codes(positions, dtype=dtype))
    return pd.Series(values, dtype=storage)


@st.composite
def flags(draw: st.DrawFn, n: int) -> pd.Series:
    dtype = draw(st.sampled_from(["bool", "boolean", "object", "int64", "category"]))
    values = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return pd.Series(values, dtype=dtype)


@st.composite
def any_floats(draw: st.DrawFn, n: int) -> pd.Series:
    """Every digit and many magnitudes."""
    width = draw(st.sampled_from([16, 32, 64]))
    bound = {16: 2.0**13, 32: 2.0**66, 64: 2.0**333}[width]
    number = st.floats(-bound, bound, width=width)
    values = pd.Series(draw(st.lists(number, min_size=n, max_size=n)), dtype=f"float{width}")
    spread = values.astype("float64").std()
    assume(values.nunique() == 1 or (math.isfinite(spread) and spread > 0))
    return values


KNOWN_DIGITS = [decimals, integers, choices, flags]


@st.composite
def frames(draw: st.DrawFn, extra: tuple[Any, ...] = ()) -> pd.DataFrame:
    n = draw(st.integers(1, 8))
    makers = [
        *KNOWN_DIGITS,
        *extra,
        *draw(st.lists(st.sampled_from([*KNOWN_DIGITS, *extra]), max_size=3)),
    ]
    frame = pd.DataFrame({f"c{j}": draw(maker(n)) for j, maker in enumerate(makers)})
    frame.index = draw(
        st.sampled_from(
            [pd.RangeIndex(n), pd.Index([f"r{i}" for i in range(n)]), pd.RangeIndex(n) * -3]
        )
    )
    return frame


@on_examples(10, 50, frames())
def test_decoding_gives_the_frame(frame: pd.DataFrame) -> None:
    encoder = fitted(frame)
    same(encoder.inverse_transform(encoder.transform(frame)), frame.reset_index(drop=True))


@on_examples(
    20,
    50,
    frames(extra=(any_floats,)),
    st.sampled_from([np.float32, np.float64]),
    st.booleans(),
)
def test_decoding_like_the_frame_gives_the_frame(
    frame: pd.DataFrame, dtype: type, scale: bool
) -> None:
    encoder = fitted(frame, scale=scale)
    with np.errstate(over="ignore"):
        z = encoder.transform(frame).astype(dtype)
    assume(np.isfinite(z).all())
    same(encoder.inverse_transform(z, like=frame), frame)


@on_examples(20, 50, frames(), st.data())
def test_rows_never_trained_on_come_back_too(frame: pd.DataFrame, data: st.DataObject) -> None:
    encoder = fitted(frame)
    rows = frame.iloc[
        data.draw(st.lists(st.integers(0, len(frame) - 1), min_size=1, max_size=4))
    ]
    same(encoder.inverse_transform(encoder.transform(rows)), rows.reset_index(drop=True))
    try:
        saved = encoder.to_dict()
    except InputError as error:
        assert "('t', 1) (tuple) cannot be written" in str(error)
        return
    again = Encoder.from_dict(json.loads(json.dumps(saved)))
    same(again.inverse_transform(again.transform(rows)), rows.reset_index(drop=True))


def test_finer_numbers_than_the_training_data_come_back() -> None:
    encoder = Encoder().fit(
        pd.DataFrame({"a": [1.5, 2.5, 0.0, 4.0], "b": np.float32([1.5, 2.5, 0.0, 4.0])})
    )
    fine = pd.DataFrame(
        {"a": [0.123456, 1e-6, 3.14159265], "b": np.float32([0.1, 1 / 3, 3.14159265])}
    )
    same(encoder.inverse_transform(encoder.transform(fine)), fine)


def test_floats_of_every_digit_come_back_to_the_last_ones() -> None:
    frame = pd.DataFrame({"a": np.random.default_rng(0).lognormal(size=1000)})
    encoder = Encoder().fit(frame)
    back = encoder.inverse_transform(encoder.transform(frame))
    np.testing.assert_allclose(
        back["a"], frame["a"], rtol=0, atol=4 * np.spacing(frame["a"].max())
    )


def test_float32_points_decode_to_what_people_write(
    frame: pd.DataFrame, schema: Schema
) -> None:
    encoder = Encoder(schema).fit(frame)
    z = torch.from_numpy(encoder.transform(frame)).float()
    same(encoder.inverse_transform(z), frame.reset_index(drop=True))


def test_unchanged_cells_are_the_persons_own_and_changed_ones_are_rounded() -> None:
    train = pd.DataFrame(
        {"money": [10.25, 99.5, 47.75, 12.0], "exact": [0.1 + 0.2, 1 / 3, 2 / 3, 0.7]}
    )
    encoder = Encoder().fit(train)
    person = pd.DataFrame({"money": [33.333333333333], "exact": [1 / 7]}, index=["Ada"])
    z = encoder.transform(person).astype(np.float32)
    same(encoder.inverse_transform(z + np.float32(1e-7), like=person), person)
    z[0, 0] += 0.1234567
    moved = encoder.inverse_transform(z, like=person)
    assert moved.loc["Ada", "exact"] == 1 / 7
    assert moved.loc["Ada", "money"] == round(moved.loc["Ada", "money"], 2)


def test_rounding_respects_domain_and_direction() -> None:
    train = pd.DataFrame({"a": [10.5, 99.5, 47.5, 12.0], "b": [1, 5, 9, 100]})
    schema = Schema.infer(train, domain={"a": (0, 99.96)}, mutability={"b": "increase"})
    encoder = Encoder(schema).fit(train)
    person = train.iloc[[0]]
    z = encoder.transform(person)
    scale = [column.scale for column in encoder.columns_]
    z[0, 0] = (99.9577712345 - encoder.columns_[0].center) / scale[
        0
    ]  # over the domain when rounded
    z[0, 1] -= 2e-5  # noise of a projection, against the direction
    got = encoder.inverse_transform(z, like=person)
    assert got["a"].item() == 99.96
    assert got["b"].item() == 1
    assert encoder.inverse_transform(z)["a"].item() == 99.96


@pytest.mark.parametrize(
    ("direction", "own", "moved", "expected"),
    [
        ("both", 1.27, 1.2648765, 1.3),
        (
            "decrease",
            1.27,
            1.2648765,
            1.27,
        ),  # a little less rounds up beside a column of one decimal
        ("both", 1.23, 1.2351234, 1.2),
        ("increase", 1.23, 1.2351234, 1.23),
    ],
)
def test_rounding_does_not_go_against_a_direction(
    direction: str, own: float, moved: float, expected: float
) -> None:
    train = pd.DataFrame({"a": [-30.5, 40.1, 10.4, 2.2]})
    encoder = Encoder(Schema.infer(train, mutability={"a": direction})).fit(train)
    person = pd.DataFrame({"a": [own]})
    z = (moved - encoder.columns_[0].center) / encoder.columns_[0].scale
    assert encoder.inverse_transform(np.float32([[z]]), like=person)["a"].tolist() == [expected]


def test_integers_grow_their_storage_rather_than_wrap() -> None:
    frame = pd.DataFrame({"a": np.array([100, 120, -5], dtype=np.int8), "b": [1, 2, 3]})
    encoder = Encoder().fit(frame)
    big = pd.DataFrame({"a": [300], "b": [2]})
    back = encoder.inverse_transform(encoder.transform(big))
    assert back["a"].tolist() == [300]
    upper = encoder.constraints(num_std=5).domain.upper[0]
    assert encoder.inverse_transform(np.array([[float(upper), 0.0]]))["a"].item() == 127


def test_ranks_end_at_the_last_category(frame: pd.DataFrame, schema: Schema) -> None:
    degree = next(
        column
        for column in Encoder(schema).fit(frame).columns_
        if column.feature.name == "degree"
    )
    assert degree.decode(np.array([[-9.0], [9.0]]), 1e-7).tolist() == [0.0, 3.0]
