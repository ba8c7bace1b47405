"""DiCE's gradient method on rows and weights of a problem file. Run in its own environment."""

from __future__ import annotations

import sys
import time
from typing import Any

from turns import serve  # isort: skip  (before torch)

import dice_ml
import numpy as np
import pandas as pd
import torch

problem = np.load(sys.argv[1])
columns = [f"x{j}" for j in range(problem["x"].shape[1])]
frame = pd.DataFrame(problem["x_train"].astype(np.float64), columns=columns).assign(
    y=problem["y_train"]
)
low = torch.tensor(problem["x_train"].min(0))
span = torch.tensor(problem["x_train"].max(0)) - low


class Net(torch.nn.Module):
    """Gets rows scaled to [0, 1], sometimes a single one without its dimension; returns P(y = 1)
    ``(…, 1)``.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float() * span + low
        last = int(problem["layers"]) - 1
        for i in range(last + 1):
            x = torch.nn.functional.linear(
                x, torch.tensor(problem[f"w{i}"]), torch.tensor(problem[f"b{i}"])
            )
            if i < last:
                x = x.relu()
        return x.softmax(-1)[..., 1:]


data = dice_ml.Data(dataframe=frame, continuous_features=columns, outcome_name="y")
explainer = dice_ml.Dice(
    data, dice_ml.Model(model=Net(), backend="PYT", func="ohe-min-max"), method="gradient"
)


def turn(rows: int, steps: int, out: str | None = None) -> dict[str, Any]:
    """One counterfactual per row, at most so many steps, without its search for sparsity
    afterwards.
    """
    queries = pd.DataFrame(problem["x"][:rows].astype(np.float64), columns=columns)
    started = time.perf_counter()
    answer = explainer.generate_counterfactuals(
        queries,
        total_CFs=1,
        desired_class=1,
        min_iter=0,
        max_iter=steps,
        posthoc_sparsity_param=0,
        verbose=False,
    )
    seconds = time.perf_counter() - started
    counterfactuals = np.full((rows, len(columns)), np.nan, dtype=np.float32)
    for i, example in enumerate(answer.cf_examples_list):
        if example.final_cfs_df is not None and len(example.final_cfs_df):
            counterfactuals[i] = example.final_cfs_df[columns].astype(float).to_numpy()[0]
    if out is not None:
        np.save(out, counterfactuals)
    return {"seconds": seconds}


serve(turn, "dice-ml")
