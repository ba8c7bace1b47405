"""What measuring a model costs beside training it, and the memory of IP* on large samples."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace

import torch

import counterfactual_training as ct
from benchmarks.environments import Environments
from benchmarks.report import Table, Value
from counterfactual_lab.grids.settings import published
from counterfactual_lab.networks import fit_model, untrained
from counterfactual_lab.paper_data import TABULAR
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.errors import CounterfactualTrainingError
from counterfactual_training.evaluation.counterfactuals import aggregate, counterfactual_table
from counterfactual_training.evaluation.plausibility import implausibility_mmd
from counterfactual_training.evaluation.protocol import PUBLISHED

COLUMNS = ("data", "rows × columns", "CT training, s", "evaluation, s", "evaluation / training")
NOTE = """
One thread, processor time. *Training*: 100 epochs of CT with the published settings. *Evaluation*:
the published protocol, 100 runs × 5 λ_egy × 100 individuals, every metric of a counterfactual. The
aim is a ratio of at most 1. """
MEMORY_NOTE = (
    "Peak resident memory of a process of its own, in all and beyond what it held before. The "
    "aim is under 2 GB."
)
MEMORY_ROWS, MEMORY_SAMPLES, MEMORY_FEATURES = 10_000, 150_000, 10  # all of Give Me Some Credit


def run(_: Environments, quick: bool) -> tuple[list[Table], list[str]]:
    data, skipped = _tabular(quick)
    rows = [_against_training(one, quick) for one in data]
    peak = _mmd_in_child(quick)
    memory: tuple[Value, ...] = (
        peak["what"],
        peak["seconds"],
        peak["total"] / 1e9,
        peak["own"] / 1e9,
    )
    columns = ("what", "seconds", "GB in all", "GB beyond inputs")
    return [
        Table(COLUMNS, rows, "The published evaluation of one model beside its training", NOTE),
        Table(columns, [memory], "Memory of IP*", MEMORY_NOTE),
    ], skipped


def _against_training(data: Dataset, quick: bool) -> tuple[Value, ...]:
    method = replace(
        published("ct_published", data.settings), constraints=data.training_constraints
    )
    if quick:
        method = method.replace("epochs", 2)
    if quick:
        protocol = replace(PUBLISHED, num_runs=2)
    else:
        protocol = PUBLISHED
    model = untrained(data, 0)
    started = time.process_time()
    fit_model(model, data, method, progress=False)
    trained = time.process_time()
    aggregate(counterfactual_table(model, data, protocol))
    done = time.process_time()
    size = f"{len(data.y_train):,} × {data.num_features}"
    return (
        data.title,
        size,
        trained - started,
        done - trained,
        (done - trained) / (trained - started),
    )


def _tabular(quick: bool) -> tuple[list[Dataset], list[str]]:
    """The paper's tabular sets as far as they are at hand, else a synthetic one of that size."""
    datasets = []
    skipped = []
    for name in TABULAR[1:2] if quick else TABULAR:
        try:
            if "CT_DATA_HOME" not in os.environ:
                raise CounterfactualTrainingError("CT_DATA_HOME names no folder of data sets")
            datasets.append(ct.load_dataset(name, "as_run"))
        except CounterfactualTrainingError as error:
            skipped.append(f"{name}: {error}")
    return datasets or [_tabular_size()], skipped


def _tabular_size() -> Dataset:
    """Moon with noise features, as many rows and columns as California Housing."""
    data = ct.load_dataset("moons", "as_run")
    rng = torch.Generator().manual_seed(0)

    def enlarged(x: torch.Tensor, num: int) -> torch.Tensor:
        rows = x[torch.arange(num) % len(x)]
        return torch.cat([rows, torch.randn(num, 6, generator=rng)], 1)

    train = enlarged(data.x_train, 16_500)
    test = enlarged(data.x_test, 4_100)
    constraints = ct.Constraints.infer(train)
    return replace(
        data,
        title="Moon with six columns of noise",
        x_train=train,
        y_train=data.y_train[torch.arange(len(train)) % len(data.y_train)],
        x_test=test,
        y_test=data.y_test[torch.arange(len(test)) % len(data.y_test)],
        constraints=constraints,
        training_constraints=constraints,
        settings=replace(data.settings, batch_size=1000, num_counterfactuals=5000),
    )


def _mmd_in_child(quick: bool) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.evaluation", *(["--quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    return json.loads(done.stdout.splitlines()[-1])


def mmd_memory(quick: bool) -> dict[str, Value]:
    """IP* of many counterfactuals against all samples of a large data set, and the most memory that
    took.
    """
    torch.set_num_threads(1)
    if quick:
        share = 100
    else:
        share = 1
    x_cf = torch.randn(MEMORY_ROWS // share, MEMORY_FEATURES)
    x = torch.randn(MEMORY_SAMPLES // share, MEMORY_FEATURES) + 0.1
    before = _peak()
    started = time.process_time()
    implausibility_mmd(x_cf, x)
    seconds = time.process_time() - started
    what = f"IP* of {len(x_cf):,} against {len(x):,} rows × {MEMORY_FEATURES}"
    return {"what": what, "seconds": seconds, "total": _peak(), "own": _peak() - before}


def _peak() -> int:
    """Bytes; Linux counts in kilobytes, macOS in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


if __name__ == "__main__":
    print(json.dumps(mmd_memory("--quick" in sys.argv)))
