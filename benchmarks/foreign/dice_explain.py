"""One of DiCE's methods on rows in their own units. Run in its own environment.

``dice_explain.py FOLDER METHOD [bulk]``: METHOD is ``random``, ``genetic`` or ``kdtree``, which are
only told probabilities. With ``bulk``, numbers stay within the bulk of the training rows. FOLDER
holds rows, and either the arrays of a network or a fitted pipeline of scikit-learn.
"""

from __future__ import annotations

import json
import pickle
import random
import sys
import time
from pathlib import Path
from typing import Any

from turns import serve  # isort: skip  (before torch)

import dice_ml
import numpy as np
import pandas as pd
import torch

folder = Path(sys.argv[1])
method = sys.argv[2]
problem = json.loads((folder / "problem.json").read_text(encoding="utf-8"))
columns = list(problem["columns"])
levels = {
    name: about["levels"] for name, about in problem["columns"].items() if about["levels"]
}
numbers = [name for name in columns if name not in levels]


def rows_of(file: str) -> pd.DataFrame:
    """Rows as they were written: text stays text, and every digit of a number is kept."""
    return pd.read_csv(
        folder / file,
        dtype=dict.fromkeys(levels, str),
        keep_default_na=False,
        float_precision="round_trip",
    )


class Network:
    """A network as scikit-learn would hold it: it takes frames."""

    classes_ = np.array([0, 1])

    def __init__(self, file: Path) -> None:
        arrays = np.load(file)
        self.layers = [
            (torch.tensor(arrays[f"w{i}"]), torch.tensor(arrays[f"b{i}"]))
            for i in range(int(arrays["layers"]))
        ]

    def predict_proba(self, frame: pd.DataFrame) -> np.ndarray:
        parts = [self._encoded(frame[name], problem["columns"][name]) for name in columns]
        hidden = torch.tensor(np.concatenate(parts, 1)).float().asinh()
        with torch.no_grad():
            for i, (weight, bias) in enumerate(self.layers):
                hidden = torch.nn.functional.linear(
                    torch.nn.functional.silu(hidden) if i else hidden, weight, bias
                )
        return hidden.softmax(-1).numpy()

    def predict(self, frame: pd.DataFrame) -> np.ndarray:
        return self.predict_proba(frame).argmax(1)

    def _encoded(self, column: pd.Series, about: dict[str, Any]) -> np.ndarray:
        if not about["levels"]:
            return ((column.to_numpy(np.float64) - about["center"]) / about["scale"])[:, None]
        code = pd.Index(about["levels"]).get_indexer(pd.Index(column.astype(str)))
        if about["width"] == 1:
            return code[:, None].astype(np.float64)
        return (code[:, None] == np.arange(about["width"])).astype(np.float64)


people = rows_of("people.csv")
train = rows_of("train.csv")
network = folder / "network.npz"
model: Any
if network.exists():
    model = Network(network)
else:
    model = pickle.loads((folder / "model.pickle").read_bytes())  # noqa: S301
data = dice_ml.Data(dataframe=train, continuous_features=numbers, outcome_name="y")
explainer = dice_ml.Dice(data, dice_ml.Model(model=model, backend="sklearn"), method=method)
options: dict[str, Any] = {}
if "bulk" in sys.argv[3:]:
    options["permitted_range"] = {name: problem["columns"][name]["bulk"] for name in numbers}


def turn(row: int | None = None, rows: int = 0) -> dict[str, Any]:
    """Counterfactuals of a row; or, without one, the probabilities of the first rows."""
    if row is None:
        return {
            "probabilities": np.asarray(
                model.predict_proba(people[:rows]), dtype=float
            ).tolist()
        }
    random.seed(row)
    np.random.seed(row)  # noqa: NPY002  (DiCE draws from it)
    if method == "random":
        seed = {"random_seed": row}
    else:
        seed = {}
    query = people[row : row + 1].reset_index(drop=True)
    counterfactuals: list[list[Any]] = []
    error = ""
    started = time.process_time()
    try:
        answer = explainer.generate_counterfactuals(
            query,
            total_CFs=problem["options"],
            desired_class=problem["target"],
            verbose=False,
            **seed,
            **options,
        )
        table = answer.cf_examples_list[0].final_cfs_df
    except Exception as failure:  # whatever the library raises is part of the result
        error = f"{type(failure).__name__}: {failure}"
        print(error, file=sys.stderr, flush=True)
        table = None
    seconds = time.process_time() - started
    if table is not None:
        cells = table[columns].astype(dict.fromkeys(numbers, float)).to_numpy(object)
        counterfactuals = [
            [
                float(v) if name in numbers else str(v)
                for name, v in zip(columns, row, strict=True)
            ]
            for row in cells
        ]
    return {"seconds": seconds, "found": counterfactuals, "error": error}


serve(turn, "dice-ml")
