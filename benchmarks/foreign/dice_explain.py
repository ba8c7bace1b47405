"""One of DiCE's methods on rows in their own units. Run in its own environment.

``dice_explain.py FILE METHOD [bulk]``: METHOD is ``random``, ``genetic``, ``kdtree`` or ``gradient``. The first three
are only told probabilities. With ``bulk``, columns stay within the bulk of the training rows.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

from turns import serve  # isort: skip  (before torch)

import dice_ml
import numpy as np
import pandas as pd
import torch

problem, method = dict(np.load(sys.argv[1])), sys.argv[2]
whole = problem["whole"]
columns = [f"x{j}" for j in range(len(whole))]
center, scale = torch.tensor(problem["center"]), torch.tensor(problem["scale"])
layers = [(torch.tensor(problem[f"w{i}"]), torch.tensor(problem[f"b{i}"])) for i in range(int(problem["layers"]))]


def frame_of(x: np.ndarray) -> pd.DataFrame:
    """Rows as a table whose whole numbers are integers, so that DiCE keeps them whole."""
    return pd.DataFrame(x, columns=columns).astype(
        {c: "int64" for c, is_whole in zip(columns, whole, strict=True) if is_whole}
    )


def probabilities(x: torch.Tensor) -> torch.Tensor:
    """``(…, 2)`` of float64 rows in their own units."""
    hidden = ((x - center) / scale).float().asinh()
    for i, (weight, bias) in enumerate(layers):
        hidden = torch.nn.functional.linear(torch.nn.functional.silu(hidden) if i else hidden, weight, bias)
    return hidden.softmax(-1)


class Net(torch.nn.Module):
    """Gets rows scaled to [0, 1], sometimes a single one without its dimension; returns P(y = 1) ``(…, 1)``."""

    low = torch.tensor(problem["x_train"].min(0))
    span = torch.tensor(problem["x_train"].max(0)) - low

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return probabilities(x.double() * self.span + self.low)[..., 1:]


class Box:
    """The same network as scikit-learn would hold it."""

    classes_ = np.array([0, 1])

    def predict_proba(self, x: Any) -> np.ndarray:
        with torch.no_grad():
            return probabilities(torch.tensor(np.asarray(x, dtype=np.float64))).numpy()

    def predict(self, x: Any) -> np.ndarray:
        return self.predict_proba(x).argmax(1)


frame = frame_of(problem["x_train"]).assign(y=problem["y_train"])
data = dice_ml.Data(dataframe=frame, continuous_features=columns, outcome_name="y")
model = (
    dice_ml.Model(model=Net(), backend="PYT", func="ohe-min-max")
    if method == "gradient"
    else dice_ml.Model(model=Box(), backend="sklearn")
)
explainer = dice_ml.Dice(data, model, method=method)
options: dict[str, Any] = {}
if "bulk" in sys.argv[3:]:
    options["permitted_range"] = {c: list(ends) for c, ends in zip(columns, problem["bulk"].T.tolist(), strict=True)}


def turn(row: int | None = None, rows: int = 0) -> dict[str, Any]:
    """One counterfactual of a row; or, without one, the probabilities of the first rows."""
    if row is None:
        return {"probabilities": Box().predict_proba(problem["x"][:rows]).tolist()}
    random.seed(row)
    np.random.seed(row)  # noqa: NPY002  (DiCE draws from it)
    torch.manual_seed(row)
    seed = {"random_seed": row} if method == "random" else {}
    query, found, error = frame_of(problem["x"][row : row + 1]), None, ""
    started = time.process_time()
    try:
        answer = explainer.generate_counterfactuals(
            query, total_CFs=1, desired_class=int(problem["target"]), verbose=False, **seed, **options
        )
        table = answer.cf_examples_list[0].final_cfs_df
        if table is not None and len(table):
            found = table[columns].astype(float).to_numpy()[0].tolist()
    except Exception as failure:  # whatever the library raises is part of the result
        error = f"{type(failure).__name__}: {failure}"
        print(error, file=sys.stderr, flush=True)
    return {"seconds": time.process_time() - started, "found": found, "error": error}


serve(turn, "dice-ml")
