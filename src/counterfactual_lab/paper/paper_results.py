"""Finished cells side by side: arrays with one row per training seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from counterfactual_lab.grids.cell import Cell
from counterfactual_lab.grids.outcome import CellOutcome, check_versions
from counterfactual_lab.grids.results import finite_mean
from counterfactual_lab.grids.store import Store
from counterfactual_lab.paper_data import CT, PAPER_ORDER
from counterfactual_training.errors import InputError

Array = NDArray[np.float64]


def over_lambda(values: Array) -> Array:
    """Mean of measurements ``(S, λ, n)`` over the λ_energy that have a value: ``(S, n)``."""
    return np.asarray(finite_mean(values, 1))


def _effort(cell: Cell) -> str:
    """How long a cell was trained and how thoroughly it was measured, which all cells of a table
    share.
    """
    measurement = cell.measurement
    protocol = cell.measurement.protocol
    thorough = (
        f"paired {measurement.paired}, {len(protocol.epsilons)} ε, {protocol.attribution_rounds} "
        "rounds"
    )
    return (
        f"{cell.values['training.epochs']} epochs, {protocol.num_runs} evaluation runs "
        f"({thorough})"
    )


@dataclass(frozen=True, eq=False)
class Results:
    """Outcomes of one version of the package, by data set and model."""

    cells: dict[tuple[str, str], list[CellOutcome]]

    @classmethod
    def load(cls, store: Store, cells: Iterable[str]) -> Results:
        """Those of the cells, by identity, that are done."""
        done = store.done()
        return cls.from_outcomes([store.load(name) for name in cells if name in done])

    @classmethod
    def from_outcomes(cls, found: Sequence[CellOutcome]) -> Results:
        check_versions(found)
        efforts = sorted({_effort(outcome.cell) for outcome in found})
        if len(efforts) > 1:
            raise InputError(
                "Results of different settings do not belong in one table: "
                f"{' and '.join(efforts)}."
            )
        grouped: dict[tuple[str, str], list[CellOutcome]] = {}
        # By seed, so that the rows of two models' stacks are pairs.
        for outcome in sorted(found, key=lambda outcome: outcome.cell.seed):
            same = grouped.setdefault((outcome.cell.data, outcome.cell.model), [])
            if same and same[-1].cell.seed == outcome.cell.seed:
                raise InputError(
                    "Results of different settings do not belong in one table: "
                    f"{outcome.cell.label}."
                )
            same.append(outcome)
        return cls(grouped)

    @property
    def all(self) -> list[CellOutcome]:
        return [outcome for outcomes in self.cells.values() for outcome in outcomes]

    def shared(self, *models: str) -> list[tuple[str, list[int]]]:
        """Data sets in the paper's order, each with the seeds that all these models have; none
        without any.
        """
        found = {
            data: [self.cells.get((data, model), []) for model in models]
            for data in PAPER_ORDER
        }
        seeds = {
            d: set.intersection(*({r.cell.seed for r in one} for one in each))
            for d, each in found.items()
        }
        return [(data, sorted(common)) for data, common in seeds.items() if common]

    def outcomes(self, data: str, model: str, seeds: Sequence[int]) -> list[CellOutcome]:
        return [
            result for result in self.cells.get((data, model), []) if result.cell.seed in seeds
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
            found = [result for result in self.all if result.cell.data == data]
            if found:
                first = next((one for one in found if one.cell.name == CT), found[0])
                models = ", ".join(sorted({result.cell.model for result in found}))
                rows.append(
                    {
                        "data": data,
                        "models": models,
                        "seeds": len({r.cell.seed for r in found}),
                        **_flat(first.cell.values),
                    }
                )
        return pd.DataFrame(rows)


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a cell by short name; those of its search, which has a learning rate too, say
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
