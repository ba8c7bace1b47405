"""alibi's Counterfactual (Wachter et al.) on rows and weights of a problem file. Run in its own
environment.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from turns import serve  # isort: skip  (before TensorFlow)

import numpy as np
import tensorflow as tf
from alibi.explainers import Counterfactual

tf.compat.v1.disable_v2_behavior()
problem = np.load(sys.argv[1])
num_layers = int(problem["layers"])
d = problem["x"].shape[1]
inputs = tf.keras.Input((d,))
hidden = inputs
for i in range(num_layers):
    if i == num_layers - 1:
        activation = "softmax"
    else:
        activation = "relu"
    hidden = tf.keras.layers.Dense(problem[f"w{i}"].shape[0], activation=activation)(hidden)
model = tf.keras.Model(inputs, hidden)
model.set_weights(
    [array for i in range(num_layers) for array in (problem[f"w{i}"].T, problem[f"b{i}"])]
)
span = (problem["x_train"].min(0)[None], problem["x_train"].max(0)[None])
explainers: dict[int, Counterfactual] = {}


def turn(rows: int, steps: int, out: str | None = None) -> dict[str, Any]:
    """One counterfactual per row: its sweep over ten λs, a tenth of the steps each, then all steps
    with the λ found.
    """
    if steps not in explainers:
        # It accepts what lies within tol of the target probability: here, all that is of class 1.
        explainers[steps] = Counterfactual(
            model,
            shape=(1, d),
            target_proba=1.0,
            tol=0.5,
            target_class=1,
            max_iter=steps,
            max_lam_steps=1,
            feature_range=span,
        )
    counterfactuals = np.full((rows, d), np.nan, dtype=np.float32)
    started = time.perf_counter()
    for i in range(rows):
        best = explainers[steps].explain(problem["x"][i][None]).cf
        if best is not None:
            counterfactuals[i] = best["X"][0]
    seconds = time.perf_counter() - started
    if out is not None:
        np.save(out, counterfactuals)
    return {"seconds": seconds}


serve(turn, "alibi", "tensorflow")
