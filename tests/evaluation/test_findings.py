"""Every check speaks when it should, and only then."""

import pytest
import torch
from torch import nn

from counterfactual_training.evaluation.attribution import integrated_gradients
from counterfactual_training.evaluation.findings import (
    Finding,
    MeasurementWarning,
    check_attacks,
    check_classes,
    check_completeness,
    check_gradients,
    check_group_sizes,
    check_individuals,
    check_outputs,
    check_seeds,
    check_valid_count,
    warn,
)


def names(findings):
    return [finding.name for finding in findings]


def test_outputs():
    logits = torch.randn(2, 10, 3, generator=torch.Generator().manual_seed(0))
    assert check_outputs(logits) == []
    assert check_outputs(logits[:, :0]) == []
    assert names(check_outputs(logits.softmax(-1))) == ["probabilities_as_logits"]
    assert names(check_outputs(logits.log_softmax(-1))) == ["log_probabilities_as_logits"]
    logits[0, 3] = torch.nan
    assert "1 of 20 rows" in check_outputs(logits)[0].message


def test_gradients():
    class Step(nn.Module):
        def forward(self, x):
            return torch.stack([x[:, 0].sign() + 0 * x[:, 0], 3 * x[:, 1].relu()], -1)

    x = torch.tensor([[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0], [-1.0, -2.0]])
    y = torch.tensor([0, 1, 0, 1])
    assert "75%" in check_gradients(Step(), x, y)[0].message
    assert check_gradients(nn.Linear(2, 2), x, y) == []


def test_valid_counts():
    valid = torch.arange(100).expand(2, 100) < torch.tensor([[10], [50]])
    assert names(check_valid_count(valid[0])) == ["few_valid"]
    assert "Only 10 of 100" in check_valid_count(valid)[0].message
    assert check_valid_count(valid[1]) == []
    assert names(check_valid_count(valid[0][:0])) == ["few_valid"]


def test_group_sizes():
    assert check_group_sizes(torch.tensor([20, 100])) == []
    assert "2 of 3 groups" in check_group_sizes(torch.tensor([1, 100, 5]))[0].message


def test_attacks():
    epsilons = [0.0, 0.05, 0.1]
    fgsm, pgd = torch.tensor([0.9, 0.5, 0.2]), torch.tensor([0.9, 0.45, 0.1])
    random = torch.tensor([0.9, 0.89, 0.88])
    assert check_attacks(epsilons, {"fgsm": fgsm, "pgd": pgd, "random": random}) == []
    weak = check_attacks(epsilons, {"fgsm": pgd, "pgd": fgsm})
    assert names(weak) == ["fgsm_beats_pgd"] and "ε = 0.1" in weak[0].message
    assert names(check_attacks(epsilons, {"fgsm": random, "random": fgsm})) == ["random_beats_fgsm"]
    assert names(check_attacks(epsilons, {"pgd": random, "random": fgsm})) == ["random_beats_pgd"]
    assert names(check_attacks(epsilons, {"fgsm": torch.tensor([0.9, 0.3, 0.6])})) == ["rising_curve"]
    assert check_attacks(epsilons[::-1], {"fgsm": fgsm.flip(0)}) == []
    assert check_attacks([0.1], {"pgd": pgd[:1]}) == check_attacks(epsilons, {}) == []


def test_completeness():
    model = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2)).double()
    x = 10 * torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.zeros(20, dtype=torch.long)
    change = (model(x) - model(torch.zeros_like(x)))[:, 0].detach()
    assert check_completeness(integrated_gradients(model, x, y), change) == []
    rough = integrated_gradients(model, x, y, steps=1)
    assert names(check_completeness(rough, change)) == ["incomplete_attributions"]


def test_counts():
    assert check_classes(torch.tensor([0, 1, 2]), 3) == []
    assert "class 1, 3" in check_classes(torch.tensor([0, 2]), 4)[0].message
    assert check_individuals(100, 100) == []
    assert "Only 20 of the 100" in check_individuals(20, 100)[0].message
    assert check_seeds(5) == []
    assert names(check_seeds(1)) == ["one_seed"]


def test_findings_become_warnings():
    with pytest.warns(MeasurementWarning, match="few: too few"):
        warn([Finding("few", "too few")])
