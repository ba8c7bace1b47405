"""One model, by the version before and by this one: CT as published, and conventional training
beside a plain loop.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import counterfactual_training as ct
from benchmarks.environments import Environments, training_turns
from benchmarks.foreign.api import layers_of
from benchmarks.report import Table, Value
from counterfactual_training.errors import CounterfactualTrainingError

DATA = {"Moon": 18, "Adult": 5}  # epochs before the first that counts
CT_COLUMNS = ("data", "before, ms", "after, ms", "before / after", "weights differ by")
CT_NOTE = """
An epoch of CT by `train`, one thread, with the paper's settings for the data set: MLP with 32
hidden units, λ, τ, batches and counterfactuals as published; *own module*: the same layers in a
class of one's own. Before is version 0.1. Both versions train from the start and
take turns, an epoch each; the quickest counts, of those from epoch {starts}. The last column: the
largest difference between any two weights at the end. """
PLAIN_COLUMNS = (
    "network",
    "rows, batch",
    "plain loop, ms",
    "before, ms",
    "after, ms",
    "before / plain",
    "after / plain",
    "weights differ by",
)
PLAIN_NOTE = """
An epoch of conventional training by `train` beside the eager loop that everybody writes (zero_grad,
cross-entropy, backward, step of the fused Adam; no checks, no records): same weights at the start,
same batches, one thread, turns of an epoch each. The last column: the largest difference between a
weight by `train`, after, and by the plain loop at the end. """
Chain = tuple[int, tuple[int, ...], int, int]  # features, hidden widths, rows, batch size
# The paper's synthetic and tabular settings, and a deeper network.
CHAINS: tuple[Chain, ...] = (
    (2, (32,), 3000, 30),
    (30, (32,), 15_000, 1000),
    (20, (64, 64), 3000, 64),
)

Jobs = dict[str, tuple[str, dict[str, Any]]]


def run(places: Environments, quick: bool) -> tuple[list[Table], list[str]]:
    if "before" in places.sources():
        skipped = []
    else:
        skipped = [places.no_before()]
    starts = " (Moon) and ".join(str(warm + 2) for warm in DATA.values()) + " (Adult) on"
    published = [
        row
        for data in DATA
        for own_module in (False, True)
        for row in _published(places, data, own_module, quick, skipped)
    ]
    with tempfile.TemporaryDirectory() as folder:
        plain = [
            _beside_plain(places, Path(folder), chain, quick)
            for chain in CHAINS[: 1 if quick else None]
        ]
    return [
        Table(CT_COLUMNS, published, "CT as published", CT_NOTE.format(starts=starts)),
        Table(PLAIN_COLUMNS, plain, "Conventional training", PLAIN_NOTE),
    ], skipped


def _published(
    places: Environments, data: str, own_module: bool, quick: bool, skipped: list[str]
) -> list[tuple[Value, ...]]:
    """The row of a data set; none where its files are missing."""
    try:
        if data != "Moon" and "CT_DATA_HOME" not in os.environ:
            raise CounterfactualTrainingError("CT_DATA_HOME names no folder of data sets")
        ct.load_dataset(data, "as_run", allow_download=False)
    except CounterfactualTrainingError as error:
        skipped.append(f"{data}: {error}")
        return []
    if quick:
        warm = 1
        rounds = 1
    else:
        warm = DATA[data]
        rounds = 14
    epochs = warm + rounds + 1
    job = {
        "training": "published",
        "data": data,
        "own": own_module,
        "warm": warm,
        "epochs": epochs,
    }
    seconds, weights, _ = training_turns(
        places, {name: (name, job) for name in places.sources()}, {}, rounds
    )
    before, after = (1e3 * seconds.get(name, float("nan")) for name in ("before", "after"))
    name = f"{data}, own module" if own_module else data
    return [
        (name, before, after, f"{before / after:.2f}", _difference(weights, "before", "after"))
    ]


def _beside_plain(
    places: Environments, folder: Path, chain: Chain, quick: bool
) -> tuple[Value, ...]:
    features, hidden, num, batch = chain
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(num, features, generator=rng)
    y = (x[:, :5].sum(-1) + 0.5 * torch.randn(num, generator=rng) > 0).long()
    torch.manual_seed(0)
    layers = {
        name: values[0] for name, values in layers_of([ct.mlp(features, 2, hidden)]).items()
    }
    file = folder / "problem.npz"
    np.savez(file, x=x.numpy(), y=y.numpy(), **layers)
    if quick:
        warm = 1
        rounds = 1
    else:
        warm = 3
        rounds = 24
    job = {"file": str(file), "batch_size": batch, "warm": warm, "epochs": warm + rounds + 1}
    jobs: Jobs = {
        name: (name, {**job, "training": "conventional"}) for name in places.sources()
    }
    jobs["plain"] = ("after", {**job, "training": "plain"})
    seconds, weights, _ = training_turns(places, jobs, {}, rounds)
    plain, before, after = (
        1e3 * seconds.get(name, float("nan")) for name in ("plain", "before", "after")
    )
    name = "-".join(map(str, (features, *hidden, 2)))
    ratios = (f"{before / plain:.2f}", f"{after / plain:.2f}")
    return (
        name,
        f"{num:,}, {batch}",
        plain,
        before,
        after,
        *ratios,
        _difference(weights, "plain", "after"),
    )


def _difference(weights: dict[str, list[float]], one: str, other: str) -> Value:
    if one not in weights or other not in weights:
        return ""
    return float(np.abs(np.subtract(weights[one], weights[other])).max())
