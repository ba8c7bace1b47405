"""IP* by groups and by rows, against the plain MMD."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from counterfactual_training.core.kernels import mmd
from counterfactual_training.evaluation.groups import group_mmd, mmd_contributions
from counterfactual_training.evaluation.protocol import PAIRED, PUBLISHED


def points(n: int, shift: float = 0.0, seed: int = 0, d: int = 3) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + shift


def test_contributions_average_to_the_mmd_in_any_chunks():
    x, reference = points(50, 0.4), points(70, seed=1)
    values = mmd_contributions(x, reference, 2.0)
    assert float(values.mean()) == pytest.approx(float(mmd(x, reference, 2.0)), abs=1e-6)
    torch.testing.assert_close(values, mmd_contributions(x, reference, 2.0, chunk=7))
    assert mmd_contributions(x[:1], reference).isnan().all()


def test_resampled_contributions_spread_like_the_mmd_itself():
    reference = points(200, seed=1)
    truth = np.std([float(mmd(points(100, 0.5, seed=s), reference)) for s in range(10, 310)])
    values = mmd_contributions(points(100, 0.5, seed=2), reference).numpy()
    rng = np.random.default_rng(0)
    resampled = np.std([values[rng.integers(100, size=100)].mean() for _ in range(500)])
    assert resampled == pytest.approx(truth, rel=0.35)


def test_groups_get_their_own_value_clamped_at_zero_or_their_rows_contributions():
    x = points(40, 0.3)
    y = torch.arange(40) % 2
    x_cf, y_target = points(21, 1.0, seed=3), torch.tensor([0] * 10 + [1] * 11)
    group = torch.tensor([0] * 10 + [1] * 6 + [2] * 4 + [-1])
    protocol = replace(PUBLISHED, mmd_size=None)
    found = group_mmd(x_cf, group, y_target, x, y, protocol)
    for number, target in ((0, 0), (1, 1), (2, 1)):
        rows = group == number
        expected = mmd(x_cf[rows], x[y == target], protocol.length_scale).clamp_min(0)
        torch.testing.assert_close(found[rows], expected.expand(int(rows.sum())))
    assert found[-1].isnan()
    by_row = group_mmd(x_cf, group, y_target, x, y, PAIRED)
    rows = group == 1
    assert float(by_row[rows].mean()) == pytest.approx(float(mmd(x_cf[rows], x[y == 1], 5.0)), abs=1e-6)


def test_a_group_of_one_and_a_class_without_samples_are_nan():
    x, y = points(10), torch.zeros(10, dtype=torch.long)
    targets = torch.tensor([0, 1, 1, 1])
    for protocol in (PUBLISHED, PAIRED):
        found = group_mmd(points(4, seed=5), torch.tensor([0, 1, 1, 1]), targets, x, y, protocol)
        assert found.isnan().all()
        twice = group_mmd(points(6, seed=5), torch.arange(6) // 3, torch.ones(6, dtype=torch.long), x, y, protocol)
        assert twice.isnan().all()  # two groups of one size, for a class that nobody has


def test_groups_larger_than_asked_for_are_subsampled():
    x, y = points(500), torch.zeros(500, dtype=torch.long)
    x_cf, targets, group = points(300, 0.5, seed=1), *torch.zeros(2, 300, dtype=torch.long)
    by_row = group_mmd(x_cf, group, targets, x, y, replace(PAIRED, mmd_size=100))
    assert int(by_row.isfinite().sum()) == 100
    by_group = group_mmd(x_cf, group, targets, x, y, replace(PUBLISHED, mmd_size=100))
    assert by_group.isfinite().all() and by_group.unique().numel() == 1


@pytest.mark.parametrize("protocol", [replace(PUBLISHED, mmd_size=8), replace(PAIRED, mmd_size=8)])
def test_groups_of_a_fleet_are_those_of_its_members(protocol):
    x, y = points(40), torch.arange(40) % 2
    x_cf = points(60, 1.0, seed=3).reshape(3, 20, 3)
    y_target, group = torch.arange(20).expand(3, 20) % 2, torch.arange(20).expand(3, 20) % 2
    together = group_mmd(x_cf, group, y_target, x, y, protocol)
    for i in range(3):
        alone = group_mmd(x_cf[i], group[i], y_target[i], x, y, protocol)
        torch.testing.assert_close(together[i], alone, equal_nan=True)
