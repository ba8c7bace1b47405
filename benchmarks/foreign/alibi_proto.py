"""alibi's CounterfactualProto on rows in their own units. Run in its own environment.

It is given the network itself, so that TensorFlow tells it gradients, and rows scaled as the
network takes them.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from turns import serve  # isort: skip  (before TensorFlow)

import numpy as np
import tensorflow as tf
from alibi.explainers import CounterfactualProto

tf.compat.v1.disable_v2_behavior()
problem = dict(np.load(f"{sys.argv[1]}/network.npz"))
num_layers = int(problem["layers"])
center = problem["center"]
scale = problem["scale"]
z, z_train = (
    ((problem[name] - center) / scale).astype(np.float32) for name in ("x", "x_train")
)
inputs = tf.keras.Input((z.shape[1],))
hidden = tf.keras.layers.Lambda(tf.math.asinh)(inputs)
for i in range(num_layers):
    if i == num_layers - 1:
        activation = "softmax"
    else:
        activation = tf.nn.silu
    hidden = tf.keras.layers.Dense(problem[f"w{i}"].shape[0], activation=activation)(hidden)
model = tf.keras.Model(inputs, hidden)
model.set_weights(
    [array for i in range(num_layers) for array in (problem[f"w{i}"].T, problem[f"b{i}"])]
)
# theta and c_init as in alibi's examples of tables; the rest is its default.
explainer = CounterfactualProto(
    model,
    shape=(1, z.shape[1]),
    use_kdtree=True,
    theta=10.0,
    c_init=1.0,
    feature_range=(z_train.min(0)[None], z_train.max(0)[None]),
)
explainer.fit(z_train)


def turn(row: int | None = None, rows: int = 0) -> dict[str, Any]:
    """Counterfactuals of a row; or, without one, the probabilities of the first rows."""
    if row is None:
        return {"probabilities": model.predict(z[:rows]).astype(float).tolist()}
    counterfactuals: list[list[float]] = []
    error = ""
    started = time.process_time()
    try:
        best = explainer.explain(z[row : row + 1], target_class=[int(problem["target"])]).cf
        if best is not None:
            counterfactuals = [(best["X"][0].astype(np.float64) * scale + center).tolist()]
    except Exception as failure:  # whatever the library raises is part of the result
        error = f"{type(failure).__name__}: {failure}"
        print(error, file=sys.stderr, flush=True)
    return {"seconds": time.process_time() - started, "found": counterfactuals, "error": error}


serve(turn, "alibi", "tensorflow")
