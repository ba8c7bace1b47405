"""What is measured of a cell, and which draws depend on its seed."""

from dataclasses import replace

import pytest
import torch

from counterfactual_training.datasets.catalog import load_dataset
from counterfactual_training.experiments.paper.cells import Cell, Effort
from counterfactual_training.experiments.paper.fitting import untrained
from counterfactual_training.experiments.paper.measure import measure

TINY = Effort("tiny", epochs=1, num_runs=2, num_individuals=5, paired_individuals=10, num_epsilons=2)


@pytest.fixture(scope="module")
def measured():
    whole = load_dataset("LS", "as_run")
    data = replace(whole, x_test=whole.x_test[:80], y_test=whole.y_test[:80])
    model = untrained(data, 0)
    return [measure(model, data, Cell("LS", "full", seed=seed, effort=TINY))[0] for seed in (0, 1, 0)]


def test_published_draws_follow_the_seed_of_the_cell(measured):
    first, other, again = (tensors["published/free/cost"] for tensors in measured)
    assert first.shape == (len(first), TINY.num_runs) and first.isfinite().any()
    assert torch.equal(first.nan_to_num(), again.nan_to_num())
    assert not torch.equal(first.nan_to_num(), other.nan_to_num())


def test_paired_rows_are_the_same_for_every_cell(measured):
    first, other, _ = (tensors["paired/free/implausibility"] for tensors in measured)
    assert first.isfinite().any() and torch.equal(first.nan_to_num(), other.nan_to_num())
