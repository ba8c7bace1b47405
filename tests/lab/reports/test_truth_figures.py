"""One picture per idea: drawn from any table that the experiment can give, and different where the
numbers are.
"""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib", reason="figures need the extra 'lab'")

from counterfactual_lab.reports import truth_figures as draw

pytestmark = pytest.mark.check


def overshoot(far=2.0):
    rows = [
        {
            "data": "CH",
            "method": m,
            "search": s,
            "row": r,
            "step": step,
            "distance": d,
            "probability": p,
        }
        for m in ("conventional", "conventional × 0.25", "ct_published")
        for s, r, step, d, p in (
            ("50 × 0.1", 0, -1.0, far, 0.9),
            ("50 × 0.1", 1, -1.0, 1.0, 0.6),
            ("line search", 0, -1.0, 0.5, 0.5),
            ("50 × 0.1", 0, 0.0, 0.0, 0.1),
            ("50 × 0.1", 0, 0.5, 1.0, 0.6),
            ("50 × 0.1", 0, 1.0, far, 0.9),
        )
    ]
    return pd.DataFrame(rows)


def rescaled(valid=1.0):
    rows = [
        {
            "data": d,
            "method": m,
            "factor": f,
            "search": s,
            "num": 9,
            "valid": valid,
            "ip": 1 + f,
            "nn5": 1.0,
            "cost": f,
        }
        for d in ("CH", "GMSC")
        for m, f in (("conventional", 0.25), ("conventional", 1.0), ("ct_published", 1.0))
        for s in ("50 × 0.1", "line search")
    ]
    return pd.DataFrame(rows)


def truth(models=("conventional", "ct_published"), ct=2.0):
    rows = [
        {
            "data": d,
            "method": m,
            "tau": t,
            "setting": "free",
            "metric": "nn5",
            "value": ct if m == "ct_published" else 3.0,
            "real": 1.0,
            "unmoved": 1.5,
            "nearest_unlike": 0.9,
        }
        for d in ("LS", "CH")
        for m in models
        for t in ("50 × 0.1", ".5", ".95*")
    ]
    return pd.DataFrame(rows)


def digits(valid=True):
    pixels = pd.DataFrame(
        np.linspace(-1, 1, 6 * 16).reshape(6, 16), columns=[str(j) for j in range(16)]
    )
    about = {
        "method": ["factual"] * 2 + ["conventional"] * 2 + ["conventional + learned"] * 2,
        "label": [0, 1] * 3,
        "target": [1, 0] * 3,
    }
    return pd.DataFrame(about).assign(valid=[True] * 5 + [valid]).join(pixels)


@pytest.mark.parametrize(
    ("figure", "table", "other"),
    [
        (draw.overshoot_figure, overshoot(), overshoot(far=3.0)),
        (draw.rescaled_figure, rescaled(), rescaled(valid=0.5)),
        (draw.floor_figure, truth(), truth(ct=2.5)),
        (draw.gallery_figure, digits(), digits(valid=False)),
    ],
)
def test_pictures_show_the_numbers(figure, table, other):
    pictures = [figure(table), figure(other), figure(table, remark="a quick look")]
    assert all(png[:8] == b"\x89PNG\r\n\x1a\n" for png in pictures) and len(set(pictures)) == 3


@pytest.mark.parametrize(
    ("figure", "table"),
    [
        (draw.gallery_figure, digits()),
        pytest.param(draw.overshoot_figure, overshoot(), marks=pytest.mark.check),
        pytest.param(draw.rescaled_figure, rescaled(), marks=pytest.mark.check),
        pytest.param(draw.floor_figure, truth(), marks=pytest.mark.check),
    ],
)
def test_the_same_numbers_give_the_same_picture(figure, table):
    assert figure(table) == figure(table)


def test_floors_need_no_model_but_the_baseline():
    assert draw.floor_figure(truth(("conventional",))) != draw.floor_figure(truth())


def prices(
    data=("LS", "CH"), models=("conventional", "ct_published"), taus=("50 × 0.1", ".5", ".95*")
):
    rows = [
        {
            "data": d,
            "method": m,
            "tau": t,
            "setting": "free",
            "metric": q,
            "value": 1.0 + i,
            "real": 0.5,
            "unmoved": 2.0,
        }
        for d in data
        for i, m in enumerate(models)
        for t in taus
        for q in ("nn5", "cost")
    ]
    return pd.DataFrame(rows)


def test_methods_and_gaps_are_drawn():
    full = prices()
    with_gap = full[~((full["data"] == "CH") & (full["method"] == "ct_published"))]
    pictures = [
        draw.truth_price_figure(full),
        draw.truth_price_figure(with_gap),
        draw.truth_price_figure(full, remark="a quick look"),
    ]
    assert all(png[:8] == b"\x89PNG\r\n\x1a\n" for png in pictures) and len(set(pictures)) == 3


def test_the_published_steps_have_no_place_in_it():
    moved = prices()
    moved.loc[moved["tau"] == "50 × 0.1", "value"] = 99.0
    assert draw.truth_price_figure(moved) == draw.truth_price_figure(prices())
