"""Memory that is kept, where the C library can be told to."""

import platform
import subprocess
import sys

import pytest

from counterfactual_training.allocator import keep_memory

# Twenty times 8 MB, each given back before the next is taken; pages of 4 KB.
_SCRIPT = """
import resource, torch
import counterfactual_training.training
from counterfactual_training.allocator import keep_memory
torch.set_num_threads(1)
assert keep_memory()
torch.ones(2**21)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(2**21)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these thresholds")
def test_freed_memory_is_not_given_back():
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4 * 2048  # given back every time it would be 20 × 2,048


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert keep_memory() is False
