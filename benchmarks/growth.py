"""How time and memory grow with rows, features, classes, counterfactuals and members; each point in
a fresh process.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import counterfactual_training as ct
from benchmarks.environments import Environments
from benchmarks.fleet import grid
from benchmarks.foreign import api
from benchmarks.report import Table, Value
from benchmarks.timing import timed

COLUMNS = ("axis", "value", "seconds", "time grows as", "peak memory, MB", "memory grows as")
NOTE = """
One thread, all else as by default: MLP with 32 hidden units; *search*: 30 steps, none arriving (τ =
1), 10,000 rows × 20 features × 2 classes but for the axis; *training*: one epoch of CT, 3,000 rows
× 20, batch 100, 1,000 counterfactuals but for the axis; *fleet*: one epoch of CT of so many members
on the same data × 2 features. Memory: the most that was resident during the call, less what was
before. *Grows as*: the exponent between a row and the one above it; 1 is proportional. """

AXES: dict[str, tuple[int, ...]] = {
    "search: rows": (1_000, 10_000, 100_000),
    "search: features": (10, 100, 1_000),
    "search: classes": (2, 10, 100),
    "training: rows": (1_000, 10_000, 100_000),
    "training: features": (10, 100, 1_000),
    "training: classes": (2, 10, 100),
    "training: counterfactuals": (100, 1_000, 10_000),
    "fleet: members": (10, 50, 250),
}


def run(_: Environments, quick: bool) -> tuple[list[Table], list[str]]:
    rows: list[tuple[Value, ...]] = []
    if quick:
        axes = {axis: AXES[axis][:2] for axis in ("search: rows", "fleet: members")}
    else:
        axes = AXES
    for axis, values in axes.items():
        before: dict[str, float] | None = None
        for value in values:
            now = _in_child(axis, value)
            if before is None:
                grows = ["", ""]
            else:
                grows = [_exponent(before, now, name) for name in ("seconds", "bytes")]
            rows.append((axis, value, now["seconds"], grows[0], now["bytes"] / 1e6, grows[1]))
            before = now
    return [Table(COLUMNS, rows, note=NOTE)], []


def _exponent(before: dict[str, float], now: dict[str, float], name: str) -> str:
    if min(before[name], now[name]) <= 0:
        return ""
    return (
        f"{math.log(now[name] / before[name]) / math.log(now['value'] / before['value']):.2f}"
    )


def _in_child(axis: str, value: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.growth", axis, str(value)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise RuntimeError(f"{axis} {value}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(axis: str, value: int) -> dict[str, float]:
    """Seconds of the quickest of three calls, and the bytes that the first took beyond what was
    there before.
    """
    torch.set_num_threads(1)
    what, name = axis.split(": ")
    call = CALLS[what]
    call(
        **({"members": 2} if what == "fleet" else {"rows": 200, "counterfactuals": 50})
    )()  # what first use loads
    run = call(**{name: value})
    before = reset_peak()
    seconds = [timed(run)]
    taken = max(0, resident("VmHWM") - before)
    seconds += [timed(run) for _ in range(2)]
    return {"value": value, "seconds": min(seconds), "bytes": taken}


def _data(rows: int, features: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(rows, features, generator=rng)
    return x, torch.arange(rows) % classes


def search(
    rows: int = 10_000, features: int = 20, classes: int = 2, **_: Any
) -> Callable[[], object]:
    x, _labels = _data(rows, features, classes)
    model = ct.mlp(features, classes)
    constraints = ct.Constraints.infer(x)
    generator = ct.ecco(decision_threshold=1.0)
    y_target = (model(x[:1000]).argmax(-1).repeat(rows // 1000 + 1)[:rows] + 1) % classes
    return lambda: ct.search(model, x, y_target, generator, constraints, diagnose=False)


def training(
    rows: int = 3_000, features: int = 20, classes: int = 2, counterfactuals: int = 1_000
) -> Callable[[], object]:
    x, y = _data(rows, features, classes)
    method = ct.methods.ct_published(
        epochs=1, batch_size=100, num_counterfactuals=counterfactuals, decision_threshold=1.0
    )
    constraints = ct.Constraints.infer(x)
    model = ct.mlp(features, classes)
    return lambda: ct.train(model, x, y, method, constraints, progress=False)


def fleet(members: int) -> Callable[[], object]:
    x, y = _data(3_000, 2, 2)
    method = ct.methods.ct_published(
        epochs=1, batch_size=100, num_counterfactuals=1_000, decision_threshold=1.0
    )
    constraints = ct.Constraints.infer(x)
    arrays = grid(members)
    models = [api.network(arrays, i) for i in range(members)]
    ships = [ct.Member(model, replace(method, constraints=constraints)) for model in models]
    return lambda: ct.Fleet(ships).train(x, y, progress=False)


CALLS: dict[str, Callable[..., Callable[[], object]]] = {
    "search": search,
    "training": training,
    "fleet": fleet,
}


def reset_peak() -> int:
    """Give back what is free and forget the peak so far; bytes resident now."""
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    reset = Path("/proc/self/clear_refs")
    if os.access(reset, os.W_OK):
        reset.write_text("5", encoding="ascii")
    return resident("VmRSS")


def resident(name: str) -> int:
    """Bytes that the kernel tells of this process; 0 where it tells nothing."""
    path = Path("/proc/self/status")
    if path.exists():
        lines = path.read_text(encoding="ascii").splitlines()
    else:
        lines = []
    return next(
        (1024 * int(line.split()[1]) for line in lines if line.startswith(name + ":")), 0
    )


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
