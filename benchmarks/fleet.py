"""A fleet by the version before and by this one, beside the same fleet compiled by JAX; one thread
each.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import counterfactual_training as ct
from benchmarks.environments import Environments, Libraries, Peer, Turns, training_turns
from benchmarks.foreign import api
from benchmarks.report import Table, Value
from counterfactual_training.datasets.synthetic import moons

ROWS = 3000
HIDDEN = 32
MIDDLE = 18
EPOCHS = 40
COLUMNS = (
    "what",
    "members",
    "before",
    "after",
    "before / after",
    "before, MB",
    "after, MB",
    "JAX fleet",
    "before / JAX",
    "after / JAX",
)
NOTE = f"""
MLP 2-{HIDDEN}-2 on {ROWS:,} rows of Moon; times per member. Members differ in seed, λ_div,
λ_reg, λ_cost and λ_energy. Before (version 0.1) and after: `ct.Fleet(...).train(...)`, each in
a plain process, one epoch a turn; the quickest turn counts; MB is the most memory of the
process. CT as published trains from the start for {EPOCHS} epochs, timed are those from
{MIDDLE + 2} on. All others start with the weights of its members after {MIDDLE} epochs. The JAX
fleet
(jax and optax in an environment of their own, bound to one core) does the same by one compiled
program per epoch; compiling is not counted. Its shapes are fixed, so only the epoch in which no
row ever arrives (τ = 1) is the same work for both. """


@dataclass(frozen=True)
class Kind:
    """What is timed: an epoch by these settings, told per unit."""

    name: str
    unit: str
    batch_size: int
    num_counterfactuals: int
    threshold: float

    @property
    def rows(self) -> int:
        """Whole batches only."""
        return ROWS // self.batch_size * self.batch_size

    def job(self, members: int, file: Path, warm: int) -> dict[str, Any]:
        """For ``foreign/ours.py``: so many members of the file, timed after so many epochs."""
        return {
            "training": "fleet",
            "file": str(file),
            "members": members,
            "batch_size": self.batch_size,
            "num_counterfactuals": self.num_counterfactuals,
            "threshold": self.threshold,
            "rows": self.rows,
            "epochs": EPOCHS,
            "warm": warm,
        }

    @property
    def per_epoch(self) -> float:
        """How many units an epoch has: microseconds per update, milliseconds per epoch."""
        if self.unit == "µs":
            return self.rows / self.batch_size / 1e6
        return 1e-3


PUBLISHED = Kind("one epoch of CT as published for Moon (τ = 0.9), ms", "ms", 30, 1000, 0.9)
KINDS = (
    # 57 rows: what one update of the paper's runs on the synthetic sets sees, 30 of the data and 27
    # counterfactuals.
    Kind("one update of conventional training, 57 rows, µs", "µs", 57, 0, 0.9),
    Kind(
        "one epoch of CT, 1,000 counterfactuals, 30 steps each (τ = 1), ms", "ms", 30, 1000, 1.0
    ),
    PUBLISHED,
)


def grid(num: int) -> dict[str, Any]:
    """So many members: their numbers, as in the paper's grids a few values of each, and their first
    weights.
    """
    values = [
        (div, reg, cost, energy)
        for div in (0.1, 0.5, 1.0)
        for reg in (0.1, 0.25, 0.5)
        for cost in (0.001, 0.01)
        for energy in (1.0, 5.0, 10.0)
    ]
    names = ("lambda_div", "lambda_reg", "lambda_cost", "lambda_energy")
    columns = zip(*(values[i % len(values)] for i in range(num)), strict=True)
    arrays = {
        name: np.array(column, dtype=np.float32)
        for name, column in zip(names, columns, strict=True)
    }
    models = []
    for seed in range(num):
        torch.manual_seed(seed)
        models.append(ct.mlp(2, 2, (HIDDEN,)))
    return {**arrays, "seed": np.arange(num), **api.layers_of(models)}


@dataclass(frozen=True)
class Problem:
    """Files of data, numbers and weights: at the start of CT, and in the middle of it."""

    start: Path
    middle: Path

    @classmethod
    def make(cls, folder: Path, num: int, epochs: int) -> Problem:
        x, y = moons(ROWS, torch.Generator().manual_seed(0))
        constraints = ct.Constraints.infer(x)
        arrays = {"x": x.numpy(), "y": y.numpy(), **grid(num)}
        domain = constraints.domain
        objective = ct.Objective()
        generator = ct.ecco()
        arrays |= {"lower": domain.lower.numpy(), "upper": domain.upper.numpy()}
        same = {
            "lambda_adv": objective.lambda_adv,
            "rate": generator.learning_rate,
            "epsilon": generator.epsilon,
        }
        arrays |= {name: np.full(num, value, dtype=np.float32) for name, value in same.items()}
        problem = cls(folder / "start.npz", folder / "middle.npz")
        np.savez(problem.start, **arrays)
        job = {**PUBLISHED.job(num, problem.start, 0), "epochs": epochs}
        models = [api.network(arrays, i) for i in range(num)]
        settings = [api.settings_of(arrays, i, job) for i in range(num)]
        api.train_fleet(
            [
                api.member(m, g, constraints, o, c)
                for m, (g, o, c) in zip(models, settings, strict=True)
            ],
            x,
            y,
        )
        np.savez(problem.middle, **{**arrays, **api.layers_of(models)})
        return problem


def run(places: Environments, quick: bool) -> tuple[list[Table], list[str]]:
    """All sizes of a fleet."""
    if quick:
        sizes = (2, 5)
        middle = 2
        rounds = 1
    else:
        sizes = (10, 50, 270)
        middle = MIDDLE
        rounds = 5
    if "before" in places.sources():
        skipped = []
    else:
        skipped = [places.no_before()]
    rows: list[tuple[Value, ...]] = []
    compiling: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        problem = Problem.make(Path(folder), max(sizes), middle)
        with _jax(places, problem, skipped) as jax:
            for kind in KINDS:
                for num in sizes:
                    if kind is PUBLISHED:
                        file = problem.start
                        warm = middle
                    else:
                        file = problem.middle
                        warm = 1
                    jobs = {
                        name: (name, kind.job(num, file, warm)) for name in places.sources()
                    }
                    others: Libraries = {}
                    if jax is not None:
                        others["jax"] = partial(_ask, jax, kind, num, compiling)
                    rows.append(_row(kind, num, training_turns(places, jobs, others, rounds)))
    return [Table(COLUMNS, rows, note=NOTE + _compiling(compiling))], skipped


def _row(kind: Kind, num: int, took: Turns) -> tuple[Value, ...]:
    each = {name: value / kind.per_epoch / num for name, value in took.seconds.items()}
    shown: list[Value] = [each.get(name, "") for name in ("before", "after")]
    ratios = [
        f"{each[one] / each[other]:.2f}" if one in each and other in each else ""
        for one, other in (("before", "after"), ("before", "jax"), ("after", "jax"))
    ]
    memory: list[Value] = [took.peaks.get(name, "") for name in ("before", "after")]
    return (kind.name, num, *shown, ratios[0], *memory, each.get("jax", ""), *ratios[1:])


def _ask(jax: Peer, kind: Kind, num: int, compiling: dict[str, float]) -> float:
    request = {
        "members": num,
        "batch": kind.batch_size,
        "num": kind.num_counterfactuals,
        "steps": ct.ecco().max_steps,
    }
    answer = jax.ask(**request, threshold=kind.threshold)
    compiling.setdefault(f"{num} {kind.num_counterfactuals}", answer["seconds"])
    return answer["seconds"]


def _compiling(seconds: dict[str, float]) -> str:
    if not seconds:
        return ""
    least = min(seconds.values())
    most = max(seconds.values())
    return (
        f" With compiling, its first epoch took {least:.1f} to {most:.1f} s for each number of "
        "members."
    )


@contextlib.contextmanager
def _jax(places: Environments, problem: Problem, skipped: list[str]) -> Iterator[Peer | None]:
    """The JAX fleet, given the same data, weights and settings; ``None`` where its environment is
    missing.
    """
    if places.python("jax") is None:
        skipped.append(f"JAX fleet: {places.missing('jax')}")
        yield None
        return
    with Peer.foreign(
        places, "jax", "jax_fleet.py", str(problem.middle), one_thread=True
    ) as peer:
        yield peer
