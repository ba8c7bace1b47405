"""The picture of the price of plausibility is drawn from any truth table, also one with gaps."""

import pandas as pd
import pytest

pytest.importorskip("matplotlib", reason="figures need the extra 'report'")

from counterfactual_training.reports.truth_figures import price_figure


def table(data=("LS", "CH"), models=("BL", "CT"), taus=("50 × 0.1", ".5", ".95*")):
    rows = [
        {"data": d, "model": m, "tau": t, "setting": "free", "metric": q, "value": 1.0 + i, "real": 0.5, "unmoved": 2.0}
        for d in data
        for i, m in enumerate(models)
        for t in taus
        for q in ("nn5", "cost")
    ]
    return pd.DataFrame(rows)


def test_methods_and_gaps_are_drawn():
    full = table()
    with_gap = full[~((full["data"] == "CH") & (full["model"] == "CT"))]
    pictures = [price_figure(full), price_figure(with_gap), price_figure(full, "a quick look")]
    assert all(png[:8] == b"\x89PNG\r\n\x1a\n" for png in pictures) and len(set(pictures)) == 3


def test_the_published_steps_have_no_place_in_it():
    moved = table()
    moved.loc[moved["tau"] == "50 × 0.1", "value"] = 99.0
    assert price_figure(moved) == price_figure(table())
