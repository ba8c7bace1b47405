"""What the columns become in model space, and input that does not fit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from encoded import fitted, same
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from counterfactual_training.errors import FileError, InputError
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.schema import Schema


def test_the_encoding_of_every_kind(frame: pd.DataFrame, schema: Schema) -> None:
    frame["dot"] = np.array([0, 255, 51, 102, 0], dtype=np.uint8)
    schema = Schema.infer(frame, {**schema.to_dict(), "dot": {"kind": "pixel"}})
    encoder = Encoder(schema).fit(frame)
    z = encoder.transform(frame)
    names = ["age", "income", "degree", "sex=m", "owner", "job=a", "job=b", "job=c", "dot"]
    assert list(encoder.get_feature_names_out()) == names
    assert encoder.slices_["job"] == slice(5, 8)
    assert z.dtype == np.float64
    table = pd.DataFrame(z, columns=names)
    age = frame["age"].to_numpy()
    np.testing.assert_allclose(table["age"], (age - age.mean()) / age.std(ddof=1), rtol=1e-12)
    ranks = np.array([1, 0, 2, 3, 0])
    np.testing.assert_allclose(
        table["degree"], (ranks - ranks.mean()) / ranks.std(ddof=1), rtol=1e-12
    )
    assert table["sex=m"].tolist() == [0, 1, 1, 0, 1]
    assert table[["job=a", "job=b", "job=c"]].to_numpy().argmax(1).tolist() == [0, 1, 2, 0, 1]
    np.testing.assert_allclose(table["dot"], [-1, 1, -0.6, -0.2, -1])


def test_two_categories_may_stay_two_columns(frame: pd.DataFrame) -> None:
    encoder = Encoder(Schema.infer(frame, {"sex": {"kind": "categorical"}})).fit(frame)
    assert list(encoder.get_feature_names_out()[encoder.slices_["sex"]]) == ["sex=f", "sex=m"]


def test_without_scale_numbers_stay(frame: pd.DataFrame, schema: Schema) -> None:
    z = Encoder(schema, scale=False).fit_transform(frame)
    assert z[:, 0].tolist() == frame["age"].tolist()
    assert z[:, 2].tolist() == [1, 0, 2, 3, 0]
    same(Encoder(schema, scale=False).fit(frame).inverse_transform(z, like=frame), frame)


def test_a_robust_scale_is_that_of_the_bulk() -> None:
    bulk = np.random.default_rng(0).normal(50, 10, 1000)
    frame = pd.DataFrame({"a": [*bulk, 1e7], "rare": [*np.zeros(1000), 1.5]})
    encoder = Encoder(scale="robust").fit(frame)
    z = encoder.transform(frame)
    assert abs(z[:-1, 0].mean()) < 0.1 and 0.9 < z[:-1, 0].std() < 1.1 and z[-1, 0] > 1e5
    plain = Encoder().fit_transform(frame)
    np.testing.assert_array_equal(
        z[:, 1], plain[:, 1]
    )  # a bulk of one value has no scale of its own
    same(encoder.inverse_transform(z, like=frame), frame)
    again = Encoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert again.scale == "robust" and np.array_equal(again.transform(frame), z)
    with pytest.raises(InputError, match="True, False or 'robust', got 'robst'"):
        Encoder(scale="robst").fit(frame)  # type: ignore[arg-type]


def test_columns_are_matched_by_name(frame: pd.DataFrame) -> None:
    encoder = Encoder().fit(frame)
    assert np.array_equal(
        encoder.transform(frame[frame.columns[::-1]]), encoder.transform(frame)
    )


def test_scikit_learn(frame: pd.DataFrame, schema: Schema) -> None:
    encoder = clone(Encoder(schema, missing="impute"))
    assert encoder.get_params()["missing"] == "impute"
    with pytest.raises(NotFittedError):
        encoder.transform(frame)
    mixed = ColumnTransformer([("known", Encoder(), ["age", "job"])], remainder="drop").fit(
        frame
    )
    assert list(mixed.get_feature_names_out()) == [
        "known__age",
        "known__job=a",
        "known__job=b",
        "known__job=c",
    ]
    model = make_pipeline(Encoder(schema), LogisticRegression()).fit(frame, [0, 1, 0, 1, 1])
    assert model.predict(frame).shape == (5,)
    table = Encoder(schema).set_output(transform="pandas").fit(frame).transform(frame)
    assert table.index.equals(frame.index)
    same(Encoder(schema).fit(frame).inverse_transform(table), frame)  # index and all


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_scikit_learns_own_checks() -> None:
    check_estimator(Encoder())


def test_arrays_and_tensors() -> None:
    x = np.array([[0.5, 1.25], [2.0, 3.0], [1.0, -2.0]])
    encoder = Encoder().fit(x)
    assert list(encoder.get_feature_names_out()) == ["x0", "x1"]
    z = torch.from_numpy(encoder.transform(x)).float().requires_grad_()
    assert np.array_equal(encoder.inverse_transform(z).to_numpy(), x)
    frame = pd.DataFrame(x, columns=["a", "b"])
    assert np.array_equal(Encoder().fit(frame).transform(x), encoder.transform(x))
    with pytest.raises(InputError, match="X has 3 features, but Schema is expecting 2"):
        encoder.transform(np.zeros((1, 3)))


def test_saved_without_pickle(frame: pd.DataFrame, schema: Schema) -> None:
    frame["band"] = pd.cut(frame["age"], [0, 30, 45, 99])
    frame["code"] = pd.Categorical([1, 2, 1, 7, 2], [7, 1, 2], ordered=True)
    frame["small"] = frame["income"].astype(np.float32)
    encoder = Encoder(Schema.infer(frame), missing="impute").fit(frame)
    again = Encoder.from_dict(json.loads(json.dumps(encoder.to_dict(), allow_nan=False)))
    assert np.array_equal(again.transform(frame), encoder.transform(frame))
    same(again.inverse_transform(again.transform(frame), like=frame), frame)
    assert again.missing == "impute"
    assert again.schema_ == encoder.schema_
    old = {
        **encoder.to_dict(),
        "settings": {"unknown": "unknown", "missing": "impute", "scale": True},
    }
    assert Encoder.from_dict(old).unseen == "unknown"  # as files of older versions name it
    for broken in (
        {},
        {**encoder.to_dict(), "columns": {}},
        {**encoder.to_dict(), "settings": {"speed": 1}},
    ):
        with pytest.raises(FileError):
            Encoder.from_dict(broken)


def test_missing_values_are_named_or_imputed(frame: pd.DataFrame) -> None:
    holes = frame.astype({"age": float}).reset_index(drop=True)
    holes.loc[0, "age"] = np.nan
    holes.loc[[1, 2], "degree"] = None
    with pytest.raises(
        InputError,
        match=r"Missing values \(NaN\) in 'age' \(1\), 'degree' \(2\) of 5 rows.*missing='impute'",
    ):
        Encoder().fit(holes)
    with pytest.raises(InputError, match=r"Missing values \(NaN\) in 'age' \(1\)"):
        Encoder().fit(frame).transform(holes)
    encoder = Encoder(missing="impute").fit(holes)
    z = encoder.transform(holes)
    filled = encoder.inverse_transform(z)
    assert filled["age"].tolist() == [40, 47, 58, 22, 40]  # the lower median of 22, 40, 47, 58
    assert filled["degree"].tolist()[1:3] == [
        "BSc",
        "BSc",
    ]  # a tie: the first of the most frequent
    same(
        encoder.inverse_transform(z, like=holes), holes
    )  # what was missing and did not change is still missing
    z[0, 0] += 1
    assert encoder.inverse_transform(z, like=holes).loc[0, "age"] > 40


def test_missing_values_in_nullable_columns() -> None:
    frame = pd.DataFrame(
        {
            "a": pd.array([1, None, 5], "Int64"),
            "b": pd.array([True, None, True], "boolean"),
            "c": pd.array([0.5, None, 1], "Float32"),
            "d": pd.array(["x", None, "y"], "string"),
            "e": pd.Categorical(["x", None, "y"]),
        }
    )
    encoder = fitted(frame, missing="impute")
    z = encoder.transform(frame)
    same(encoder.inverse_transform(z, like=frame), frame)
    assert encoder.inverse_transform(z).isna().sum().sum() == 0
    assert encoder.inverse_transform(z).dtypes.equals(frame.dtypes)


def test_unseen_categories(frame: pd.DataFrame, schema: Schema) -> None:
    new = frame.astype({"job": object}).replace({"job": {"b": "B"}, "degree": {"MSc": "Msc"}})
    with pytest.raises(
        InputError,
        match=r"(?s)'degree': unseen 'Msc' in 1 row.*Did you mean 'MSc'.*"
        r"'job': unseen 'B' in 2 row",
    ):
        Encoder(schema).fit(frame).transform(new)
    encoder = Encoder(schema, unseen="unknown").fit(frame)
    z = encoder.transform(new)
    assert z[1, encoder.slices_["job"]].tolist() == [0, 0, 0]
    assert z[2, encoder.slices_["degree"]].tolist() == [0]
    alone = encoder.inverse_transform(z)
    assert alone["job"].isna().tolist() == [False, True, False, False, True]
    back = encoder.inverse_transform(z, like=new)
    assert back["job"].tolist() == new["job"].tolist()
    assert back["degree"].tolist() == new["degree"].tolist()


def test_unseen_binary() -> None:
    frame = pd.DataFrame({"sex": ["f", "m", "f"], "n": [1, 2, 3]})
    encoder = Encoder(unseen="unknown").fit(frame)
    z = encoder.transform(pd.DataFrame({"sex": ["x", "m"], "n": [1, 2]}))
    assert z[:, 0].tolist() == [0.5, 1]
    assert encoder.inverse_transform(z)["sex"].isna().tolist() == [True, False]


def test_constant_columns_are_said_and_do_not_move() -> None:
    frame = pd.DataFrame(
        {"a": [0.1] * 10, "b": list(range(10)), "c": ["x"] * 10, "d": [7] * 10}
    )
    with pytest.warns(
        UserWarning, match="^'a', 'c', 'd' are constant.*, so advice will not change them"
    ):
        encoder = Encoder().fit(frame)
    with pytest.warns(
        UserWarning,
        match=r"^'c' is constant in the training data, so advice will not change it\.$",
    ):
        Encoder().fit(frame[["b", "c"]])
    z = encoder.transform(frame)
    assert (z[:, 0] == 0).all()
    same(encoder.inverse_transform(z), frame)
    constraints = encoder.constraints()
    x = torch.from_numpy(z)
    x_cf = constraints.snap(
        constraints.project(
            x + constraints.mask_step(torch.ones_like(x)), constraints.bounds(x)
        ),
        x,
    )
    assert encoder.inverse_transform(x_cf)[["a", "c", "d"]].equals(frame[["a", "c", "d"]])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda f: f.drop(columns="age"), "Missing columns: 'age'"),
        (lambda f: f.assign(hobby=1), "The model was not trained on 'hobby'; drop it"),
        (lambda f: f.rename(columns={"age": "Age"}), r"'age' \(is it 'Age'\?\)"),
        (lambda f: f.assign(income=np.inf), "'income': 5 infinite value"),
        (lambda f: f.assign(age="old"), "'age' is integer but holds 'old'"),
        (lambda f: f.assign(age=2**60), "an identifier should be dropped"),
        (lambda f: pd.concat([f, f[["age"]]], axis=1), "Duplicate column names: 'age'"),
        (lambda f: f["age"], "got Series"),
    ],
)
def test_frames_that_do_not_fit(frame: pd.DataFrame, change: Any, match: str) -> None:
    encoder = Encoder().fit(frame)
    with pytest.raises(InputError, match=match):
        encoder.transform(change(frame))


def test_settings_and_shapes(frame: pd.DataFrame) -> None:
    with pytest.raises(InputError, match=r"Unknown unseen 'eror'. Did you mean 'error'"):
        Encoder(unseen="eror").fit(frame)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="schema must be a Schema"):
        Encoder("schema.toml").fit(frame)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no rows"):
        Encoder().fit(frame.iloc[:0])
    encoder = Encoder().fit(frame)
    width = len(encoder.get_feature_names_out())
    with pytest.raises(InputError, match=rf"shape \(n, {width}\)"):
        encoder.inverse_transform(np.zeros((2, 3)))
    with pytest.raises(InputError, match="NaN or infinity in 'age'"):
        encoder.inverse_transform(np.full((1, width), np.nan))
    with pytest.raises(InputError, match="like has 5 rows for 1 points"):
        encoder.inverse_transform(np.zeros((1, width)), like=frame)
    with pytest.raises(InputError, match="too much or too little for float64"):
        Encoder().fit(pd.DataFrame({"a": [1e300, -1e300, 0.5]}))


def test_encoded_names_are_unique() -> None:
    frame = pd.DataFrame({"a": ["x", "y", "z"], "a=x": [1.5, 2.0, 3.0]})
    encoder = Encoder().fit(frame)
    assert encoder.names_ == ["a=x", "a=y", "a=z", "a=x (2)"]
    assert encoder.constraints().names == tuple(encoder.names_)
    same(encoder.inverse_transform(encoder.transform(frame)), frame)


def test_empty_frames_transform(frame: pd.DataFrame) -> None:
    encoder = Encoder().fit(frame)
    z = encoder.transform(frame.iloc[:0])
    assert z.shape == (0, len(encoder.names_))
    same(encoder.inverse_transform(z, like=frame.iloc[:0]), frame.iloc[:0])


@pytest.mark.parametrize("columns", [["age", "income"], None], ids=["numbers", "all"])
def test_single_precision_is_double_precision_rounded(
    frame: pd.DataFrame, columns: list[str] | None
) -> None:
    table = frame if columns is None else frame[columns].astype(np.float64)
    table = pd.concat([table] * 50_000, ignore_index=True)  # more than is scaled at a time
    encoder = Encoder(scale="robust").fit(table)
    single = encoder.transform(table, np.float32)
    assert single.dtype == np.float32 and np.array_equal(
        single, encoder.transform(table).astype(np.float32)
    )
