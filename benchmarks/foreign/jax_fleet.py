"""A compiled JAX fleet: the same networks, search, objective and Adam as ours, vmapped over
members.

Run in its own environment. One compiled program is a whole epoch: draws, search, and a scan over
the mini-batches. Shapes are fixed, so a row that has arrived stays where it is and goes on costing.
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from typing import Any

from turns import serve  # isort: skip  (before jax)

import jax
import jax.numpy as jnp
import numpy as np
import optax

problem = np.load(sys.argv[1])
x_all = jnp.asarray(problem["x"])
y_all = jnp.asarray(problem["y"])
lower = jnp.asarray(problem["lower"])
upper = jnp.asarray(problem["upper"])
rows_by_class = [jnp.flatnonzero(y_all == k) for k in (0, 1)]
adam = optax.adam(1e-3, eps=1e-8)
Tree = Any


def logits_of(weights: Tree, x: jax.Array) -> jax.Array:
    """One member: ``(n, d)`` → ``(n, k)``."""
    return jax.nn.relu(x @ weights["w0"].T + weights["b0"]) @ weights["w1"].T + weights["b1"]


def energy(logits: jax.Array, y: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(logits, y[:, None], 1)[:, 0]


def cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    return energy(jax.nn.log_softmax(logits), y)


def search(
    weights: Tree, x: jax.Array, target: jax.Array, knobs: Tree, steps: int
) -> tuple[jax.Array, ...]:
    """Eq. 1 by gradient descent for one member's rows: x′, x_adv and whether x′ reached τ."""
    b = round(steps / 25)
    phi = jnp.asarray([b / 10 * (b + t + 1) ** -0.9 for t in range(steps)])

    def loss(x_cf: jax.Array, decay: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = logits_of(weights, x_cf)
        e = energy(logits, target)
        distance = jnp.abs(x_cf - x).sum(-1)
        penalty = knobs["lambda_cost"] * distance + knobs["lambda_energy"] * decay * (
            e + 1e-3 * e**2
        )
        return (cross_entropy(logits, target) + penalty).sum(), logits

    def confident(logits: jax.Array) -> jax.Array:
        return -energy(jax.nn.softmax(logits), target) >= knobs["threshold"]

    def step(t: int, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        x_cf, x_adv = state
        grad, logits = jax.grad(loss, has_aux=True)(x_cf, phi[t])
        moved = jnp.clip(x_cf - knobs["rate"] * grad, lower, upper)
        x_cf = jnp.where(confident(logits)[:, None], x_cf, moved)
        nascent = jnp.abs(x_cf - x).max(-1, keepdims=True) <= knobs["epsilon"]
        return x_cf, jnp.where(nascent, x_cf, x_adv)

    x_cf, x_adv = jax.lax.fori_loop(0, steps, step, (x, x))
    return x_cf, x_adv, confident(logits_of(weights, x_cf))


def explain(weights: Tree, key: jax.Array, knobs: Tree, num: int, steps: int) -> Tree:
    """One member's counterfactuals of an epoch: draw, search, replace what did not mature."""
    to_rows, to_positives = jax.random.split(key)
    rows = jax.random.permutation(to_rows, len(x_all))[:num]
    x = x_all[rows]
    target = 1 - logits_of(weights, x).argmax(-1)
    x_cf, x_adv, mature = search(weights, x, target, knobs, steps)
    place = jax.random.uniform(to_positives, (num,))
    drawn = [part[(place * len(part)).astype(int)] for part in rows_by_class]
    x_pos = x_all[jnp.where(target == 0, drawn[0], drawn[1])]
    x_cf = jnp.where(mature[:, None], x_cf, x_pos)
    return {
        "x_cf": x_cf,
        "x_pos": x_pos,
        "x_adv": x_adv,
        "target": target,
        "y_adv": y_all[rows],
    }


def objective(
    weights: Tree, x: jax.Array, y: jax.Array, counterfactuals: Tree | None, knobs: Tree
) -> jax.Array:
    """Eq. 2 of one member and mini-batch, by one forward pass."""
    if counterfactuals is None:
        return cross_entropy(logits_of(weights, x), y).mean()
    m = len(counterfactuals["target"])
    logits = logits_of(
        weights,
        jnp.concatenate(
            [x, counterfactuals["x_pos"], counterfactuals["x_cf"], counterfactuals["x_adv"]]
        ),
    )
    real, pos, cf, adv = jnp.split(logits, [len(x), len(x) + m, len(x) + 2 * m])
    e_pos = energy(pos, counterfactuals["target"])
    e_cf = energy(cf, counterfactuals["target"])
    divergence = (e_pos - e_cf).mean()
    ridge = (e_pos**2 + e_cf**2).mean()
    terms = knobs["lambda_div"] * divergence + knobs["lambda_reg"] * ridge
    adversarial = cross_entropy(adv, counterfactuals["y_adv"]).mean()
    return cross_entropy(real, y).mean() + terms + knobs["lambda_adv"] * adversarial


@functools.partial(jax.jit, static_argnames=("batch", "num", "steps"), donate_argnums=(0, 1))
def epoch(
    weights: Tree, state: Tree, key: jax.Array, knobs: Tree, batch: int, num: int, steps: int
) -> Tree:
    """One epoch of all members: weights and knobs ``(M, …)``; ``num = 0`` is conventional
    training.
    """
    batches = len(x_all) // batch
    members = len(knobs["threshold"])
    x = x_all[: batches * batch].reshape(batches, batch, -1)
    y = y_all[: batches * batch].reshape(batches, batch)
    counterfactuals = None
    if num:
        keys = jax.random.split(key, members)
        counterfactuals = jax.vmap(functools.partial(explain, num=num, steps=steps))(
            weights, keys, knobs
        )
        share = num // batches
        counterfactuals = jax.tree.map(
            lambda v: jnp.moveaxis(
                v[:, : share * batches].reshape(members, batches, share, *v.shape[2:]), 1, 0
            ),
            counterfactuals,
        )

    def update(carry: Tree, this: Tree) -> tuple[Tree, None]:
        weights, state = carry
        x, y, counterfactuals = this
        per_member = jax.vmap(
            objective, in_axes=(0, None, None, None if counterfactuals is None else 0, 0)
        )
        grads = jax.grad(lambda w: per_member(w, x, y, counterfactuals, knobs).sum())(weights)
        updates, state = adam.update(grads, state)
        return (optax.apply_updates(weights, updates), state), None

    return jax.lax.scan(update, (weights, state), (x, y, counterfactuals))[0]


def start(members: int) -> Tree:
    weights = {name: jnp.array(problem[name][:members]) for name in ("w0", "b0", "w1", "b1")}
    return weights, adam.init(weights)


runs: dict[tuple[float, ...], Tree] = {}  # trainings under way, with the state of Adam
epochs = itertools.count()


def turn(members: int, batch: int, num: int, steps: int, threshold: float) -> dict[str, Any]:
    """One more epoch of this training; the first one of its kind is compiled."""
    run = (members, batch, num, threshold)
    weights, state = runs.pop(run, None) or start(members)
    names = (
        "lambda_div",
        "lambda_reg",
        "lambda_adv",
        "lambda_cost",
        "lambda_energy",
        "rate",
        "epsilon",
    )
    knobs = {name: jnp.array(problem[name][:members]) for name in names}
    knobs["threshold"] = jnp.full(members, threshold)
    jax.block_until_ready((weights, state, knobs))
    started = time.perf_counter()
    weights, state = epoch(
        weights, state, jax.random.key(next(epochs)), knobs, batch, num, steps
    )
    jax.block_until_ready(weights)
    seconds = time.perf_counter() - started
    runs[run] = (weights, state)
    return {"seconds": seconds}


serve(turn, "jax", "optax")
