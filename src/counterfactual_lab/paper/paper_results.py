"""Finished runs side by side: arrays with one row per training seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from counterfactual_lab.grids.grid_run import GridRun
from counterfactual_lab.grids.results import finite_mean
from counterfactual_lab.paper_data import CT, PAPER_ORDER
from counterfactual_lab.runs.outcome import Outcome, check_versions
from counterfactual_lab.runs.store import Store
from counterfactual_training.errors import InputError

Array = NDArray[np.float64]


def over_lambda(values: Array) -> Array:
    """Mean of measurements ``(S, λ, n)`` over the λ_energy that have a value: ``(S, n)``."""
    return np.asarray(finite_mean(values, 1))


def _effort(run: GridRun) -> str:
    """How long a run was trained and how thoroughly it was measured, which all runs of a table
    share.
    """
    measurement = run.measurement
    protocol = run.measurement.protocol
    thorough = (
        f"paired {measurement.paired}, {len(protocol.epsilons)} ε, {protocol.attribution_rounds} "
        "rounds"
    )
    return (
        f"{run.values['training.epochs']} epochs, {protocol.num_runs} evaluation runs "
        f"({thorough})"
    )


@dataclass(frozen=True, eq=False)
class Results:
    """Outcomes of one version of the package, by data set and model."""

    runs: dict[tuple[str, str], list[Outcome[GridRun]]]

    @classmethod
    def load(cls, store: Store, runs: Iterable[str]) -> Results:
        """Those of the runs, by identity, that are done."""
        done = store.done()
        runs_done = [
            GridRun.from_content(store.content(name)["run"]) for name in runs if name in done
        ]
        return cls.from_outcomes([store.load(run) for run in runs_done])

    @classmethod
    def from_outcomes(cls, outcomes: Sequence[Outcome[GridRun]]) -> Results:
        check_versions(outcomes)
        efforts = sorted({_effort(outcome.run) for outcome in outcomes})
        if len(efforts) > 1:
            raise InputError(
                "Results of different settings do not belong in one table: "
                f"{' and '.join(efforts)}."
            )
        grouped: dict[tuple[str, str], list[Outcome[GridRun]]] = {}
        # By seed, so that the rows of two models' stacks are pairs.
        for outcome in sorted(outcomes, key=lambda outcome: outcome.run.seed):
            same = grouped.setdefault((outcome.run.data, outcome.run.model), [])
            if same and same[-1].run.seed == outcome.run.seed:
                raise InputError(
                    "Results of different settings do not belong in one table: "
                    f"{outcome.run.label}."
                )
            same.append(outcome)
        return cls(grouped)

    @property
    def all(self) -> list[Outcome[GridRun]]:
        return [outcome for outcomes in self.runs.values() for outcome in outcomes]

    def shared(self, *models: str) -> list[tuple[str, list[int]]]:
        """Data sets in the paper's order, each with the seeds that all these models have; none
        without any.
        """
        by_data = {
            data: [self.runs.get((data, model), []) for model in models] for data in PAPER_ORDER
        }
        seeds = {
            d: set.intersection(*({r.run.seed for r in one} for one in each))
            for d, each in by_data.items()
        }
        return [(data, sorted(common)) for data, common in seeds.items() if common]

    def outcomes(self, data: str, model: str, seeds: Sequence[int]) -> list[Outcome[GridRun]]:
        return [
            result for result in self.runs.get((data, model), []) if result.run.seed in seeds
        ]

    def stack(self, data: str, model: str, name: str, seeds: Sequence[int]) -> Array:
        """A measurement of all these seeds: ``(S, *shape)``."""
        return np.stack([result.array(name) for result in self.outcomes(data, model, seeds)])

    def numbers(self, data: str, model: str, name: str, seeds: Sequence[int]) -> Array:
        """A single number of all these seeds: ``(S,)``."""
        return np.array([result.numbers[name] for result in self.outcomes(data, model, seeds)])

    def settings_table(self) -> pd.DataFrame:
        """What was trained and how: one row per data set, with the settings of CT if such a model
        is there.
        """
        rows = []
        for data in PAPER_ORDER:
            results = [result for result in self.all if result.run.data == data]
            if results:
                first = next((one for one in results if one.run.name == CT), results[0])
                models = ", ".join(sorted({result.run.model for result in results}))
                rows.append(
                    {
                        "data": data,
                        "models": models,
                        "seeds": len({r.run.seed for r in results}),
                        **_flat(first.run.values),
                    }
                )
        return pd.DataFrame(rows)


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run by short name; those of its search, which has a learning rate too, say
    so.
    """
    flat = {}
    for path, value in values.items():
        part, dot, name = path.partition(".")
        if part == "generator" and dot:
            flat[f"search {name}"] = value
        elif part in ("training", "objective", "generator"):
            flat[name or part] = value
    return flat
