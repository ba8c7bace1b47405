"""The paper's experiments by name: each is a grid file, and gives tables and data of figures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pandas as pd

from counterfactual_lab.grids.file import load_grid
from counterfactual_lab.grids.grid import Grid
from counterfactual_lab.grids.grid_run import ALL_ROWS
from counterfactual_lab.grids.run import GridWork, load_data, run_grid
from counterfactual_lab.networks import untrained
from counterfactual_lab.paper import summaries
from counterfactual_lab.paper.names import (
    ALL,
    EXPERIMENTS,
    FIGURE1,
    MNIST_FIGURES,
)
from counterfactual_lab.paper.paper_results import Results
from counterfactual_lab.paper_data import CONVENTIONAL, CT, IMAGES, PROTECTED
from counterfactual_lab.runs.store import Store
from counterfactual_lab.truth.caps import UNCAPPED
from counterfactual_lab.truth.truth import Truth, run_truth
from counterfactual_lab.truth.truth_results import truth_tables
from counterfactual_training.engine.launch import Engine
from counterfactual_training.errors import check_name
from counterfactual_training.evaluation.findings import check_seeds, warn
from counterfactual_training.persistence import load_weights
from counterfactual_training.versions import versions

if TYPE_CHECKING:
    from counterfactual_lab.panels import DecisionPanel
    from counterfactual_lab.paper.digits import Digits

Summary = Callable[[Results], pd.DataFrame]
_WITH_DIFFERENCES = ("main", "mutability", "ablation", "robustness", "attribution")


# The tables made of the models of each experiment; the grid file of its name says the rest.
_TABLES: dict[str, dict[str, Summary]] = {
    "main": {
        "main": summaries.main_table,
        "main_paired": summaries.paired_table,
        "main_by_seed": summaries.by_seed_table,
        "performance": summaries.performance_table,
        "by_lambda": summaries.by_lambda_table,
        "maturity": summaries.maturity_table,
    },
    "mutability": {"mutability": summaries.mutability_table},
    "ablation": {"ablation": summaries.ablation_table, "maturity": summaries.maturity_table},
    "robustness": {
        "robustness": summaries.robustness_table,
        "performance": summaries.performance_table,
    },
    "attribution": {"attribution": summaries.attribution_table},
    "synthetic": {"synthetic": summaries.synthetic_table, "maturity": summaries.maturity_table},
}


# How long models are trained and how thoroughly they are measured, see effort_of.
Effort = dict[str, Any]


def effort_of(grid: Grid) -> Effort:
    """The effort of a grid as it is noted beside finished runs."""
    measurement = grid.measurement
    protocol = grid.measurement.protocol
    return {
        "name": "quick" if grid.quick else "full",
        "epochs": dict(grid.values)["training.epochs"][0],
        "num_runs": protocol.num_runs,
        "num_individuals": None
        if grid.individuals
        else protocol.num_individuals,  # None: by the kind of data
        "paired_individuals": None
        if measurement.paired == ALL_ROWS
        else int(measurement.paired),  # None: every row
        "num_epsilons": len(protocol.epsilons),
        "attribution_rounds": protocol.attribution_rounds,
    }


def effort_in_words(effort: Effort) -> str:
    return f"{effort['epochs']} epochs, {effort['num_runs']} evaluation runs"


FULL = effort_of(load_grid("main"))


def kind_of_grid(grid: Grid) -> list[Any]:
    """Which results belong in one table: those of one effort and the same changed settings."""
    return [
        effort_of(grid),
        [[name.removeprefix("training."), value] for name, value in grid.changes],
    ]


@dataclass(frozen=True, eq=False)
class Reproduction:
    """The result of an experiment: tables by name, and the data of its figures.

    Attributes:
        failures: by label, why a run ended in an error; tables are made of the others.
        provenance: command, versions, dates, durations, settings.
    """

    name: str
    title: str
    effort: Effort
    tables: dict[str, pd.DataFrame]
    panels: list[DecisionPanel] = field(default_factory=list)
    digits: list[Digits] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Extent:
    """How much of an experiment is run.

    Attributes:
        data: the paper's short names; by default all that the experiment uses (for a quick look,
            those that need no files).
        seeds: training seeds of every run; by default five, three of MNIST, and two for a quick
            look.
        quick: a look in minutes, not the published settings.
        changes: settings other than the published ones, by dotted name; without a dot, of
            :class:`TrainConfig`.
    """

    data: Sequence[str] | None = None
    seeds: int | None = None
    quick: bool = False
    changes: Mapping[str, Any] | None = None


_FULL_EXTENT = Extent()
_ENGINE = Engine(workers=2)


def experiment_grids(name: str, extent: Extent = _FULL_EXTENT) -> dict[str, Grid]:
    """The grid of an experiment, or those of all; Figure 1 has none."""
    check_name("experiment", name, (*EXPERIMENTS, ALL))
    names = [one for one in EXPERIMENTS if one != FIGURE1 and name in (one, ALL)]
    grids = {one: load_grid(one, extent.quick, extent.changes) for one in names}
    return {
        one: grid if one == MNIST_FIGURES else grid.changed(extent.data, extent.seeds)
        for one, grid in grids.items()
    }


def reproduce(
    name: str,
    root: str | Path,
    extent: Extent = _FULL_EXTENT,
    *,
    command: str = "",
    stream: TextIO | None = None,
    engine: Engine = _ENGINE,
) -> list[Reproduction]:
    """Run what is missing and summarise: one reproduction, or those of all experiments.

    Args:
        name: see :data:`EXPERIMENTS`, or ``all``.
        root: folder of finished runs; grows.
        extent: how much of it; by default all.
        engine: where to run; by default two processes of this machine.
    """
    grids = experiment_grids(name, extent)
    if name == ALL and not any(image in grids["main"].data for image in IMAGES):
        del grids[MNIST_FIGURES]
    failures: dict[str, str] = {}
    if grids:
        work = GridWork.from_grids(*grids.values(), strict=False)
        kind = kind_of_grid(work.grids[0])  # effort and changes are the same for all
        runs = [run.id for run in work.runs]
        failures = run_grid(work, root, engine, command, stream, kind=kind, runs=runs).failures
    out = []
    effort = effort_of(load_grid("main", extent.quick, extent.changes))
    for one in EXPERIMENTS:
        if one in grids:
            runs_of_one = GridWork.from_grids(grids[one], strict=False).runs
        elif one == FIGURE1 and name in (FIGURE1, ALL):
            runs_of_one = ()
        else:
            continue
        failed = {
            run.label: failures[run.label] for run in runs_of_one if run.label in failures
        }
        results = Results.load(Store(root), [run.id for run in runs_of_one])
        out.append(reproduction_of(one, results, effort, failed, command))
    return out


def step_free(
    root: str | Path,
    extent: Extent = _FULL_EXTENT,
    workers: int = 2,
    stream: TextIO | None = None,
) -> tuple[dict[str, pd.DataFrame], dict[str, str]]:
    """The models of the main table and a rescaled conventional one, measured independently of step
    size and scale.

    The arguments are those of :func:`reproduce`, which must have run before. So little work is left
    that it stays on this machine, wherever the models were trained.

    Returns:
        The tables of :func:`truth_tables`, and failed models with the reasons.
    """
    grid = experiment_grids("main", extent)["main"]
    seeds = extent.seeds
    # The default of a comparison is that of a full run, in which images have fewer seeds.
    if seeds is None and extent.quick:
        seeds = len(grid.seeds)
    truth = Truth(
        root,
        data=grid.data,
        seeds=seeds,
        methods=[CONVENTIONAL, f"{CONVENTIONAL} rescaled", CT],
        on_test=True,
        caps=replace(UNCAPPED, epochs=effort_of(grid)["epochs"]),
        trained=GridWork.from_grids(grid, strict=False).runs,
        kind=json.dumps(kind_of_grid(grid), sort_keys=True),
    )
    failures = run_truth(truth, Engine(workers=workers), stream)
    return truth_tables(truth), failures


def reproduction_of(
    name: str,
    results: Results,
    effort: Effort = FULL,
    failures: Mapping[str, str] | None = None,
    command: str = "",
) -> Reproduction:
    """Tables and data of figures of one experiment."""
    tables = {table: make(results) for table, make in _TABLES.get(name, {}).items()}
    if tables and results.runs:
        warn(check_seeds(min(len(seeds) for seeds in results.runs.values())))
    if name in _WITH_DIFFERENCES:
        tables[f"{name}_differences"] = summaries.differences(
            name, tables[name], tables.get("main_by_seed")
        )
    panels: list[DecisionPanel] = []
    started = time.perf_counter()
    if name == FIGURE1:
        # Imported here, because nothing else needs the demo and its classifiers.
        from counterfactual_lab.paper.figure1 import figure1

        panels, tables["figure1"] = figure1(effort["epochs"])
    if name == MNIST_FIGURES:
        images = _digits(results)
    else:
        images = []
    provenance = _provenance(results, effort, command)
    if panels:  # trained here and now, not stored as runs
        now = datetime.now(UTC).isoformat(timespec="seconds")
        seconds = {"train": round(time.perf_counter() - started, 1), "evaluate": 0.0}
        provenance |= {"runs": len(panels), "first": now, "last": now, "seconds": seconds}
    return Reproduction(
        name,
        EXPERIMENTS[name],
        effort,
        tables,
        panels,
        images,
        dict(failures or {}),
        provenance,
    )


def _provenance(results: Results, effort: Effort, command: str) -> dict[str, Any]:
    """Command, versions, effort, dates and durations of an experiment."""
    effort_text = effort_in_words(effort)
    if effort != FULL:
        effort_text += f" ({effort['name']}: not the published settings)"
    dates = sorted(outcome.origin["date"] for outcome in results.all)
    totals = {
        part: sum(outcome.seconds[part] for outcome in results.all)
        for part in ("train", "evaluate")
    }
    return {
        "command": command,
        "versions": versions(),
        "effort": effort_text,
        "runs": len(dates),
        "first": dates[0] if dates else "",
        "last": dates[-1] if dates else "",
        "seconds": {part: round(seconds, 1) for part, seconds in totals.items()},
    }


def _digits(results: Results) -> list[Digits]:
    from counterfactual_lab.paper.digits import digits, pick_factuals

    images = {
        model: outcomes[0] for (data, model), outcomes in results.runs.items() if data in IMAGES
    }
    if not {CONVENTIONAL, CT, PROTECTED} <= set(images):
        return []
    data = load_data(images[CONVENTIONAL].run.data)
    models = {name: untrained(data, 0) for name in images}
    for name, model in models.items():
        load_weights(model, images[name].weights, images[name].run.label)
    factuals = pick_factuals([models[CONVENTIONAL], models[CT]], data)
    return [
        digits(
            "conventional training", models[CONVENTIONAL], models[CONVENTIONAL], data, factuals
        ),
        digits("counterfactual training", models[CT], models[PROTECTED], data, factuals),
    ]
