"""IP, IP*, faithfulness and energies against direct computation and closed forms."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from counterfactual_training.constraints import Domain
from counterfactual_training.core.kernels import mmd
from counterfactual_training.evaluation.plausibility import (
    Langevin,
    class_samples,
    energy_differential,
    group_mmd,
    implausibility,
    implausibility_by_class,
    implausibility_mmd,
    mmd_contributions,
    unfaithfulness,
)
from counterfactual_training.evaluation.protocol import PAIRED, PUBLISHED
from counterfactual_training.models.stack import StackedModel


class Gaussians(nn.Module):
    """M(x)[c] = −‖x − μ_c‖²/2s², so that p(x | c) ∝ exp(−E) is the normal distribution N(μ_c, s²
    I).
    """

    def __init__(self, means, scale):
        super().__init__()
        self.means = nn.Parameter(torch.tensor(means))
        self.scale = scale

    def forward(self, x):
        return -(x.unsqueeze(-2) - self.means).square().sum(-1) / (2 * self.scale**2)


@pytest.fixture
def sample():
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 3, generator=rng), torch.randint(0, 2, (60,), generator=rng)
    return x, y, torch.randn(2, 8, 3, generator=rng), torch.randint(0, 2, (2, 8), generator=rng)


def test_implausibility(sample):
    x, y, x_cf, y_target = sample
    direct = torch.cdist(x_cf, x[y == 1], p=1).mean(-1)
    torch.testing.assert_close(implausibility(x_cf, x[y == 1]), direct)
    rows = implausibility_by_class(x_cf, y_target, x, y)
    torch.testing.assert_close(rows[y_target == 1], direct[y_target == 1])
    torch.testing.assert_close(
        rows[y_target == 0], implausibility(x_cf, x[y == 0])[y_target == 0]
    )


def test_implausibility_of_an_absent_class_is_nan(sample):
    x, y, x_cf, y_target = sample
    y_target = y_target.clone()
    y_target[0, 0] = 2
    rows = implausibility_by_class(x_cf, y_target, x, y)
    assert rows[0, 0].isnan()
    assert rows.isnan().sum() == 1


def test_implausibility_mmd_may_be_clamped(sample):
    x, _, _, _ = sample
    halves = x.reshape(2, 30, 3)
    parts = x.reshape(10, 6, 3)
    values = mmd(parts, parts.roll(1, 0))
    assert bool((values < 0).any())
    torch.testing.assert_close(implausibility_mmd(parts, parts.roll(1, 0)), values)
    torch.testing.assert_close(
        implausibility_mmd(parts, parts.roll(1, 0), clamp=True), values.clamp_min(0)
    )
    torch.testing.assert_close(implausibility_mmd(halves, x, 0.5), mmd(halves, x, 0.5))
    assert implausibility_mmd(x[:1], x, clamp=True).isnan()


def test_energy_differential(sample):
    rng = torch.Generator().manual_seed(1)
    logits_cf, logits = torch.randn(2, 8, 3, generator=rng), torch.randn(60, 3, generator=rng)
    _, y, _, y_target = sample
    values = energy_differential(logits_cf, y_target, logits, y)
    for i in range(2):
        for j in range(8):
            target = int(y_target[i, j])
            expected = -float(logits_cf[i, j, target]) + float(
                logits[y == target][:, target].mean()
            )
            assert float(values[i, j]) == pytest.approx(expected, abs=1e-6)
    assert energy_differential(logits_cf, torch.full((2, 8), 2), logits, y).isnan().all()


def test_langevin_samples_have_the_moments_of_the_class():
    model = Gaussians([[-1.0, 0.5], [2.0, -1.0]], scale=0.5)
    domain = Domain(torch.full((2,), -5.0), torch.full((2,), 5.0))
    step = 0.01
    proper = Langevin(
        steps=400, step_size=step, noise=math.sqrt(step), num_chains=2000, num_lowest=2000
    )
    x = class_samples(model, torch.arange(2), domain, torch.Generator().manual_seed(0), proper)
    torch.testing.assert_close(x.mean(1), model.means.detach(), atol=0.05, rtol=0)
    torch.testing.assert_close(x.std(1), torch.full((2, 2), 0.5), atol=0.03, rtol=0)


def test_samples_stay_in_the_domain_and_the_lowest_energies_are_kept():
    model = nn.Linear(2, 2)  # its energy falls without bound
    domain = Domain(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 3.0]))
    rng = torch.Generator().manual_seed(0)
    state = [p.clone() for p in model.parameters()]
    y = torch.tensor([0])
    kept = class_samples(model, y, domain, rng, Langevin(3, num_chains=20, num_lowest=5))
    rng.manual_seed(0)
    every = class_samples(model, y, domain, rng, Langevin(3, num_chains=20, num_lowest=20))
    assert kept.shape == (1, 5, 2)
    assert bool(((every >= domain.lower) & (every <= domain.upper)).all())
    lowest = model(every)[0, :, 0].detach().sort(descending=True).values[:5]
    torch.testing.assert_close(model(kept)[0, :, 0].detach(), lowest)
    assert model.training
    assert all(
        p.grad is None and torch.equal(p, s)
        for p, s in zip(model.parameters(), state, strict=True)
    )


def test_faithful_counterfactuals_are_near_what_the_model_generates_for_their_own_target():
    model = Gaussians([[-1.0, 0.5], [2.0, -1.0]], scale=0.5)
    domain = Domain(torch.full((2,), -5.0), torch.full((2,), 5.0))
    samples = class_samples(model, torch.arange(2), domain, torch.Generator().manual_seed(0))
    x_cf, y_target = (
        torch.tensor([[2.0, -1.0], [0.0, 0.0], [2.0, -1.0]]),
        torch.tensor([1, 1, 0]),
    )
    near, far, other = unfaithfulness(x_cf, y_target, samples)
    assert float(near) < float(far) - 1
    torch.testing.assert_close(far, torch.cdist(x_cf[1:2], samples[1], p=1).mean())
    torch.testing.assert_close(other, torch.cdist(x_cf[2:], samples[0], p=1).mean())


def test_each_member_of_a_fleet_is_sampled_as_if_alone():
    models = [nn.Linear(2, 3) for _ in range(3)]
    domain = Domain(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 3.0]))
    few = Langevin(steps=5, num_chains=6, num_lowest=4)
    y = torch.arange(3).expand(3, 3)
    samples = class_samples(
        StackedModel(models), y, domain, torch.Generator().manual_seed(0), few
    )
    assert samples.shape == (3, 3, 4, 2)
    x_cf, y_target = torch.rand(3, 7, 2), torch.randint(3, (3, 7))
    together = unfaithfulness(x_cf, y_target, samples)
    for i, model in enumerate(models):
        alone = class_samples(model, y[i], domain, torch.Generator().manual_seed(0), few)
        torch.testing.assert_close(samples[i], alone)
        torch.testing.assert_close(together[i], unfaithfulness(x_cf[i], y_target[i], alone))


def test_images_are_sampled_in_their_shape():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    domain = Domain(torch.zeros(4), torch.ones(4))
    samples = class_samples(
        model,
        torch.arange(2),
        domain,
        torch.Generator(),
        Langevin(steps=2, num_chains=3, num_lowest=3),
        (1, 2, 2),
    )
    assert samples.shape == (2, 3, 4)


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
    assert float(by_row[rows].mean()) == pytest.approx(
        float(mmd(x_cf[rows], x[y == 1], 5.0)), abs=1e-6
    )


def test_a_group_of_one_and_a_class_without_samples_are_nan():
    x, y = points(10), torch.zeros(10, dtype=torch.long)
    targets = torch.tensor([0, 1, 1, 1])
    for protocol in (PUBLISHED, PAIRED):
        found = group_mmd(
            points(4, seed=5), torch.tensor([0, 1, 1, 1]), targets, x, y, protocol
        )
        assert found.isnan().all()
        twice = group_mmd(
            points(6, seed=5),
            torch.arange(6) // 3,
            torch.ones(6, dtype=torch.long),
            x,
            y,
            protocol,
        )
        assert twice.isnan().all()  # two groups of one size, for a class that nobody has


def test_groups_larger_than_asked_for_are_subsampled():
    x, y = points(500), torch.zeros(500, dtype=torch.long)
    x_cf, targets, group = points(300, 0.5, seed=1), *torch.zeros(2, 300, dtype=torch.long)
    by_row = group_mmd(x_cf, group, targets, x, y, replace(PAIRED, mmd_size=100))
    assert int(by_row.isfinite().sum()) == 100
    by_group = group_mmd(x_cf, group, targets, x, y, replace(PUBLISHED, mmd_size=100))
    assert by_group.isfinite().all() and by_group.unique().numel() == 1


@pytest.mark.parametrize(
    "protocol", [replace(PUBLISHED, mmd_size=8), replace(PAIRED, mmd_size=8)]
)
def test_groups_of_a_fleet_are_those_of_its_members(protocol):
    x, y = points(40), torch.arange(40) % 2
    x_cf = points(60, 1.0, seed=3).reshape(3, 20, 3)
    y_target, group = torch.arange(20).expand(3, 20) % 2, torch.arange(20).expand(3, 20) % 2
    together = group_mmd(x_cf, group, y_target, x, y, protocol)
    for i in range(3):
        alone = group_mmd(x_cf[i], group[i], y_target[i], x, y, protocol)
        torch.testing.assert_close(together[i], alone, equal_nan=True)
