"""How far a feature may move: one interval per feature."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from counterfactual_training.errors import ConstraintError


@dataclass(frozen=True, eq=False)
class Domain:
    """Box ``[lower, upper]``, each ``(..., d)``; infinite where a feature is unbounded.

    ``inferred`` sides describe data seen so far and gently pull strays back; stated ones are a promise, and a factual
    outside them is refused. One word for all features, or a mask ``(d,)``.
    """

    lower: Tensor
    upper: Tensor
    inferred: bool | Tensor = False

    def __post_init__(self) -> None:
        if self.lower.shape != self.upper.shape:
            raise ConstraintError(f"lower has shape {tuple(self.lower.shape)}, upper {tuple(self.upper.shape)}.")
        if bool(torch.isnan(self.lower).any()) or bool(torch.isnan(self.upper).any()):
            raise ConstraintError("The domain contains NaN; use ±inf for a feature without a bound.")
        empty = (self.lower > self.upper).reshape(-1, self.lower.shape[-1]).any(0).nonzero().flatten().tolist()
        if empty:
            j = empty[0]
            low, high = float(self.lower[..., j].max()), float(self.upper[..., j].min())
            raise ConstraintError(f"The domain of feature {j} is empty: lower {low:g} > upper {high:g}.")

    @classmethod
    def unbounded(cls, num_features: int) -> Domain:
        inf = torch.full((num_features,), torch.inf)
        return cls(-inf, inf, inferred=True)

    @classmethod
    def infer(cls, x: Tensor, num_std: float = 2.0) -> Domain:
        """Eq. 12: ``[min(μ − n_σ σ, min x), max(μ + n_σ σ, max x)]`` with the sample σ.

        The paper prints n_σ = 3, its code ran with 2.
        """
        flat = x.reshape(-1, x.shape[-1])
        mean = flat.mean(0)
        std = flat.std(0) if len(flat) > 1 else torch.zeros_like(mean)
        lower = torch.minimum(mean - num_std * std, flat.amin(0))
        upper = torch.maximum(mean + num_std * std, flat.amax(0))
        return cls(lower, upper, inferred=True)

    @property
    def stated(self) -> Tensor:
        """Mask ``(d,)`` of the features whose box the user stated."""
        return ~torch.as_tensor(self.inferred, device=self.lower.device).expand(self.lower.shape[-1])

    def to(self, like: Tensor) -> Domain:
        """The same box on the device and in the dtype of a tensor."""
        inferred = self.inferred.to(like.device) if isinstance(self.inferred, Tensor) else self.inferred
        return Domain(self.lower.to(like), self.upper.to(like), inferred)

    def filled(self, other: Domain) -> Domain:
        """This box, its open sides taken from another; a feature counts as stated if a side of it was."""
        lower = torch.where(torch.isfinite(self.lower), self.lower, other.lower)
        upper = torch.where(torch.isfinite(self.upper), self.upper, other.upper)
        # A side that the data suggests must not make the interval that the user stated empty.
        lower, upper = torch.minimum(lower, self.upper), torch.maximum(upper, self.lower)
        open_both = ~(torch.isfinite(self.lower) | torch.isfinite(self.upper))
        return Domain(lower, upper, inferred=open_both)

    def contains(self, x: Tensor) -> Tensor:
        """Mask ``(..., n, d)`` of the values inside."""
        return (x >= self.lower.unsqueeze(-2)) & (x <= self.upper.unsqueeze(-2))
