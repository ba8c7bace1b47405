"""What a search costs beside its bare matrix products, and what a shrinking working set is worth."""

from __future__ import annotations

from unittest import mock

import torch
from torch import nn

import counterfactual_training as ct
from benchmarks.timing import race
from counterfactual_training.search import working_set

ROWS, STEPS, HIDDEN, CLASSES = 5000, 30, 32, 10


def against_matrix_products(num_features: int) -> dict[str, object]:
    """5,000 rows × 30 steps, none stopping early, beside the four products of forward and input gradient alone."""
    torch.manual_seed(0)
    model = ct.mlp(num_features, CLASSES, hidden=(HIDDEN,))
    x = torch.rand(ROWS, num_features) * 2 - 1
    y_target = (model(x).argmax(-1) + 1) % CLASSES
    constraints = ct.Constraints.build(num_features, domain=(-1.0, 1.0))
    generator = ct.ecco(decision_threshold=1.0, max_steps=STEPS)
    first, second = (layer.weight.detach() for layer in model if isinstance(layer, nn.Linear))
    hidden, logits = torch.empty(ROWS, HIDDEN), torch.empty(ROWS, CLASSES)
    grad_hidden, grad = torch.empty(ROWS, HIDDEN), torch.empty(ROWS, num_features)

    def products() -> None:
        for _ in range(STEPS):
            torch.mm(x, first.T, out=hidden)
            torch.mm(hidden, second.T, out=logits)
            torch.mm(logits, second, out=grad_hidden)
            torch.mm(grad_hidden, first, out=grad)

    def search() -> ct.SearchResult:
        return ct.search(model, x, y_target, generator, constraints, diagnose=False)

    if int(search().num_steps.min()) < STEPS:
        raise RuntimeError("A row stopped early: the comparison would flatter the search.")
    times = race({"products": products, "search": search})
    return {
        "what": f"search {ROWS:,} × {num_features}, {STEPS} steps, none stopping early / its matrix products",
        "ratio": times["search"] / times["products"],
        **times,
    }


def shrinking() -> dict[str, object]:
    """A model that most rows satisfy early: working set shrinking / not shrinking."""
    torch.manual_seed(0)
    x = torch.randn(ROWS, 100)
    y = (x[:, :10].sum(-1) > 0).long()
    model = ct.mlp(100, 2)
    ct.train(model, x, y, objective=ct.make_objective("vanilla"), config=ct.TrainConfig(epochs=3, batch_size=100))
    y_target = 1 - model(x).argmax(-1)
    generator = ct.generic(max_steps=100, decision_threshold=0.75)
    result = ct.search(model, x, y_target, generator)
    steps = result.num_steps.float()

    def whole() -> ct.SearchResult:
        with mock.patch.object(working_set, "_SHRINK_AT", 0.0):
            return ct.search(model, x, y_target, generator, diagnose=False)

    times = race(
        {
            "shrinking": lambda: ct.search(model, x, y_target, generator, diagnose=False),
            "not_shrinking": whole,
        }
    )
    share = float(steps.mean() / steps.max())
    return {
        "what": f"search {ROWS:,} × 100, rows needing {share:.2f} of {int(steps.max())} steps on average: "
        "working set shrinking / not",
        "ratio": times["shrinking"] / times["not_shrinking"],
        **times,
    }
