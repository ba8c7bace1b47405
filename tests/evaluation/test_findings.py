"""Every check speaks when it should, and only then."""

from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import nn

from counterfactual_training.evaluation.attribution import integrated_gradients
from counterfactual_training.evaluation.findings import (
    Finding,
    MeasurementWarning,
    check_attacks,
    check_completeness,
    check_gradients,
    check_individuals,
    check_model,
    check_outputs,
    check_seeds,
    warn,
)
from counterfactual_training.evaluation.protocol import PAIRED


def names(findings):
    return [finding.name for finding in findings]


def message(findings):
    (finding,) = findings
    return finding.message


def test_outputs():
    logits = torch.randn(2, 10, 3, generator=torch.Generator().manual_seed(0))
    assert names(check_outputs(logits)) == []
    assert names(check_outputs(logits[:, :0])) == []
    assert names(check_outputs(logits.log_softmax(-1))) == ["log_probabilities_as_logits"]
    logits[0, 3] = torch.nan
    assert "1 of 20 rows" in message(check_outputs(logits))


def test_gradients():
    class Step(nn.Module):
        def forward(self, x):
            return torch.stack([x[:, 0].sign() + 0 * x[:, 0], 3 * x[:, 1].relu()], -1)

    x = torch.tensor([[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0], [-1.0, -2.0]])
    y = torch.tensor([0, 1, 0, 1])
    assert "75%" in message(check_gradients(Step(), x, y))
    assert names(check_gradients(nn.Linear(2, 2), x, y)) == []


def measured(valid=(40, 0), y=(0, 1), **changes):
    """Findings about two groups of individuals, of 40 and 60, of whom so many have valid
    counterfactuals.
    """
    y = torch.tensor(y).repeat(50)
    x = torch.randn(len(y), 3, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(3, 2)
    targets = [0] * 40 + [1] * 60
    validity = [float(i < valid[0]) for i in range(40)] + [
        float(i < valid[1]) for i in range(60)
    ]
    columns = {
        "validity": validity,
        "target": targets,
        "factual": 0,
        "run": 0,
        "lambda_energy": 1.0,
    }
    protocol = replace(PAIRED, lambda_energy=(1.0,), **changes)
    found = [
        *check_model(model, x, y, model(x), protocol),
        *check_individuals(protocol, pd.DataFrame(columns)),
    ]
    return {f.name: f.message for f in found}


def test_counts_of_individuals():
    assert measured((40, 60)) == measured((20, 20)) == {}
    assert "Only 29 of 100" in measured((29, 0))["few_valid"]
    assert "Only 0 of 100" in measured((0, 0))["few_valid"]
    assert "biased towards the easy cases" in measured((29, 0))["few_valid"]
    all_valid = pd.DataFrame(
        {"validity": 1.0, "target": 1, "factual": 0, "run": 0, "lambda_energy": [1.0] * 20}
    )
    (few,) = check_individuals(PAIRED, all_valid)
    assert (
        few.message.startswith("All 20 of 20 counterfactuals are valid")
        and "biased" not in few.message
    )
    assert (
        "1 of 2 groups have fewer than 20 counterfactuals, 1 fewer than two"
        in measured((40, 1))["small_groups"]
    )
    assert "small_groups" not in measured((40, 1), mmd_valid_only=False)
    assert measured((40, 60), num_individuals=100) == {}
    assert "Only 100 of the 130" in measured((40, 60), num_individuals=130)["fewer_individuals"]


def test_classes_without_rows():
    assert "class 1:" in measured((40, 60), y=(0, 0))["absent_classes"]


def test_attacks():
    epsilons = [0.0, 0.05, 0.1]
    fgsm, pgd = torch.tensor([0.9, 0.5, 0.2]), torch.tensor([0.9, 0.45, 0.1])
    random = torch.tensor([0.9, 0.89, 0.88])
    assert names(check_attacks(epsilons, {"fgsm": fgsm, "pgd": pgd, "random": random})) == []
    weak = list(check_attacks(epsilons, {"fgsm": pgd, "pgd": fgsm}))
    assert names(weak) == ["fgsm_beats_pgd"] and "ε = 0.1" in weak[0].message
    assert names(check_attacks(epsilons, {"fgsm": random, "random": fgsm})) == [
        "random_beats_fgsm"
    ]
    assert names(check_attacks(epsilons, {"pgd": random, "random": fgsm})) == [
        "random_beats_pgd"
    ]
    assert names(check_attacks(epsilons, {"fgsm": torch.tensor([0.9, 0.3, 0.6])})) == [
        "rising_curve"
    ]
    assert names(check_attacks(epsilons[::-1], {"fgsm": fgsm.flip(0)})) == []
    assert (
        names(check_attacks([0.1], {"pgd": pgd[:1]}))
        == names(check_attacks(epsilons, {}))
        == []
    )


def test_completeness():
    model = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2)).double()
    x = 10 * torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.zeros(20, dtype=torch.long)
    change = (model(x) - model(torch.zeros_like(x)))[:, 0].detach()
    assert names(check_completeness(integrated_gradients(model, x, y), change)) == []
    rough = integrated_gradients(model, x, y, steps=1)
    assert names(check_completeness(rough, change)) == ["incomplete_attributions"]


def test_seeds():
    assert names(check_seeds(5)) == []
    assert names(check_seeds(1)) == ["one_seed"]


def test_findings_become_warnings():
    with pytest.warns(MeasurementWarning, match="few: too few"):
        warn([Finding("few", "too few")])
