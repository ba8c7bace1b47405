"""Adam (Kingma and Ba 2015) for the weights of a fleet."""

from __future__ import annotations

import torch
from torch import Tensor


class StackedAdam:
    """One Adam per row of the weights ``(M, P)``: each has its own learning rate and its own count of updates.

    The numbers are those of ``torch.optim.Adam`` with its default β and ε. What that cannot do is to leave one member
    out of an update, as a lone run does when its loss is not finite: here ``step`` takes the members to update.
    """

    def __init__(self, weights: Tensor, learning_rate: Tensor) -> None:
        self.learning_rate = learning_rate.reshape(-1, 1)  # (M, 1)
        self.mean = torch.zeros_like(weights)  # (M, P) running mean of the gradient
        self.square = torch.zeros_like(weights)  # (M, P) and of its square
        self.updates = torch.zeros_like(self.learning_rate)  # (M, 1)

    @torch.no_grad()
    def step(self, weights: Tensor, grad: Tensor, members: Tensor | None = None) -> None:
        """Update all members, or those with these indices ``(m,)``, in place."""
        if members is None:
            _adam(weights, grad, self.mean, self.square, self.updates, self.learning_rate)
            return
        whole = (weights, self.mean, self.square, self.updates)
        new_weights, mean, square, updates = (tensor[members] for tensor in whole)
        _adam(new_weights, grad[members], mean, square, updates, self.learning_rate[members])
        for tensor, part in zip(whole, (new_weights, mean, square, updates), strict=True):
            tensor[members] = part

    def keep(self, members: Tensor) -> None:
        """Go on with these members only."""
        for name, value in vars(self).items():
            setattr(self, name, value[members])


def _adam(weights: Tensor, grad: Tensor, mean: Tensor, square: Tensor, updates: Tensor, learning_rate: Tensor) -> None:
    beta_mean, beta_square, epsilon = 0.9, 0.999, 1e-8
    updates += 1
    mean.lerp_(grad, 1 - beta_mean)
    square.mul_(beta_square).addcmul_(grad, grad, value=1 - beta_square)
    size = learning_rate / (1 - beta_mean**updates)
    spread = square.sqrt().div_((1 - beta_square**updates).sqrt()).add_(epsilon)
    weights.sub_(mean.div(spread).mul_(size))
