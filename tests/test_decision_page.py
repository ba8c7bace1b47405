"""The page about the default says on how many tables each of its lines rests."""

import importlib

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def decision():
    """Imported here, because it registers methods, which no other test should find."""
    return importlib.import_module("lab.decision")


def costs(*values):
    """Of tables with two seeds each."""
    tables = [f"table {i // 2}" for i in range(len(values))]
    index = pd.MultiIndex.from_arrays([tables, [0, 1] * (len(values) // 2)])
    index.names = ["table", "seed"]
    return pd.Series(values, index, name="cost at equal jury")


def test_a_line_tells_its_tables_and_the_median_of_costs(decision):
    values = costs(1.0, 1.0, 1.1, np.nan, 4.0, 4.0, np.nan, np.nan)
    every = {"bag": values.to_frame(), "ct": values.fillna(1.0).to_frame()}
    assert decision.numbers(values).endswith(", median 1.1")
    assert decision.numbers(values).startswith("+2.03 (")
    assert decision.num_tables(every, values.name) == "3 (5 of 8 values) / 4"
    assert "median" not in decision.numbers(values.rename("accuracy"))


def test_seconds_of_a_fit_are_measured_once_and_judged(decision, monkeypatch, tmp_path):
    fitted = []

    def fit(x, labels, method, seed, gate):
        assert x.shape == (10_000, 20) and set(labels) == {"yes", "no"} and gate == "none"
        fitted.append((method, seed))
        return None, {"fit": 2.0 if method == "bag" else 5.0}

    monkeypatch.setattr(decision, "fit", fit)
    for _ in range(2):
        timed = decision.seconds_of_fits(
            ("bag", "ct"), 2, tmp_path / "fit.csv", decision.Condition("none")
        )
    assert fitted == [("bag", 0), ("ct", 0), ("bag", 1), ("ct", 1)]
    line = decision.fit_line(timed, ["bag", "ct"])
    assert line.endswith("at most 3 | 2 (2 … 2) yes | 5 (5 … 5) **no** | a made one |")
    assert np.mean(decision.made_table(0)[1] == "yes") == pytest.approx(0.5, abs=0.05)
