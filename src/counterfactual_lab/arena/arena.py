"""Train and measure every method on the same rows; results are kept, so that a run can be
stopped and resumed.

Rows are split as for the truth tables (:mod:`truth`): to fit, to explain, and for judges. All seeds
of a method are one job, which trains them as one fleet, together with refits of the method on
bootstrap samples. These judge whether the counterfactuals of every seed would still be valid after
retraining.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TextIO

import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_lab.arena.caps import GENERATORS, GRADIENTS
from counterfactual_lab.arena.gradients import cap_unless_stated, input_gradients
from counterfactual_lab.grids.settings import CONVENTIONAL
from counterfactual_lab.paper_data import ADVERSARIAL, DIVERGENCE
from counterfactual_lab.runs.outcome import Outcome
from counterfactual_lab.runs.run import Run
from counterfactual_lab.truth.comparison import Comparison
from counterfactual_lab.truth.entrants import DEFAULT_NETWORK, Compared, Fit, trained
from counterfactual_lab.truth.truth import (
    TruthBench,
    bench_of,
    current_origin,
    fit_of,
    floors_of,
    make_bench,
)
from counterfactual_training.engine.launch import Engine, Failed, launch
from counterfactual_training.errors import InputError, check_name
from counterfactual_training.evaluation.acceptance import FAMILIES
from counterfactual_training.evaluation.evaluate import attack_curves, performance
from counterfactual_training.evaluation.performance import decider, predict_logits
from counterfactual_training.evaluation.plugins import Measured
from counterfactual_training.evaluation.protocol import EvaluationProtocol
from counterfactual_training.evaluation.stepfree import (
    RETRAINED,
    STEP_FREE,
    Level,
    stepfree_table,
)
from counterfactual_training.generators import GENERATORS as RECIPES
from counterfactual_training.generators import Generator, make_generator, search
from counterfactual_training.models.counternet import counternet_explainer
from counterfactual_training.training.registry import method_names

# The number of an outcome that is a cost, not a measure of the model.
INPUT_GRADIENTS = "input_gradients"
ATTACK = EvaluationProtocol(attacks=("pgd",), epsilons=(0.03, 0.1))
# Models of the same method, trained on bootstrap samples of the rows, that judge all its seeds.
REFITS = 3
# Differs from all training seeds, also those of an ensemble's members.
_REFIT_SEED = 100
# Bars of a frontier of cost and acceptance; those in between are in no other table.
BARS = (STEP_FREE[0], Level(".8*", 0.8), STEP_FREE[1])
# Recipes whose step is the class loss and penalties: a line search, without a step size, serves
# them, too.
_FREE = ("generic", "ecco", "wachter", "gravitational", "claproar", "eccco")


def usual_methods() -> list[str]:
    """What is compared if nothing is named: every method, published or registered, CT without some
    of its terms, CounterNet's own answers, and with a gate what the classifier trains by default,
    what it can train instead, and a conventional network.
    """
    ours = [DIVERGENCE, ADVERSARIAL]
    gated = [f"{name} + density" for name in (CONVENTIONAL, "bag", "ct", "ct_published")]
    return [*method_names(), *ours, "counternet itself", *gated]


@dataclass(frozen=True)
class Arena(Comparison):
    """Methods and data that are compared, and where the results are.

    Attributes:
        methods: by default :func:`usual_methods`. Conventional training always takes part.
        generators: recipes that search the counterfactuals the models are measured by.
        gradients: input gradients per row and epoch that a method may take.
    """

    generators: Sequence[str] = GENERATORS
    gradients: int = GRADIENTS

    protocol = "arena"

    def __post_init__(self) -> None:
        object.__setattr__(self, "generators", tuple(dict.fromkeys(self.generators)))
        for name in self.generators:
            check_name("generator", name, RECIPES)
        if self.data is not None and not self.data:
            raise InputError("There is no data set to compare on: name at least one.")
        if self.gradients < 1:
            raise InputError(f"gradients must be at least 1, got {self.gradients}.")
        # Raise on unknown methods and data sets before anything runs.
        _ = self.names
        _ = self.seeds_of

    @property
    def names(self) -> list[str]:
        """The methods, the conventional one first."""
        if self.methods is None:
            methods: Sequence[str] = usual_methods()
        else:
            methods = self.methods
        return list(
            dict.fromkeys([CONVENTIONAL, *(str(Compared.of(name)) for name in methods)])
        )

    def measurement(self, data: str) -> dict[str, Any]:
        return {
            "generators": tuple(self.generators),
            "gradients": self.gradients,
            # Trained as one fleet, so that the others change a model's last digits.
            "seeds": tuple(self.seeds_of[data]),
            "refits": REFITS,
            "bars": tuple(level.name for level in BARS),
            "judges": tuple(FAMILIES),
        }

    def runs_of(self, data: str, method: str) -> tuple[Run, ...]:
        """All seeds of one method on one data set: they train as one fleet, and share the refits
        that judge them.
        """
        return tuple(self.run(data, seed, method) for seed in self.seeds_of[data])

    @property
    def jobs(self) -> list[tuple[Run, ...]]:
        return [
            self.runs_of(data, name) for data in self.order for name in self.methods_of(data)
        ]

    @property
    def finished(self) -> list[tuple[Run, ...]]:
        """Those jobs whose runs are all done."""
        done = self.store.done()
        return [job for job in self.jobs if {run.id for run in job} <= done]

    @cached_property
    def excluded(self) -> list[tuple[str, str]]:
        """Data sets and methods that do not fit: CounterNet of more than two classes, a density of
        pixels.
        """
        taken = {data: self.methods_of(data) for data in self.seeds_of}
        return [
            (data, name)
            for data, possible in taken.items()
            for name in self.names
            if name not in possible
        ]


@dataclass(frozen=True, eq=False)
class _Work:
    """What all jobs share; benches of data that workers cannot load themselves."""

    arena: Arena
    benches: Mapping[str, TruthBench]

    def bench(self, data: str) -> TruthBench:
        if data in self.benches:
            return self.benches[data]
        return _bench(self.arena, data)


def _bench(arena: Arena, data: str) -> TruthBench:
    if data not in arena.user_datasets:
        return make_bench(data, arena.on_test, arena.caps)
    return bench_of(replace(arena.user_datasets[data], _frames=None), arena.on_test, arena.caps)


def run_arena(
    arena: Arena, engine: Engine | None = None, stream: TextIO | None = None
) -> dict[str, str]:
    """Train and measure what is missing; returns failed methods with the reasons. The others are
    not affected.
    """
    engine = engine or Engine()
    store = arena.store
    failures: dict[str, str] = {}
    with store.writing():
        unfinished = {run for job in arena.missing(arena.jobs) for run in job}
        # Not divided: its seeds and their refits are one fleet.
        jobs = [job for job in arena.jobs if unfinished & set(job)]
        if jobs:
            for data, name in arena.excluded:
                _say(stream, f"{data} {name}: left out, it cannot be made of such data")
        work = _Work(arena, {data: _bench(arena, data) for data in _sent(arena, jobs, engine)})
        for count, (job, outcomes) in enumerate(launch(_run, jobs, work, engine=engine), 1):
            label = f"{job[0].data} {job[0].model}"
            outcome = "done"
            if isinstance(outcomes, Failed):
                failures[label] = outcome = outcomes.reason
            else:
                store.save(job[0].id, {one.run.id: one for one in outcomes})
            _say(stream, f"[{count}/{len(jobs)}] {label}: {outcome}")
    return failures


def _sent(arena: Arena, jobs: Sequence[tuple[Run, ...]], engine: Engine) -> list[str]:
    """Data that are sent with the work: workers of a cluster see no local disk, and no worker can
    load the user's own data.
    """
    names = dict.fromkeys(job[0].data for job in jobs)
    return [data for data in names if engine.name == "ray" or data in arena.user_datasets]


def _say(stream: TextIO | None, line: str) -> None:
    if stream is not None:
        stream.write(f"{line}\n")
        stream.flush()


def _run(work: _Work, job: tuple[Run, ...]) -> list[Outcome[Run]]:
    """Train all seeds of a method, then measure them; and what they are compared with."""
    arena = work.arena
    data = job[0].data
    bench = work.bench(data)
    compared = Compared.of(job[0].model)
    fits = {run.seed: fit_of(bench, data, run.seed, arena.caps, protected=False) for run in job}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        # Processor time: by the clock, jobs that run at the same time would slow each other down.
        started = time.process_time()
        models, refits = _models(compared, fits, arena.gradients)
        seconds = (time.process_time() - started) / (len(fits) + len(refits))
    notes = tuple(dict.fromkeys(str(one.message) for one in caught))
    taken = input_gradients(fits[min(fits)], compared.trains_by, arena.gradients)
    outcomes = [floors_of(arena.floors(data), bench)]
    for run in job:
        fit = fits[run.seed]
        model = models[run.seed]
        tables = _counterfactuals(arena, bench, fit, compared, model, refits)
        rows = pd.concat(tables, ignore_index=True).assign(seed=run.seed, data=data)
        outcomes.append(
            Outcome(
                run,
                numbers={INPUT_GRADIENTS: taken, **_of_model(bench, fit, model)},
                seconds={"train": round(seconds, 3)},
                origin=current_origin(),
                rows=rows,
                notes=notes,
            )
        )
    return outcomes


def _models(
    compared: Compared, fits: Mapping[int, Fit], gradients: int
) -> tuple[dict[int, nn.Module], list[nn.Module]]:
    """A classifier per seed, in eval mode, with k outputs, or k + 1 if it is gated; and refits of
    the method on bootstrap samples, without a gate, which changes no decision.
    """
    first = next(iter(fits.values()))
    rows = [*fits.values(), *(_bootstrap(first, number) for number in range(REFITS))]
    cap = None
    if compared.method != DEFAULT_NETWORK:
        cap = cap_unless_stated(compared.method, gradients)
    trained_models = trained(rows, compared.method, cap)
    models = {
        seed: compared.complete(model, fit).eval().requires_grad_(False)
        for (seed, fit), model in zip(fits.items(), trained_models, strict=False)
    }
    return models, trained_models[len(fits) :]


def _bootstrap(fit: Fit, number: int) -> Fit:
    """As many rows, drawn with replacement, as another sample of people."""
    seed = _REFIT_SEED + number
    rng = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(fit.y), (len(fit.y),), generator=rng)
    missing = set(fit.y.unique().tolist()) - set(fit.y[drawn].unique().tolist())
    # A class that the draw missed keeps one of its rows.
    for place, label in enumerate(sorted(missing)):
        drawn[place] = (fit.y == label).nonzero()[0, 0]
    data = replace(fit.data, x_train=fit.x[drawn], y_train=fit.y[drawn])
    return replace(fit, data=data, seed=seed, trained_models={})


def _counterfactuals(
    arena: Arena,
    bench: TruthBench,
    fit: Fit,
    compared: Compared,
    model: nn.Module,
    refits: Sequence[nn.Module],
) -> list[pd.DataFrame]:
    """One table per search; a model with answers of its own is asked instead."""
    find: Any = search
    if compared.itself:
        find = counternet_explainer
    metrics = {RETRAINED: partial(_retrained, refits)}
    tables = []
    for name in arena.generators:
        generator = _generator(name, fit)
        table = stepfree_table(
            {str(compared): model},
            bench.individuals,
            bench.judge,
            (fit.x, fit.y),
            fit.constraints,
            [replace(level, generator=generator) for level in BARS],
            find,
            metrics,
        )
        tables.append(table.assign(setting=name))
    return tables


def _generator(name: str, fit: Fit) -> Generator:
    """The recipe with a line search, where it can have one; otherwise as it is."""
    if name not in _FREE:
        return make_generator(name, fit.x, fit.y)
    usual = make_generator("line")
    numbers = {key: usual.numbers()[key] for key in ("learning_rate", "max_steps")}
    return make_generator(name, fit.x, fit.y, step_rule="line", **numbers)


def _retrained(refits: Sequence[nn.Module], measured: Measured) -> Tensor:
    """The share of refits on bootstrap samples that also give the target class ``(n,)``."""
    votes = [
        predict_logits(refit, measured.x_cf).argmax(-1) == measured.y_target for refit in refits
    ]
    return torch.stack(votes).double().mean(0)


def _of_model(bench: TruthBench, fit: Fit, model: nn.Module) -> dict[str, float]:
    """Accuracy, F1, calibration and accuracy under attack, of the classifier inside a gate."""
    inner = decider(model, bench.x_held, bench.data.num_classes)
    scores = performance(predict_logits(inner, bench.x_held), bench.y_held)
    (curve,) = attack_curves(
        inner, bench.x_held, bench.y_held, ATTACK, fit.constraints
    ).values()
    return scores | {
        f"robust_accuracy@{e:g}": float(v) for e, v in zip(ATTACK.epsilons, curve, strict=True)
    }
