"""Variational autoencoder whose latent space REVISE searches (Joshi et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from counterfactual_training.errors import InputError
from counterfactual_training.threads import sensible_threads
from counterfactual_training.torch_modes import single_precision, with_gradients


class VAE(nn.Module):
    """Encoder Dense(d→h, sigmoid) → (μ, log σ); decoder Dense(ℓ→h, tanh) → Dense(h→d)."""

    def __init__(self, num_features: int, latent_dim: int = 2, hidden_dim: int = 16) -> None:
        super().__init__()
        self.latent_dim = latent_dim
        self.trunk = nn.Sequential(nn.Linear(num_features, hidden_dim), nn.Sigmoid())
        self.mean = nn.Linear(hidden_dim, latent_dim)
        self.log_std = nn.Linear(hidden_dim, latent_dim)
        self.decoder = nn.Sequential(
            nn.Linear(latent_dim, hidden_dim), nn.Tanh(), nn.Linear(hidden_dim, num_features)
        )

    def encode(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Latent ``μ(x) + σ(x)·noise``, or the mean without noise: ``(..., n, d)`` → ``(..., n,
        ℓ)``.
        """
        hidden = self.trunk(x)
        mean = self.mean(hidden)
        if noise is None:
            return mean
        return mean + self.log_std(hidden).exp() * noise

    def decode(self, z: Tensor) -> Tensor:
        """``(..., n, ℓ)`` → ``(..., n, d)``."""
        return self.decoder(z)

    def loss(self, x: Tensor, rng: torch.Generator, weight_decay: float) -> Tensor:
        """Per sample: squared error summed over features + KL(q(z|x) ‖ N(0, I)); plus
        λ‖decoder‖².
        """
        hidden = self.trunk(x)
        mean = self.mean(hidden)
        log_std = self.log_std(hidden)
        # Drawn on the CPU, so that every device trains on the same noise.
        noise = torch.randn(mean.shape, generator=rng, dtype=torch.float32).to(mean)
        error = (self.decode(mean + log_std.exp() * noise) - x).square().sum(-1)
        divergence = 0.5 * (mean.square() + (2 * log_std).exp() - 1 - 2 * log_std).sum(-1)
        # As in the authors' code, of the decoder alone.
        decay = sum(p.square().sum() for p in self.decoder.parameters())
        return (error + divergence).mean() + weight_decay * decay


@with_gradients
def fit_vae(
    x: Tensor,
    latent_dim: int | None = None,
    hidden_dim: int | None = None,
    epochs: int = 100,
    batch_size: int = 50,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.01,
    seed: int = 0,
) -> VAE:
    """Train a VAE on rows ``(n, ...)``.

    Args:
        x: the rows.
        latent_dim: ℓ; by default as the authors', 2 for two features and otherwise 4.
        hidden_dim: h; by default as the authors', 16 for two features and otherwise 32.
        epochs: passes over the rows.
        batch_size: rows per update.
        learning_rate: of Adam.
        weight_decay: weight of the decoder's squared parameters in the loss.
        seed: of the weights, the order of the rows and the noise.

    Returns:
        The VAE, in eval mode and frozen, for :func:`revise`.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> vae = ct.fit_vae(data.x_train[:200], epochs=10)
        >>> z = vae.encode(data.x_test)
        >>> z.shape, vae.decode(z).shape
        (torch.Size([900, 2]), torch.Size([900, 2]))
        >>> ct.revise(vae).name
        'revise'
    """
    x = x.reshape(len(x), -1)
    if len(x) < 2:
        raise InputError(f"A VAE needs at least two rows to learn from, got {len(x)}.")
    small = x.shape[1] <= 2
    rng = torch.Generator().manual_seed(seed)
    # Layers draw their weights from the global generator: seed it for them, then leave it to the
    # caller as it was.
    with torch.random.fork_rng(devices=[]), single_precision():
        torch.default_generator.manual_seed(seed)
        vae = VAE(
            x.shape[1], latent_dim or (2 if small else 4), hidden_dim or (16 if small else 32)
        )
    vae.to(x.device, x.dtype)
    # Many tiny updates: a fused kernel saves overhead, where the device is sure to have one.
    optimizer = torch.optim.Adam(
        vae.parameters(), lr=learning_rate, fused=x.device.type in ("cpu", "cuda")
    )
    with sensible_threads(vae, x[:batch_size]):
        for _ in range(epochs):
            for rows in torch.randperm(len(x), generator=rng).to(x.device).split(batch_size):
                optimizer.zero_grad()
                vae.loss(x[rows], rng, weight_decay).backward()
                optimizer.step()
    return vae.eval().requires_grad_(False)
