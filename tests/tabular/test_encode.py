"""To model space and back: exactly, and with every rule of the schema still true in the user's units."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from counterfactual_training.constraints import Constraints, Domain
from counterfactual_training.errors import FileError, InputError
from counterfactual_training.tabular.encode import Encoder
from counterfactual_training.tabular.schema import Schema

ORDER = ["none", "BSc", "MSc", "PhD"]
quick = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": [31, 47, 58, 22, 40],
            "income": [1200.5, 3400.0, 990.25, 0.0, 20.0],
            "degree": ["BSc", "none", "MSc", "PhD", "none"],
            "sex": ["f", "m", "m", "f", "m"],
            "owner": [True, False, True, True, False],
            "job": pd.Categorical(["a", "b", "c", "a", "b"]),
        },
        index=[10, 3, 7, 1, 2],
    )


@pytest.fixture
def schema(frame: pd.DataFrame) -> Schema:
    return Schema.infer(frame, {"degree": {"kind": "ordinal", "categories": ORDER}})


def same(a: pd.DataFrame, b: pd.DataFrame) -> None:
    assert_frame_equal(a, b, check_exact=True, check_column_type="exact")


def fitted(frame: pd.DataFrame, schema: Schema | None = None, **settings: Any) -> Encoder:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # generated columns are often constant
        return Encoder(schema, **settings).fit(frame)


# ---- what the columns become ---------------------------------------------------------------------------------------


def test_the_encoding_of_every_kind(frame: pd.DataFrame, schema: Schema) -> None:
    frame["dot"] = np.array([0, 255, 51, 102, 0], dtype=np.uint8)
    schema = Schema.infer(frame, {"degree": {"kind": "ordinal", "categories": ORDER}, "dot": {"kind": "pixel"}})
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
    np.testing.assert_allclose(table["degree"], (ranks - ranks.mean()) / ranks.std(ddof=1), rtol=1e-12)
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
    np.testing.assert_array_equal(z[:, 1], plain[:, 1])  # a bulk of one value has no scale of its own
    same(encoder.inverse_transform(z, like=frame), frame)
    again = Encoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert again.scale == "robust" and np.array_equal(again.transform(frame), z)
    with pytest.raises(InputError, match="True, False or 'robust', got 'robst'"):
        Encoder(scale="robst").fit(frame)  # type: ignore[arg-type]


def test_columns_are_matched_by_name(frame: pd.DataFrame) -> None:
    encoder = Encoder().fit(frame)
    assert np.array_equal(encoder.transform(frame[frame.columns[::-1]]), encoder.transform(frame))


def test_scikit_learn(frame: pd.DataFrame, schema: Schema) -> None:
    encoder = clone(Encoder(schema, missing="impute"))
    assert encoder.get_params()["missing"] == "impute"
    with pytest.raises(NotFittedError):
        encoder.transform(frame)
    mixed = ColumnTransformer([("known", Encoder(), ["age", "job"])], remainder="drop").fit(frame)
    assert list(mixed.get_feature_names_out()) == ["known__age", "known__job=a", "known__job=b", "known__job=c"]
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
    old = {**encoder.to_dict(), "settings": {"unknown": "unknown", "missing": "impute", "scale": True}}
    assert Encoder.from_dict(old).unseen == "unknown"  # as files of older versions name it
    for broken in ({}, {**encoder.to_dict(), "columns": {}}, {**encoder.to_dict(), "settings": {"speed": 1}}):
        with pytest.raises(FileError):
            Encoder.from_dict(broken)


# ---- back ----------------------------------------------------------------------------------------------------------


@st.composite
def decimals(draw: st.DrawFn, n: int, dtype: str = "float64") -> pd.Series:
    """Numbers as people type them: one number of decimals per column, 14 digits at most."""
    places = draw(st.integers(0, 5))
    whole = draw(st.lists(st.integers(-(10**9), 10**9), min_size=n, max_size=n))
    return pd.Series([float(f"{w}e-{places}") for w in whole], dtype=dtype)


@st.composite
def integers(draw: st.DrawFn, n: int) -> pd.Series:
    dtype = draw(st.sampled_from(["int8", "int16", "int32", "int64", "uint8", "uint64", "Int16", "Int64"]))
    info = np.iinfo(dtype.lower())
    low, high = max(info.min, -(2**49)), min(info.max, 2**49)
    return pd.Series(draw(st.lists(st.integers(low, high), min_size=n, max_size=n)), dtype=dtype)


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
    storage = draw(st.sampled_from(["object", "category", "ordered", *(["str", "string"] if of == "text" else [])]))
    if storage in ("category", "ordered"):
        codes = pd.Index(levels, dtype=object, tupleize_cols=False)
        dtype = pd.CategoricalDtype(codes if of == "mixed" else codes.infer_objects(), ordered=storage == "ordered")
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


def _not_tiny(value: float) -> float:
    """Columns of numbers below 1e-9 have no decimals that could be shown to a person."""
    return 0.0 if abs(value) < 1e-9 else value


@st.composite
def frames(draw: st.DrawFn, extra: tuple[Any, ...] = ()) -> pd.DataFrame:
    n = draw(st.integers(1, 8))
    makers = [*KNOWN_DIGITS, *extra, *draw(st.lists(st.sampled_from([*KNOWN_DIGITS, *extra]), max_size=3))]
    frame = pd.DataFrame({f"c{j}": draw(maker(n)) for j, maker in enumerate(makers)})
    frame.index = draw(
        st.sampled_from([pd.RangeIndex(n), pd.Index([f"r{i}" for i in range(n)]), pd.RangeIndex(n) * -3])
    )
    return frame


@quick
@given(frames())
def test_decoding_gives_the_frame(frame: pd.DataFrame) -> None:
    encoder = fitted(frame)
    same(encoder.inverse_transform(encoder.transform(frame)), frame.reset_index(drop=True))


@quick
@given(frames(extra=(any_floats,)), st.sampled_from([np.float32, np.float64]), st.booleans())
def test_decoding_like_the_frame_gives_the_frame(frame: pd.DataFrame, dtype: type, scale: bool) -> None:
    encoder = fitted(frame, scale=scale)
    with np.errstate(over="ignore"):
        z = encoder.transform(frame).astype(dtype)
    assume(np.isfinite(z).all())
    same(encoder.inverse_transform(z, like=frame), frame)


@quick
@given(frames(), st.data())
def test_rows_never_trained_on_come_back_too(frame: pd.DataFrame, data: st.DataObject) -> None:
    encoder = fitted(frame)
    rows = frame.iloc[data.draw(st.lists(st.integers(0, len(frame) - 1), min_size=1, max_size=4))]
    same(encoder.inverse_transform(encoder.transform(rows)), rows.reset_index(drop=True))
    try:
        saved = encoder.to_dict()
    except InputError as error:
        assert "('t', 1) (tuple) cannot be written" in str(error)
        return
    again = Encoder.from_dict(json.loads(json.dumps(saved)))
    same(again.inverse_transform(again.transform(rows)), rows.reset_index(drop=True))


def test_finer_numbers_than_the_training_data_come_back() -> None:
    encoder = Encoder().fit(pd.DataFrame({"a": [1.5, 2.5, 0.0, 4.0], "b": np.float32([1.5, 2.5, 0.0, 4.0])}))
    fine = pd.DataFrame({"a": [0.123456, 1e-6, 3.14159265], "b": np.float32([0.1, 1 / 3, 3.14159265])})
    same(encoder.inverse_transform(encoder.transform(fine)), fine)


def test_floats_of_every_digit_come_back_to_the_last_ones() -> None:
    frame = pd.DataFrame({"a": np.random.default_rng(0).lognormal(size=1000)})
    encoder = Encoder().fit(frame)
    back = encoder.inverse_transform(encoder.transform(frame))
    np.testing.assert_allclose(back["a"], frame["a"], rtol=0, atol=4 * np.spacing(frame["a"].max()))


def test_float32_points_decode_to_what_people_write(frame: pd.DataFrame, schema: Schema) -> None:
    encoder = Encoder(schema).fit(frame)
    z = torch.from_numpy(encoder.transform(frame)).float()
    same(encoder.inverse_transform(z), frame.reset_index(drop=True))


def test_unchanged_cells_are_the_persons_own_and_changed_ones_are_rounded() -> None:
    train = pd.DataFrame({"money": [10.25, 99.5, 47.75, 12.0], "exact": [0.1 + 0.2, 1 / 3, 2 / 3, 0.7]})
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
    z[0, 0] = (99.9577712345 - encoder.columns_[0].center) / scale[0]  # over the domain when rounded
    z[0, 1] -= 2e-5  # noise of a projection, against the direction
    got = encoder.inverse_transform(z, like=person)
    assert got["a"].item() == 99.96
    assert got["b"].item() == 1
    assert encoder.inverse_transform(z)["a"].item() == 99.96


def test_integers_grow_their_storage_rather_than_wrap() -> None:
    frame = pd.DataFrame({"a": np.array([100, 120, -5], dtype=np.int8), "b": [1, 2, 3]})
    encoder = Encoder().fit(frame)
    big = pd.DataFrame({"a": [300], "b": [2]})
    back = encoder.inverse_transform(encoder.transform(big))
    assert back["a"].tolist() == [300]
    upper = encoder.constraints(num_std=5).domain.upper[0]
    assert encoder.inverse_transform(np.array([[float(upper), 0.0]]))["a"].item() == 127


# ---- the rules, in the user's units --------------------------------------------------------------------------------


@st.composite
def ruled_frames(draw: st.DrawFn) -> tuple[pd.DataFrame, Schema]:
    """A frame with a schema that restricts every column somehow."""
    n = draw(st.integers(2, 8))
    rows = st.integers(0, 4)

    def column(levels: list[Any]) -> list[Any]:
        return [levels[draw(rows) % len(levels)] for _ in range(n)]

    frame = pd.DataFrame(
        {
            "integer": draw(st.lists(st.integers(-50, 300), min_size=n, max_size=n)),
            "large": draw(st.lists(st.integers(0, 10**6), min_size=n, max_size=n)),
            "money": [w / 100 for w in draw(st.lists(st.integers(0, 10**5), min_size=n, max_size=n))],
            "float": draw(st.lists(st.floats(-10, 10).map(_not_tiny), min_size=n, max_size=n)),
            "steps": column([0.0, 2.5, 10.0]),
            "ordinal": column(ORDER),
            "rank": column([1, 2, 3, 4, 5]),
            "category": column(["a", "b", "c", "d"]),
            "graded": column(["low", "mid", "high"]),
            "binary": column(["no", "yes"]),
        }
    )
    assume(frame["float"].nunique() == 1 or frame["float"].std() > 1e-100)
    directions = st.sampled_from(["both", "none", "increase", "decrease"])
    pairs = [(a, b) for a in "abcd" for b in "abcd" if a != b]
    ranks = [(a, b) for a in range(1, 6) for b in range(1, 6) if a != b]

    def limits(name: str) -> tuple[float | None, float | None]:
        low = frame[name].min() - draw(st.sampled_from([0, 0.25, 7]))
        high = frame[name].max() + draw(st.sampled_from([0, 0.25, 7]))
        low, high = (low, high) if name == "float" else (round(low, 2), round(high, 2))
        return draw(st.sampled_from([(low, high), (low, None), (None, high), (None, None)]))

    allowed = draw(st.booleans())
    schema = Schema.infer(
        frame,
        {
            "integer": {"kind": "integer"},
            "large": {"kind": "integer"},
            "steps": {"allowed": [0.0, 2.5, 7.125, 10.0]},
            "ordinal": {"kind": "ordinal", "categories": ORDER, "allowed": ["BSc", "PhD"] if allowed else None},
            "rank": {
                "kind": "ordinal",
                "categories": [1, 2, 3, 4, 5],
                "forbidden": draw(st.lists(st.sampled_from(ranks), max_size=8)),
            },
            "category": {
                "kind": "categorical",
                "categories": list("abcd"),
                "allowed": ["b", "c"] if allowed else None,
                "forbidden": draw(st.lists(st.sampled_from(pairs), max_size=6)),
            },
            "graded": {"kind": "categorical", "categories": ["low", "mid", "high"]},
            "binary": {"kind": "binary", "categories": ["no", "yes"], "allowed": ["yes"] if allowed else None},
        },
        mutability={name: draw(directions) for name in frame if name != "category"}
        | {"category": draw(st.sampled_from(["both", "none"]))},
        domain={name: limits(name) for name in ("integer", "large", "money", "float")},
    )
    return frame, schema


def assert_rules(schema: Schema, before: pd.DataFrame, after: pd.DataFrame) -> None:
    for feature in schema:
        for old, new in zip(before[feature.name], after[feature.name], strict=True):
            if old == new:
                continue
            order = feature.levels.index if feature.is_category else float
            rose = order(new) > order(old)
            assert feature.mutability in ("both", "increase" if rose else "decrease"), (feature, old, new)
            low, high = feature.limits
            assert feature.domain is None or low <= order(new) <= high, (feature, old, new)
            assert feature.kind != "integer" or new == int(new)
            assert feature.allowed is None or new in feature.allowed, (feature, old, new)
            assert (old, new) not in feature.forbidden, (feature, old, new)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    ruled_frames(), st.integers(0, 10**6), st.sampled_from([torch.float32, torch.float64]), st.sampled_from([0.3, 3.0])
)
def test_rules_hold_in_user_units(
    ruled: tuple[pd.DataFrame, Schema], seed: int, dtype: torch.dtype, size: float
) -> None:
    frame, schema = ruled
    encoder = fitted(frame, schema)
    x = torch.from_numpy(encoder.transform(frame)).to(dtype)
    constraints = encoder.constraints().to(x)
    rng = torch.Generator().manual_seed(seed)
    x_cf = x.clone()
    bounds = constraints.bounds(x)
    for _ in range(3):
        step = size * torch.randn(x.shape, generator=rng, dtype=dtype)
        x_cf = constraints.project(x_cf + constraints.mask_step(step), bounds)
    x_cf = constraints.snap(x_cf, x)
    assert not constraints.violations(x_cf, x).any()
    after = encoder.inverse_transform(x_cf, like=frame)
    assert_rules(schema, frame, after)
    assert after.dtypes.equals(frame.dtypes)
    assert after["money"].tolist() == [round(v, 4) for v in after["money"]] or frame["money"].std() < 0.1
    # What was shown to the user is what the model is asked about: encoding it again gives the point.
    again = torch.from_numpy(encoder.transform(after)).to(dtype)
    torch.testing.assert_close(again, x_cf, rtol=0, atol=2e-4)
    # And decoding without the person still knows integers and categories.
    alone = encoder.inverse_transform(x_cf)
    assert alone.dtypes.equals(frame.dtypes)
    encoder.transform(alone)


def test_constraints_speak_of_encoded_columns(frame: pd.DataFrame) -> None:
    schema = Schema.infer(
        frame,
        {"degree": {"kind": "ordinal", "categories": ORDER}, "sex": {"categories": ["f", "m"]}},
        mutability={"degree": "increase", "job": "none", "sex": "increase", "age": "none"},
        domain={"income": (0, 5000), "degree": ("none", "PhD")},
    )
    encoder = Encoder(schema).fit(frame)
    constraints = encoder.constraints(num_std=3.0)
    assert constraints.names == tuple(encoder.get_feature_names_out())
    assert constraints.directions == ("none", "both", "increase", "increase", "both", "none", "none", "none")
    income = encoder.columns_[1]
    low, high = float(constraints.domain.lower[1]), float(constraints.domain.upper[1])
    np.testing.assert_allclose(
        [low * income.scale + income.center, high * income.scale + income.center], [0, 5000], atol=1e-9
    )
    age = Domain.infer(torch.from_numpy(encoder.transform(frame)), 3.0)
    torch.testing.assert_close(constraints.domain.lower[0], age.lower[0])
    torch.testing.assert_close(constraints.domain.upper[0], age.upper[0])
    assert constraints.domain.lower[4:].tolist() == [0] * 4
    assert constraints.domain.upper[4:].tolist() == [1] * 4
    assert constraints.domain.stated.tolist() == [False, True, True, *[False] * 5]


def test_factuals_outside_a_stated_domain_are_refused_and_outside_an_inferred_one_welcome(frame: pd.DataFrame) -> None:
    schema = Schema.infer(frame, domain={"age": (18, 99), "income": (0, None)})
    encoder = Encoder(schema).fit(frame)
    constraints = encoder.constraints()
    rich = frame.assign(income=1e9)
    constraints.check_factuals(torch.from_numpy(encoder.transform(rich)))
    schema.check(rich)
    with pytest.raises(InputError, match="outside the domain of 'age'"):
        constraints.check_factuals(torch.from_numpy(encoder.transform(frame.assign(age=120))))
    with pytest.raises(
        InputError, match=r"'income': 5 row\(s\) outside the stated domain \[0, ∞\], the first with -1.0"
    ):
        schema.check(frame.assign(income=-1.0))


def test_keep_sign() -> None:
    frame = pd.DataFrame(
        {"gain": [0, 0, 0, 900, 30], "debt": [-5.0, -900.0, -1.0, 0.0, -2.0], "both": [-1.0, 5, 3, 2, 0]}
    )
    encoder = Encoder().fit(frame)

    def box(constraints: Constraints) -> list[tuple[float, float]]:
        pairs = zip(constraints.domain.lower.tolist(), constraints.domain.upper.tolist(), strict=True)
        columns = zip(encoder.columns_, pairs, strict=True)
        return [(c.center + c.scale * low, c.center + c.scale * high) for c, (low, high) in columns]

    free, kept = box(encoder.constraints()), box(encoder.constraints(keep_sign=True))
    assert free[0][0] < 0 < free[1][1]
    assert kept[0][0] == pytest.approx(0)
    assert kept[1][1] == pytest.approx(0)
    assert kept[2] == free[2]


def test_a_masters_is_not_unearned(frame: pd.DataFrame) -> None:
    """The same rule, three ways: a direction on an ordinal, on a one-hot column, and forbidden pairs."""
    falls = [(a, b) for i, a in enumerate(ORDER) for b in ORDER[:i]]
    for statement in (
        {"kind": "ordinal", "mutability": "increase"},
        {"kind": "categorical", "mutability": 1},
        {"kind": "categorical", "forbidden": falls},
        {"kind": "ordinal", "forbidden": falls},
    ):
        schema = Schema.infer(frame, {"degree": {"categories": ORDER, **statement}})
        encoder = Encoder(schema).fit(frame)
        x = torch.from_numpy(encoder.transform(frame))
        constraints = encoder.constraints()
        reached = set()
        for seed in range(20):
            step = 2 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
            x_cf = constraints.project(x + constraints.mask_step(step), constraints.bounds(x))
            after = encoder.inverse_transform(constraints.snap(x_cf, x), like=frame)["degree"]
            moves = [ORDER.index(b) - ORDER.index(a) for a, b in zip(frame["degree"], after, strict=True)]
            assert min(moves) >= 0, statement
            reached |= set(after[frame["degree"] == "none"])
        assert reached == set(ORDER), statement  # and upwards everything can be reached


# ---- bad input -----------------------------------------------------------------------------------------------------


def test_missing_values_are_named_or_imputed(frame: pd.DataFrame) -> None:
    holes = frame.astype({"age": float}).reset_index(drop=True)
    holes.loc[0, "age"] = np.nan
    holes.loc[[1, 2], "degree"] = None
    with pytest.raises(
        InputError, match=r"Missing values \(NaN\) in 'age' \(1\), 'degree' \(2\) of 5 rows.*missing='impute'"
    ):
        Encoder().fit(holes)
    with pytest.raises(InputError, match=r"Missing values \(NaN\) in 'age' \(1\)"):
        Encoder().fit(frame).transform(holes)
    encoder = Encoder(missing="impute").fit(holes)
    z = encoder.transform(holes)
    filled = encoder.inverse_transform(z)
    assert filled["age"].tolist() == [40, 47, 58, 22, 40]  # the lower median of 22, 40, 47, 58
    assert filled["degree"].tolist()[1:3] == ["BSc", "BSc"]  # a tie: the first of the most frequent
    same(encoder.inverse_transform(z, like=holes), holes)  # what was missing and did not change is still missing
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
        InputError, match=r"(?s)'degree': unseen 'Msc' in 1 row.*Did you mean 'MSc'.*'job': unseen 'B' in 2 row"
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
    frame = pd.DataFrame({"a": [0.1] * 10, "b": list(range(10)), "c": ["x"] * 10, "d": [7] * 10})
    with pytest.warns(UserWarning, match="Constant in the training data: 'a', 'c', 'd'"):
        encoder = Encoder().fit(frame)
    z = encoder.transform(frame)
    assert (z[:, 0] == 0).all()
    same(encoder.inverse_transform(z), frame)
    constraints = encoder.constraints()
    x = torch.from_numpy(z)
    x_cf = constraints.snap(
        constraints.project(x + constraints.mask_step(torch.ones_like(x)), constraints.bounds(x)), x
    )
    assert encoder.inverse_transform(x_cf)[["a", "c", "d"]].equals(frame[["a", "c", "d"]])


def pushed(encoder: Encoder, frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Rows that a search took anywhere that the constraints allow."""
    x = torch.from_numpy(encoder.transform(frame))
    constraints = encoder.constraints()
    step = 4 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
    x_cf = constraints.project(x + constraints.mask_step(step), constraints.bounds(x))
    return encoder.inverse_transform(constraints.snap(x_cf, x), like=frame)


def test_one_value_in_training_never_moves() -> None:
    frame = pd.DataFrame(
        {
            "flag": [True] * 6,
            "zero": [0] * 6,
            "two": pd.Categorical(["f"] * 6, ["f", "m"]),
            "three": pd.Categorical(["b"] * 6, ["a", "b", "c"]),
            "rank": pd.Categorical(["M"] * 6, ["S", "M", "L"], ordered=True),
            "whole": [7] * 6,
            "free": [0.5, 1, 2, 3, 4, 5],
        }
    )
    encoder = fitted(frame, Schema.infer(frame, domain={"whole": (0, 99)}))
    assert set(encoder.constraints().directions[:-1]) == {"none"}
    for seed in range(5):
        after = pushed(encoder, frame, seed)
        same(after.drop(columns="free"), frame.drop(columns="free"))
        assert not after["free"].equals(frame["free"])


@pytest.mark.parametrize("forbidden", [[], [("S", "L")]])
def test_categories_never_seen_are_no_advice(forbidden: list[Any]) -> None:
    frame = pd.DataFrame(
        {
            "job": pd.Categorical(["a", "b", "a", "b", "c", "c"], list("abcdef")),
            "size": pd.Categorical(["S", "M", "XL", "S", "M", "XL"], ["XS", "S", "M", "L", "XL", "XXL"], ordered=True),
            "open": pd.Categorical(["a", "b", "a", "b", "a", "b"], list("abc")),
        }
    )
    schema = Schema.infer(frame, {"open": {"allowed": ["a", "c"]}, "size": {"forbidden": forbidden}})
    fresh = Encoder(schema).fit(frame)
    for encoder in (fresh, Encoder.from_dict(json.loads(json.dumps(fresh.to_dict())))):
        reached: dict[str, set[Any]] = {name: set() for name in frame}
        for seed in range(30):
            after = pushed(encoder, frame, seed)
            for name, values in reached.items():
                values |= set(after[name][after[name] != frame[name]])
        assert reached == {"job": set("abc"), "size": {"S", "M", "XL"}, "open": {"a", "c"}}
    # Those who are in such a category may stay, or leave.
    rare = frame.assign(job=pd.Categorical(["f"] * 6, list("abcdef")))
    assert set(pushed(fresh, rare, 0)["job"]) <= {"a", "b", "c", "f"}


def test_whole_floats_come_back_whole() -> None:
    frame = pd.DataFrame({"children": [0.0, 1.0, 2.0, 3.0, 1.0, 0.0], "owner": [0.0, 1.0, 1.0, 0.0, 1.0, 0.0]})
    encoder = Encoder().fit(frame)
    for seed in range(5):
        after = pushed(encoder, frame, seed)
        assert after.dtypes.equals(frame.dtypes)
        assert (after == after.round()).all(axis=None)
        assert set(after["owner"]) <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda f: f.drop(columns="age"), "missing from the frame: 'age'"),
        (lambda f: f.assign(hobby=1), "the schema does not know: 'hobby'; drop them"),
        (lambda f: f.rename(columns={"age": "Age"}), r"'age' \(is it 'Age'\?\)"),
        (lambda f: f.assign(income=np.inf), "'income': 5 infinite value"),
        (lambda f: f.assign(age=2.5), "'age' is integer but holds 2.5"),
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


@pytest.mark.parametrize(
    ("direction", "own", "moved", "expected"),
    [
        ("both", 1.27, 1.2648765, 1.3),
        ("decrease", 1.27, 1.2648765, 1.27),  # a little less rounds up beside a column of one decimal
        ("both", 1.23, 1.2351234, 1.2),
        ("increase", 1.23, 1.2351234, 1.23),
    ],
)
def test_rounding_does_not_go_against_a_direction(direction: str, own: float, moved: float, expected: float) -> None:
    train = pd.DataFrame({"a": [-30.5, 40.1, 10.4, 2.2]})
    encoder = Encoder(Schema.infer(train, mutability={"a": direction})).fit(train)
    person = pd.DataFrame({"a": [own]})
    z = (moved - encoder.columns_[0].center) / encoder.columns_[0].scale
    assert encoder.inverse_transform(np.float32([[z]]), like=person)["a"].tolist() == [expected]


def test_a_rank_never_seen_may_become_every_rank_that_others_may() -> None:
    train = pd.DataFrame({"degree": ["none", "BSc", "MSc", "MSc"]})
    closed = [("BSc", "none"), ("MSc", "none")]
    schema = Schema.infer(
        train, {"degree": {"kind": "ordinal", "categories": ["none", "BSc", "MSc"], "forbidden": closed}}
    )
    encoder = Encoder(schema, unseen="unknown").fit(train)
    person = pd.DataFrame({"degree": ["PhD"]})
    x = torch.from_numpy(encoder.transform(person))  # the mean, between BSc and MSc
    for wished, expected in (("none", "BSc"), ("BSc", "BSc"), ("MSc", "MSc"), ("PhD", "PhD")):
        point = torch.from_numpy(encoder.transform(pd.DataFrame({"degree": [wished]})))
        x_cf = encoder.constraints().snap(point, x)
        assert encoder.inverse_transform(x_cf, like=person)["degree"].tolist() == [expected]
