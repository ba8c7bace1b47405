"""A small CNN of your own, in a loop of your own: Algorithm 1 with `search` and `Objective`."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import counterfactual_training as ct

torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
y = torch.tensor(labels)
x, x_test = x.split([1000, 797])
y, y_test = y.split([1000, 797])
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(128, 32),
    nn.ReLU(),
    nn.Linear(32, 10),
)
generator = ct.ecco(learning_rate=1.0, max_steps=15)
constraints = ct.Constraints.build(64, domain=(-1, 1))  # pixels stay pixels
objective = ct.Objective(lambda_div=0.1, lambda_reg=0.01)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)


def accuracy() -> float:
    return float((model(x_test).argmax(-1) == y_test).float().mean())


print(f"before: accuracy {accuracy():.2f}")
for _ in range(10):
    for rows in torch.randperm(len(x)).split(100):
        factuals = rows[:20]
        positives = torch.randperm(len(x))[:20]
        # y⁺ ~ p(y), x⁺ a real sample of that class
        y_target = y[positives]
        x_pos = x[positives]
        found = ct.search(model, x[factuals], y_target, generator, constraints)
        explanations = ct.CounterfactualBatch(
            found.x_cf, x_pos, found.x_adv, y_target, y[factuals], found.mature
        )
        optimizer.zero_grad()
        objective(model, x[rows], y[rows], explanations).total.backward()
        optimizer.step()
print(
    f"after: accuracy {accuracy():.2f}, {found.mature.float().mean():.0%} of the last "
    "counterfactuals mature"
)
