"""MMD against a double loop, scikit-learn's kernel and its own laws."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel

from counterfactual_training.core.kernels import mmd
from counterfactual_training.errors import InputError
from made import LargestMade


def samples(n, m, d, seed=0, shift=0.3, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n, d, generator=rng, dtype=dtype) + shift,
        torch.randn(m, d, generator=rng, dtype=dtype),
    )


def double_loop(x, y, length_scale):
    def kernel(a, b):
        return math.exp(
            -sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) / (2 * length_scale**2)
        )

    x, y = x.tolist(), y.tolist()
    n, m = len(x), len(y)
    own_x = sum(kernel(x[i], x[j]) for i in range(n) for j in range(n) if i != j) / (
        n * (n - 1)
    )
    own_y = sum(kernel(y[i], y[j]) for i in range(m) for j in range(m) if i != j) / (
        m * (m - 1)
    )
    return own_x + own_y - 2 * sum(kernel(a, b) for a in x for b in y) / (n * m)


@settings(deadline=None)  # the machine may be busy
@given(
    n=st.integers(2, 8),
    m=st.integers(2, 8),
    d=st.integers(1, 4),
    scale=st.floats(0.3, 8),
    chunk=st.integers(1, 9),
)
def test_double_loop(n, m, d, scale, chunk):
    x, y = samples(n, m, d)
    assert float(mmd(x, y, scale, chunk)) == pytest.approx(double_loop(x, y, scale), abs=1e-12)


def test_sklearn_kernel():
    x, y = samples(40, 60, 5)
    gamma = 1 / (2 * 5.0**2)
    own_x, own_y, cross = (rbf_kernel(a, b, gamma=gamma) for a, b in ((x, x), (y, y), (x, y)))
    off = [(k.sum() - k.trace()) / (len(k) * (len(k) - 1)) for k in (own_x, own_y)]
    assert float(mmd(x, y)) == pytest.approx(sum(off) - 2 * cross.mean(), abs=1e-12)


def test_closed_form_of_shifted_gaussians():
    # E k(a, b) of two normals with covariance I and means μ apart: (ℓ²/(ℓ² + 2))^(d/2)
    # exp(−‖μ‖²/2(ℓ² + 2)).
    x, y = samples(3000, 3000, 2, shift=1.0)
    ratio = 1.0 / 3.0
    expected = 2 * ratio * (1 - math.exp(-2.0 / (2 * 3.0)))
    assert float(mmd(x, y, length_scale=1.0)) == pytest.approx(expected, abs=0.01)


def test_unbiased_under_equal_distributions():
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, 400, 10, 3, generator=rng, dtype=torch.float64)
    values = mmd(x, y, length_scale=1.0)
    assert (
        values < 0
    ).float().mean() > 0.3  # an estimate that never falls below zero is not unbiased
    assert abs(float(values.mean())) < 4 * float(values.std()) / 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", [1, 7, 16, 1000])
def test_chunk_size_and_order_do_not_matter(dtype, chunk):
    x, y = samples(33, 50, 4, dtype=dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    value = float(mmd(x, y))
    rng = torch.Generator().manual_seed(0)
    x, y = x[torch.randperm(len(x), generator=rng)], y[torch.randperm(len(y), generator=rng)]
    assert float(mmd(x, y, chunk=chunk)) == pytest.approx(value, abs=tolerance)
    assert float(mmd(y, x, chunk=chunk)) == pytest.approx(value, abs=tolerance)
    assert mmd(x, y).dtype == dtype


@pytest.mark.parametrize("chunk", [2, 5, 1024])
def test_leading_dimensions(chunk):
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 3, 6, 4, generator=rng), torch.randn(3, 7, 4, generator=rng)
    values = mmd(x, y, chunk=chunk)
    assert values.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            assert float(values[i, j]) == pytest.approx(float(mmd(x[i, j], y[j])), abs=1e-6)
    torch.testing.assert_close(
        mmd(x, y[0], chunk=chunk)[1, 2], mmd(x[1, 2], y[0]), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("spread", [1.0, 300.0])
def test_single_precision_is_good_enough(offset, spread):
    x, y = samples(200, 300, 10, dtype=torch.float32)
    x, y = x * spread + offset, y * spread + offset
    exact = float(mmd(x.double(), y.double(), 2.0 * spread))
    assert float(mmd(x, y, 2.0 * spread)) == pytest.approx(exact, abs=2e-6)


def test_far_outliers_do_not_spoil_near_pairs():
    x, y = samples(30, 30, 3, dtype=torch.float32)
    x = torch.cat([x, torch.full((1, 3), 1e6)])
    assert float(mmd(x, y, 0.5)) == pytest.approx(
        float(mmd(x.double(), y.double(), 0.5)), abs=1e-6
    )


@pytest.mark.parametrize(("n", "m"), [(0, 5), (1, 5), (5, 1), (5, 0)])
def test_fewer_than_two_points_give_nan(n, m):
    assert mmd(torch.zeros(n, 2), torch.zeros(m, 2)).isnan()


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (torch.zeros(3), torch.zeros(3), {}, "Expected samples"),
        (torch.zeros(3, 2), torch.zeros(3, 4), {}, "Expected samples"),
        (torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.float64), {}, "share a device"),
        (torch.zeros(3, 2).long(), torch.zeros(3, 2).long(), {}, "floating-point"),
        (torch.zeros(3, 2), torch.zeros(3, 2), {"length_scale": 0.0}, "positive"),
        (torch.zeros(3, 2), torch.zeros(3, 2), {"chunk": 0}, "positive"),
    ],
)
def test_bad_input(x, y, options, message):
    with pytest.raises(InputError, match=message):
        mmd(x, y, **options)


def test_no_tensor_holds_all_pairs():
    x, y = torch.randn(100, 3), torch.randn(3000, 3)
    with LargestMade() as seen:
        mmd(x, y)
    assert 0 < seen.num < 3000 * 3000 / 4


@pytest.mark.check  # the test before this one looks at the tensors that are made
def test_memory_does_not_grow_with_the_number_of_pairs():
    # 10,000 × 10,000 kernel values in single precision are 400 MB; tiles of them are not.
    code = (
        "import resource, torch; torch.set_num_threads(1)\n"
        "from counterfactual_training.core.kernels import mmd\n"
        "x, y = torch.randn(100, 3), torch.randn(10_000, 3)\n"
        "mmd(x, y[:2000]); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "mmd(x, y); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    grown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(grown) * unit < 100e6
