"""The paper's tables as text: published numbers, ours, and both protocols."""

import pandas as pd

from counterfactual_lab.reports.paper_tables import text_tables


def main_tables() -> dict[str, pd.DataFrame]:
    base = {"data": "CH", "metric": "implausibility", "seeds": 2}
    main = pd.DataFrame(
        [
            {
                **base,
                "quantity": "conventional",
                "published": 7.52,
                "ours": 7.53,
                "low": 7.5,
                "high": 7.6,
            },
            {
                **base,
                "quantity": "ct_published",
                "published": 6.72,
                "ours": 6.52,
                "low": 6.5,
                "high": 6.6,
            },
            {
                **base,
                "quantity": "reduction",
                "published": 10.65,
                "ours": 13.4,
                "low": 13.0,
                "high": 13.8,
            },
        ]
    )
    seeds = pd.DataFrame(
        [
            {
                "data": "CH",
                "metric": "implausibility",
                "published": 10.65,
                "published_spread": 1.47,
                "published_significant": True,
                "significant": flag,
            }
            for flag in (True, False)
        ]
    )
    performance = pd.DataFrame(
        [
            {
                "data": "CH",
                "quantity": "ct_published",
                "metric": m,
                "published": 0.79,
                "ours": 0.81,
                "low": 0.8,
                "high": 0.82,
            }
            for m in ("accuracy", "f1", "calibration_error")
        ]
    )
    return {
        "main": main,
        "main_paired": main.assign(p_holm=0.02),
        "main_by_seed": seeds,
        "performance": performance,
    }


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
