"""A generator of your own in ten lines: counterfactuals that are pulled towards the mean of their
target class.
"""

import torch
from torch import Tensor

import counterfactual_training as ct
from counterfactual_training.datasets.synthetic import overlapping
from counterfactual_training.generators import SearchState


def prototype(means: Tensor, weight: float = 0.05, **settings: float) -> ct.Generator:
    """Class loss and squared distance to the target's mean, after the prototypes of Van Looveren
    and Klaise (2021).
    """

    def pull(state: SearchState) -> Tensor:
        return weight * (state.x_cf - means[state.y_target]).square().sum(-1)

    return ct.Generator("prototype", penalties=(pull,), **settings)


ct.register_generator("prototype", prototype)

# From here on it is a generator like the others: by name, in training, with any constraints.
torch.manual_seed(0)
x, y = overlapping(600, torch.Generator().manual_seed(0))
means = torch.stack([x[y == k].mean(0) for k in range(2)])
own = ct.make_generator("prototype", means=means, learning_rate=0.5)
method = ct.methods.ct_published(
    generator=own, epochs=10, batch_size=50, num_counterfactuals=100
)
model = ct.train(ct.mlp(2, 2), x, y, method).model

y_target = 1 - model(x).argmax(-1)
for generator in (ct.generic(learning_rate=0.5), own):
    found = ct.search(model, x, y_target, generator)
    away = (found.x_cf - means[y_target]).norm(dim=-1).mean()
    print(
        f"{generator.name}: {found.converged.float().mean():.0%} arrive, {away:.2f} from the "
        "target's mean on average"
    )
