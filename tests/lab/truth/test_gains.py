"""What the pictures show: fixed steps overshoot, the line search does not, whatever the factor of
the logits.
"""

import numpy as np
import pytest
import torch

from counterfactual_lab.truth import gains
from counterfactual_lab.truth.caps import Caps
from counterfactual_lab.truth.truth import Truth, fit_of, make_bench

TINY = Caps(rows=300, individuals=40, judge_rows=150, epochs=2, batch_size=100)


def linear(bench, steepness):
    """A model whose boundary lies half way between the class means."""
    x, y = bench.data.x_train, bench.data.y_train
    low, high = (x[y == k].mean(0) for k in (0, 1))
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        way = steepness * (high - low)
        model.weight.copy_(torch.stack([-way, way]))
        model.bias.copy_(-model.weight @ (low + high) / 2)
    return model.requires_grad_(False)


@pytest.fixture(scope="module")
def bench_and_fit():
    """A steep baseline and a flat CT, without training."""
    bench = make_bench("LS", False, TINY)
    known = {
        ("conventional", False): linear(bench, 3.0),
        ("ct_published", False): linear(bench, 0.3),
    }
    return bench, fit_of(bench, "LS", 0, TINY, protected=False, trained_models=known)


def test_fixed_steps_land_past_tau_and_the_line_search_on_it(bench_and_fit):
    table = gains.overshoot_table(*bench_and_fit)
    assert list(dict.fromkeys(table["model"])) == [
        "conventional",
        "conventional × 0.25",
        "ct_published",
    ]
    ends = table[table["step"] < 0]
    by_line = ends[ends["search"] == gains.LINE]
    assert np.isclose(by_line["probability"], 0.5, atol=1e-4).mean() > 0.9
    mean = (
        ends[ends["model"] == "conventional"]
        .groupby("search")[["distance", "probability"]]
        .mean()
    )
    assert (mean.loc[gains.STEPS] > mean.loc[gains.LINE]).all()
    # The same model made flat: the line search ends at the same place.
    steep, flat = (
        by_line[by_line["model"] == name]["distance"].to_numpy()
        for name in ("conventional", "conventional × 0.25")
    )
    assert np.allclose(steep, flat, rtol=1e-2)
    path = table[(table["step"] >= 0) & (table["model"] == "conventional")]
    last = ends[
        (ends["model"] == "conventional")
        & (ends["search"] == gains.STEPS)
        & ends["row"].isin(path["row"])
    ]
    assert (
        path["distance"].iloc[0] == 0
        and np.isclose(path["distance"].iloc[-1], last["distance"]).all()
    )


@pytest.mark.check
def test_the_factor_counts_for_fixed_steps_only(bench_and_fit):
    table = gains.rescaled_table(*bench_and_fit)
    assert (
        len(table) == 2 * (len(gains.FACTORS) + 1)
        and table["num"].nunique() == 1
        and table["num"].iloc[0] > 0
    )
    baseline = table[table["model"] == "conventional"]
    spread = baseline.groupby("search")["cost"].agg(lambda values: values.max() / values.min())
    assert spread[gains.LINE] < 1.01 < 1.1 < spread[gains.STEPS]


def test_images_stand_beside_their_counterfactuals(bench_and_fit):
    bench, fit = bench_and_fit
    table = gains.digits_table(bench, fit, ("conventional", "conventional + density"))
    assert (
        list(table["model"])
        == ["factual"] * 2 + ["conventional"] * 2 + ["conventional + density"] * 2
    )
    assert list(table["label"]) == [0, 1] * 3 and list(table["target"]) == [1, 0] * 3
    images = table[[0, 1]].to_numpy().reshape(3, 2, -1)
    assert not np.isclose(images[0], images[1]).all(-1).any()


@pytest.mark.check
def test_tables_are_made_once_of_the_preferred_data(tmp_path, monkeypatch):
    monkeypatch.setattr(gains, "AS_PUBLISHED", TINY)
    monkeypatch.setattr(gains, "_PREFERRED", ("Moon",))
    made = gains.picture_tables(Truth(tmp_path, caps=TINY), ["LS", "Moon"])
    assert (
        set(made["overshoot"]["data"]) == set(made["rescaled"]["data"]) == {"Moon"}
        and made["digits"].empty
    )
    monkeypatch.setattr(gains, "make_bench", None)
    again = gains.picture_tables(Truth(tmp_path, caps=TINY), ["LS", "Moon"])
    assert all(again[name].equals(made[name]) for name in ("overshoot", "rescaled"))
