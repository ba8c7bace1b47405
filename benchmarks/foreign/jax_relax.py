"""jax-relax's VanillaCF, vmapped and compiled, on rows and weights of a problem file. Run in its
own environment.
"""

from __future__ import annotations

import functools
import sys
import time
from typing import Any

from turns import serve  # isort: skip  (before jax)

import jax
import jax.numpy as jnp
import numpy as np
from relax.methods import VanillaCF

problem = np.load(sys.argv[1])
weights = [
    (jnp.asarray(problem[f"w{i}"]), jnp.asarray(problem[f"b{i}"]))
    for i in range(int(problem["layers"]))
]


def probability(x: jax.Array) -> jax.Array:
    """P(y = 1), the interface the library asks for: ``(…, d)`` → ``(…, 1)``."""
    for weight, bias in weights[:-1]:
        x = jax.nn.relu(x @ weight.T + bias)
    weight, bias = weights[-1]
    return jax.nn.softmax(x @ weight.T + bias)[..., 1:]


@functools.cache
def program(steps: int, rate: float, hard: bool) -> Any:
    method = VanillaCF(config={"n_steps": steps, "lr": rate})
    # Its own target is the soft 1 − P(y = 1); a caller may also ask for class 1 outright.
    if hard:
        target = {"y_target": jnp.ones(1)}
    else:
        target = {}
    return jax.jit(
        jax.vmap(functools.partial(method.generate_cf, pred_fn=probability, **target))
    )


def turn(
    rows: int, steps: int, rate: float, hard: bool, out: str | None = None
) -> dict[str, Any]:
    x = jnp.asarray(problem["x"][:rows])
    run = program(steps, rate, hard)
    started = time.perf_counter()
    counterfactuals = run(x).block_until_ready()
    seconds = time.perf_counter() - started
    if out is not None:
        np.save(out, np.asarray(counterfactuals))
    return {"seconds": seconds}


serve(turn, "jax-relax", "jax")
