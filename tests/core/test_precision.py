"""Sums as fine as the device allows: without float64 where there is none, and never in half
precision.
"""

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from counterfactual_training.core import precision
from counterfactual_training.core.distances import mean_l1
from counterfactual_training.core.kernels import mmd
from counterfactual_training.core.precision import accumulation_dtype, at_least_single
from counterfactual_training.evaluation.plausibility import mmd_contributions

METRICS = {
    "mean_l1": mean_l1,
    "mmd": mmd,
    "mmd of far points": lambda x, y: mmd(300 * x, 300 * y, 100.0),
    "mmd_contributions": mmd_contributions,
}


class NoFloat64(TorchDispatchMode):
    """A device that cannot hold float64."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                raise TypeError(f"{function} makes float64")
        return out


@pytest.fixture
def samples():
    torch.manual_seed(0)
    return torch.randn(30, 4), torch.randn(50, 4) + 0.5


def test_only_devices_without_float64_sum_in_float32():
    assert (
        accumulation_dtype(torch.device("cpu"))
        == accumulation_dtype(torch.device("cuda"))
        == torch.float64
    )
    assert accumulation_dtype(torch.device("mps")) == torch.float32


@pytest.mark.parametrize("name", METRICS)
def test_a_device_without_float64_never_meets_it(name, samples, monkeypatch):
    expected = METRICS[name](*samples)
    with NoFloat64(), pytest.raises(TypeError, match="float64"):
        METRICS[name](*samples)
    monkeypatch.setattr(precision, "_WITHOUT_FLOAT64", ("cpu",))
    with NoFloat64():
        found = METRICS[name](*samples)
    assert_close(found, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_points_in_half_precision_are_measured_in_single(name, dtype, samples):
    half = [part.to(dtype) for part in samples]
    found = METRICS[name](*half)
    assert found.dtype == torch.float32
    if name != "mmd of far points":
        assert_close(found, METRICS[name](*(part.float() for part in half)))


@pytest.mark.parametrize("name", METRICS)
def test_autocast_does_not_round_formulas(name, samples, monkeypatch):
    monkeypatch.setattr(
        precision, "_WITHOUT_FLOAT64", ("cpu",)
    )  # autocast leaves float64 alone anyway
    expected = METRICS[name](*samples)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(METRICS[name](*samples), expected)


def test_only_half_precision_is_raised():
    assert at_least_single(torch.ones(1, dtype=torch.bfloat16)).dtype == torch.float32
    assert at_least_single(torch.ones(1, dtype=torch.float64)).dtype == torch.float64
