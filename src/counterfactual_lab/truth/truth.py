"""The truth tables: methods compared by a protocol that depends on neither step size nor scale.

Rows are of three kinds that never mix: those that models fit (and validate on), the individuals who
are explained, and those that judges are fitted to. For *tuning* the last two are cut from the
training rows; the test rows are looked at only when asked for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple, TextIO

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from counterfactual_lab.grids.grid_run import GridRun
from counterfactual_lab.networks import untrained
from counterfactual_lab.paper_data import CONVENTIONAL, CT, IMAGES, PROTECTED
from counterfactual_lab.runs.outcome import Outcome
from counterfactual_lab.runs.run import Run
from counterfactual_lab.truth.caps import METHODS, Caps
from counterfactual_lab.truth.comparison import Comparison
from counterfactual_lab.truth.entrants import Compared, Fit, TrainedModels
from counterfactual_training.constraints import Constraints, Domain
from counterfactual_training.datasets.catalog import load_dataset
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.datasets.synthetic import stratified_split
from counterfactual_training.engine.launch import Engine, Failed, attempt, launch
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.acceptance import FAMILIES
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
from counterfactual_training.generators import Generator, search
from counterfactual_training.models.counternet import counternet_explainer
from counterfactual_training.versions import versions

SETTINGS = ("free", "protected")
LEVELS = (FIXED_STEPS, *STEP_FREE)
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


@dataclass(frozen=True)
class Truth(Comparison):
    """Which models are measured, on which rows, and where the results are.

    Attributes:
        methods: by default :data:`METHODS`. Their references are included.
        trained: finished runs of the paper's experiments in the same store, whose models are the
            conventional one and CT.
        kind: how much of these experiments was run, and what was changed in them.
        generator: of the step-free searches; by default the recipe ``line``.
    """

    trained: Sequence[GridRun] = ()
    kind: str = ""
    generator: Generator | None = None

    protocol = "step-free"

    @property
    def names(self) -> list[str]:
        """The methods with the references they are compared with, each reference before them."""
        if self.methods is None:
            methods: Sequence[str] = METHODS
        else:
            methods = self.methods
        wanted: list[str] = []
        for name in methods:
            compared = Compared.of(name)
            wanted += [compared.reference, str(compared)]
        return list(dict.fromkeys(wanted))

    def measurement(self, data: str) -> dict[str, Any]:
        content = {
            "levels": tuple(level.name for level in LEVELS),
            "trained": self.kind,
            "judges": tuple(FAMILIES),
        }
        if self.generator is not None:
            content["search"] = (
                f"{self.generator.name} {sorted(self.generator.numbers().items())}"
            )
        return content

    @property
    def jobs(self) -> list[tuple[Run, ...]]:
        """All methods of one data set and seed: they share rows, judge, and the models they build
        on.
        """
        return [
            tuple(self.run(data, seed, name) for name in self.methods_of(data))
            for data in self.order
            for seed in self.seeds_of[data]
        ]


def run_truth(
    truth: Truth, engine: Engine | None = None, stream: TextIO | None = None
) -> dict[str, str]:
    """Train and measure what is missing; returns failed models with the reasons. The others are not
    affected.
    """
    engine = engine or Engine()
    if engine.name != "processes":
        raise InputError(
            "The truth tables run in processes of this machine; leave --engine and --address out."
        )
    failures: dict[str, str] = {}
    with truth.store.writing():
        jobs = truth.missing(truth.jobs)
        outcomes = launch(_run_job, jobs, truth, engine=engine)
        for count, (job, outcome) in enumerate(outcomes, 1):
            if isinstance(outcome, Failed):
                lost = {f"{job[0].data} all seed {job[0].seed}": outcome.reason}
            else:
                lost = outcome
            failures |= lost
            if stream is not None:
                if lost:
                    state = f"{len(lost)} failed, the first: {next(iter(lost.values()))}"
                else:
                    state = "done"
                stream.write(
                    f"[{count}/{len(jobs)}] {job[0].data} seed {job[0].seed}: {state}\n"
                )
                stream.flush()
    return failures


# ---- one data set and seed -----------------------------------------------------------------------


def _run_job(truth: Truth, job: tuple[Run, ...]) -> dict[str, str]:
    """All these runs of one data set and seed. Runs in a worker, which stores each outcome as soon
    as there is one.
    """
    data = job[0].data
    bench = make_bench(data, truth.on_test, truth.caps)
    store = truth.store
    floors = truth.floors(data)
    if not store.has(floors):
        store.save(floors.id, {floors.id: floors_of(floors, bench)})
    trained_models = _finished_models(truth, bench, job[0])
    outcomes = {
        run: attempt(partial(_run, bench=bench, trained_models=trained_models), truth, run)
        for run in job
    }
    return {run.label: out.reason for run, out in outcomes.items() if isinstance(out, Failed)}


# What the models of the paper's experiments are called here.
_STORED = {CONVENTIONAL: (CONVENTIONAL, False), CT: (CT, False), PROTECTED: (CT, True)}


def _finished_models(truth: Truth, bench: TruthBench, like: Run) -> TrainedModels:
    """The models of finished runs, as far as there are any of this data set and seed."""
    trained_models: TrainedModels = {}
    store = truth.store
    for run in truth.trained:
        same = (run.data, run.seed) == (like.data, like.seed)
        if same and run.model in _STORED and store.has_model(run):
            model = store.load_model(run, untrained(bench.data, run.seed))
            trained_models[_STORED[run.model]] = model.eval().requires_grad_(False)
    return trained_models


def _run(truth: Truth, run: Run, bench: TruthBench, trained_models: TrainedModels) -> None:
    rows = []
    seconds = 0.0
    numbers: dict[str, float] = {}
    levels = [replace(level, generator=level.generator or truth.generator) for level in LEVELS]
    find: Any = search
    if Compared.of(run.model).itself:
        find = counternet_explainer
    for setting in SETTINGS:
        protected = setting == "protected"
        fit = fit_of(bench, run.data, run.seed, truth.caps, protected, trained_models)
        started = time.perf_counter()
        model = fit.model(run.model)
        seconds += time.perf_counter() - started
        who = bench.individuals
        rules = fit.constraints
        table = stepfree_table(
            {run.model: model},
            who,
            bench.judge,
            (fit.x, fit.y),
            rules,
            levels,
            find,
        )
        rows.append(table.assign(data=run.data, seed=run.seed, setting=setting))
        inner = decider(model, bench.x_held, bench.data.num_classes)
        scores = performance(predict_logits(inner, bench.x_held), bench.y_held)
        numbers |= {f"{setting}/{metric}": number for metric, number in scores.items()}
    outcome = Outcome(
        run,
        numbers=numbers,
        seconds={"train": round(seconds, 2)},
        origin=current_origin(),
        rows=pd.concat(rows, ignore_index=True),
    )
    truth.store.save(run.id, {run.id: outcome})


def floors_of(run: Run, bench: TruthBench) -> Outcome[Run]:
    """Real rows, unmoved people and nearest unlike neighbours, judged as models are."""
    rows = floor_table(bench.individuals, bench.judge, (bench.data.x_train, bench.data.y_train))
    return Outcome(run, origin=current_origin(), rows=rows.assign(data=run.data))


def current_origin() -> dict[str, Any]:
    """The origin that a new outcome records."""
    return {"versions": versions(), "date": datetime.now(UTC).isoformat(timespec="seconds")}


# Jobs come data set by data set, so a worker needs one bench at a time, and a bench may be large.
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
    trained_models: TrainedModels | None = None,
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
        trained_models={} if trained_models is None else trained_models,
    )
