"""Relations of a schema: checked, kept in files, exact on numbers."""

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.errors import ConstraintError
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.relate import breaks, kept
from counterfactual_training.tables.columns.schema import Schema


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "a": [1, 2, 3, 9],
            "b": [5, 6, 7, 3],
            "debt": [10.5, 20.0, 5.0, 1.5],
            "income": [21.0, 10.0, 20.0, 3.0],
            "ratio": [0.5, 2.0, 0.25, 0.9],
            "job": ["pilot", "clerk", "pilot", "nurse"],
            "licence": [True, False, False, True],
        }
    )


RELATIONS = ["a <= b", "ratio = debt / income", "job = pilot requires licence = yes"]


@pytest.mark.parametrize(
    ("relations", "match"),
    [
        (["a <= c"], "Unknown column 'c'"),
        (["a <= job"], "computes with 'job', which is categorical"),
        (["a <= licence"], "which is binary"),
        (["a * b <= 1"], "is not linear"),
        (["a - a <= 1"], "says nothing about any column"),
        (
            ["ratio = debt / income", "debt = ratio * 2"],
            "in a circle: ratio from debt from ratio",
        ),
        (["a = a + 1"], "in a circle: a from a"),
        (["ratio = debt / income", "ratio = 2 * debt"], "follows from both"),
        (["ratio = 3"], "holds 'ratio' at one number"),
        (["ratio = debt / 0"], "divides by zero"),
        (
            ["a + b <= 1", "debt <= income", "a + b >= 2"],
            "No row can keep 'a \\+ b <= 1' and 'a \\+ b >= 2'",
        ),
        (
            ["job = pilote requires licence = yes"],
            "Unknown category of 'job': 'pilote'. Did you mean 'pilot'",
        ),
        (["a = 1 requires licence = yes"], "'a' is integer and has no categories"),
        (["job = pilot requires job = clerk"], "to itself"),
        ("a <= b", "must be a list"),
        ([3], "A relation is text"),
    ],
)
def test_relations_that_cannot_be(frame, relations, match):
    with pytest.raises(ConstraintError, match=match):
        Schema.infer(frame, relations=relations)


def test_a_relation_may_contradict_a_domain(frame):
    with pytest.raises(
        ConstraintError, match=r"'a \+ b >= 30' with 'a' in \(0, 10\), 'b' in \(0, 10\)"
    ):
        Schema.infer(frame, domain={"a": (0, 10), "b": (0, 10)}, relations=["a + b >= 30"])


def test_relations_come_by_dict_by_argument_and_stay(frame):
    schema = Schema.infer(
        frame, {"relations": RELATIONS[:1], "a": {"unit": "cm"}}, relations=RELATIONS[1:]
    )
    assert schema.relations == tuple(RELATIONS) and schema["a"].unit == "cm"
    assert schema.override(mutability={"a": "none"}, relations=["b <= 9"]).relations == (
        *RELATIONS,
        "b <= 9",
    )
    assert Schema.from_dict(schema.to_dict()) == schema
    assert str(schema).splitlines()[-3:] == RELATIONS


@pytest.mark.parametrize("name", ["rules.toml", "rules.json"])
def test_files_keep_relations(frame, tmp_path, name):
    schema = Schema.infer(frame, relations=RELATIONS)
    schema.save(tmp_path / name)
    assert Schema.from_file(tmp_path / name) == schema
    assert Schema.infer(frame, tmp_path / name).relations == schema.relations


def test_toml_states_relations_beside_columns(frame, tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text('relations = ["a <= b"]\n\n[a]\nmutability = "increase"\n')
    schema = Schema.infer(frame, path)
    assert schema.relations == ("a <= b",) and schema["a"].mutability == "increase"


def test_a_column_may_be_called_relations(frame, tmp_path):
    frame = frame.rename(columns={"a": "relations"})
    schema = Schema.infer(
        frame, {"relations": {"unit": "cm"}, "relations_": ["relations <= b"]}
    )
    assert schema["relations"].unit == "cm" and schema.relations == ("relations <= b",)
    schema.save(tmp_path / "rules.toml")
    assert Schema.from_file(tmp_path / "rules.toml") == schema


def test_an_encoder_keeps_relations(frame):
    encoder = Encoder(Schema.infer(frame, relations=RELATIONS)).fit(frame)
    assert Encoder.from_dict(encoder.to_dict()).schema_.relations == tuple(RELATIONS)
    rules = encoder.constraints().relations
    (follower,) = rules.followers
    assert rules.all_texts == ("a <= b", "job = pilot requires licence = yes", follower.text)
    assert follower.text in RELATIONS


def numbers(**values):
    return {name: np.array([float(value)]) for name, value in values.items()}


@pytest.mark.parametrize(
    ("relation", "before", "after", "fine"),
    [
        ("a <= b", {"a": 1, "b": 5}, {"a": 5, "b": 5}, True),
        ("a <= b", {"a": 1, "b": 5}, {"a": 6, "b": 5}, False),
        ("a <= b", {"a": 8, "b": 5}, {"a": 7, "b": 5}, True),  # broken before, and less so now
        ("a <= b", {"a": 8, "b": 5}, {"a": 9, "b": 5}, False),
        ("a < b", {"a": 1, "b": 5}, {"a": 5, "b": 5}, False),
        ("debt + income <= 0.3", {"debt": 0, "income": 0}, {"debt": 0.1, "income": 0.2}, True),
        (
            "debt + income = 31",
            {"debt": 10.5, "income": 20.5},
            {"debt": 11, "income": 20},
            True,
        ),
        (
            "debt + income = 31",
            {"debt": 10.5, "income": 20.5},
            {"debt": 11, "income": 20.5},
            False,
        ),
        (
            "ratio = debt / income",
            {"debt": 1, "income": 2, "ratio": 1},
            {"debt": 1, "income": 0, "ratio": 1},
            False,
        ),
        (RELATIONS[2], {"job": 1, "licence": 0}, {"job": 2, "licence": 0}, False),
        (
            RELATIONS[2],
            {"job": 2, "licence": 0},
            {"job": 2, "licence": 0},
            True,
        ),  # broken before
    ],
)
def test_the_check_is_exact(frame, relation, before, after, fine):
    encoder = Encoder(Schema.infer(frame, relations=[relation])).fit(frame)
    columns = {column.feature.name: column for column in encoder.columns_}
    assert kept(
        encoder.schema_.book, columns, numbers(**before), numbers(**after)
    ).tolist() == [fine]


def test_rows_that_break_a_relation_are_found(frame):
    encoder = Encoder(Schema.infer(frame, relations=RELATIONS)).fit(frame)
    columns = {column.feature.name: column for column in encoder.columns_}
    book = encoder.schema_.book
    values = dict(zip(encoder.schema_.names, encoder._read(frame), strict=True))
    found = {
        text: np.flatnonzero(mask).tolist() for text, _, mask in breaks(book, columns, values)
    }
    assert found == {
        "a <= b": [3],
        "ratio = debt / income": [3],
        "job = pilot requires licence = yes": [2],
    }


@pytest.mark.parametrize(
    ("relation", "room"), [("a < b", 0.5), ("debt < income", 0.0), ("a <= b", 0.0)]
)
def test_a_strict_relation_between_integers_keeps_half_a_step_apart(frame, relation, room):
    """The search ends between two integers, and rounding must not make them equal."""
    encoder = Encoder(Schema.infer(frame, relations=[relation])).fit(frame)
    columns = {column.feature.name: column for column in encoder.columns_}
    left = columns[relation.split()[0]]
    right = columns[relation.split()[2]]
    size = np.hypot(left.scale, right.scale)
    bound = float(encoder.constraints().relations.upper[0]) * size
    # In the units of the columns: left − right ≤ bound + centres.
    assert bound + left.center - right.center == pytest.approx(-room, abs=1e-3 * size)


@pytest.mark.parametrize(
    ("ratio", "fine"), [(0.9, True), (1.0, True), (1.5, False), (0.0, True), (-0.1, False)]
)
def test_what_follows_keeps_to_its_own_largest_change(frame, ratio, fine):
    rules = {"ratio": {"max_change": 0.5}}
    encoder = Encoder(Schema.infer(frame, rules, relations=["ratio = debt / income"])).fit(
        frame
    )
    columns = {column.feature.name: column for column in encoder.columns_}
    before = numbers(debt=10, income=20, ratio=0.5)
    after = numbers(debt=20 * ratio, income=20, ratio=ratio)
    assert kept(encoder.schema_.book, columns, before, after).tolist() == [fine]
