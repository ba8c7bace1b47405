"""What gates cost: time to fit, to judge rows and to explain people, and memory; each size in a
fresh process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

import counterfactual_training as ct
from benchmarks.environments import Environments
from benchmarks.growth import reset_peak, resident
from benchmarks.report import Table, Value
from counterfactual_training.gates import KINDS
from counterfactual_training.models.classifiers import mlp
from counterfactual_training.tables.estimators.parameters import usual_batch_size

T = TypeVar("T")
ROWS = (1_000, 10_000, 100_000, 1_000_000)
FEATURES = (10, 100, 1_000)
EXPLAINED = 20
JUDGED = 10_000
# Rows that the network is trained on before anything is timed: any sensible classifier will do.
_TRAINED = 10_000
# More numbers than these take minutes: an epoch is timed once, and two gates are not fitted
# together as well.
_LARGE = 1e7
# What a process needs beside the rows, in bytes; sizes that leave less are skipped.
_SPARE = 3e9
COLUMNS = (
    "gate",
    "rows",
    "columns",
    "fit, s",
    "fit, epochs",
    "fit, MB",
    "judge 1,000 rows, ms",
    "judge, MB",
    "explain 20, s",
    "explain, gated / not",
)
NOTE = """
One thread, processor time; two classes of three Gaussian clusters each, the default network (64,
64, swish). *Fit*: `fit_gate` on all rows, in seconds and in epochs of conventional training of the
same network on the same rows (the default stops after some dozen, at most 100). *Judge*:
`plausibility` of {judged} rows at once, or all there are. *Explain*: `search` for {explained}
rows at τ = .5, beside the same search without the gate. *MB*: the most that was resident during the
call, less what was before; the rows themselves are not in it. Both gates cost what the two do;
above 10⁷ numbers they are not measured together. """


def run(_: Environments, quick: bool) -> tuple[list[Table], list[str]]:
    rows: list[tuple[Value, ...]] = []
    skipped = []
    for features in FEATURES[:1] if quick else FEATURES:
        for num in ROWS[:1] if quick else ROWS:
            if 4 * num * features + _SPARE > _available():
                skipped.append(
                    f"{num:,} × {features:,}: the rows do not fit into the memory of this machine."
                )
            else:
                rows += [tuple(line) for line in _in_child(num, features)]
    rows.sort(key=lambda line: KINDS.index(str(line[0])))
    note = NOTE.format(judged=f"{JUDGED:,}", explained=EXPLAINED)
    return [Table(COLUMNS, rows, note=note)], skipped


def _in_child(rows: int, features: int) -> list[list[Value]]:
    command = [sys.executable, "-m", "benchmarks.gates", str(rows), str(features)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise RuntimeError(
            f"{rows} × {features}: {(done.stderr.strip().splitlines() or ['killed'])[-1]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def measure(rows: int, features: int) -> list[list[Value]]:
    """A line of the table for each kind of gate."""
    torch.set_num_threads(1)
    _lines(*_data(200, features))  # what first use loads
    return _lines(*_data(rows, features))


def _lines(x: torch.Tensor, y: torch.Tensor) -> list[list[Value]]:
    torch.manual_seed(0)
    model = mlp(x.shape[1], 2, (64, 64), "swish", squash=True)
    batch = usual_batch_size(len(x))

    def train(epochs: int, rows: int) -> None:
        method = ct.methods.conventional(epochs=epochs, batch_size=batch, shuffle=True)
        ct.train(model, x[:rows], y[:rows], method, progress=False)

    train(5, _TRAINED)
    large = x.numel() > _LARGE
    epoch = min(_taken(partial(train, 1, len(x)))[1] for _ in range(1 if large else 2))
    model.eval()
    rules = ct.Constraints.infer(x[:_TRAINED])
    generator = ct.line(decision_threshold=0.5)
    who = x[:EXPLAINED].clone()
    target = 1 - model(who).argmax(-1)
    alone = partial(ct.search, model, who, target, generator, rules, diagnose=False)
    plain = min(_taken(alone)[1] for _ in range(3))
    lines: list[list[Value]] = []
    for kind in KINDS[:-1] if large else KINDS:
        gated, fit, fit_bytes = _taken(
            partial(ct.fit_gate, model, x, y, kind, constraints=rules)
        )
        _, judge, judge_bytes = _taken(partial(gated.plausibility, x[:JUDGED]))
        led = partial(ct.search, gated, who, target, generator, rules, diagnose=False)
        explain = min(_taken(led)[1] for _ in range(3))
        line: list[Value] = [kind, len(x), x.shape[1], fit, fit / epoch, fit_bytes / 1e6]
        lines.append(
            [*line, 1e6 * judge / len(x[:JUDGED]), judge_bytes / 1e6, explain, explain / plain]
        )
    return lines


def _taken(call: Callable[[], T]) -> tuple[T, float, int]:
    """What a call returns, its seconds of processor time, and the bytes it took beyond what was
    there before.
    """
    before = reset_peak()
    started = time.process_time()
    out = call()
    return out, time.process_time() - started, max(0, resident("VmHWM") - before)


def _data(rows: int, features: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    centres = torch.randn(6, features, generator=rng)
    cluster = torch.randint(6, (rows,), generator=rng)
    x = torch.randn(rows, features, generator=rng)
    # In place: nothing twice.
    for cluster_part, some in zip(cluster.split(10_000), x.split(10_000), strict=True):
        some += centres[cluster_part]
    return x, cluster % 2


def _available() -> float:
    path = Path("/proc/meminfo")
    if path.exists():
        lines = path.read_text(encoding="ascii").splitlines()
    else:
        lines = []
    return next(
        (1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")),
        float("inf"),
    )


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
