"""The paper's experiments by name: which cells they need, and which tables they give."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import pandas as pd

from counterfactual_training.errors import InputError, unknown
from counterfactual_training.evaluation.findings import check_seeds, warn
from counterfactual_training.experiments.engine.launch import Engine
from counterfactual_training.experiments.panels import Panel
from counterfactual_training.experiments.paper import summaries
from counterfactual_training.experiments.paper.cells import (
    FULL,
    IMAGES,
    PAPER_ORDER,
    SYNTHETIC,
    Cell,
    Effort,
    make_cells,
)
from counterfactual_training.experiments.paper.digits import Digits, digits, pick_factuals
from counterfactual_training.experiments.paper.figure1 import figure1
from counterfactual_training.experiments.paper.fitting import untrained
from counterfactual_training.experiments.paper.results import Results
from counterfactual_training.experiments.paper.run import Failure, load_data, run_cells
from counterfactual_training.experiments.paper.store import Store, versions

Summary = Callable[[Results], pd.DataFrame]


@dataclass(frozen=True)
class Experiment:
    """One part of the paper: the models it compares, on which data by default, and the tables made of them."""

    title: str
    models: tuple[str, ...]
    tables: dict[str, Summary] = field(default_factory=dict)
    data: tuple[str, ...] = PAPER_ORDER


EXPERIMENTS = {
    "main": Experiment(
        "Plausibility and cost of counterfactuals: CT against the baseline",
        ("vanilla", "full", "full protected"),
        {
            "main": summaries.main_table,
            "main_paired": summaries.paired_table,
            "main_by_seed": summaries.by_seed_table,
            "performance": summaries.performance_table,
            "by_lambda": summaries.by_lambda_table,
            "maturity": summaries.maturity_table,
        },
    ),
    "mutability": Experiment(
        "Cost and validity under mutability constraints",
        ("vanilla", "full", "full protected"),
        {"mutability": summaries.mutability_table},
    ),
    "ablation": Experiment(
        "Which term of the objective does what",
        ("vanilla", "full", "divergence", "adversarial"),
        {"ablation": summaries.ablation_table, "maturity": summaries.maturity_table},
    ),
    "robustness": Experiment(
        "Accuracy under attack",
        ("vanilla", "full", "divergence", "adversarial"),
        {"robustness": summaries.robustness_table, "performance": summaries.performance_table},
    ),
    "attribution": Experiment(
        "Sensitivity to protected features by integrated gradients",
        ("vanilla", "full protected"),
        {"attribution": summaries.attribution_table},
    ),
    "synthetic": Experiment(
        "CT against the baseline on the synthetic data, seed by seed",
        ("vanilla", "full"),
        {"synthetic": summaries.synthetic_table, "maturity": summaries.maturity_table},
        SYNTHETIC,
    ),
    "figure1": Experiment("Figure 1: counterfactuals of linear classifiers", (), data=("LS",)),
    "mnist-figures": Experiment("MNIST: counterfactual images", ("vanilla", "full", "full protected"), data=IMAGES),
}
ALL = "all"


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What an experiment gave: tables by name, and the material of its figures.

    Attributes:
        failures: cells that ended in an error; tables are made of the others.
        provenance: command, versions, dates, durations, settings.
    """

    name: str
    title: str
    effort: Effort
    tables: dict[str, pd.DataFrame]
    panels: list[Panel] = field(default_factory=list)
    digits: list[Digits] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)


def experiment_names() -> list[str]:
    return [*EXPERIMENTS, ALL]


def experiment_cells(
    name: str,
    data: Sequence[str] | None = None,
    seeds: int | None = None,
    effort: Effort = FULL,
    changes: dict[str, Any] | None = None,
) -> list[Cell]:
    """The cells an experiment needs; ``all`` needs each of them once."""
    if name == ALL:
        found = [c for one in EXPERIMENTS for c in experiment_cells(one, data, seeds, effort, changes)]
        return list(dict.fromkeys(found))
    if name not in EXPERIMENTS:
        raise InputError(unknown("experiment", name, experiment_names()))
    experiment = EXPERIMENTS[name]
    if not experiment.models:
        return []
    # A taste must not need files that have to be fetched first.
    default = tuple(d for d in experiment.data if d in SYNTHETIC) or experiment.data
    chosen = data or (experiment.data if effort == FULL else default)
    if name == "mnist-figures":
        chosen, seeds = experiment.data, 1
    return make_cells(chosen, experiment.models, seeds, effort, changes)


def reproduce(
    name: str,
    root: str | Path,
    data: Sequence[str] | None = None,
    seeds: int | None = None,
    effort: Effort = FULL,
    workers: int = 2,
    changes: dict[str, Any] | None = None,
    command: str = "",
    stream: TextIO | None = None,
    engine: Engine | None = None,
) -> list[Reproduction]:
    """Run what is missing and summarise: one reproduction, or those of all experiments.

    Args:
        name: see :data:`EXPERIMENTS`, or ``all``.
        root: folder of finished cells; grows.
        data: the paper's short names; by default all that the experiment uses (with less than full effort, those that
            need no files).
        seeds: training seeds of every cell; by default five, three of MNIST.
        changes: settings of :class:`TrainConfig` other than the published ones.
        engine: where to run; by default that many ``workers`` here.
    """
    cells = experiment_cells(name, data, seeds, effort, changes)
    failures = run_cells(cells, root, workers, command, stream, engine)
    names = [one for one in EXPERIMENTS if name in (one, ALL)]
    if name == ALL and not any(cell.data in IMAGES for cell in cells):
        names.remove("mnist-figures")
    return [
        summarise(one, Store(root), experiment_cells(one, data, seeds, effort, changes), effort, failures, command)
        for one in names
    ]


def summarise(
    name: str,
    store: Store,
    cells: Sequence[Cell],
    effort: Effort = FULL,
    failures: Sequence[Failure] = (),
    command: str = "",
) -> Reproduction:
    """Tables and figure material of one experiment from the finished cells among these."""
    experiment = EXPERIMENTS[name]
    results = Results.load(store, cells)
    tables = {table: make(results) for table, make in experiment.tables.items()}
    if tables and results.cells:
        warn(check_seeds(min(len(seeds) for seeds in results.cells.values())))
    if name == "main":
        tables["main_differences"] = summaries.differences(tables["main"], tables["main_by_seed"])
    elif name in ("mutability", "ablation", "robustness", "attribution"):
        tables[f"{name}_differences"] = summaries.other_differences(name, tables[name])
    panels: list[Panel] = []
    started = time.perf_counter()
    if name == "figure1":
        panels, tables["figure1"] = figure1(effort)
    images = _digits(store, cells) if name == "mnist-figures" else []
    mine = [failure for failure in failures if failure.cell in set(cells)]
    provenance = _provenance(results, effort, command)
    if panels:  # trained here and now, not stored as cells
        now = datetime.now(UTC).isoformat(timespec="seconds")
        seconds = {"train": round(time.perf_counter() - started, 1), "evaluate": 0.0}
        provenance |= {"cells": len(panels), "first": now, "last": now, "seconds": seconds}
    return Reproduction(name, experiment.title, effort, tables, panels, images, mine, provenance)


def _digits(store: Store, cells: Sequence[Cell]) -> list[Digits]:
    images = [cell for cell in cells if cell.data in IMAGES and store.is_trained(cell)]
    by_model = {cell.model: cell for cell in sorted(images, key=lambda cell: -cell.seed)}  # the first seed wins
    if not {"vanilla", "full", "full protected"} <= set(by_model):
        return []
    data = load_data(by_model["vanilla"])
    models = {name: store.load_model(cell, untrained(data, 0)) for name, cell in by_model.items()}
    factuals = pick_factuals([models["vanilla"], models["full"]], data)
    return [
        digits("conventional training", models["vanilla"], models["vanilla"], data, factuals),
        digits("counterfactual training", models["full"], models["full protected"], data, factuals),
    ]


def _provenance(results: Results, effort: Effort, command: str) -> dict[str, Any]:
    done = [result.done for result in results.all]
    dates = sorted(d["date"] for d in done)
    return {
        "command": command,
        "versions": versions(),
        "effort": effort.describe() + ("" if effort == FULL else f" ({effort.name}: not the published settings)"),
        "cells": len(done),
        "first": dates[0] if dates else "",
        "last": dates[-1] if dates else "",
        "seconds": {part: round(sum(d["seconds"][part] for d in done), 1) for part in ("train", "evaluate")},
    }
