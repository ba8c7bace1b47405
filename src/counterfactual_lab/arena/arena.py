"""Train and measure every participant on the same rows; results are kept, so that a run can be
stopped and resumed.

Rows are split as for the truth tables (:mod:`truth`): to fit, to explain, and for judges. All seeds
of a participant are one piece of work, because counterfactuals of one model are also shown to the
others: would they still be valid after retraining?
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_lab.arena.caps import GENERATORS, GRADIENTS
from counterfactual_lab.arena.gradients import cap_unless_stated, input_gradients
from counterfactual_lab.grids.file import load_grid
from counterfactual_lab.grids.settings import CONVENTIONAL
from counterfactual_lab.paper_data import (
    ADVERSARIAL,
    DIVERGENCE,
    IMAGES,
    PAPER_ORDER,
    num_classes,
    short_name,
)
from counterfactual_lab.truth.caps import Caps
from counterfactual_lab.truth.entrants import Entrant, Fit, trained, with_gate
from counterfactual_lab.truth.truth import (
    TruthBench,
    bench_of,
    fit_of,
    make_bench,
    write_table,
)
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.engine.launch import Engine, Failed, launch
from counterfactual_training.errors import InputError, check_name
from counterfactual_training.evaluation.evaluate import attack_curves, performance
from counterfactual_training.evaluation.performance import decider, predict_logits
from counterfactual_training.evaluation.plugins import Measured
from counterfactual_training.evaluation.protocol import EvaluationProtocol
from counterfactual_training.evaluation.stepfree import STEP_FREE, floor_table, stepfree_table
from counterfactual_training.generators import GENERATORS as RECIPES
from counterfactual_training.generators import Generator, make_generator, search
from counterfactual_training.models.counternet import counternet_explainer
from counterfactual_training.persistence import atomic_write
from counterfactual_training.training.registry import method_names
from counterfactual_training.versions import versions

# Raised whenever stored results of older code must not be mixed with new ones.
FORMAT = 2
_SEEDS = 5  # of data that is not the paper's
ATTACK = EvaluationProtocol(attacks=("pgd",), epsilons=(0.03, 0.1))
# Recipes whose step is the class loss and penalties: these can be searched free of a step size.
_FREE = ("generic", "ecco", "wachter", "gravitational", "claproar", "eccco")


def usual_entrants() -> list[str]:
    """Who takes part if nobody is named: every method, published or registered, CT without some of
    its terms, CounterNet's own answers, and a conventional network with a gate.
    """
    return [*method_names(), DIVERGENCE, ADVERSARIAL, "counternet itself", "gated"]


class Bout(NamedTuple):
    """All seeds of one participant on one data set."""

    data: str
    method: str


@dataclass(frozen=True)
class Arena:
    """Who is compared on what, and where the results are: per bout a CSV file and then a JSON file.

    Attributes:
        root: folder of results; grows. Results that exist are not made again: use another folder,
            or delete its files.
        data: data sets, or names of the paper's; by default all nine of them.
        methods: who is compared, see :mod:`entrants`; by default :func:`usual_entrants`. The
            conventional network always takes part.
        generators: recipes that search the counterfactuals the models are measured by.
        seeds: training seeds; by default those of the paper's main table.
        gradients: input gradients per row and epoch that a method may take.
        on_test: measure on the test rows instead of rows cut from the training rows.
    """

    root: str | Path
    data: Sequence[str | Dataset] | None = None
    methods: Sequence[str] | None = None
    generators: Sequence[str] = GENERATORS
    seeds: int | None = None
    gradients: int = GRADIENTS
    on_test: bool = False
    caps: Caps = field(default_factory=Caps)

    def __post_init__(self) -> None:
        object.__setattr__(self, "generators", tuple(dict.fromkeys(self.generators)))
        for name in self.generators:
            check_name("generator", name, RECIPES)
        if self.data is not None and not self.data:
            raise InputError("There is no data set to compare on: name at least one.")
        if self.gradients < 1:
            raise InputError(f"gradients must be at least 1, got {self.gradients}.")
        for name in self.names:
            Entrant.named(name)
        _ = self.seeds_of  # complains about unknown data sets before anything runs

    @property
    def names(self) -> list[str]:
        """The participants, the conventional one first."""
        if self.methods is None:
            given: Sequence[str] = usual_entrants()
        else:
            given = self.methods
        return list(dict.fromkeys([CONVENTIONAL, *given]))

    @cached_property
    def own(self) -> dict[str, Dataset]:
        """Data sets that are not the paper's, by name."""
        return {data.name: data for data in self.data or () if isinstance(data, Dataset)}

    @cached_property
    def seeds_of(self) -> dict[str, list[int]]:
        """Training seeds by data set, the paper's first and in its order."""
        if self.data is None:
            names = None
        else:
            names = [short_name(name) for name in self.data if isinstance(name, str)]
        grid = load_grid("main").changed(names, self.seeds)
        paper = [name for name in PAPER_ORDER if names is None or name in names]
        found = {name: list(grid.seeds_of(name)) for name in paper}
        return found | {name: list(range(self.seeds or _SEEDS)) for name in self.own}

    @cached_property
    def bouts(self) -> list[Bout]:
        # Images take longest, so they start first.
        order = sorted(self.seeds_of, key=lambda name: name not in IMAGES)
        classes = {data: num_classes(data) for data in order if data not in self.own}
        classes |= {data: own.num_classes for data, own in self.own.items()}
        pairs = [Bout(data, name) for data in order for name in self.names]
        return [
            bout
            for bout in pairs
            if Entrant.named(bout.method).takes(classes[bout.data], bout.data in IMAGES)
        ]

    @cached_property
    def left_out(self) -> list[Bout]:
        """Those that cannot be: CounterNet of more than two classes, a density of pixels."""
        return [
            bout
            for data in self.seeds_of
            for name in self.names
            if (bout := Bout(data, name)) not in self.bouts
        ]

    @property
    def kind_of_rows(self) -> str:
        if self.on_test:
            return "test"
        return "tuning"

    @property
    def folder(self) -> Path:
        """Of results of one kind of rows, seeds, searches and caps."""
        about = {
            "format": FORMAT,
            "gradients": self.gradients,
            "generators": list(self.generators),
        }
        content = json.dumps(
            {**about, "seeds": self.seeds, **asdict(self.caps)}, sort_keys=True
        )
        return (
            Path(self.root)
            / f"{self.kind_of_rows}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"
        )

    def rows(self, bout: Bout) -> Path:
        # A slug alone would be the same for smooth(a=1) and smooth(a=-1).
        mark = hashlib.sha256(bout.method.encode()).hexdigest()[:8]
        return self.folder / f"{self._key(bout.data)}-{_slug(bout.method)}-{mark}.csv"

    def numbers(self, bout: Bout) -> Path:
        return self.rows(bout).with_suffix(".json")

    def floors(self, data: str) -> Path:
        return self.folder / f"{self._key(data)}-floors.csv"

    def _key(self, data: str) -> str:
        """A data set of the user's own is known by its content: the same file may hold other rows
        tomorrow.
        """
        if data in self.own:
            return f"{_slug(data)}-{self._digests[data]}"
        return data

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {name: _digest(own) for name, own in self.own.items()}


def _digest(data: Dataset) -> str:
    rules = json.dumps(data.schema.to_dict(), sort_keys=True, default=str).encode()
    parts = [
        t.contiguous().numpy().tobytes()
        for t in (data.x_train, data.y_train, data.x_test, data.y_test)
    ]
    return hashlib.sha256(b"".join([*parts, rules])).hexdigest()[:8]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


class Result(NamedTuple):
    """Of a bout: one row per seed, search, τ and individual; numbers of the models; floors of the
    data set.
    """

    rows: pd.DataFrame
    about: dict[str, Any]
    floors: pd.DataFrame


@dataclass(frozen=True, eq=False)
class _Work:
    """What all bouts share; benches of data that workers cannot load themselves."""

    arena: Arena
    benches: Mapping[str, TruthBench]

    def bench(self, data: str) -> TruthBench:
        if data in self.benches:
            return self.benches[data]
        return _bench(self.arena, data)


def _bench(arena: Arena, data: str) -> TruthBench:
    if data not in arena.own:
        return make_bench(data, arena.on_test, arena.caps)
    return bench_of(replace(arena.own[data], _frames=None), arena.on_test, arena.caps)


def run_arena(
    arena: Arena, engine: Engine | None = None, stream: TextIO | None = None
) -> dict[str, str]:
    """Train and measure what is missing; returns failed bouts with the reasons. The others are not
    affected.
    """
    engine = engine or Engine()
    bouts = [bout for bout in arena.bouts if not arena.numbers(bout).exists()]
    if bouts:
        for left in arena.left_out:
            _say(stream, f"{left.data} {left.method}: left out, it cannot be made of such data")
    # Workers of a cluster see no disk of ours; the user's own data no worker can load.
    sent = [
        data
        for data in dict.fromkeys(b.data for b in bouts)
        if engine.name == "ray" or data in arena.own
    ]
    work = _Work(arena, {data: _bench(arena, data) for data in sent})
    failures: dict[str, str] = {}
    for count, (bout, result) in enumerate(launch(_run, bouts, work, engine=engine), 1):
        label = f"{bout.data} {bout.method}"
        said = "done"
        if isinstance(result, Failed):
            failures[label] = said = result.reason
        else:
            _save(arena, bout, result)
        _say(stream, f"[{count}/{len(bouts)}] {label}: {said}")
    return failures


def _say(stream: TextIO | None, line: str) -> None:
    if stream is not None:
        stream.write(f"{line}\n")
        stream.flush()


def _save(arena: Arena, bout: Bout, result: Result) -> None:
    write_table(arena.rows(bout), result.rows)
    write_table(arena.floors(bout.data), result.floors)
    made = {"versions": versions(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
    # After the tables: where this file is, the result is complete.
    atomic_write(
        arena.numbers(bout), (json.dumps(result.about | made, indent=2) + "\n").encode()
    )


def _run(work: _Work, bout: Bout) -> Result:
    """Train all seeds of a participant, then measure them."""
    arena = work.arena
    bench = work.bench(bout.data)
    entrant = Entrant.named(bout.method)
    fits = {
        seed: fit_of(bench, bout.data, seed, arena.caps, protected=False)
        for seed in arena.seeds_of[bout.data]
    }
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        # Of the processor: by the clock, bouts that run beside each other would slow each other
        # down.
        started = time.process_time()
        models = _models(entrant, fits, arena.gradients)
        seconds = (time.process_time() - started) / len(fits)
    parts = []
    numbers = []
    for seed, fit in fits.items():
        others = [
            decider(m, fit.x[:1], bench.data.num_classes)
            for other, m in models.items()
            if other != seed
        ]
        parts += [
            rows.assign(seed=seed)
            for rows in _counterfactuals(arena, bench, fit, bout, models[seed], others)
        ]
        numbers.append(
            {"seed": seed, "seconds": round(seconds, 3), **_of_model(bench, fit, models[seed])}
        )
    first = fits[min(fits)]
    about = {
        **bout._asdict(),
        "rows": arena.kind_of_rows,
        "input_gradients": input_gradients(first, entrant.method, arena.gradients),
        "models": numbers,
        "notes": list(dict.fromkeys(str(one.message) for one in said)),
        "caps": asdict(arena.caps),
    }
    floors = floor_table(
        bench.individuals, bench.judge, (bench.data.x_train, bench.data.y_train)
    )
    return Result(
        pd.concat(parts, ignore_index=True).assign(data=bout.data),
        about,
        floors.assign(data=bout.data),
    )


def _models(entrant: Entrant, fits: Mapping[int, Fit], gradients: int) -> dict[int, nn.Module]:
    """A classifier per seed, in eval mode, with k outputs, or k + 1 if it is gated."""
    rows = list(fits.values())
    made = trained(rows, entrant.method, cap_unless_stated(entrant.method, gradients))
    if entrant.gate != "none":
        kind = entrant.gate_of(rows[0].name)
        made = [with_gate(model, fit, kind) for model, fit in zip(made, rows, strict=True)]
    models = [model.eval().requires_grad_(False) for model in made]
    return dict(zip(fits, models, strict=True))


def _counterfactuals(
    arena: Arena,
    bench: TruthBench,
    fit: Fit,
    bout: Bout,
    model: nn.Module,
    others: Sequence[nn.Module],
) -> list[pd.DataFrame]:
    """One table per search; a model that answers by itself is asked in place of all of them."""
    find: Any = search
    if Entrant.named(bout.method).itself:
        find = counternet_explainer
    if others:
        metrics = {"retrained": partial(_retrained, others)}
    else:
        metrics = {}
    found = []
    for name in arena.generators:
        generator = _generator(name, fit)
        table = stepfree_table(
            {bout.method: model},
            bench.individuals,
            bench.judge,
            (fit.x, fit.y),
            fit.constraints,
            [replace(level, generator=generator) for level in STEP_FREE],
            find,
            metrics,
        )
        found.append(table.assign(setting=name))
    return found


def _generator(name: str, fit: Fit) -> Generator:
    """The recipe free of a step size, where it can be; otherwise as it is."""
    if name not in _FREE:
        return make_generator(name, fit.x, fit.y)
    usual = make_generator("line")
    numbers = {key: usual.numbers()[key] for key in ("learning_rate", "max_steps")}
    return make_generator(name, fit.x, fit.y, step_rule="line", **numbers)


def _retrained(others: Sequence[nn.Module], measured: Measured) -> Tensor:
    """The share of models, trained by other seeds, that also give the target class ``(n,)``."""
    votes = [
        predict_logits(other, measured.x_cf).argmax(-1) == measured.y_target for other in others
    ]
    return torch.stack(votes).double().mean(0)


def _of_model(bench: TruthBench, fit: Fit, model: nn.Module) -> dict[str, float]:
    """Accuracy, F1, calibration and accuracy under attack, of the classifier inside a gate."""
    inner = decider(model, bench.x_held, bench.data.num_classes)
    found = performance(predict_logits(inner, bench.x_held), bench.y_held)
    (curve,) = attack_curves(
        inner, bench.x_held, bench.y_held, ATTACK, fit.constraints
    ).values()
    return found | {
        f"robust_accuracy@{e:g}": float(v) for e, v in zip(ATTACK.epsilons, curve, strict=True)
    }
