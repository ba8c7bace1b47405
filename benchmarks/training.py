"""What CT costs beside conventional training, per gradient of a row computed."""

from __future__ import annotations

from functools import partial

import torch

import counterfactual_training as ct
from benchmarks.timing import race

ROWS = 10_000
FEATURES = 30
EPOCHS = 2


def per_row_gradient(batch_size: int) -> dict[str, object]:
    """Seconds per row-gradient of CT / of conventional training of the same model.

    Conventional training computes one gradient per row and epoch. CT computes one per row, x′, x⁺
    and x_adv, and one per step of every row's search.
    """
    torch.manual_seed(0)
    x = torch.randn(ROWS, FEATURES)
    y = (x[:, :5].sum(-1) + 0.5 * torch.randn(ROWS) > 0).long()
    start = ct.mlp(FEATURES, 2)
    settings = {"epochs": EPOCHS, "batch_size": batch_size, "num_counterfactuals": 5000}
    histories = {}

    def run(name: str) -> None:
        model = ct.mlp(FEATURES, 2)
        model.load_state_dict(start.state_dict())
        result = ct.train(model, x, y, {"name": name, **settings})
        histories[name] = result.history

    times = race(
        {name: partial(run, name) for name in ("conventional", "ct_published")}, rounds=5
    )
    searched = sum(record["mean_steps"] for record in histories["ct_published"].records) * 5000
    gradients = {
        "conventional": EPOCHS * ROWS,
        "ct_published": EPOCHS * (ROWS + 3 * 5000) + searched,
    }
    return {
        "what": f"training {ROWS:,} × {FEATURES}, batch {batch_size}: CT / conventional, per "
        "row-gradient",
        "ratio": (times["ct_published"] / gradients["ct_published"])
        / (times["conventional"] / gradients["conventional"]),
        "time_ratio": times["ct_published"] / times["conventional"],
        "gradient_ratio": gradients["ct_published"] / gradients["conventional"],
        **times,
    }
