"""Columns read together are what pandas says about each of them."""

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.errors import InputError
from counterfactual_training.tables.columns.dtypes import restore_categories
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.columns.frame import read
from counterfactual_training.tables.columns.infer import (
    infer_feature,
    infer_plain,
    read_columns,
)
from counterfactual_training.tables.columns.plain import (
    PlainNumbers,
    all_present,
    number_blocks,
)

COLUMNS = {
    "floats": [0.5, -2.0, 7.25, 1.0],
    "whole floats": [3.0, 4.0, 5.0, 6.0],
    "whole": [3, 4, -5, 6],
    "bytes": np.array([3, 4, 250, 6], dtype=np.uint8),
    "narrow": np.array([0.1, 0.2, 0.3, 0.4], dtype=np.float32),
    "yes or no": [0, 1, 1, 0],
    "yes or no as floats": [-0.0, 1.0, 0.0, 1.0],
    "booleans": [True, False, True, True],
    "one boolean": [True, True, True, True],
    "only ones": [1, 1, 1, 1],
    "between": [0.0, 0.5, 1.0, 1.0],
    "blank": [1.0, np.nan, 2.0, 3.0],
    "infinite": [1.0, np.inf, 2.0, 3.0],
    "huge": [2**50, 1, 2, 3],
    "nullable": pd.array([1, 2, 3, 4], dtype="Int64"),
    "text": ["a", "b", "a", "b"],
    "categories": pd.Categorical(["a", "b", "a", "b"]),
}
FRAME = pd.DataFrame(COLUMNS)
LEFT_TO_PANDAS = {"blank", "nullable", "text", "categories"}


@pytest.mark.parametrize("name", list(COLUMNS))
def test_a_column_is_inferred_and_read_as_it_would_be_alone(name):
    numbers = PlainNumbers(FRAME)
    slow = infer_feature(FRAME[name], {"unit": "m"})
    quick = infer_plain(name, numbers, {"unit": "m"})
    assert (quick is None) == (name in LEFT_TO_PANDAS)
    assert quick is None or (quick == slow and repr(quick) == repr(slow))
    together = numbers.read(slow)
    if name in LEFT_TO_PANDAS | {"infinite", "huge"}:
        assert together is None
    else:
        alone = read(slow, FRAME[name])
        assert together is not None and together.dtype == np.float64
        assert together.tobytes() == alone.tobytes()


def test_a_frame_of_one_dtype_is_one_block_and_not_copied():
    array = np.arange(12.0).reshape(4, 3)
    frame = pd.DataFrame(array, columns=["a", "b", "c"])
    [(names, block)] = number_blocks(frame)
    assert names == ["a", "b", "c"] and np.shares_memory(block, frame["b"].to_numpy())
    assert [names for names, _ in number_blocks(FRAME[["floats", "text", "whole"]])] == [
        ["floats"],
        ["whole"],
    ]
    assert PlainNumbers(frame[:0]).arrays == {}


def test_stated_kinds_and_codes_need_a_closer_look():
    numbers = PlainNumbers(FRAME)
    for stated in ({"kind": "categorical"}, {"categories": [3, 4, -5, 6]}, {"special": [-5]}):
        assert infer_plain("whole", numbers, stated) is None
    assert numbers.read(Feature("whole floats", "integer")) is None
    assert numbers.read(Feature("yes or no", "binary", categories=(1, 0))) is None


def test_domains_are_checked_in_columns_of_plain_numbers():
    feature = Feature("whole", "integer", domain=(0, 10))
    assert len(read_columns([feature], FRAME, "Wrong")) == 1
    with pytest.raises(
        InputError, match=r"1 row\(s\) outside the stated domain \[0, 10\], the first with -5"
    ):
        read_columns([feature], FRAME, "Wrong", domain=True)


@pytest.mark.parametrize(
    ("name", "present", "finite"),
    [
        ("floats", True, True),
        ("whole", True, True),
        ("text", True, True),
        ("blank", False, False),
        ("infinite", True, False),
        ("nullable", True, True),
    ],
)
def test_blanks_and_infinity_are_noticed(name, present, finite):
    frame = FRAME[["whole", name]] if name != "whole" else FRAME[["whole"]]
    assert all_present(frame) is present
    assert all_present(frame, finite=True) is finite
    text = pd.DataFrame({"a": ["x", None], "b": pd.array([1.0, np.inf], dtype="Float64")})
    assert not all_present(text[["a"]])
    assert all_present(text[["b"]]) and not all_present(text[["b"]], finite=True)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_rows_of_one_dtype_are_encoded_as_column_by_column(dtype):
    values = (np.random.default_rng(0).normal(size=(50, 4)) * 10).astype(dtype)
    for frame in (pd.DataFrame(values), pd.DataFrame(dict(enumerate(values.T)))):
        frame.columns = list("abcd")
        encoder = Encoder(missing="impute", scale="robust").fit(frame)
        points = encoder.transform(frame)
        by_column = [
            column.encode(frame[column.feature.name].to_numpy(np.float64))
            for column in encoder.columns_
        ]
        assert points.flags.c_contiguous and points.tobytes() == np.hstack(by_column).tobytes()
    blank = frame.astype(float).mask(frame["a"] > 0, np.nan)
    points = encoder.transform(blank)
    assert np.isfinite(points).all()
    assert (
        points[:, 1].tolist()
        == encoder.columns_[1].encode(blank["b"].to_numpy())[:, 0].tolist()
    )


@pytest.mark.parametrize("width", [3, 40])
def test_decoded_rows_keep_index_and_types_but_no_marks_of_the_frame(width):
    frame = pd.DataFrame(
        {f"c{j}": np.arange(6.0) * (j + 1) for j in range(width)} | {"job": ["a", "b"] * 3}
    )
    encoder = Encoder().fit(frame)
    rows = frame.set_axis([7, 7, 8, 9, 9, 9])
    rows.columns.name = "columns"
    rows.attrs["source"] = "a file"
    for moved in (1, width):  # few columns are put into a copy, many into a new frame
        points = encoder.transform(rows)
        points[:, :moved] += encoder.transform(rows)[::-1, :moved] - points[:, :moved]
        back = encoder.inverse_transform(points, like=rows)
        expected = rows.copy()
        expected.iloc[:, :moved] = rows.iloc[::-1, :moved].to_numpy()
        pd.testing.assert_frame_equal(back, expected, check_names=False)
        assert back.columns.name is None and back.attrs == {}
        back.iloc[0, -2] = -1.0
        assert rows.iloc[0, -2] == 0.0


def test_text_of_few_and_of_many_rows_is_read_alike():
    feature = Feature("job", "categorical", categories=("a", "b"))
    few = pd.Series(["b", None, "new", "a"], name="job", dtype="str")
    many = pd.concat([few] * 30, ignore_index=True)
    assert np.array_equal(np.tile(read(feature, few), 30), read(feature, many), equal_nan=True)
    assert np.array_equal(read(feature, few), [1.0, np.nan, -1.0, 0.0], equal_nan=True)


KINDS = {
    "text": (["a", "b", "c"], "z"),
    "numbers": ([1, 2, 3], 9),
    "floats": ([0.5, 1.0, 2.0], 9.5),
    "booleans and numbers": ([True, 0, 2], 7),
    "pairs": ([("a", 1), ("b", 2), ("c", 3)], ("z", 0)),
    "intervals": (list(pd.interval_range(0, 3)), pd.Interval(7, 8)),
    "dates": (list(pd.to_datetime(["2020", "2021", "2022"])), pd.Timestamp("2030")),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_categories_of_few_rows_are_those_of_many(kind):
    levels, unseen = KINDS[kind]
    feature = Feature("x", "categorical", categories=tuple(levels))
    known = pd.Index([*levels[::-1], unseen], tupleize_cols=False)
    codes = np.tile([0, 3, -1, 2, 1], 40)
    many = pd.Series(pd.Categorical.from_codes(codes, dtype=pd.CategoricalDtype(known)))
    few = [read(feature, many[start : start + 5]) for start in range(0, 200, 5)]
    np.testing.assert_array_equal(np.concatenate(few), read(feature, many))
    np.testing.assert_array_equal(few[0], [2, -1, np.nan, 0, 1])
    # The dtype lacks the last category, which it gets at its end.
    narrow = pd.CategoricalDtype(known[:3])
    for cells in (many[[0, 3, 4]], many[[0, 1, 2, 3]]):
        objects = cells.to_numpy(dtype=object)
        short = restore_categories(objects, narrow)
        long = restore_categories(np.tile(objects, 40), narrow)
        pd.testing.assert_series_equal(short, long[: len(short)])


@pytest.mark.parametrize("finite", [False, True])
@pytest.mark.parametrize("bad", [None, np.nan, np.inf])
def test_few_columns_are_looked_through_like_many(finite, bad):
    frame = pd.DataFrame({f"c{j}": [0.5, 1.0 * j] for j in range(80)}).assign(
        text=["a", "b"], level=pd.Categorical(["a", "b"])
    )
    if bad is not None:
        frame.loc[1, "c3"] = bad
    few = frame[["c3", "c4", "text", "level"]]
    assert all_present(few, finite) == all_present(frame, finite)
    assert all_present(few, finite) == (bad is None or (bad == np.inf and not finite))
    for column in ("text", "level"):
        blank = few.assign(c3=0.0)
        blank.loc[0, column] = None
        assert not all_present(blank, finite)
