"""An epoch of every method beside one of conventional training, and how it grows with rows
and features.

Where a method has a number of gradient steps, it may take as many of them as CT: counterfactuals ×
    T = rows × K.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import counterfactual_training as ct
from benchmarks.environments import Environments
from benchmarks.report import Table, Value
from benchmarks.timing import timed
from counterfactual_training.errors import CounterfactualTrainingError
from counterfactual_training.training.methods import METHODS_WITH_NETWORK
from counterfactual_training.training.registry import SEVERAL, method_names, of_one_network

BASE = "conventional"
ALL_STEPS = "ct, all steps"
LOOP = "conventional, plain loop"
COLUMNS = (
    "method",
    "ms per epoch",
    "beside conventional",
    "input gradients per row",
    "µs per gradient of a row",
)
GROWTH = ("method", "rows: ms per epoch", "grows as", "features: ms per epoch", "grows as")
NOTE = """
One thread; every method by `train`, from the same network, trained conventionally for five epochs;
the second epoch of two counts, without burn-in or warm-up. *Input gradients*: of one row by the
network's input, taken to find counterfactuals, attacks or samples, counted in a run of its own and
divided by the training rows; the last column divides the time by their number plus one by the
weights for every row. K is the methods' `steps` where they have it; the others take as many as they
do: `cat` and `misob` search the rows that they choose, `dat` takes up to 40 more for samples once
these are told from real rows; `counternet` has a network of its own, `ensemble` is five networks.
`ct` lets rows go that have arrived, many at a time; *all steps* forbids that (τ = 1). *Plain loop*:
conventional training by the eager loop everybody writes, without checks or records. """
GROWTH_NOTE = """
The same at other sizes, with K = 10 and T = 30 for a third of the rows; *grows as*: the exponent
from the first size to the last; 1 is proportional. """


@dataclass(frozen=True)
class Size:
    rows: int
    features: int
    batch_size: int
    num_counterfactuals: int
    max_steps: int = 30

    @property
    def steps_per_row(self) -> int:
        """K, such that rows · K = counterfactuals · T."""
        return self.num_counterfactuals * self.max_steps // self.rows

    def describe(self) -> str:
        return (
            f"{self.rows:,} rows × {self.features}, batch {self.batch_size}; CT: "
            f"{self.num_counterfactuals:,} "
            f"counterfactuals, T = {self.max_steps}; the others: K = {self.steps_per_row}"
        )


# The paper's synthetic and tabular settings.
SIZES = (
    Size(3000, 2, 30, 1000),
    Size(15_000, 30, 1000, 5000),
)
QUICK = (Size(300, 2, 30, 100),)
ROWS = tuple(Size(rows, 20, 1000, rows // 3) for rows in (3000, 30_000))
FEATURES = tuple(Size(3000, features, 1000, 1000) for features in (20, 200))


def run(_: Environments, quick: bool) -> tuple[list[Table], list[str]]:
    skipped: dict[str, str] = {}
    tables = [measure(size, 1 if quick else 3, skipped) for size in (QUICK if quick else SIZES)]
    tables[0] = replace(tables[0], note=NOTE)
    if not quick:
        tables.append(growth(skipped))
    return tables, [f"{name}: {reason}" for name, reason in skipped.items()]


@dataclass(frozen=True)
class Problem:
    """Rows, and a network that has seen them for five epochs."""

    size: Size
    x: Tensor
    y: Tensor
    model: nn.Module

    @classmethod
    def make(cls, size: Size) -> Problem:
        rng = torch.Generator().manual_seed(0)
        x = torch.randn(size.rows, size.features, generator=rng)
        y = (
            x[:, : min(5, size.features)].sum(-1) + 0.5 * torch.randn(size.rows, generator=rng)
            > 0
        ).long()
        torch.manual_seed(0)
        model = ct.mlp(size.features, 2)
        start = ct.methods.conventional(epochs=5, batch_size=size.batch_size)
        ct.train(model, x, y, start, progress=False)
        return cls(size, x, y, model)

    def method(self, name: str) -> ct.Method:
        """A method with as many input gradients as CT, where it can be told."""
        method = ct.make_method(name.removesuffix(", all steps"))
        budget = {"steps": self.size.steps_per_row, "warm_up": 0}
        settings: dict[str, Any] = {
            name_of_number: value
            for name_of_number, value in budget.items()
            if name_of_number in method.numbers
        }
        settings |= {
            "epochs": 2,
            "batch_size": self.size.batch_size,
            "burn_in": 0.0,
            "threads": 1,
            "num_counterfactuals": self.size.num_counterfactuals,
            "generator.max_steps": self.size.max_steps,
        }
        if name == ALL_STEPS:
            settings["generator.decision_threshold"] = 1.0
        return method.replace(settings)

    def network(self, name: str) -> nn.Module:
        """A copy of the network, or what the method trains instead."""
        if name in METHODS_WITH_NETWORK:
            torch.manual_seed(0)
            return ct.counternet(self.size.features)
        if name in SEVERAL:
            return ct.Ensemble([deepcopy(self.model) for _ in range(SEVERAL[name]["members"])])
        return deepcopy(self.model)

    def seconds(self, name: str) -> float:
        """Of an epoch."""
        if name == LOOP:
            return timed(partial(plain_epoch, self.model, self.x, self.y, self.size.batch_size))
        method = self.method(name)
        result = ct.train(self.network(name), self.x, self.y, method, progress=False)
        # A member's history has its share of the fleet's time.
        return float(result.history.records[-1]["seconds"]) * method.members

    def input_gradients(self, name: str) -> float:
        """Of an epoch, per training row."""
        if name in (LOOP, *SEVERAL, *METHODS_WITH_NETWORK):  # these take none
            return 0.0
        counting = Counting(deepcopy(self.model))
        # Each member takes as many.
        one = of_one_network(self.method(name))
        ct.train(counting, self.x, self.y, one, progress=False)
        return counting.rows / self.size.rows / 2  # two epochs

    def race(self, rounds: int, skipped: dict[str, str]) -> dict[str, float]:
        """Seconds of each method's quickest epoch, in turns; methods that cannot train this network
        are skipped.
        """
        best: dict[str, float] = {}
        for name in (BASE, LOOP, ALL_STEPS, *(name for name in method_names() if name != BASE)):
            try:
                self.seconds(name)  # to warm up
            except CounterfactualTrainingError as reason:
                skipped[name] = str(reason)
            else:
                best[name] = float("inf")
        for _ in range(rounds):
            for name in best:
                best[name] = min(best[name], self.seconds(name))
        return best


class Counting(nn.Module):
    """A model that counts rows whose input it is differentiated by."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.rows = 0

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            self.rows += x.shape[:-1].numel()
        return self.model(x)


def measure(size: Size, rounds: int, skipped: dict[str, str]) -> Table:
    """One table: all methods in turns, an epoch each."""
    problem = Problem.make(size)
    seconds = problem.race(rounds, skipped)
    rows: list[tuple[Value, ...]] = []
    for name in seconds:
        taken = problem.input_gradients(name)
        per_gradient = 1e6 * seconds[name] / size.rows / (1 + taken)
        ratio = f"{seconds[name] / seconds[BASE]:.1f}×"
        rows.append((name, 1e3 * seconds[name], ratio, f"{taken:.1f}", per_gradient))
    return Table(COLUMNS, rows, size.describe())


def growth(skipped: dict[str, str]) -> Table:
    """All methods at the ends of two axes."""
    cells: dict[str, list[Value]] = {}
    for axis, field in ((ROWS, "rows"), (FEATURES, "features")):
        ends = [Problem.make(size).race(1, skipped) for size in axis]
        factor = log(getattr(axis[-1], field) / getattr(axis[0], field))
        for name in ends[0]:
            low, high = (end[name] for end in (ends[0], ends[-1]))
            change = f"{1e3 * low:.0f} → {1e3 * high:.0f}"
            cells.setdefault(name, [name]).extend([change, f"{log(high / low) / factor:.2f}"])
    ranges = [
        f"{getattr(a[0], f):,} → {getattr(a[-1], f):,} {f}"
        for a, f in ((ROWS, "rows"), (FEATURES, "features"))
    ]
    title = (
        f"Growth: {ranges[0]} (× {ROWS[0].features}), {ranges[1]} ({FEATURES[0].rows:,} rows); "
        "batch 1,000"
    )
    return Table(GROWTH, [tuple(row) for row in cells.values()], title, GROWTH_NOTE)


def plain_epoch(model: nn.Module, x: Tensor, y: Tensor, batch_size: int) -> None:
    """One epoch by the loop everybody writes."""
    model = deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for x_batch, y_batch in zip(x.split(batch_size), y.split(batch_size), strict=True):
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(model(x_batch), y_batch).backward()
        optimizer.step()
