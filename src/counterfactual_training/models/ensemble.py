"""Several classifiers as one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from counterfactual_training.errors import ModelError


class Ensemble(nn.Module):
    """The mean of its members' logits, ``(..., d)`` → ``(..., k)``.

    Of logits, not of probabilities: logarithms of mean probabilities have a logsumexp of 0 everywhere, which would
    remove the scale of the energy −LSE and with it what an energy says of how plausible a row is.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        if not members:
            raise ModelError("An ensemble needs at least one member, got none.")
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        total = self.members[0](x)
        for member in list(self.members)[1:]:
            total = total + member(x)
        return total / len(self.members)
