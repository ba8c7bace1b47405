"""Judges: each measure against its definition, and what they do where there is little to judge
by.
"""

import numpy as np
import pytest
import torch

from counterfactual_training.core.kernels import mmd
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.judges import (
    Judge,
    nearest_distance,
    nearest_of_target,
    real_rows,
)


@pytest.fixture(scope="module")
def apart():
    """Two classes, six apart; 200 rows for the judge, 100 of each class."""
    rng = torch.Generator().manual_seed(1)
    y = torch.arange(400) % 2
    x = 0.5 * torch.randn(400, 3, generator=rng) + 6.0 * y.unsqueeze(-1)
    return x, y


@pytest.fixture(scope="module")
def judge(apart):
    x, y = apart
    return Judge.fit(x[:200], y[:200], 2)


def test_every_measure_is_its_definition(judge, apart):
    x, y = apart
    points, target = x[200:260], y[200:260]
    found = judge(points, target)
    for k in (0, 1):
        mine, real = (target == k).numpy(), x[:200][y[:200] == k]
        own = points[target == k]
        distances = (own[:, None] - real).square().sum(-1).sqrt().sort(-1).values
        np.testing.assert_allclose(found["nn5"][mine], distances[:, :5].mean(-1), rtol=1e-5)
        np.testing.assert_allclose(
            found["ip"][mine], (own[:, None] - real).abs().sum(-1).mean(-1), rtol=1e-5
        )
        assert found["ip_star"][mine].mean() == pytest.approx(
            float(mmd(own, real, 5.0)), abs=1e-5
        )
        scatter = (real - real.mean(0)).norm(dim=-1).mean()
        np.testing.assert_allclose(
            found["spread"][mine], (own - own.mean(0)).norm(dim=-1) / scatter, rtol=1e-5
        )


def test_real_rows_pass_and_points_in_between_do_not(judge, apart):
    x, y = apart
    real = judge(x[200:], y[200:])
    between = judge(torch.full((50, 3), 3.0), torch.arange(50) % 2)
    assert (
        real["lof"].mean() > 0.9
        and real["acceptance"].mean() == 1
        and 0.9 < real["spread"].mean() < 1.1
    )
    assert between["lof"].mean() == 0 and between["spread"].max() == 0
    assert (
        between["nn5"].min() > 5 * real["nn5"].mean()
        and between["ip_star"].mean() > real["ip_star"].mean() + 0.1
    )


def test_a_row_moved_to_the_other_class_is_taken_for_one_of_it(judge, apart):
    x, y = apart
    moved = x[200:] + 6.0 * (1 - 2 * y[200:, None])
    assert (
        judge(moved, 1 - y[200:])["acceptance"].mean() == 1
        and judge(x[200:], 1 - y[200:])["acceptance"].mean() == 0
    )


def test_a_class_without_rows_is_nan_and_a_class_with_one_has_no_inliers(apart):
    x, y = apart
    rows = torch.cat([(y == 0).nonzero().flatten()[:30], (y == 1).nonzero().flatten()[:1]])
    found = Judge.fit(x[rows], y[rows], 3)(x[200:206], torch.tensor([0, 0, 1, 1, 2, 2]))
    assert np.isnan(found["nn5"]).tolist() == [False] * 4 + [True] * 2
    assert np.isnan(found["lof"]).tolist() == [False] * 2 + [True] * 4
    alone = Judge.fit(x[:10][y[:10] == 0], y[:10][y[:10] == 0], 2)
    assert np.isnan(alone(x[:4], torch.zeros(4, dtype=torch.long))["acceptance"]).all()


def test_no_point_at_all_gives_no_values(judge):
    assert {
        len(v) for v in judge(torch.empty(0, 3), torch.empty(0, dtype=torch.long)).values()
    } == {0}


def test_distances_of_points_that_nearly_coincide_are_exact():
    reference = 100 + torch.arange(10.0).unsqueeze(-1)
    found = nearest_distance(reference[:1] + 1e-4, reference, 1)
    assert float(found) == pytest.approx(1e-4, rel=0.1)


def test_floors_are_rows_of_the_target_class(apart):
    x, y = apart
    target = 1 - y[:150]
    drawn, near = (
        real_rows(x[150:], y[150:], target),
        nearest_of_target(x[150:], y[150:], x[:150], target),
    )
    for k in (0, 1):
        pool = x[150:][y[150:] == k]
        assert all(
            bool((pool == row).all(-1).any())
            for row in torch.cat([drawn[target == k], near[target == k]])
        )
        assert len(drawn[target == k].unique(dim=0)) == int((target == k).sum())  # none twice
    first = (x[150:][y[150:] == target[0]] - x[0]).abs().sum(-1).min()
    assert float((near[0] - x[0]).abs().sum()) == pytest.approx(float(first))
    with pytest.raises(InputError, match="no real row of the target class 1"):
        nearest_of_target(x[y == 0], y[y == 0], x[:2], torch.tensor([1, 1]))


def test_bad_input_is_refused_in_words(apart):
    x, y = apart
    with pytest.raises(InputError, match=r"must lie in 0\.\.0"):
        Judge.fit(x, y, 1)
    with pytest.raises(InputError, match="needs rows"):
        Judge.fit(x, y[:5], 2)
