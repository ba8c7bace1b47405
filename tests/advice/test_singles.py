"""What one column can do."""

from dataclasses import replace

import torch

from counterfactual_training.advice.singles import single_changes
from counterfactual_training.gates import Gate


class Band(Gate):
    """Passes rows whose column lies in a narrow band."""

    def __init__(self, column, middle, width):
        super().__init__()
        self.column, self.middle, self.width = column, middle, width

    def forward(self, x):
        inside = (x[..., self.column] - self.middle).abs() < self.width
        return torch.where(inside, -1e-6, -20.0).unsqueeze(-1).expand(*x.shape[:-1], 2)


def test_a_gate_that_passes_between_two_points_is_found(by_hand):
    """The band is narrower than a sixteenth of the way."""
    frame, finder = by_hand([0.0, -2.0, 0.0, 0.0, 0.0, 0.0])
    middle = finder.factuals(frame.iloc[[7]]).x[0, 1].item()
    gated = replace(finder, gate=Band(1, middle, 0.011), decision=True)
    factuals = gated.factuals(frame.iloc[[30]])
    found = single_changes(gated, factuals, torch.tensor([1]), torch.tensor([0.5]))
    assert found.feature.tolist() == [1] and abs(found.point[0, 1].item() - middle) < 0.011
