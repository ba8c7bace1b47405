"""Memory that is kept, where the C library can be told to."""

import platform

import pytest
import torch

from counterfactual_training import allocator
from counterfactual_training.allocator import keep_memory
from forked import fork

_AT_FIRST = {allocator._M_TRIM_THRESHOLD: 2**17, allocator._M_MMAP_THRESHOLD: 2**17}  # of a process that has just begun


def page_faults() -> int:
    """Of twenty times 8 MB, each given back before the next is taken; pages of 4 KB."""
    import resource

    for _ in range(10):
        torch.ones(2**21)  # pages shared with the process this one is a fork of become its own
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(2**21)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def expect_few_faults() -> None:
    assert allocator._set(_AT_FIRST)
    assert keep_memory()
    assert page_faults() < 4 * 2048  # given back every time it would be 20 × 2,048


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these thresholds")
def test_freed_memory_is_not_given_back():
    process = fork(expect_few_faults)  # memory is kept for good
    process.join(300)
    assert process.exitcode == 0


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert keep_memory() is False
