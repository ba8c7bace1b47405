"""Where a search moves: in feature space, or in the latent space of a generative model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from counterfactual_training.core.broadcast import Number, per_member

if TYPE_CHECKING:
    from counterfactual_training.models.vae import VAE


class Space(Protocol):
    """A space turns the gradient at x′ into a proposed change of x′.

    ``z`` is the state ``(..., n, ℓ)`` that the space keeps per row. ``noise`` is one draw ``(ℓ,)``
    for all rows of a step, so that the result of a row does not depend on the rest of the batch.
    """

    def noise(self, num: int, rng: torch.Generator | None, like: Tensor) -> Tensor:
        """Draws ``(num, ℓ)`` for a whole search."""
        ...

    def encode(self, x: Tensor, noise: Tensor) -> Tensor:
        """State of the factuals."""
        ...

    def propose(
        self, z: Tensor, x_cf: Tensor, grad: Tensor, learning_rate: Number
    ) -> tuple[Tensor, Tensor]:
        """One descent step: the new state and the proposed change of x′; may overwrite ``grad``."""
        ...

    def settle(self, z: Tensor, x_cf: Tensor, noise: Tensor) -> Tensor:
        """State after constraints are applied to x′."""
        ...


@dataclass(frozen=True)
class FeatureSpace:
    """The features themselves: x′ is its own state."""

    def noise(self, num: int, rng: torch.Generator | None, like: Tensor) -> Tensor:
        return like.new_empty(num, 0)

    def encode(self, x: Tensor, noise: Tensor) -> Tensor:
        return x.new_empty(*x.shape[:-1], 0)

    def propose(
        self, z: Tensor, x_cf: Tensor, grad: Tensor, learning_rate: Number
    ) -> tuple[Tensor, Tensor]:
        if isinstance(learning_rate, Tensor):
            return z, grad.mul_(-per_member(learning_rate, 2))
        return z, grad.mul_(_number(-learning_rate, grad.dtype, grad.device))

    def settle(self, z: Tensor, x_cf: Tensor, noise: Tensor) -> Tensor:
        return z


@dataclass(frozen=True, eq=False)
class LatentSpace:
    """The latent space of a VAE: gradients at x′ are pulled back through the decoder.

    With ``reencode`` the encoder draws the latent again after every step, as in the authors' code;
    otherwise it is kept. Either way mutability and domain hold for x′ itself (the authors' code
    skips mutability here).
    """

    vae: VAE
    reencode: bool = True

    def noise(self, num: int, rng: torch.Generator | None, like: Tensor) -> Tensor:
        # Seeded, so that a search without an rng is repeatable.
        if rng is None:
            rng = torch.Generator().manual_seed(0)
        shape = (num, self.vae.latent_dim)
        return torch.randn(shape, generator=rng, device=rng.device, dtype=torch.float32).to(
            like
        )

    def encode(self, x: Tensor, noise: Tensor) -> Tensor:
        with torch.no_grad():
            return self.vae.encode(x, noise if self.reencode else None)

    def propose(
        self, z: Tensor, x_cf: Tensor, grad: Tensor, learning_rate: Number
    ) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            # Chain rule: the gradient at x′, constraints included, times the decoder's Jacobian at
            # z.
            (grad_z,) = torch.autograd.grad(self.vae.decode(z), z, grad)
        z = z.detach() - per_member(learning_rate, 2) * grad_z
        with torch.no_grad():
            # Relative to x′ as it stands, so that mask and projection apply to REVISE like to any
            # other step.
            return z, self.vae.decode(z) - x_cf

    def settle(self, z: Tensor, x_cf: Tensor, noise: Tensor) -> Tensor:
        if self.reencode:
            return self.encode(x_cf, noise)
        return z


@lru_cache(maxsize=64)
def _number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a cached tensor: making one takes longer than multiplying a small batch by it."""
    # At least single precision: rounded to the three digits of bfloat16, η would be another.
    return torch.tensor(value, dtype=torch.promote_types(dtype, torch.float32), device=device)
