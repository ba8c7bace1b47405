"""Errors as data, and as sentences."""

import ast
import copy
import pickle
from pathlib import Path

import pandas as pd
import pytest

import counterfactual_training as ct
from counterfactual_training.errors import (
    Argument,
    ConstraintError,
    FileError,
    InputError,
    InputWarning,
    MissingExtraError,
    Remedy,
    check_count,
    check_name,
    lookup,
)


def raised(call) -> ct.CounterfactualTrainingError:
    with pytest.raises(ct.CounterfactualTrainingError) as error:
        call()
    return error.value


def test_each_face_has_its_own_words():
    error = InputError(
        "Fill ", Remedy("drop", "age"), " or ", Argument("missing", "impute"), "."
    )
    assert str(error) == "Fill drop it or missing='impute'."
    assert error.worded(lambda part: type(part).__name__) == "Fill Remedy or Argument."
    assert error.remedies == (Remedy("drop", "age"), Argument("missing", "impute"))
    # Only an argument that comes with a value is something to do.
    assert InputError(Argument("epochs"), " must").remedies == ()


def test_every_error_has_a_code():
    """The one of its class, unless it states another."""
    assert FileError("x").code == "bad_file" and ConstraintError("x").code == "bad_constraint"
    assert FileError("x", code="locked").code == "locked" and FileError.code == "bad_file"
    assert (
        isinstance(MissingExtraError("x"), ImportError) and str(MissingExtraError("x")) == "x"
    )
    assert raised(lambda: ct.CounterfactualClassifier.load("none")).code == "no_file"


def test_checks_say_which_field_and_what_was_expected():
    error = raised(lambda: check_count("epochs", 0))
    assert (error.code, error.field) == ("bad_value", "epochs")
    assert error.expected == "a whole number of at least 1"
    error = raised(lambda: lookup("generator", "eco", {"ecco": 1, "wachter": 2}))
    assert (error.code, error.field) == ("unknown_name", "generator")
    assert error.expected == "one of 'ecco', 'wachter'"
    error = raised(lambda: check_name("column", "agee", ["age"], argument="vary"))
    assert str(error) == "Unknown column in vary: 'agee'. Did you mean 'age'? Valid: 'age'."
    assert error.field == "vary"
    error = raised(lambda: ct.Feature("age", "integer", domain=(90, 18)))
    assert (error.code, error.field) == ("bad_constraint", "domain.age")


def test_one_problem_of_many_columns_keeps_its_data():
    ids = [f"p{i}" for i in range(60)]
    error = raised(lambda: ct.Schema.infer(pd.DataFrame({"name": ids})))
    assert (error.code, error.field) == ("unusable_column", "name")
    assert [remedy.value for remedy in error.remedies] == [
        "name",
        ("name", "kind", "'categorical'"),
    ]
    error = raised(lambda: ct.Schema.infer(pd.DataFrame({"name": ids, "id": ids})))
    assert (error.code, error.field) == ("bad_input", None)
    assert len(error.remedies) == 4 and str(error).count("\n  - ") == 2


def through_a_pipe(error):
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - our own


@pytest.mark.parametrize("again", [copy.copy, through_a_pipe])
def test_errors_survive_the_way_to_another_process(again):
    error = ConstraintError("No ", Argument("domain"), code="odd", field="domain.age")
    found = again(error)
    assert type(found) is ConstraintError and found.args == error.args
    assert (found.code, found.field, found.expected) == ("odd", "domain.age", None)
    assert str(again(InputWarning("Most ", Remedy("drop", "age")))) == "Most drop it"


def decisions_by_text(tree: ast.AST) -> list[int]:
    """Lines that look into the message of a caught error: ``"x" in str(error)``, or a regular
    expression, a replacement or a beginning of it.
    """
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)}
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            read = node.comparators
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("startswith", "endswith", "replace"):
                read = [node.func.value]
            elif isinstance(node.func.value, ast.Name) and node.func.value.id == "re":
                read = node.args
            else:
                continue
        else:
            continue
        texts = [ast.unparse(part) for part in read]
        if any(f"str({name})" in text for name in names for text in texts):
            lines.append(node.lineno)
    return lines


def test_no_code_decides_by_the_text_of_an_error():
    source = Path(ct.__file__).parents[1]
    found = {
        str(path.relative_to(source)): lines
        for path in source.rglob("*.py")
        if (lines := decisions_by_text(ast.parse(path.read_text(encoding="utf-8"))))
    }
    # Drivers of databases share no class or number for "this table exists already".
    assert [name for name in found if not name.endswith("tuning/storage.py")] == []
    caught = "try: f()\nexcept ValueError as error:\n    g = 'holds' in str(error)"
    assert decisions_by_text(ast.parse(caught)) == [3]
