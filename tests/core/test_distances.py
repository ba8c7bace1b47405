"""Distances against torch.cdist and by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfactual_training.core.distances import L1Reference, l1, mean_l1
from counterfactual_training.errors import InputError


@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 7), (2, 3, 4, 1)])
def test_l1_is_the_norm(shape):
    delta = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(l1(delta), torch.linalg.vector_norm(delta, ord=1, dim=-1))


@settings(deadline=None)  # the machine may be busy
@given(
    n=st.integers(1, 20),
    m=st.integers(1, 20),
    d=st.integers(1, 5),
    seed=st.integers(0, 1000),
    ties=st.booleans(),
)
def test_mean_l1_is_the_mean_of_all_distances(n, m, d, seed, ties):
    rng = torch.Generator().manual_seed(seed)
    x, reference = (torch.randn(rows, d, generator=rng, dtype=torch.float64) for rows in (n, m))
    if ties:
        x, reference = x.round(), reference.round()
    torch.testing.assert_close(mean_l1(x, reference), torch.cdist(x, reference, p=1).mean(-1))


def test_mean_l1_survives_a_large_offset_in_single_precision():
    rng = torch.Generator().manual_seed(0)
    x, reference = torch.randn(50, 4, generator=rng), torch.randn(3000, 4, generator=rng)
    expected = torch.cdist(x.double() + 4096, reference.double() + 4096, p=1).mean(-1)
    # 4096 leaves single precision 5e-4 per value; the sums over 3,000 values must not add to that.
    torch.testing.assert_close(
        mean_l1(x + 4096, reference + 4096).double(), expected, atol=2e-3, rtol=0
    )


def test_mean_l1_of_so_many_rows_that_they_are_taken_in_blocks():
    rng = torch.Generator().manual_seed(0)
    x, reference = (
        torch.randn(2, 80_000, 16, generator=rng),
        torch.randn(20, 16, generator=rng),
    )  # a block: 65,536 rows
    parts = torch.cat([mean_l1(part, reference) for part in x.split(16_000, 1)], 1)
    torch.testing.assert_close(mean_l1(x, reference), parts, rtol=0, atol=0)


def test_leading_dimensions():
    rng = torch.Generator().manual_seed(0)
    x, sets = torch.randn(3, 5, 4, generator=rng), torch.randn(3, 9, 4, generator=rng)
    each = torch.stack([mean_l1(a, b) for a, b in zip(x, sets, strict=True)])
    torch.testing.assert_close(mean_l1(x, sets), each)
    torch.testing.assert_close(mean_l1(x[0], sets)[1], mean_l1(x[0], sets[1]))
    torch.testing.assert_close(mean_l1(x, sets[0])[2], mean_l1(x[2], sets[0]))


def test_one_preparation_serves_many_calls():
    rng = torch.Generator().manual_seed(0)
    points = torch.randn(12, 3, generator=rng)
    reference = L1Reference.prepare(points)
    for n in (1, 0, 6):
        x = torch.randn(n, 3, generator=rng)
        torch.testing.assert_close(reference.mean_distance(x), mean_l1(x, points))
        assert reference.mean_distance(x).shape == (n,)


def test_an_empty_reference_gives_nan_not_zero():
    assert mean_l1(torch.zeros(2, 3), torch.empty(0, 3)).isnan().all()


@pytest.mark.parametrize("reference", [torch.zeros(3), torch.zeros(2, 3, dtype=torch.long)])
def test_bad_reference(reference):
    with pytest.raises(InputError, match=r"\(\.\.\., m, d\)"):
        mean_l1(torch.zeros(2, 3), reference)


def test_features_must_match():
    with pytest.raises(InputError, match="has 4 features"):
        mean_l1(torch.zeros(2, 3), torch.zeros(5, 4))
