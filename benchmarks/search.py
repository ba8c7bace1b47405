"""What a search costs beside its bare matrix products, and what it is worth that rows leave when
they have arrived.
"""

from __future__ import annotations

import torch
from torch import nn

import counterfactual_training as ct
from benchmarks.timing import race

ROWS = 5000
STEPS = 30
HIDDEN = 32
CLASSES = 10


def against_matrix_products(num_features: int) -> dict[str, object]:
    """5,000 rows × 30 steps, none stopping early, beside the four products of forward and input
    gradient alone.
    """
    torch.manual_seed(0)
    model = ct.mlp(num_features, CLASSES, hidden=(HIDDEN,))
    x = torch.rand(ROWS, num_features) * 2 - 1
    y_target = (model(x).argmax(-1) + 1) % CLASSES
    constraints = ct.Constraints.build(num_features, domain=(-1.0, 1.0))
    generator = ct.ecco(decision_threshold=1.0, max_steps=STEPS)
    first, second = (layer.weight.detach() for layer in model if isinstance(layer, nn.Linear))
    hidden = torch.empty(ROWS, HIDDEN)
    logits = torch.empty(ROWS, CLASSES)
    grad_hidden = torch.empty(ROWS, HIDDEN)
    grad = torch.empty(ROWS, num_features)

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
        "what": f"search {ROWS:,} × {num_features}, {STEPS} steps, none stopping early / its "
        "matrix products",
        "ratio": times["search"] / times["products"],
        **times,
    }


def leaving() -> dict[str, object]:
    """A model that most rows satisfy early: rows leaving when they have arrived / all taking all
    steps (τ = 1).
    """
    torch.manual_seed(0)
    x = torch.randn(ROWS, 100)
    y = (x[:, :10].sum(-1) > 0).long()
    model = ct.mlp(100, 2)
    ct.train(
        model,
        x,
        y,
        ct.methods.conventional(epochs=3, batch_size=100),
    )
    y_target = 1 - model(x).argmax(-1)

    def search(threshold: float, max_steps: int = 100) -> ct.SearchResult:
        generator = ct.generic(max_steps=max_steps, decision_threshold=threshold)
        return ct.search(model, x, y_target, generator, diagnose=False)

    steps = search(0.75).num_steps
    most = int(steps.max())
    mean = float(steps.float().mean())
    times = race({"leaving": lambda: search(0.75), "all_steps": lambda: search(1.0, most)})
    return {
        "what": f"search {ROWS:,} × 100, rows needing {mean / most:.2f} of {most} steps on "
        "average: leaving when they have arrived / all taking all steps",
        "ratio": times["leaving"] / times["all_steps"],
        **times,
    }
