"""A fleet beside its members trained one by one, and beside the same fleet compiled by JAX; one thread each."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import counterfactual_training as ct
from benchmarks.environments import Environments, Peer
from benchmarks.report import Table, Value
from benchmarks.timing import turns
from counterfactual_training.data.synthetic import moons
from counterfactual_training.training import Fleet, Member

ROWS, HIDDEN = 3000, 32
COLUMNS = ("what", "members", "lone", "fleet, per member", "lone / fleet", "JAX fleet, per member", "fleet / JAX")
NOTE = f"""
MLP 2-{HIDDEN}-2 on {ROWS:,} rows of Moon, trained conventionally for 20 epochs; timed is the second epoch after
that. Members differ in seed, λ_div, λ_reg, λ_cost and λ_energy. Lone: `train`, one model at a time. The JAX fleet
(jax and optax in an environment of their own, bound to one core) does the same by one compiled program per epoch;
compiling is not counted. Its shapes are fixed, so only the epoch in which no row ever arrives (τ = 1) is the same
work for both.
"""


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

    @property
    def per_epoch(self) -> float:
        """How many units an epoch has: microseconds per update, milliseconds per epoch."""
        return self.rows / self.batch_size / 1e6 if self.unit == "µs" else 1e-3


# 57 rows: what one update of the paper's runs on the synthetic sets sees, 30 of the data and 27 counterfactuals.
KINDS = (
    Kind("one update of conventional training, 57 rows, µs", "µs", 57, 0, 0.9),
    Kind("one epoch of CT, 1,000 counterfactuals, 30 steps each (τ = 1), ms", "ms", 30, 1000, 1.0),
    Kind("one epoch of CT as published for Moon (τ = 0.9), ms", "ms", 30, 1000, 0.9),
)


@dataclass(frozen=True)
class Numbers:
    """One member's numbers."""

    lambda_div: float
    lambda_reg: float
    lambda_cost: float
    lambda_energy: float
    seed: int

    def model(self) -> nn.Sequential:
        torch.manual_seed(self.seed)
        return ct.mlp(2, 2, (HIDDEN,))

    def setting(self, kind: Kind, constraints: ct.Constraints) -> ct.Setting:
        weights = {"lambda_div": self.lambda_div, "lambda_reg": self.lambda_reg}
        objective = ct.Objective(**weights) if kind.num_counterfactuals else ct.make_objective("vanilla")
        num = max(kind.num_counterfactuals, 1)
        generator = ct.ecco(self.lambda_cost, self.lambda_energy, decision_threshold=kind.threshold)
        config = ct.TrainConfig(2, kind.batch_size, num_counterfactuals=num, seed=self.seed, threads=1)
        return ct.Setting(generator, constraints, objective, config)


def settings(num: int) -> list[Numbers]:
    """As in the paper's grids: a few values of each weight."""
    grid = [
        Numbers(div, reg, cost, energy, 0)
        for div in (0.1, 0.5, 1.0)
        for reg in (0.1, 0.25, 0.5)
        for cost in (0.001, 0.01)
        for energy in (1.0, 5.0, 10.0)
    ]
    return [Numbers(**{**vars(grid[i % len(grid)]), "seed": i}) for i in range(num)]


class Clock(ct.Callback):
    """Reads the time after every epoch."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_epoch_end(self, run: object) -> None:
        self.times.append(time.perf_counter())

    @property
    def second_epoch(self) -> float:
        return self.times[1] - self.times[0]


class Problem(NamedTuple):
    """Data, and models halfway through training: those at the start find no counterfactual at all."""

    x: Tensor
    y: Tensor
    constraints: ct.Constraints
    models: list[nn.Sequential]

    @classmethod
    def make(cls, num: int, epochs: int) -> Problem:
        x, y = moons(ROWS, torch.Generator().manual_seed(0))
        constraints = ct.Constraints.infer(x)
        models = [numbers.model() for numbers in settings(num)]
        config = ct.TrainConfig(epochs, batch_size=30, threads=1)
        setting = ct.Setting(constraints=constraints, config=config).conventional()
        Fleet([Member(model, setting) for model in models]).train(x, y, progress=False)
        return cls(x, y, constraints, models)

    def rows(self, kind: Kind) -> tuple[Tensor, Tensor]:
        return self.x[: kind.rows], self.y[: kind.rows]


def lone(kind: Kind, problem: Problem) -> float:
    """Seconds of the second epoch of one model."""
    clock = Clock()
    given = settings(1)[0].setting(kind, problem.constraints)
    ct.train(deepcopy(problem.models[0]), *problem.rows(kind), setting=given, callbacks=[clock], progress=False)
    return clock.second_epoch


def fleet(kind: Kind, num: int, problem: Problem) -> float:
    """Seconds of the second epoch of M models, all together."""
    clock = Clock()
    pairs = zip(problem.models, settings(num), strict=False)
    members = [Member(deepcopy(m), s.setting(kind, problem.constraints)) for m, s in pairs]
    Fleet(members).train(*problem.rows(kind), on_epoch=clock.on_epoch_end, progress=False)
    return clock.second_epoch


def run(places: Environments, quick: bool) -> tuple[list[Table], list[str]]:
    """All sizes of a fleet, each beside a lone model in turns."""
    sizes = (1, 5) if quick else (1, 10, 50, 270)
    problem = Problem.make(max(sizes), 5 if quick else 20)
    rows: list[tuple[Value, ...]] = []
    skipped: list[str] = []
    compiling: dict[str, float] = {}
    with _jax(places, problem, skipped) as jax:
        for kind in KINDS:
            for num in sizes:
                contestants: dict[str, Callable[[], float]] = {"lone": partial(lone, kind, problem)}
                contestants["fleet"] = partial(fleet, kind, num, problem)
                if jax is not None:
                    contestants["jax"] = partial(_ask, jax, kind, num, compiling)
                rows.append(_row(kind, num, turns(contestants, 1 if quick else 4)))
    table = Table(COLUMNS, rows, note=NOTE + _compiling(compiling))
    return [table], skipped


def _row(kind: Kind, num: int, seconds: dict[str, float]) -> tuple[Value, ...]:
    alone, together = seconds["lone"] / kind.per_epoch, seconds["fleet"] / kind.per_epoch / num
    row: tuple[Value, ...] = (kind.name, num, alone, together, f"{alone / together:.1f}")
    if "jax" not in seconds:
        return (*row, "", "")
    compiled = seconds["jax"] / kind.per_epoch / num
    return (*row, compiled, f"{together / compiled:.2f}")


def _ask(jax: Peer, kind: Kind, num: int, compiling: dict[str, float]) -> float:
    request = {"members": num, "batch": kind.batch_size, "num": kind.num_counterfactuals, "steps": ct.ecco().max_steps}
    answer = jax.ask(**request, threshold=kind.threshold)
    compiling.setdefault(f"{num} {kind.num_counterfactuals}", answer["first"] - answer["seconds"])
    return answer["seconds"]


def _compiling(seconds: dict[str, float]) -> str:
    if not seconds:
        return ""
    return (
        f" Compiling took it {min(seconds.values()):.1f} to {max(seconds.values()):.1f} s for each number of members."
    )


@contextlib.contextmanager
def _jax(places: Environments, problem: Problem, skipped: list[str]) -> Iterator[Peer | None]:
    """The JAX fleet, given the same data, weights and settings; ``None`` where its environment is missing."""
    if places.python("jax") is None:
        skipped.append(f"JAX fleet: {places.missing('jax')}")
        yield None
        return
    domain = problem.constraints.domain
    layers = [[layer for layer in model if isinstance(layer, nn.Linear)] for model in problem.models]
    arrays = {"x": problem.x.numpy(), "y": problem.y.numpy()}
    arrays |= {"lower": domain.lower.numpy(), "upper": domain.upper.numpy()}
    for i in (0, 1):
        arrays[f"w{i}"] = np.stack([pair[i].weight.detach().numpy() for pair in layers])
        arrays[f"b{i}"] = np.stack([pair[i].bias.detach().numpy() for pair in layers])
    numbers = [{**vars(s), "lambda_adv": ct.Objective().lambda_adv} for s in settings(len(layers))]
    numbers = [{**n, "rate": ct.ecco().learning_rate, "epsilon": ct.ecco().epsilon} for n in numbers]
    for name in numbers[0]:
        arrays[name] = np.array([n[name] for n in numbers], dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.npz"
        np.savez(file, **arrays)
        with Peer(places, "jax", "jax_fleet.py", str(file), one_thread=True) as peer:
            yield peer
