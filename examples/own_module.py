"""Counterfactual training of an `nn.Module` of your own, with rules about what may change."""

import torch
from torch import Tensor, nn

import counterfactual_training as ct
from counterfactual_training.datasets.synthetic import moons


class Residual(nn.Module):
    """Anything that maps rows to logits will do; batch normalisation and dropout too."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter = nn.Linear(2, width)
        self.inner = nn.Sequential(
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1)
        )
        self.leave = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.enter(x).relu()
        return self.leave(hidden + self.inner(hidden))


torch.manual_seed(0)
x, y = moons(1500, torch.Generator().manual_seed(0))
x_val, y_val = moons(300, torch.Generator().manual_seed(1))
# The first feature may not change at all, the second may only grow; the box is inferred from the
# data (Eq. 12).
constraints = ct.Constraints.infer(x, mutability=["none", "increase"])
result = ct.train(
    Residual(),
    x,
    y,
    ct.methods.ct_published(
        epochs=15,
        batch_size=50,
        num_counterfactuals=150,
        shuffle=True,
        lambda_reg=0.2,
        generator=ct.ecco(learning_rate=0.5),
    ),
    constraints,
    validation=(x_val, y_val),
)
columns = ["epoch", "loss", "validation_accuracy", "share_mature"]
print(result.history.to_frame()[columns].iloc[[0, -1]].to_string(index=False))

found = ct.search(
    result.model, x_val[:5], 1 - y_val[:5], ct.ecco(learning_rate=0.5), constraints
)
print("how it went:", ", ".join(found.status_names))
print("first feature untouched:", bool(torch.equal(found.x_cf[:, 0], x_val[:5, 0])))
