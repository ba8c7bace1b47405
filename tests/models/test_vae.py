"""The autoencoder of REVISE learns its data, and its loss is the one written down."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from counterfactual_training import fit_vae
from counterfactual_training.errors import InputError
from counterfactual_training.models.vae import VAE


def test_the_loss_by_hand():
    torch.manual_seed(0)
    vae, x = VAE(3, latent_dim=2, hidden_dim=5), torch.randn(6, 3)
    hidden = vae.trunk(x)
    mean, log_std = vae.mean(hidden), vae.log_std(hidden)
    noise = torch.randn(6, 2, generator=torch.Generator().manual_seed(1))
    error = (vae.decode(mean + log_std.exp() * noise) - x).square().sum(-1)
    posterior, prior = Normal(mean, log_std.exp()), Normal(torch.zeros(2), torch.ones(2))
    divergence = kl_divergence(posterior, prior).sum(-1)
    decay = sum(p.square().sum() for p in vae.decoder.parameters())
    expected = (error + divergence).mean() + 0.01 * decay
    assert_close(vae.loss(x, torch.Generator().manual_seed(1), 0.01), expected)


def test_encoding_is_the_mean_plus_scaled_noise():
    torch.manual_seed(0)
    vae, x = VAE(3), torch.randn(4, 3)
    spread = vae.log_std(vae.trunk(x)).exp()
    assert_close(vae.encode(x, torch.ones(2)), vae.encode(x) + spread)


def test_fitting_beats_the_mean_of_the_data():
    """Rows on a line: two latent dimensions are more than enough to rebuild them."""
    rng = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(300, 1, generator=rng) @ torch.tensor([[1.0, -1.0, 0.5]])
    vae = fit_vae(x, epochs=60, learning_rate=1e-2)
    rebuilt = vae.decode(vae.encode(x))
    assert float((rebuilt - x).square().mean()) < 0.2 * float(x.var(0).mean())


@pytest.mark.parametrize(("features", "latent", "hidden"), [(2, 2, 16), (5, 4, 32)])
def test_sizes_follow_the_authors(features, latent, hidden):
    vae = fit_vae(torch.randn(10, features), epochs=1)
    assert (vae.latent_dim, vae.trunk[0].out_features) == (latent, hidden)


def test_same_seed_same_weights_and_the_hosts_randomness_untouched():
    x = torch.randn(20, 3)
    state = torch.get_rng_state()
    first, second = (fit_vae(x, epochs=2, seed=7) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b) and not a.requires_grad
    assert not first.training
    other = fit_vae(x, epochs=2, seed=8)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_images_are_flattened():
    assert fit_vae(torch.randn(6, 2, 2), epochs=1).trunk[0].in_features == 4


def test_one_row_teaches_nothing():
    with pytest.raises(InputError, match="at least two rows"):
        fit_vae(torch.zeros(1, 3))
