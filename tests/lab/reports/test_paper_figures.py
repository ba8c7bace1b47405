"""Figures are drawn from any table that the experiments can give; what they show is looked at by
people.
"""

import struct

import numpy as np
import pandas as pd
import pytest

from counterfactual_lab.reports import paper_figures as draw


def size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


def tidy(metrics, quantities, data=("LS", "CH"), **more) -> pd.DataFrame:
    rows = [
        {
            "data": d,
            "metric": m,
            "quantity": q,
            "published": 10.0,
            "ours": 12.0,
            "low": 9.0,
            "high": 15.0,
            "seeds": 3,
            **more,
        }
        for d in data
        for m in metrics
        for q in quantities
    ]
    return pd.DataFrame(rows)


def by_seed(metrics, data=("LS", "CH")) -> pd.DataFrame:
    rows = [
        {"data": d, "metric": m, "seed": s, "published_spread": 1.0, "ours": 11.0 + s}
        for d in data
        for m in metrics
        for s in (0, 1)
    ]
    return pd.DataFrame(rows)


def robustness(data=("LS", "CH")) -> pd.DataFrame:
    parts = [
        tidy(
            ["fgsm", "pgd"],
            [
                "conventional",
                "ct_published",
                "ct_published(lambda_div=0, lambda_reg=0)",
                "ct_published(lambda_adv=0)",
            ],
            data,
            epsilon=e,
        )
        for e in (0.0, 0.1)
    ]
    return pd.concat(parts, ignore_index=True)


METRICS = ["implausibility", "implausibility_mmd", "cost"]


def figures() -> dict[str, bytes]:
    by_lambda = pd.DataFrame(
        {
            "data": "LS",
            "lambda_energy": np.repeat([0.1, 5.0], 10),
            "ours": np.arange(20.0),
            "published": 5.0,
        }
    )
    maturity = pd.DataFrame(
        {
            "data": "CH",
            "model": "ct_published",
            "epoch": [1.0, 2.0],
            "ours": [0.1, 0.9],
            "low": [0.0, 0.8],
            "high": [0.2, 1.0],
        }
    )
    attribution = tidy(
        ["sensitivity"],
        ["conventional", "ct_published"],
        published_low=1.0,
        published_high=20.0,
    )
    grid = np.linspace(-1, 1, 100 * 28 * 28).reshape(10, 10, 28, 28)
    return {
        "main": draw.main_figure(
            tidy(METRICS, ["conventional", "ct_published", "reduction"]),
            by_seed(METRICS),
            remark="a quick look",
        ),
        "robustness": draw.robustness_figure(robustness()),
        "ablation": draw.ablation_figure(
            tidy(
                METRICS[:2],
                [
                    "ct_published(lambda_div=0, lambda_reg=0)",
                    "ct_published(lambda_adv=0)",
                    "ct_published",
                ],
            )
        ),
        "maturity": draw.maturity_figure(maturity),
        "by_lambda": draw.by_lambda_figure(by_lambda),
        "attribution": draw.attribution_figure(attribution),
        "digits": draw.digits_figure("ct_published", grid[:4, :4]),
        "overview": draw.digits_overview(
            ["conventional", "ct_published"], [grid, grid], [abs(grid[0]), abs(grid[0])]
        ),
    }


@pytest.mark.check
def test_every_figure_is_a_png_of_readable_size():
    for name, png in figures().items():
        width, height = size(png)
        assert 300 < width < 3000 and 300 < height < 3000, (name, width, height)


@pytest.mark.check
def test_the_same_figure_is_the_same_file():
    tables = tidy(METRICS, ["reduction"]), by_seed(METRICS)
    assert draw.main_figure(*tables) == draw.main_figure(*tables)


@pytest.mark.check
def test_missing_numbers_and_ratios_to_almost_nothing_do_not_break_a_figure():
    main = tidy(
        METRICS, ["reduction"], published=float("nan"), low=float("nan"), high=float("nan")
    )
    main.loc[0, ["ours", "published"]] = [-400.0, -170.0]
    size(draw.main_figure(main, by_seed(METRICS)))
    holes = robustness()
    holes[["published", "low", "high"]] = float("nan")
    size(draw.robustness_figure(holes))
    size(
        draw.ablation_figure(
            tidy(["implausibility"], ["ct_published"], low=float("nan"), high=float("nan"))
        )
    )


@pytest.mark.parametrize("data", [("LS", "OL"), ("LS", "CH", "MNIST")])
def test_robustness_shows_synthetic_data_only_where_there_is_no_other(data):
    wide, _ = size(draw.robustness_figure(robustness(data)))
    one, _ = size(draw.robustness_figure(robustness(data[:1])))
    assert wide > 1.5 * one
