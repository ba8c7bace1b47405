"""The synthetic sets have the published geometry; splits hold out exactly what was asked for."""

import math

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfactual_training.datasets.synthetic import (
    CENTRES,
    circles,
    linearly_separable,
    loan,
    moons,
    overlapping,
    stratified_split,
)
from counterfactual_training.errors import InputError

SAMPLERS = [linearly_separable, overlapping, circles, moons]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_shape_dtype_balance_and_seed(sampler):
    x, y = sampler(4500, seeded(1))
    assert x.shape == (4500, 2) and x.dtype == torch.float32
    assert y.dtype == torch.int64 and y.bincount().tolist() == [2250, 2250]
    again, y_again = sampler(4500, seeded(1))
    assert torch.equal(x, again) and torch.equal(y, y_again)
    assert not torch.equal(x, sampler(4500, seeded(2))[0])
    assert torch.equal(sampler(10)[0], sampler(10, seeded(42))[0])
    assert 0.4 < y[:900].float().mean() < 0.6, "rows are not in random order"


@pytest.mark.parametrize(("sampler", "std"), [(linearly_separable, 0.5), (overlapping, 2.0)])
def test_blobs_sit_at_the_published_centres(sampler, std):
    x, y = sampler(40_000, seeded())
    for label in (0, 1):
        part = x[y == label]
        assert torch.allclose(
            part.mean(0), torch.tensor(CENTRES[label]), atol=5 * std / math.sqrt(20_000)
        )
        assert torch.allclose(part.T.cov(), std**2 * torch.eye(2), atol=0.05 * std**2)


def test_overlapping_blobs_have_the_published_bayes_accuracy():
    x, y = overlapping(40_000, seeded())
    nearest = torch.cdist(x, torch.tensor(CENTRES)).argmin(1)
    assert float((nearest == y).float().mean()) == pytest.approx(0.925, abs=0.005)


def test_circles_are_a_blob_inside_a_unit_circle():
    x, y = circles(40_000, seeded())
    inner, outer = x[y == 0], x[y == 1]
    # E‖x‖² = r² + 2σ²
    assert float(inner.square().sum(1).mean()) == pytest.approx(0.01**2 + 2 * 0.15**2, rel=0.03)
    assert float(outer.square().sum(1).mean()) == pytest.approx(1 + 2 * 0.15**2, rel=0.01)
    assert outer.mean(0).abs().max() < 0.03


def test_moons_are_half_circles_of_the_mlj_geometry():
    x, y = moons(40_000, seeded())
    upper, lower = x[y == 0], x[y == 1]
    # The mean of (cos θ, sin θ) over [0, π] is (0, 2/π).
    assert torch.allclose(upper.mean(0), torch.tensor([0.0, 2 / math.pi]), atol=0.02)
    assert torch.allclose(lower.mean(0), torch.tensor([1.0, 0.3 - 2 / math.pi]), atol=0.02)
    for part, centre in ((upper, (0.0, 0.0)), (lower, (1.0, 0.3))):
        distance = (part - torch.tensor(centre)).norm(dim=1)
        assert float((distance - 1).std()) == pytest.approx(0.1, rel=0.05)


def test_loan_is_linearly_separable_in_human_units():
    x, y, frame = loan(2000, seeded())
    assert list(frame.columns) == ["age", "debt"]
    assert pd.api.types.is_integer_dtype(frame["age"])
    assert torch.allclose(x, torch.tensor(frame.to_numpy(), dtype=torch.float32))
    withheld, granted = frame[y.numpy() == 0], frame[y.numpy() == 1]
    assert withheld["age"].mean() + 15 < granted["age"].mean()
    assert withheld["debt"].mean() - 15 > granted["debt"].mean()
    assert frame["age"].between(18, 90).all() and (frame["debt"] > 0).all()


@pytest.mark.parametrize("sampler", [*SAMPLERS, loan])
@pytest.mark.parametrize("n", [-1, 0, 1])
def test_too_few_rows_are_refused(sampler, n):
    with pytest.raises(InputError, match="at least 2 rows"):
        sampler(n)


@settings(max_examples=60, deadline=None)
@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=80), data=st.data())
def test_stratified_split_is_exact_disjoint_and_proportional(labels, data):
    y = torch.tensor(labels)
    num_validation = data.draw(st.integers(0, len(y) - 1))
    train, validation = stratified_split(y, num_validation, seeded(3))
    assert len(validation) == num_validation
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(len(y)))
    for label in y.unique():
        quota = float((y == label).sum()) * num_validation / len(y)
        assert abs(float((y[validation] == label).sum()) - quota) < 1


def test_stratified_split_depends_on_the_generator_only():
    y = torch.arange(600) % 3
    first = stratified_split(y, 90, seeded(5))[1]
    assert torch.equal(first, stratified_split(y, 90, seeded(5))[1])
    assert not torch.equal(first, stratified_split(y, 90, seeded(6))[1])
    assert y[first].bincount().tolist() == [30, 30, 30]


@pytest.mark.parametrize("num_validation", [-1, 10, 11])
def test_stratified_split_refuses_to_leave_nothing_to_train_on(num_validation):
    with pytest.raises(InputError, match="cannot be held out of 10"):
        stratified_split(torch.zeros(10, dtype=torch.long), num_validation)
