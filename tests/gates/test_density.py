"""Kernels of a density: how wide they are."""

import torch
from torch.testing import assert_close

from counterfactual_training.gates import Density


def test_a_kernel_reaches_to_the_tenth_neighbour():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    gate = Density.fit(x, torch.zeros(60, dtype=torch.long), 1)
    nearest = torch.cdist(gate.centres[0], gate.centres[0]).sort(-1).values
    width = nearest[:, 10] / 3**0.5  # the first one is the row itself
    assert_close(gate.width[0], width)


def test_duplicates_do_not_become_spikes():
    """Twenty equal rows have no distance to each other; rows beside them still pass."""
    x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    x[:20] = 0.5
    gate = Density.fit(x, torch.zeros(100, dtype=torch.long), 1)
    assert_close(gate.width.min(), 0.3 * gate.width.median())
    beside = torch.tensor([[0.51, 0.5], [0.5, 0.49]])
    assert float(gate(beside).exp().min()) > 0.5
