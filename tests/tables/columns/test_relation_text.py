"""Relations as people write them."""

import pytest

from counterfactual_training.errors import ConstraintError
from counterfactual_training.tables.columns.relation_text import (
    Comparison,
    Condition,
    read_relation,
)

NAMES = ["a", "b", "a-b", "capital gain", "requires_check", "1", "größe", "job", "licence"]


@pytest.mark.parametrize(
    ("text", "left", "sign", "right"),
    [
        ("a <= b", {"a": 1}, "<=", {"b": 1}),
        ("2*a + -3 * (b - a) >= 1e2", {"a": 5, "b": -3}, ">=", {}),
        ("a-b < 4", {"a-b": 1}, "<", {}),
        ("a - b ≤ 4", {"a": 1, "b": -1}, "<=", {}),
        ("capital gain / 4 == größe", {"capital gain": 0.25}, "=", {"größe": 1}),
        ("'1' > 1", {"1": 1}, ">", {}),
        ('"a" + `b` = requires_check', {"a": 1, "b": 1}, "=", {"requires_check": 1}),
    ],
)
def test_sums_products_and_names_are_read(text, left, sign, right):
    said = read_relation(text, NAMES)
    assert isinstance(said, Comparison) and said.sign == sign
    assert said.left.linear()[0] == left and said.right.linear()[0] == right


def test_precedence_is_that_of_arithmetic():
    said = read_relation("a = 10 - 4 - 3 * 2 / b", NAMES)
    assert said.right({"b": 3.0}) == 10 - 4 - 3 * 2 / 3


def test_categories_are_read_as_text():
    said = read_relation("job = 'air pilot' requires licence = yes", NAMES)
    assert said == (Condition("job", "air pilot"), Condition("licence", "yes"))


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("a + * b <= 1", "expected a column, a number or .* instead of '\\*'", 4),
        ("a b <= 1", "expected <=, >=, <, > or = instead of 'b'", 2),
        ("a <= b <= 1", "expected an operator or the end instead of '<='", 7),
        ("(a + b <= 1", "expected .* instead of '<='", 7),
        ("a <=", "instead of the end", 4),
        ("a <= b ? 1", "'\\?' means nothing here", 7),
        ("a / (1 - 1) = b", "divides by zero", 2),
        ("job = pilot requires licence", 'expected "=" and a category', 28),
        ("job requires licence = yes", 'expected "=" and a category', 3),
        ("'a <= b", "a quote is not closed", 0),
    ],
)
def test_what_cannot_be_read_is_pointed_at(text, message, place):
    with pytest.raises(ConstraintError, match=message) as caught:
        read_relation(text, NAMES)
    *_, line, caret = str(caught.value).splitlines()
    assert line.strip() == text and caret.index("^") - 4 == place


@pytest.mark.parametrize(
    "text", ["(" * 400 + "a", f"a <= {'9' * 400}", "a <= 1e999", f"{'9' * 400} * a <= b"]
)
def test_nonsense_of_any_size_is_refused(text):
    with pytest.raises(ConstraintError):
        read_relation(text, NAMES)


def test_unknown_columns_get_a_suggestion():
    with pytest.raises(
        ConstraintError, match=r"Unknown column 'licnece'\. Did you mean 'licence'"
    ):
        read_relation("a <= licnece", NAMES)


def test_nothing_is_executed():
    with pytest.raises(ConstraintError):
        read_relation("a <= __import__('os')", NAMES)
