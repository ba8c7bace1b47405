"""Proposition 3.1: protecting an immutable feature makes a linear classifier rely on it less than
on the others.

Its premises hold by construction: Gaussian classes with a common diagonal covariance, a linear
model, several features that tell the classes apart. Weights start at zero, so that no random start
is mistaken for sensitivity.
"""

import pytest
import torch

from counterfactual_training import Constraints, linear, methods, train
from covering import repeats


def draw_gaussians(
    num_classes: int, num_features: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit covariance; every feature separates the classes, feature 0 no better and no worse than
    the others.
    """
    y = torch.arange(180) % num_classes
    if num_classes == 2:
        means = torch.tensor([[-1.0], [1.0]]).expand(2, num_features)
    else:
        means = 2 * torch.eye(num_classes).repeat(1, 2)[:, :num_features]
    return means[y] + torch.randn(
        180, num_features, generator=torch.Generator().manual_seed(seed)
    ), y


def relative_sensitivity(x, y, mutability, seed: int) -> float:
    """|θ of feature 0| over the mean |θ| of the others, after counterfactual training."""
    model = linear(x.shape[1], int(y.max()) + 1)
    torch.nn.init.zeros_(model[0].weight)
    method = methods.ct_published(
        epochs=12,
        num_counterfactuals=40,
        batch_size=40,
        learning_rate=0.08,
        seed=seed,
        decision_threshold=0.6,
    )
    history = train(
        model,
        x,
        y,
        method,
        Constraints.infer(x, mutability),
    ).history
    assert history.to_frame()["share_mature"].mean() > 0.3, (
        "without mature counterfactuals nothing is contrasted"
    )
    # Adding a constant to all classes changes no prediction.
    weight = model[0].weight.detach() - model[0].weight.detach().mean(0)
    size = weight.norm(dim=0)
    return float(size[0] / size[1:].mean())


@pytest.mark.parametrize("seed", [0, 1, *repeats(2, 3, 4)])
@pytest.mark.parametrize(("num_classes", "num_features"), [(2, 3), (3, 6)])
def test_protection_lowers_relative_sensitivity(num_classes, num_features, seed):
    """For each seed, by at least a tenth."""
    x, y = draw_gaussians(num_classes, num_features, seed)
    unprotected = relative_sensitivity(x, y, None, seed)
    protected = relative_sensitivity(x, y, {0: "none"}, seed)
    assert protected < 0.9 * unprotected
