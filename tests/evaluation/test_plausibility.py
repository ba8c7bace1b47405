"""IP, IP*, faithfulness and energies against direct computation and closed forms."""

import math

import pytest
import torch
from torch import nn

from counterfactual_training.constraints import Domain
from counterfactual_training.core.kernels import mmd
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.plausibility import (
    Langevin,
    class_samples,
    energy_differential,
    faithfulness,
    implausibility,
    implausibility_by_class,
    implausibility_mmd,
    unfaithfulness,
)


class Gaussians(nn.Module):
    """M(x)[c] = −‖x − μ_c‖²/2s², so that p(x | c) ∝ exp(−E) is the normal distribution N(μ_c, s² I)."""

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
    torch.testing.assert_close(rows[y_target == 0], implausibility(x_cf, x[y == 0])[y_target == 0])


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
    torch.testing.assert_close(implausibility_mmd(parts, parts.roll(1, 0), clamp=True), values.clamp_min(0))
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
            expected = -float(logits_cf[i, j, target]) + float(logits[y == target][:, target].mean())
            assert float(values[i, j]) == pytest.approx(expected, abs=1e-6)
    assert energy_differential(logits_cf, torch.full((2, 8), 2), logits, y).isnan().all()


def test_langevin_samples_have_the_moments_of_the_class():
    model = Gaussians([[-1.0, 0.5], [2.0, -1.0]], scale=0.5)
    domain = Domain(torch.full((2,), -5.0), torch.full((2,), 5.0))
    step = 0.01
    proper = Langevin(step_size=step, noise=math.sqrt(step), steps=400, num_chains=2000, num_lowest=None)
    x = class_samples(model, 1, domain, torch.Generator().manual_seed(0), proper)
    torch.testing.assert_close(x.mean(0), model.means[1].detach(), atol=0.05, rtol=0)
    torch.testing.assert_close(x.std(0), torch.full((2,), 0.5), atol=0.03, rtol=0)


def test_samples_stay_in_the_domain_and_the_lowest_energies_are_kept():
    model = nn.Linear(2, 2)  # its energy falls without bound
    domain = Domain(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 3.0]))
    rng = torch.Generator().manual_seed(0)
    state = [p.clone() for p in model.parameters()]
    kept = class_samples(model, 0, domain, rng, Langevin(num_chains=20, num_lowest=5, steps=3))
    every = class_samples(
        model, 0, domain, torch.Generator().manual_seed(0), Langevin(num_chains=20, num_lowest=None, steps=3)
    )
    assert kept.shape == (5, 2)
    assert bool(domain.contains(every).all())
    lowest = model(every)[:, 0].detach().sort(descending=True).values[:5]
    torch.testing.assert_close(model(kept)[:, 0].detach(), lowest)
    assert model.training
    assert all(p.grad is None and torch.equal(p, s) for p, s in zip(model.parameters(), state, strict=True))


def test_faithful_counterfactuals_score_higher():
    model = Gaussians([[-1.0, 0.5], [2.0, -1.0]], scale=0.5)
    domain = Domain(torch.full((2,), -5.0), torch.full((2,), 5.0))
    x_model = class_samples(model, 1, domain, torch.Generator().manual_seed(0))
    near, far = torch.tensor([[2.0, -1.0]]), torch.tensor([[0.0, 0.0]])
    assert float(faithfulness(near, x_model)) > float(faithfulness(far, x_model)) + 1
    torch.testing.assert_close(unfaithfulness(far, x_model), torch.cdist(far, x_model, p=1).mean(-1))


def test_bad_input(sample):
    x, y, x_cf, y_target = sample
    with pytest.raises(InputError, match="finite domain"):
        class_samples(nn.Linear(3, 2), 0, Domain.unbounded(3), torch.Generator())
    with pytest.raises(InputError, match=r"0\.\.1, got 5\.\.5"):
        class_samples(nn.Linear(3, 2), 5, Domain.infer(x), torch.Generator())
    with pytest.raises(InputError, match="num_lowest"):
        Langevin(num_chains=5, num_lowest=6)
    with pytest.raises(InputError, match="Expected x_cf"):
        implausibility_by_class(x_cf, y_target[0], x, y)
    with pytest.raises(InputError, match="sample logits"):
        energy_differential(torch.randn(4, 3), torch.zeros(4).long(), torch.randn(5, 2), torch.zeros(5).long())
