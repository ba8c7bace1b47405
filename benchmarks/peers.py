"""Counterfactuals per second beside the libraries a user would take instead: same weights, rows and
number of steps.

jax-relax's VanillaCF is the same algorithm, compiled: gradient descent on class loss plus distance,
all rows at once. It takes all steps for every row; our search lets go of rows that have arrived,
and is measured without that too. DiCE and alibi work row by row.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import make_classification
from torch import Tensor, nn

import counterfactual_training as ct
from benchmarks.environments import Environments, Libraries, Peer
from benchmarks.foreign.api import layers_of
from benchmarks.report import Table, Value
from benchmarks.timing import turns

FEATURES = 10
STEPS = 100
COLUMNS = (
    "network",
    "threads",
    "rows",
    "who",
    "valid per second",
    "valid",
    "mean L1 of the valid",
    "beside jax-relax",
)
RELAX = "jax-relax"
RELAX_HARD = "jax-relax, hard target"
RELAX_RATE = 0.05
OURS = {  # version, η, τ
    "ours": ("after", 0.1, 0.5),
    "ours, η = 0.5": ("after", 0.5, 0.5),
    "ours, every row all steps": ("after", 0.1, 1.0),
    "before, every row all steps": ("before", 0.1, 1.0),
}
# Hidden widths: numbers of rows.
NETWORKS = {
    (32, 32): (1, 256, 4096, 10_000),
    (256, 256): (1, 256, 4096),
}
NOTE = f"""
{STEPS} steps, `make_classification`, rows predicted 0 and wanted in 1. *Valid*: the network, in
torch, gives the counterfactual to class 1. Ours: Wachter's objective (`generic`, η = 0.1 where
nothing is said, τ = 0.5), no diagnosis; rows that have arrived are left alone. *Every row all
steps*: τ = 1, so that no row ever leaves; *before*: by the commit named above. jax-relax:
`VanillaCF` (RMSprop, rate {RELAX_RATE}), vmapped, compiled beforehand; *hard target*: asked for
class 1 instead of its own target 1 − P(y = 1). The last column divides by the better of these two.
One thread: the peer is bound to one core. Default: as many threads as each library takes by itself;
ours takes one where the work is small. DiCE (gradient, no search for sparsity afterwards) and alibi
(`Counterfactual`, λ adjusted once) take one row at a time and get a few rows only; their aims
differ (diversity, sparsity). """


class Problem(NamedTuple):
    """A trained network and rows that it gives to class 0, wanted in class 1."""

    name: str
    model: nn.Sequential
    x: Tensor
    file: Path

    def judge(self, x_cf: Tensor) -> tuple[float, float]:
        """Share of valid counterfactuals, and their mean L1 distance."""
        finite = torch.isfinite(x_cf).all(-1)
        with torch.no_grad():
            valid = finite & (self.model(x_cf.nan_to_num()).argmax(-1) == 1)
        distance = (x_cf - self.x[: len(x_cf)]).abs().sum(-1)[valid]
        return float(valid.float().mean()), float(distance.mean())


def make_problem(hidden: tuple[int, ...], rows: int, folder: Path) -> Problem:
    x, y = make_classification(3000 + 4 * rows, FEATURES, random_state=0)
    features = torch.tensor(x, dtype=torch.float32)
    classes = torch.tensor(y)
    torch.manual_seed(0)
    model = ct.mlp(FEATURES, 2, hidden)
    ct.train(
        model,
        features[:3000],
        classes[:3000],
        ct.methods.conventional(epochs=20, batch_size=100, shuffle=True),
        progress=False,
    )
    others = features[3000:]
    with torch.no_grad():
        x_0 = others[model(others).argmax(-1) == 0][:rows].contiguous()
    name = "-".join(map(str, (FEATURES, *hidden, 2)))
    arrays: dict[str, Any] = {
        "x": x_0.numpy(),
        "x_train": features[:3000].numpy(),
        "y_train": classes[:3000].numpy(),
    }
    arrays |= {key: values[0] for key, values in layers_of([model]).items()}
    np.savez(folder / f"{name}.npz", layers=len(hidden) + 1, **arrays)
    return Problem(name, model, x_0, folder / f"{name}.npz")


def run(places: Environments, quick: bool) -> tuple[list[Table], list[str]]:
    """All networks, numbers of threads and batch sizes."""
    if quick:
        networks = {(32, 32): (1, 64)}
    else:
        networks = NETWORKS
    rows: list[tuple[Value, ...]] = []
    skipped: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for hidden, sizes in networks.items():
            problem = make_problem(hidden, max(sizes), Path(folder))
            for threads in (1, None):
                with contextlib.ExitStack() as stack:
                    relax = stack.enter_context(
                        _peer(places, skipped, "relax", "jax_relax.py", problem, threads)
                    )
                    our_versions = {
                        version: stack.enter_context(_ours(places, version, problem, threads))
                        for version in places.sources()
                    }
                    for size in sizes:
                        if quick:
                            rounds = 2
                        elif size < 1000:
                            rounds = 9
                        else:
                            rounds = 4
                        rows += _beside_relax(
                            problem, size, threads, our_versions, relax, rounds
                        )
            rows += _row_by_row(places, problem, 2 if quick else 8, skipped)
    return [Table(COLUMNS, rows, note=NOTE)], list(dict.fromkeys(skipped))


def _beside_relax(
    problem: Problem,
    size: int,
    threads: int | None,
    our_versions: dict[str, Peer],
    relax: Peer | None,
    rounds: int,
) -> list[tuple[Value, ...]]:
    counterfactuals: dict[str, Tensor] = {}
    out = problem.file.with_name("found.npy")

    def ours(name: str) -> float:
        version, rate, threshold = OURS[name]
        request = {
            "rows": size,
            "steps": STEPS,
            "rate": rate,
            "threshold": threshold,
            "threads": threads,
        }
        answer = our_versions[version].ask(**request, out=str(out))
        counterfactuals[name] = torch.from_numpy(np.load(out))
        if threshold == 1 and answer["fewest_steps"] < STEPS:
            raise RuntimeError("A row stopped early: the comparison would flatter the search.")
        return answer["seconds"]

    def theirs(name: str, peer: Peer) -> float:
        request = {"rows": size, "steps": STEPS, "rate": RELAX_RATE, "hard": name == RELAX_HARD}
        seconds = peer.ask(**request, out=str(out))["seconds"]
        counterfactuals[name] = torch.from_numpy(np.load(out))
        return seconds

    libraries: Libraries = {
        name: partial(ours, name)
        for name, (version, *_) in OURS.items()
        if version in our_versions
    }
    if relax is not None:
        libraries |= {name: partial(theirs, name, relax) for name in (RELAX, RELAX_HARD)}
    seconds = turns(libraries, rounds)
    if threads == 1:
        shown = "1"
    else:
        shown = f"default of {num_cores()}"
    return _rows(
        problem, shown, {name: (seconds[name], counterfactuals[name]) for name in libraries}
    )


def _row_by_row(
    places: Environments, problem: Problem, size: int, skipped: list[str]
) -> list[tuple[Value, ...]]:
    """DiCE and alibi on a few rows, one thread; they take one row at a time, so more rows tell
    nothing more.
    """
    results = {}
    for name, environment, script in (
        ("DiCE, gradient", "dice", "dice.py"),
        ("alibi", "alibi", "alibi_wachter.py"),
    ):
        with _peer(places, skipped, environment, script, problem, 1) as peer:
            if peer is not None:
                out = problem.file.with_name("found.npy")
                peer.ask(rows=1, steps=STEPS)  # warm up
                seconds = peer.ask(rows=size, steps=STEPS, out=str(out))["seconds"]
                results[name] = (seconds, torch.from_numpy(np.load(out)))
    return _rows(problem, "1", results)


def _rows(
    problem: Problem, threads: str, results: dict[str, tuple[float, Tensor]]
) -> list[tuple[Value, ...]]:
    """Table rows of measured seconds and counterfactuals, by library."""
    rows: list[tuple[Value, ...]] = []
    speeds = {
        name: len(x_cf) * problem.judge(x_cf)[0] / seconds
        for name, (seconds, x_cf) in results.items()
    }
    best = max((speeds[name] for name in (RELAX, RELAX_HARD) if name in speeds), default=None)
    for name, (_, x_cf) in results.items():
        valid, distance = problem.judge(x_cf)
        if best:
            ratio = f"{speeds[name] / best:.2f}×"
        else:
            ratio = ""
        rows.append(
            (
                problem.name,
                threads,
                len(x_cf),
                name,
                speeds[name],
                f"{valid:.1%}",
                distance,
                ratio,
            )
        )
    return rows


@contextlib.contextmanager
def _peer(
    places: Environments,
    skipped: list[str],
    environment: str,
    script: str,
    problem: Problem,
    threads: int | None,
) -> Iterator[Peer | None]:
    """A running peer, or ``None`` where its environment is missing."""
    if places.python(environment) is None:
        skipped.append(f"{script}: {places.missing(environment)}")
        yield None
        return
    with Peer.foreign(
        places, environment, script, str(problem.file), one_thread=threads == 1
    ) as peer:
        yield peer


def _ours(places: Environments, version: str, problem: Problem, threads: int | None) -> Peer:
    return Peer.ours(
        places,
        version,
        "our_search.py",
        str(problem.file),
        name=version,
        one_thread=threads == 1,
    )


def num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
