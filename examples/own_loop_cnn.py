"""A small CNN of your own, trained in a loop of your own: Algorithm 1 with `search` and `Objective`."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import counterfactual_training as ct

torch.manual_seed(0)
digits = load_digits()
x, y = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1, torch.tensor(digits.target)
x, y, x_test, y_test = x[:1000], y[:1000], x[1000:], y[1000:]
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10)
)  # fmt: skip
constraints = ct.Constraints.build(64, domain=(-1, 1))
objective = ct.Objective(lambda_div=0.1, lambda_reg=0.01, lambda_adv=0.25)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
rows_by_class = [(y == k).nonzero().flatten() for k in range(10)]


def accuracy() -> float:
    return float((model(x_test).argmax(-1) == y_test).float().mean())


print(f"before: accuracy {accuracy():.2f}")
for _ in range(8):
    for rows in torch.randperm(len(x)).split(100):
        factual = rows[:30]
        y_target = (model(x[factual]).argmax(-1) + torch.randint(1, 10, (30,))) % 10
        found = ct.search(model, x[factual], y_target, ct.ecco(learning_rate=1.0), constraints)
        x_pos = x[torch.stack([rows_by_class[k][torch.randint(len(rows_by_class[k]), ())] for k in y_target])]
        explanations = ct.Explanations(found.x_cf, x_pos, found.x_adv, y_target, y[factual], found.converged)
        optimizer.zero_grad()
        objective(model, x[rows], y[rows], explanations).total.backward()
        optimizer.step()
print(f"after: accuracy {accuracy():.2f}, mature {float(found.converged.float().mean()):.2f}")
