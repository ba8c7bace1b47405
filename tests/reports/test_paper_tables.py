"""Tables as text: numbers a reader can trust, in three notations; and the page around them."""

import math

import pandas as pd
import pytest

from counterfactual_training.reports.paper_page import Picture, Section, paper_page
from counterfactual_training.reports.paper_tables import text_tables
from counterfactual_training.reports.text_table import TextTable, interval, number, p_value

TABLE = TextTable("Costs in %", ("data", "ours"), (("LS", "1.0 ± 0.2*"), ("a_b", "−3")), ("A note.",))


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(1.234, 1, "1.2"), (-1.25, 1, "−1.2"), (-0.01, 1, "0.0"), (float("nan"), 2, "–"), (0.0123, None, "0.012"),
     (7.528, None, "7.53"), (278.84, None, "278.8")],
)  # fmt: skip
def test_numbers_for_people(value, digits, text):
    assert number(value, digits) == text


def test_intervals_and_p_values():
    assert interval(1.0, 0.5, 1.5, 1) == "1.0 [0.5, 1.5]"
    assert interval(1.0, math.nan, math.nan, 1) == "1.0"
    assert [p_value(p) for p in (0.0, 0.0204, math.nan)] == ["<0.001", "0.020", "–"]


def test_one_table_in_three_notations():
    text = TABLE.text()
    assert text.splitlines()[0] == "Costs in %" and text.splitlines()[-1] == "A note."
    assert "| LS   | 1.0 ± 0.2* |" in TABLE.markdown() and "| ---- | ---------: |" in TABLE.markdown()
    latex = TABLE.latex()
    assert r"LS & 1.0 $\pm$ 0.2$^{*}$ \\" in latex and r"a\_b & $-$3 \\" in latex and r"Costs in \%" in latex
    assert latex.count("{") == latex.count("}")


def main_tables() -> dict[str, pd.DataFrame]:
    base = {"data": "CH", "metric": "implausibility", "seeds": 2}
    main = pd.DataFrame(
        [
            {**base, "quantity": "baseline", "published": 7.52, "ours": 7.53, "low": 7.5, "high": 7.6},
            {**base, "quantity": "ct", "published": 6.72, "ours": 6.52, "low": 6.5, "high": 6.6},
            {**base, "quantity": "reduction", "published": 10.65, "ours": 13.4, "low": 13.0, "high": 13.8},
        ]
    )
    seeds = pd.DataFrame(
        [
            {"data": "CH", "metric": "implausibility", "published": 10.65, "published_spread": 1.47,
             "published_significant": True, "significant": flag}
            for flag in (True, False)
        ]
    )  # fmt: skip
    performance = pd.DataFrame(
        [
            {"data": "CH", "quantity": "full", "metric": m, "published": 0.79, "ours": 0.81, "low": 0.8, "high": 0.82}
            for m in ("accuracy", "f1", "calibration_error")
        ]
    )
    return {"main": main, "main_paired": main.assign(p_holm=0.02), "main_by_seed": seeds, "performance": performance}


def test_the_main_table_shows_published_ours_difference_and_both_protocols():
    reductions, means, performance = text_tables("main", main_tables())
    row = dict(zip(reductions.header, reductions.rows[0], strict=True))
    assert row["published %"] == "10.65 ± 1.47*" and row["ours %"] == "13.4 [13.0, 13.8]"
    assert row["difference"] == "2.8" or row["difference"] == "2.7"
    assert row["seeds with *"] == "1 of 2" and row["p (Holm)"] == "0.020"
    assert means.rows[0][2:5] == ("7.52", "7.53 [7.50, 7.60]", "0.1")
    assert performance.rows[0][2] == "0.79"


def test_no_results_no_table():
    empty = {name: table.iloc[:0] for name, table in main_tables().items()}
    assert text_tables("main", empty) == []


def test_the_page_is_self_contained_and_escapes_what_it_is_given():
    section = Section("Main & more", (TABLE,), (Picture("a <b> caption", b"png"),), ("LS failed: <script>",))
    html = paper_page("Title", "Sub", [section], {"torch": "2"}, ["ct reproduce main"], "A quick look")
    assert "a &lt;b&gt; caption" in html and "LS failed: &lt;script&gt;" in html and "<script>" in html
    assert 'id="main---more"' in html and 'href="#main---more"' in html
    assert "data:image/png;base64,cG5n" in html and "ct reproduce main" in html and "A quick look" in html
    assert "src=" not in html.replace('src="data:', "") and "@import" not in html and "http" not in html
