"""What a frame says of itself, what users say about it, and what contradicts."""

from __future__ import annotations

import doctest
import json
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import counterfactual_training.tables.columns.schema as schema_module
from counterfactual_training.errors import ConstraintError, FileError, InputError
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.columns.schema import Schema

ORDER = ["none", "BSc", "MSc", "PhD"]


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": [31, 47, 58, 22],
            "income": [1200.5, 3400.0, 990.25, 0.0],
            "degree": ["BSc", "none", "MSc", "PhD"],
            "sex": ["f", "m", "m", "f"],
            "owner": [True, False, True, True],
            "late": [0, 1, 1, 0],
            "size": pd.Categorical(["S", "L", "M", "S"], ["S", "M", "L"], ordered=True),
            "job": pd.Categorical(["a", "b", "c", "a"]),
        }
    )


def test_kinds_from_a_frame(frame: pd.DataFrame) -> None:
    kinds = {feature.name: feature.kind for feature in Schema.infer(frame)}
    assert kinds == {
        "age": "integer",
        "income": "numeric",
        "degree": "categorical",
        "sex": "binary",
        "owner": "binary",
        "late": "binary",
        "size": "ordinal",
        "job": "categorical",
    }
    schema = Schema.infer(frame)
    assert schema["size"].categories == ("S", "M", "L")
    assert schema["owner"].categories == (False, True)
    assert schema["late"].categories == (0, 1)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pd.Series([1.0, None, 3.0]), "integer"),  # pandas made floats of whole numbers
        (pd.Series([0.0, None, 1.0]), "binary"),
        (pd.Series([1.0, 2.0, 3.0]), "numeric"),
        (pd.Series([0.0, 1.0, 1.0]), "binary"),
        (pd.Series([0.0, 0.0]), "numeric"),
        (pd.Series([Decimal("1.5"), Decimal("2")], dtype=object), "numeric"),
        (pd.Series([1.5, None, 3.0]), "numeric"),
        (pd.Series([1, None, 3], dtype="Int64"), "integer"),
        (pd.Series([True, None, False], dtype="boolean"), "binary"),
        (pd.Series([True, None, False], dtype=object), "binary"),
        (pd.Series([1, 2, 7], dtype=object), "integer"),
        (pd.Series([1, 2.5, 7], dtype=object), "numeric"),
        (pd.Series(["a", None, "b", "c"]), "categorical"),
        (pd.Series(["a", 1, "b"], dtype=object), "categorical"),
        (pd.Series([1, 2, 1], dtype="category"), "binary"),
        (pd.Series([5, 5, 5]), "integer"),
    ],
)
def test_kind_of_a_column(values: pd.Series, kind: str) -> None:
    assert Schema.infer(pd.DataFrame({"a": values}))["a"].kind == kind


def test_arrays_get_names() -> None:
    schema = Schema.infer(np.array([[0.5, 1.0], [2.0, 3.0]]))
    assert schema.names == ("x0", "x1")
    assert [feature.kind for feature in schema] == ["numeric", "numeric"]


def test_keywords_win_over_the_file_and_the_file_over_the_data(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "schema.toml"
    path.write_text('[age]\nkind = "numeric"\nunit = "years"\nmutability = "increase"\n')
    schema = Schema.infer(
        frame, path, mutability={"age": 0, "income": 1}, domain={"age": (18, None)}
    )
    assert schema["age"] == Feature("age", "numeric", unit="years", domain=(18, None))
    assert schema["income"].mutability == "increase"


def test_a_dict_and_a_file_state_the_same(frame: pd.DataFrame, tmp_path: Path) -> None:
    stated = {
        "degree": {"kind": "ordinal", "categories": ORDER},
        "age": {"unit": "years", "domain": [18, None]},
    }
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(stated))
    assert (
        Schema.infer(frame, stated)
        == Schema.infer(frame, path)
        == Schema.infer(frame, str(path))
    )
    with pytest.raises(
        InputError, match="schema must be a dict by column or a file name, got int"
    ):
        Schema.infer(frame, 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="domain must be a dict by column"):
        Schema.infer(frame, domain=[(0, 1)])  # type: ignore[arg-type]


def test_override_keeps_the_rest(frame: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"age": {"unit": "years"}}))
    schema = Schema.infer(frame, mutability={"age": "none"}).override(path)
    schema = schema.override({"job": {"allowed": ["a", "b"]}})
    assert (schema["age"].unit, schema["age"].mutability, schema["age"].kind) == (
        "years",
        "none",
        "integer",
    )
    assert schema["job"].allowed == ("a", "b")


def test_override_of_the_kind_drops_what_no_longer_fits(frame: pd.DataFrame) -> None:
    schema = Schema.infer(frame, domain={"age": (18, 90)})
    changed = schema.override(
        {
            "age": {"kind": "categorical"},
            "job": {"kind": "ordinal", "categories": ["c", "a", "b"]},
        }
    )
    assert changed["age"].domain is None
    assert changed["age"].categories is None
    assert changed.complete(frame)["age"].categories == (22, 31, 47, 58)
    assert changed["job"].categories == ("c", "a", "b")


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_files_keep_everything(frame: pd.DataFrame, tmp_path: Path, suffix: str) -> None:
    frame["band"] = pd.cut(frame["age"], [0, 30, 45, 99])
    frame['odd "name"\n'] = ["é", 'q"uote', "back\\slash", "\x7f"]
    frame["code"] = pd.Categorical([1.5, 2.0, 1.5, 7.0])
    schema = Schema.infer(
        frame,
        {
            "degree": {"kind": "ordinal", "categories": ORDER},
            "income": {"unit": "€"},
            "job": {"allowed": ["a", "b"], "forbidden": [("a", ["b", "c"])]},
            "size": {"allowed": ["M", "L"], "forbidden": [("L", "S")]},
        },
        mutability={"degree": "increase", "sex": "none"},
        domain={"age": (18, None), "income": (0, 1e6), "degree": ("none", None)},
    )
    path = tmp_path / f"schema.{suffix}"
    schema.save(path)
    assert Schema.from_file(path) == schema
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


def test_table_reads_well(frame: pd.DataFrame) -> None:
    schema = Schema.infer(
        frame,
        {"age": {"unit": "years", "domain": (18, None)}, "job": {"forbidden": [("a", "b")]}},
    )
    text = str(schema)
    assert len(text.splitlines()) == 1 + len(frame.columns)
    assert "in [18, ∞]" in text
    assert "'S' < 'M' < 'L'" in text
    assert "never 'a' → 'b'" in text
    assert list(schema.table()["feature"]) == list(frame.columns)


def test_the_table_tells_every_rule(frame: pd.DataFrame) -> None:
    stated = {
        "age": {
            "domain": (18, 90),
            "step": 5,
            "max_change": 10,
            "difficulty": 2.5,
            "special": [-9],
        },
        "size": {"max_change": 1, "allowed": ["M"]},
    }
    table = Schema.infer(frame, stated).table().set_index("feature")
    said = (
        "in [18, 90]; code -9, never advised; in steps of 5; changes by at most 10; 2.5 times the "
        "usual cost"
    )
    assert table.loc["age", "values"] == said
    assert (
        table.loc["size", "values"]
        == "'S' < 'M' < 'L'; to 'M' only; changes by at most 1 in rank"
    )


def test_docstring_example() -> None:
    assert doctest.testmod(schema_module).failed == 0


# ---- bad input -----------------------------------------------------------------------------------


def test_high_cardinality_text_is_refused_with_advice() -> None:
    people = pd.DataFrame({"name": [f"person {i}" for i in range(100)]})
    with pytest.raises(
        InputError, match=r"'name' is text with 100 different values in 100 rows; drop it"
    ):
        Schema.infer(people)
    with pytest.raises(InputError, match=r"state schema=\{'name': \{'kind': 'categorical'\}\}"):
        Schema.infer(people)
    assert len(Schema.infer(people, {"name": {"kind": "categorical"}})["name"].levels) == 100
    numbers = pd.DataFrame({"amount": [f"{i}.5" for i in range(100)]})
    with pytest.raises(InputError, match=r"pd\.to_numeric"):
        Schema.infer(numbers)
    towns = pd.DataFrame({"town": [f"town {i % 51}" for i in range(1000)]})
    assert len(Schema.infer(towns)["town"].levels) == 51


@pytest.mark.parametrize(
    ("column", "match"),
    [
        (
            pd.to_datetime(["2024-01-01", "2024-01-02"]),
            "'a' is datetime64.*turn it into numbers",
        ),
        ([date(2024, 1, 1), date(2024, 1, 2)], "'a' is date, .*turn it into numbers"),
        (
            [1 + 2j, 3j],
            "'a' holds complex numbers.*the real and the imaginary part as two columns",
        ),
        (
            pd.arrays.IntervalArray.from_breaks([0, 1, 2]),
            "'a' is interval.*; convert it to numbers or text",
        ),
        (pd.arrays.SparseArray([0, 0, 1]), r"Sparse columns are not supported: 'a'.*to_dense"),
        (
            pd.Categorical([f"p{i}" for i in range(60)]),
            "categorical with 60 different values in 60 rows; drop it",
        ),
        ([None, None], "nothing but missing"),
        ([[1], [2]], "list objects"),
    ],
)
def test_columns_no_model_takes(column: object, match: str) -> None:
    with pytest.raises(InputError, match=match):
        Schema.infer(pd.DataFrame({"a": column}))


def test_every_bad_column_is_named_at_once() -> None:
    bad = pd.DataFrame(
        {"a": [None, None], "b": pd.to_datetime(["2024-01-01", "2024-01-02"]), "c": [1, 2]}
    )
    with pytest.raises(InputError, match=r"(?s)'a' holds.*'b' is datetime"):
        Schema.infer(bad)


def test_names_of_columns() -> None:
    with pytest.raises(InputError, match="Duplicate column names: 'a'"):
        Schema.infer(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(InputError, match="must be text, got 0"):
        Schema.infer(pd.DataFrame([[1, 2]]))
    with pytest.raises(InputError, match="no columns"):
        Schema.infer(pd.DataFrame(index=[0, 1]))
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        Schema.infer(np.zeros(3))
    with pytest.raises(InputError, match="no rows"):
        Schema.infer(pd.DataFrame({"a": []}))
    with pytest.raises(InputError, match=r"got dict; use pd\.DataFrame\(\[row\]\)"):
        Schema.infer({"a": 1})


def test_check_names_missing_and_extra_columns(frame: pd.DataFrame) -> None:
    schema = Schema.infer(frame)
    schema.check(frame[frame.columns[::-1]])  # order is no contradiction
    with pytest.raises(
        InputError,
        match=r"Missing columns: 'income' \(is it 'incom'\?\)\. Columns the schema .*: "
        r"'incom'; drop it",
    ):
        schema.check(frame.rename(columns={"income": "incom"}))


@pytest.mark.parametrize(
    ("stated", "match"),
    [
        ({"agee": {"kind": "integer"}}, "Unknown column 'agee'. Did you mean 'age'"),
        (
            {"age": {"kind": "interger"}},
            "Unknown kind of 'age' 'interger'. Did you mean 'integer'",
        ),
        ({"age": {"mutability": "up"}}, "mutability of 'age': Unknown direction 'up'"),
        ({"age": {"mutability": True}}, "Unknown direction True"),
        (
            {"age": {"domain": (90, 18)}},
            r"domain of 'age' is empty: lower > upper in \[90, 18\]",
        ),
        ({"age": {"domain": (40.2, 40.8)}}, "no whole number lies in"),
        ({"age": {"domain": 18}}, r"must be \(lower, upper\), got 18"),
        ({"age": {"domain": ("a", 3)}}, "must be numbers or None, got 'a'"),
        ({"job": {"domain": (0, 1)}}, "'job' is categorical and has no domain"),
        ({"size": {"domain": ("L", "S")}}, "'L' comes after 'S'"),
        ({"size": {"domain": ("XS", None)}}, "Unknown category in the domain of 'size': 'XS'"),
        ({"degree": {"categories": ["BSc", "BSc"]}}, "must be different"),
        (
            {"sex": {"categories": ["f", "m", "x"], "kind": "binary"}},
            "binary but has 3 categories",
        ),
        ({"job": {"allowed": ["z"]}}, "Unknown category in the allowed values of 'job': 'z'"),
        ({"age": {"allowed": [30.5]}}, "must be integer values, got 30.5"),
        ({"age": {"allowed": []}}, "No value of 'age' is allowed"),
        (
            {"age": {"allowed": [200], "domain": (0, 99)}},
            "200 of 'age' lies outside its domain",
        ),
        ({"age": {"forbidden": [(1, 2)]}}, "forbidden changes are between categories"),
        (
            {"job": {"forbidden": [("a", "z")]}},
            "Unknown category in the forbidden changes of 'job': 'z'",
        ),
        ({"job": {"forbidden": [("a", "a")]}}, "may always stay 'a'"),
        ({"job": {"forbidden": ["ab"]}}, "is a pair"),
        (
            {"degree": {"kind": "ordinal"}},
            r"state schema=\{'degree': \{'categories': \[lowest",
        ),
        ({"degree": {"mutability": "increase"}}, "which category is higher is not known"),
        ({"age": {"unit": 3}}, "unit of 'age' must be text"),
    ],
)
def test_statements_that_make_no_sense(
    frame: pd.DataFrame, stated: dict[str, dict], match: str
) -> None:
    with pytest.raises(InputError, match=match):
        Schema.infer(frame, stated)


@pytest.mark.parametrize(
    ("stated", "match"),
    [
        (
            {"degree": {"categories": ["none", "BSc", "Msc", "PhD"]}},
            "unseen 'MSc'.*Did you mean 'Msc'",
        ),
        (
            {"degree": {"kind": "numeric"}},
            r"'degree' is numeric but holds 'BSc' \((str|object)\)",
        ),
        ({"income": {"kind": "integer"}}, "'income' is integer but holds 1200.5"),
        ({"degree": {"kind": "binary"}}, "binary but has 4 categories"),
    ],
)
def test_a_schema_that_contradicts_the_data(
    frame: pd.DataFrame, stated: dict[str, dict], match: str
) -> None:
    with pytest.raises(InputError, match=match):
        Schema.infer(frame, stated)


@pytest.mark.parametrize(
    ("stated", "match"),
    [
        (
            {"age": {"domain": (25, 50)}},
            r"'age': 2 row\(s\) outside the stated domain \[25, 50\], the first with 58",
        ),
        ({"size": {"domain": ("M", None)}}, r"'size': 2 row\(s\) outside"),
    ],
)
def test_rows_outside_a_domain_are_found_on_request(
    frame: pd.DataFrame, stated: dict[str, dict], match: str
) -> None:
    schema = Schema.infer(frame, stated)  # a domain limits advice, not data
    with pytest.raises(InputError, match=match):
        schema.check(frame)


@pytest.mark.parametrize(
    ("stated", "match"),
    [
        ({"age": {"step": 2.5}}, "holds whole numbers, so its step must be one, got 2.5"),
        (
            {"age": {"step": 100, "domain": (10, 90)}},
            "No multiple of the step 100 lies in the domain of 'age'",
        ),
        ({"degree": {"step": 1}}, "only numeric and integer columns have a step"),
        ({"degree": {"max_change": 1}}, "a change has no size"),
        ({"age": {"max_change": -1}}, "max_change of 'age' must be a positive number, got -1"),
        (
            {"age": {"difficulty": "hard"}},
            "difficulty of 'age' must be a positive number, got 'hard'",
        ),
    ],
)
def test_steps_sizes_and_difficulties_that_make_no_sense(
    frame: pd.DataFrame, stated: dict[str, dict], match: str
) -> None:
    with pytest.raises(ConstraintError, match=match):
        Schema.infer(frame, stated)


def test_steps_sizes_and_difficulties_are_kept_in_files(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    schema = Schema.infer(frame, {"age": {"step": 5, "max_change": 20, "difficulty": 3}})
    for name in ("rules.toml", "rules.json"):
        schema.save(tmp_path / name)
        assert Schema.from_file(tmp_path / name) == schema
    assert (schema["age"].step, schema["age"].max_change, schema["age"].difficulty) == (
        5.0,
        20.0,
        3.0,
    )


@pytest.mark.parametrize(
    ("name", "text", "error", "match"),
    [
        (
            "s.toml",
            '[age]\nmutabilty = "none"',
            InputError,
            "s.toml: Unknown field in the schema of 'age': 'mutabilty'. Did",
        ),
        (
            "s.toml",
            '[agee]\nunit = "years"',
            InputError,
            "Unknown column 'agee'. Did you mean 'age'",
        ),
        ("s.toml", "[age\n", FileError, "not readable as TOML"),
        ("s.json", "{", FileError, "not readable as JSON"),
        ("s.json", "[1]", FileError, "one table per column"),
        ("s.json", '{"age": 3}', InputError, "must be a dict of kind"),
        ("s.yaml", "", FileError, "ends in .toml or .json"),
    ],
)
def test_files_that_cannot_be_used(
    frame: pd.DataFrame,
    tmp_path: Path,
    name: str,
    text: str,
    error: type[Exception],
    match: str,
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(error, match=match):
        Schema.infer(frame, path)


def test_file_missing_or_partial(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="There is no schema file"):
        Schema.from_file(tmp_path / "nothing.toml")
    path = tmp_path / "partial.toml"
    path.write_text('[age]\nunit = "years"')
    with pytest.raises(InputError, match="No kind is stated for 'age'"):
        Schema.from_file(path)


def test_direction_on_categories_needs_an_order(frame: pd.DataFrame) -> None:
    schema = Schema.infer(
        frame, {"degree": {"categories": ORDER}}, mutability={"degree": "increase"}
    )
    assert schema["degree"].kind == "categorical"
    with pytest.raises(ConstraintError, match="which category is higher"):
        Schema.infer(frame).override(mutability={"sex": "increase"})
    with pytest.raises(ConstraintError, match="which category is higher"):
        Schema.infer(frame).override({"job": {"kind": "ordinal"}})


def test_unsavable_categories_say_so(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": pd.Categorical(pd.to_datetime(["2024-01-01", "2024-01-02"]))})
    with pytest.raises(InputError, match="convert such categories to text"):
        Schema.infer(frame).save(tmp_path / "s.json")
    assert not (tmp_path / "s.json").exists()
