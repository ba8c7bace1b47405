"""Tables as text: numbers a reader can trust, in three notations."""

import math

import pytest

from counterfactual_training.text_table import (
    TextTable,
    interval,
    number,
    p_value,
    ruled,
)

TABLE = TextTable(
    "Costs in %", ("data", "ours"), (("LS", "1.0 ± 0.2*"), ("a_b", "−3")), ("A note.",)
)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1.234, 1, "1.2"),
        (-1.25, 1, "−1.2"),
        (-0.01, 1, "0.0"),
        (float("nan"), 2, "–"),
        (0.0123, None, "0.012"),
        (7.528, None, "7.53"),
        (278.84, None, "278.8"),
    ],
)
def test_numbers_for_people(value, digits, text):
    assert number(value, digits) == text


def test_intervals_and_p_values():
    assert interval(1.0, 0.5, 1.5, 1) == "1.0 [0.5, 1.5]"
    assert interval(1.0, math.nan, math.nan, 1) == "1.0"
    assert [p_value(p) for p in (0.0, 0.0204, math.nan)] == ["<0.001", "0.020", "–"]


def test_one_table_in_three_notations():
    text = TABLE.text()
    assert text.splitlines()[0] == "Costs in %" and text.splitlines()[-1] == "A note."
    assert (
        "| LS   | 1.0 ± 0.2* |" in TABLE.markdown()
        and "| ---- | ---------: |" in TABLE.markdown()
    )
    latex = TABLE.latex()
    assert (
        r"LS & 1.0 $\pm$ 0.2$^{*}$ \\" in latex
        and r"a\_b & $-$3 \\" in latex
        and r"Costs in \%" in latex
    )
    assert latex.count("{") == latex.count("}")


def test_markdown_keeps_outer_bars_where_cells_are_empty_and_columns_wide_enough_for_their_marks():
    table = TextTable("", ("a", "b"), (("x", ""),))
    assert table.markdown().splitlines() == ["| a   |   b |", "| --- | --: |", "| x   |     |"]


def test_a_rule_is_as_wide_as_the_table():
    assert ruled([["a", "b"], ["long", "x"]]).splitlines() == ["a     b", "───────", "long  x"]
    assert ruled([["name", "n"], ["x", "1000"]], num_left=1).splitlines() == [
        "name     n",
        "──────────",
        "x     1000",
    ]
