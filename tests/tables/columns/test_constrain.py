"""Every rule of the schema still holds in the user's units after a search."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from encoded import fitted, same
from hypothesis import assume
from hypothesis import strategies as st

from counterfactual_training.constraints import Constraints, Domain
from counterfactual_training.errors import InputError
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.schema import Schema
from covering import on_examples

ORDER = ["none", "BSc", "MSc", "PhD"]


def _not_tiny(value: float) -> float:
    """Columns of numbers below 1e-9 have no decimals that could be shown to a person."""
    return 0.0 if abs(value) < 1e-9 else value


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
            "money": [
                w / 100 for w in draw(st.lists(st.integers(0, 10**5), min_size=n, max_size=n))
            ],
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
            "ordinal": {
                "kind": "ordinal",
                "categories": ORDER,
                "allowed": ["BSc", "PhD"] if allowed else None,
            },
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
            "binary": {
                "kind": "binary",
                "categories": ["no", "yes"],
                "allowed": ["yes"] if allowed else None,
            },
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
            assert feature.mutability in ("both", "increase" if rose else "decrease"), (
                feature,
                old,
                new,
            )
            low, high = feature.limits
            assert feature.domain is None or low <= order(new) <= high, (feature, old, new)
            assert feature.kind != "integer" or new == int(new)
            assert feature.allowed is None or new in feature.allowed, (feature, old, new)
            assert (old, new) not in feature.forbidden, (feature, old, new)


@on_examples(
    12,
    60,
    ruled_frames(),
    st.integers(0, 10**6),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([0.3, 3.0]),
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
    assert (
        after["money"].tolist() == [round(v, 4) for v in after["money"]]
        or frame["money"].std() < 0.1
    )
    # What was shown to the user is what the model is asked about: encoding it again gives the
    # point.
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
    assert constraints.directions == (
        "none",
        "both",
        "increase",
        "increase",
        "both",
        "none",
        "none",
        "none",
    )
    income = encoder.columns_[1]
    low, high = float(constraints.domain.lower[1]), float(constraints.domain.upper[1])
    np.testing.assert_allclose(
        [low * income.scale + income.center, high * income.scale + income.center],
        [0, 5000],
        atol=1e-9,
    )
    age = Domain.infer(torch.from_numpy(encoder.transform(frame)), 3.0)
    torch.testing.assert_close(constraints.domain.lower[0], age.lower[0])
    torch.testing.assert_close(constraints.domain.upper[0], age.upper[0])
    assert constraints.domain.lower[4:].tolist() == [0] * 4
    assert constraints.domain.upper[4:].tolist() == [1] * 4
    assert constraints.domain.stated.tolist() == [False, True, True, *[False] * 5]


def test_factuals_outside_a_stated_domain_are_refused_and_outside_an_inferred_one_welcome(
    frame: pd.DataFrame,
) -> None:
    schema = Schema.infer(frame, domain={"age": (18, 99), "income": (0, None)})
    encoder = Encoder(schema).fit(frame)
    constraints = encoder.constraints()
    rich = frame.assign(income=1e9)
    constraints.check_factuals(torch.from_numpy(encoder.transform(rich)))
    schema.check(rich)
    with pytest.raises(InputError, match="outside the domain of 'age'"):
        constraints.check_factuals(torch.from_numpy(encoder.transform(frame.assign(age=120))))
    with pytest.raises(
        InputError,
        match=r"'income': 5 row\(s\) outside the stated domain \[0, ∞\], the first with -1.0",
    ):
        schema.check(frame.assign(income=-1.0))


def test_keep_sign() -> None:
    frame = pd.DataFrame(
        {
            "gain": [0, 0, 0, 900, 30],
            "debt": [-5.0, -900.0, -1.0, 0.0, -2.0],
            "both": [-1.0, 5, 3, 2, 0],
        }
    )
    encoder = Encoder().fit(frame)

    def box(constraints: Constraints) -> list[tuple[float, float]]:
        pairs = zip(
            constraints.domain.lower.tolist(), constraints.domain.upper.tolist(), strict=True
        )
        columns = zip(encoder.columns_, pairs, strict=True)
        return [
            (c.center + c.scale * low, c.center + c.scale * high) for c, (low, high) in columns
        ]

    free, kept = box(encoder.constraints()), box(encoder.constraints(keep_sign=True))
    assert free[0][0] < 0 < free[1][1]
    assert kept[0][0] == pytest.approx(0)
    assert kept[1][1] == pytest.approx(0)
    assert kept[2] == free[2]


@pytest.mark.check
def test_a_masters_is_not_unearned(frame: pd.DataFrame) -> None:
    """The same rule, three ways: a direction on an ordinal, on a one-hot column, and forbidden
    pairs.
    """
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
            step = 2 * torch.randn(
                x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype
            )
            x_cf = constraints.project(x + constraints.mask_step(step), constraints.bounds(x))
            after = encoder.inverse_transform(constraints.snap(x_cf, x), like=frame)["degree"]
            moves = [
                ORDER.index(b) - ORDER.index(a)
                for a, b in zip(frame["degree"], after, strict=True)
            ]
            assert min(moves) >= 0, statement
            reached |= set(after[frame["degree"] == "none"])
        assert reached == set(ORDER), statement  # and upwards everything can be reached


def pushed(encoder: Encoder, frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Rows that a search took anywhere that the constraints allow."""
    x = torch.from_numpy(encoder.transform(frame))
    constraints = encoder.constraints()
    step = 4 * torch.randn(
        x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype
    )
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
            "size": pd.Categorical(
                ["S", "M", "XL", "S", "M", "XL"],
                ["XS", "S", "M", "L", "XL", "XXL"],
                ordered=True,
            ),
            "open": pd.Categorical(["a", "b", "a", "b", "a", "b"], list("abc")),
        }
    )
    schema = Schema.infer(
        frame, {"open": {"allowed": ["a", "c"]}, "size": {"forbidden": forbidden}}
    )
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
    frame = pd.DataFrame(
        {"children": [0.0, 1.0, 2.0, 3.0, 1.0, 0.0], "owner": [0.0, 1.0, 1.0, 0.0, 1.0, 0.0]}
    )
    encoder = Encoder().fit(frame)
    for seed in range(5):
        after = pushed(encoder, frame, seed)
        assert after.dtypes.equals(frame.dtypes)
        assert (after == after.round()).all(axis=None)
        assert set(after["owner"]) <= {0.0, 1.0}


def test_a_rank_never_seen_may_become_every_rank_that_others_may() -> None:
    train = pd.DataFrame({"degree": ["none", "BSc", "MSc", "MSc"]})
    closed = [("BSc", "none"), ("MSc", "none")]
    schema = Schema.infer(
        train,
        {
            "degree": {
                "kind": "ordinal",
                "categories": ["none", "BSc", "MSc"],
                "forbidden": closed,
            }
        },
    )
    encoder = Encoder(schema, unseen="unknown").fit(train)
    person = pd.DataFrame({"degree": ["PhD"]})
    x = torch.from_numpy(encoder.transform(person))  # the mean, between BSc and MSc
    for wished, expected in (("none", "BSc"), ("BSc", "BSc"), ("MSc", "MSc"), ("PhD", "PhD")):
        point = torch.from_numpy(encoder.transform(pd.DataFrame({"degree": [wished]})))
        x_cf = encoder.constraints().snap(point, x)
        assert encoder.inverse_transform(x_cf, like=person)["degree"].tolist() == [expected]


def test_advice_names_numbers_as_the_data_do() -> None:
    """Credit limits are whole thousands, but for one row; a scale has seven values. A stated step
    wins; a domain or a largest change, however narrow, adds no number.
    """
    rng = np.random.default_rng(0)
    scale = np.array([0.5, 2.5, 6.0, 9.0, 13.0, 16.5, 23.0])
    frame = pd.DataFrame(
        {"limit": 1000 * rng.integers(10, 500, 600), "years": rng.choice(scale, 600)}
    )
    frame.loc[3, "limit"] = 32_768

    def advised(**rules: Any) -> tuple[np.ndarray, np.ndarray]:
        encoder = Encoder(Schema.infer(frame, rules)).fit(frame)
        encoder = Encoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
        x = torch.as_tensor(encoder.transform(frame[:50])).double()
        moved = encoder.constraints(0, bulk=True).snap(x + 0.3 * torch.randn_like(x), x)
        after = encoder.inverse_transform(moved, like=frame[:50])
        return after["limit"].to_numpy(), after["years"].to_numpy()

    limit, years = advised()
    assert ((limit % 1000 == 0) | (limit == 32_768)).all() and np.isin(years, scale).all()
    limit, years = advised(limit={"step": 500}, years={"domain": (0, 30)})
    assert (limit % 1000 == 500).any() and np.isin(years, scale).all()
    limit, years = advised(limit={"max_change": 600}, years={"max_change": 1.0})
    assert ((limit % 1000 == 0) | (limit == 32_768)).all() and np.isin(years, scale).all()
    training = Encoder(Schema.infer(frame)).fit(frame).constraints()
    assert len(training.lattices) == 1 or all(
        lattice.values is None for lattice in training.lattices
    )
