"""Several classifiers as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from counterfactual_training.errors import ModelError

# More members than anyone trains: a file must not keep us busy making them.
_MOST_MEMBERS = 1000


class Ensemble(nn.Module):
    """The mean of its members' logits, ``(..., d)`` → ``(..., k)``.

    Of logits, not of probabilities: logarithms of mean probabilities have a logsumexp of 0
    everywhere, which would remove the scale of the energy −LSE and with it what an energy says of
    how plausible a row is.

    Args:
        members: the classifiers, all with the same inputs and outputs.

    Attributes:
        members: the classifiers.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> model = ct.Ensemble([ct.mlp(2, 2) for _ in range(3)])
        >>> method = "ensemble(epochs=1)"
        >>> _ = ct.train(model, data.x_train, data.y_train, method)
        >>> len(model.members), model(data.x_test).shape
        (3, torch.Size([900, 2]))
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        if not members:
            raise ModelError("An ensemble needs at least one member, got none.")
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """Mean logits ``(..., k)`` of rows ``(..., d)``."""
        total = self.members[0](x)
        for member in list(self.members)[1:]:
            total = total + member(x)
        return total / len(self.members)


def make_ensemble(
    make: Callable[[int, int], nn.Module], size: int, num_features: int, num_classes: int
) -> Ensemble:
    """An ensemble of so many new models."""
    if not 1 <= size <= _MOST_MEMBERS:
        raise ModelError(f"An ensemble has from 1 to {_MOST_MEMBERS} members, got {size}.")
    return Ensemble([make(num_features, num_classes) for _ in range(size)])
