"""How many threads torch may use inside, and what is no number of threads."""

import os

import numpy as np
import pytest
import torch

from counterfactual_training import linear, search
from counterfactual_training.errors import InputError
from counterfactual_training.threads import sensible_threads


@pytest.mark.parametrize("threads", [0, -1, 2.5, 1.0, 10_000, True, "2", np.float64(1)])
def test_what_is_no_number_of_threads_is_refused(threads):
    before = torch.get_num_threads()
    with pytest.raises(InputError, match=r"threads must be an integer from 1 to \d+.*got"):
        search(linear(2, 2), torch.randn(3, 2), torch.tensor([0, 1, 0]), threads=threads)
    assert torch.get_num_threads() == before


def test_all_processors_may_be_used():
    most = os.cpu_count() or 1
    with sensible_threads(linear(2, 2), torch.randn(3, 2), most):
        assert torch.get_num_threads() == most


def test_what_the_host_uses_already_is_allowed(monkeypatch):
    """A host may run more threads than the machine has processors; a search may do as it does."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    with sensible_threads(linear(2, 2), torch.randn(3, 2), 3):
        pass
    with (
        pytest.raises(InputError, match="from 1 to 3"),
        sensible_threads(linear(2, 2), torch.randn(3, 2), 4),
    ):
        pass
