"""The truth tables: methods compared by a protocol that depends on neither step size nor scale.

Rows are of three kinds that never mix: those that models fit (and validate on), the individuals who
are explained, and those that judges are fitted to. For *tuning* the last two are cut from the
training rows; the test rows are looked at only when asked for.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from counterfactual_lab.grids.file import load_grid
from counterfactual_lab.grids.grid_run import GridRun
from counterfactual_lab.networks import untrained
from counterfactual_lab.paper_data import (
    CONVENTIONAL,
    CT,
    IMAGES,
    PAPER_ORDER,
    PROTECTED,
    num_classes,
)
from counterfactual_lab.runs.store import Store
from counterfactual_lab.truth.caps import METHODS, Caps
from counterfactual_lab.truth.entrants import Entrant, Fit, Known
from counterfactual_training.constraints import Constraints, Domain
from counterfactual_training.datasets.catalog import load_dataset
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.datasets.synthetic import stratified_split
from counterfactual_training.engine.launch import Engine, Failed, attempt, launch
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.evaluate import performance
from counterfactual_training.evaluation.judges import Judge
from counterfactual_training.evaluation.performance import predict_logits
from counterfactual_training.evaluation.stepfree import (
    FIXED_STEPS,
    STEP_FREE,
    Individuals,
    decider,
    first_individuals,
    floor_table,
    stepfree_table,
)
from counterfactual_training.generators import Generator
from counterfactual_training.persistence import atomic_write
from counterfactual_training.versions import versions

SETTINGS = ("free", "protected")
LEVELS = (FIXED_STEPS, *STEP_FREE)
# Raised whenever stored results of older code must not be mixed with new ones.
FORMAT = 2
_SPLIT_SEED = 1000
_TARGET_SEED = 3
_FEWEST = 20  # rows to fit, and to measure on


class TruthBench(NamedTuple):
    """A data set as the experiment uses it."""

    data: Dataset  # its training rows are those to fit, and it has no test rows
    individuals: Individuals
    x_held: Tensor  # all that is measured on: individuals and the judge's rows
    y_held: Tensor
    judge: Judge
    constraints: Constraints


class Piece(NamedTuple):
    """All methods of one data set and seed: they share rows, judge, and the models they build
    on.
    """

    data: str
    seed: int

    def label(self, method: str) -> str:
        """``LS ct seed 0``."""
        return f"{self.data} {method} seed {self.seed}"


@dataclass(frozen=True)
class Scope:
    """Which models are measured, on which rows, and where the results are: per model a CSV file and
    then a JSON file.

    Attributes:
        root: folder of results; grows. Results that exist are not made again, even if the code of a
            method changes: use another folder, or delete its files.
        data: the paper's short names; by default all nine.
        seeds: training seeds; by default those of the paper's main table.
        methods: participants, see :mod:`entrants`; by default :data:`METHODS`. Their twins are
            included.
        on_test: measure on the test rows instead of rows cut from the training rows.
        cells: finished cells of the paper's experiments, whose models are the conventional one and
            CT.
        kind: how much of these experiments was run, and what was changed in them.
    """

    root: str | Path
    data: Sequence[str] | None = None
    seeds: int | None = None
    methods: Sequence[str] | None = None
    on_test: bool = False
    caps: Caps = field(default_factory=Caps)
    cells: Sequence[GridRun] = ()
    kind: str = ""

    @property
    def names(self) -> list[str]:
        """Who takes part, with the twins they are compared with, each twin before them."""
        wanted: list[str] = []
        if self.methods is None:
            given: Sequence[str] = METHODS
        else:
            given = self.methods
        for name in given:
            wanted += [Entrant.named(name).twin, name]
        return list(dict.fromkeys(wanted))

    @property
    def pieces(self) -> list[Piece]:
        grid = load_grid("main").changed(self.data, self.seeds)
        # Images take longest, so they start first.
        order = sorted(
            grid.data, key=lambda name: (name not in IMAGES, PAPER_ORDER.index(name))
        )
        return [Piece(name, seed) for name in order for seed in grid.seeds_of(name)]

    def methods_of(self, piece: Piece) -> list[str]:
        images = piece.data in IMAGES
        classes = num_classes(piece.data)
        return [name for name in self.names if Entrant.named(name).takes(classes, images)]

    @property
    def kind_of_rows(self) -> str:
        if self.on_test:
            return "test"
        return "tuning"

    @property
    def folder(self) -> Path:
        """Of results of one kind of rows, caps and stored models."""
        content = json.dumps(
            {"format": FORMAT, "cells": self.kind, **asdict(self.caps)}, sort_keys=True
        )
        return (
            Path(self.root)
            / f"{self.kind_of_rows}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"
        )

    def rows(self, data: str, seed: int, method: str) -> Path:
        slug = re.sub(r"[^a-z0-9]+", "-", method.lower()).strip("-")
        return self.folder / f"{data}-{seed}-{slug}.csv"

    def numbers(self, data: str, seed: int, method: str) -> Path:
        return self.rows(data, seed, method).with_suffix(".json")

    def floors(self, data: str) -> Path:
        return self.folder / f"{data}-floors.csv"


def run_truth(
    scope: Scope,
    engine: Engine | None = None,
    stream: TextIO | None = None,
    generator: Generator | None = None,
    store: str | Path | None = None,
) -> dict[str, str]:
    """Train and measure what is missing; returns failed models with the reasons. The others are not
    affected.

    Args:
        generator: of the step-free searches; by default the recipe ``line``.
        store: folder of the scope's finished cells.
    """
    engine = engine or Engine()
    if engine.name != "processes":
        raise InputError(
            "The truth tables run in processes of this machine; leave --engine and --address out."
        )
    pieces = [
        p for p in scope.pieces if _missing(scope, p) or not scope.floors(p.data).exists()
    ]
    failures: dict[str, str] = {}
    for count, (piece, outcome) in enumerate(
        launch(_run_piece, pieces, (scope, generator, store), engine=engine), 1
    ):
        if isinstance(outcome, Failed):
            lost = {piece.label("all"): outcome.reason}
        else:
            lost = outcome
        failures |= lost
        if stream is not None:
            if lost:
                state = f"{len(lost)} failed, the first: {next(iter(lost.values()))}"
            else:
                state = "done"
            stream.write(f"[{count}/{len(pieces)}] {piece.data} seed {piece.seed}: {state}\n")
            stream.flush()
    return failures


def _missing(scope: Scope, piece: Piece) -> list[str]:
    return [
        name for name in scope.methods_of(piece) if not scope.numbers(*piece, name).exists()
    ]


# ---- one data set and seed -----------------------------------------------------------------------


def _run_piece(
    shared: tuple[Scope, Generator | None, str | Path | None], piece: Piece
) -> dict[str, str]:
    """Every method that is not done yet. Runs in a worker, which writes each result as soon as
    there is one.
    """
    scope, generator, store = shared
    bench = make_bench(piece.data, scope.on_test, scope.caps)
    if not scope.floors(piece.data).exists():
        floors = floor_table(
            bench.individuals, bench.judge, (bench.data.x_train, bench.data.y_train)
        )
        write_table(scope.floors(piece.data), floors.assign(data=piece.data))
    if store is None:
        known = {}
    else:
        known = _stored(Store(store), scope.cells, bench, piece)
    task = partial(_run_method, bench=bench, known=known, generator=generator, piece=piece)
    outcomes = {name: attempt(task, scope, name) for name in _missing(scope, piece)}
    return {
        piece.label(name): out.reason
        for name, out in outcomes.items()
        if isinstance(out, Failed)
    }


# What the models of the paper's experiments are called here.
_STORED = {CONVENTIONAL: (CONVENTIONAL, False), CT: (CT, False), PROTECTED: (CT, True)}


def _stored(store: Store, cells: Sequence[GridRun], bench: TruthBench, piece: Piece) -> Known:
    """The models of finished cells, as far as there are any of this data set and seed."""
    known: Known = {}
    for cell in cells:
        if (cell.data, cell.seed) == piece and cell.model in _STORED and store.has_model(cell):
            model = store.load_model(cell, untrained(bench.data, cell.seed))
            known[_STORED[cell.model]] = model.eval().requires_grad_(False)
    return known


def _run_method(
    scope: Scope,
    name: str,
    bench: TruthBench,
    known: Known,
    generator: Generator | None,
    piece: Piece,
) -> None:
    rows = []
    seconds = 0.0
    numbers: dict[str, float] = {}
    levels = [replace(level, generator=level.generator or generator) for level in LEVELS]
    for setting in SETTINGS:
        fit = fit_of(bench, *piece, scope.caps, setting == "protected", known)
        started = time.perf_counter()
        model = fit.model(name)
        seconds += time.perf_counter() - started
        who = bench.individuals
        rules = fit.constraints
        table = stepfree_table(
            {name: model},
            who,
            bench.judge,
            (fit.x, fit.y),
            rules,
            levels,
        )
        rows.append(table.assign(data=piece.data, seed=piece.seed, setting=setting))
        inner = decider(model, bench.x_held, bench.data.num_classes)
        found = performance(predict_logits(inner, bench.x_held), bench.y_held)
        numbers |= {f"{setting}/{metric}": number for metric, number in found.items()}
    write_table(scope.rows(*piece, name), pd.concat(rows, ignore_index=True))
    about = {
        **piece._asdict(),
        "method": name,
        "rows": scope.kind_of_rows,
        "numbers": numbers,
        "seconds": round(seconds, 2),
        "caps": asdict(scope.caps),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    # After the table: where this file is, the result is complete.
    atomic_write(scope.numbers(*piece, name), (json.dumps(about, indent=2) + "\n").encode())


# Pieces come data set by data set, so a worker needs one bench at a time, and a bench may be large.
@lru_cache(maxsize=1)
def make_bench(name: str, on_test: bool, caps: Caps) -> TruthBench:
    """Rows to fit, individuals and a judge; the same for all seeds."""
    data = load_dataset(name)
    # The authors searched with continuous dummies in training; at evaluation categories are
    # categories.
    data = replace(data, training_constraints=data.constraints.relaxed(), _frames=None)
    bench = bench_of(data, on_test, caps, may_repeat=name in IMAGES)
    # Advice may go wherever a fitted row was, not only two deviations from the mean.
    box = Domain(bench.data.x_train.amin(0), bench.data.x_train.amax(0), inferred=True)
    return bench._replace(constraints=replace(data.constraints, domain=box))


def bench_of(data: Dataset, on_test: bool, caps: Caps, may_repeat: bool = False) -> TruthBench:
    """The same of any data set, under its own constraints.

    Args:
        may_repeat: whether training rows may hold the same row several times, of which one is kept.
    """
    rng = torch.Generator().manual_seed(_SPLIT_SEED)
    rows = torch.arange(len(data.y_train))
    if may_repeat and not on_test:
        # Digits to train on were drawn with replacement, and a judge must not know one that a model
        # was fitted to.
        rows = torch.from_numpy(
            np.sort(np.unique(data.x_train.numpy(), axis=0, return_index=True)[1])
        )
    rows = rows[torch.randperm(len(rows), generator=rng)]
    if on_test:
        held = torch.randperm(len(data.y_test), generator=rng)
        x_held = data.x_test[held]
        y_held = data.y_test[held]
    else:
        cut = int(caps.held_out * len(rows))
        x_held = data.x_train[rows[:cut]]
        y_held = data.y_train[rows[:cut]]
        rows = rows[cut:]
    if min(len(y_held), len(rows)) < _FEWEST:
        raise InputError(
            f"{data.name!r} leaves {len(rows)} rows to fit and {len(y_held)} to measure on; both "
            "need "
            f"{_FEWEST}, half of the latter to judge by."
        )
    fitted = rows[: caps.rows].sort().values
    x = data.x_train[fitted]
    y = data.y_train[fitted]
    size = min(caps.individuals, len(y_held) // 2)
    judged = slice(size, size + caps.judge_rows)
    return TruthBench(
        data=replace(data, x_train=x, y_train=y, x_test=x[:0], y_test=y[:0]),
        individuals=first_individuals(x_held, y_held, data.num_classes, size, _TARGET_SEED),
        x_held=x_held[: judged.stop],
        y_held=y_held[: judged.stop],
        judge=Judge.fit(x_held[judged], y_held[judged], data.num_classes),
        constraints=data.constraints,
    )


def fit_of(
    bench: TruthBench,
    name: str,
    seed: int,
    caps: Caps,
    protected: bool,
    known: Known | None = None,
) -> Fit:
    """What a method sees: the bench's rows to fit, less the seed's validation rows."""
    data = bench.data
    size = min(data.settings.num_validation, len(data.y_train) // 5)
    kept, held = stratified_split(data.y_train, size, torch.Generator().manual_seed(seed))
    return Fit(
        name=name,
        data=replace(data, x_train=data.x_train[kept], y_train=data.y_train[kept]),
        x_validation=data.x_train[held],
        y_validation=data.y_train[held],
        free_constraints=bench.constraints,
        seed=seed,
        caps=caps,
        protected=protected,
        known={} if known is None else known,
    )


def write_table(path: Path, table: pd.DataFrame, digits: int = 7) -> None:
    atomic_write(
        path,
        table.to_csv(index=False, float_format=f"%.{digits}g", lineterminator="\n").encode(),
    )
