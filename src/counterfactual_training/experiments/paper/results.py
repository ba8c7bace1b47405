"""Finished cells side by side: arrays with one row per training seed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from counterfactual_training.errors import InputError
from counterfactual_training.experiments.grid.cell import Cell
from counterfactual_training.experiments.grid.outcome import CellOutcome, check_versions
from counterfactual_training.experiments.grid.store import Store
from counterfactual_training.experiments.names import PAPER_ORDER

Array = NDArray[np.float64]


def _effort(cell: Cell) -> str:
    """How long a cell was trained and how thoroughly it was measured, which all cells of a table share."""
    measurement, protocol = cell.measurement, cell.measurement.protocol
    thorough = f"paired {measurement.paired}, {len(protocol.epsilons)} ε, {protocol.attribution_rounds} rounds"
    return f"{cell.values['training.epochs']} epochs, {protocol.num_runs} evaluation runs ({thorough})"


@dataclass(frozen=True, eq=False)
class Results:
    """Outcomes of one version of the package, by data set and model."""

    cells: dict[tuple[str, str], list[CellOutcome]]

    @classmethod
    def load(cls, store: Store, cells: Iterable[Cell | str]) -> Results:
        """Those of the cells that are done."""
        done = store.done()
        return cls.from_outcomes([store.load(c) for c in cells if (c if isinstance(c, str) else c.id) in done])

    @classmethod
    def from_outcomes(cls, found: Sequence[CellOutcome]) -> Results:
        check_versions(found)
        efforts = sorted({_effort(outcome.cell) for outcome in found})
        if len(efforts) > 1:
            raise InputError(f"Results of different settings do not belong in one table: {' and '.join(efforts)}.")
        grouped: dict[tuple[str, str], list[CellOutcome]] = {}
        for outcome in sorted(found, key=lambda outcome: outcome.cell.seed):
            same = grouped.setdefault((outcome.cell.data, outcome.cell.model), [])
            if same and same[-1].cell.seed == outcome.cell.seed:
                raise InputError(f"Results of different settings do not belong in one table: {outcome.cell.label}.")
            same.append(outcome)
        return cls(grouped)

    @property
    def all(self) -> list[CellOutcome]:
        return [outcome for outcomes in self.cells.values() for outcome in outcomes]

    def data(self, *models: str) -> list[str]:
        """Data sets for which at least one seed of every one of these models is done, in the paper's order."""
        return [name for name in PAPER_ORDER if self.seeds(name, *models)]

    def present(self, models: Sequence[str]) -> list[tuple[str, str]]:
        """Data sets and models that have results, models in the given order."""
        return [(data, model) for model in models for data in self.data(model)]

    def seeds(self, data: str, *models: str) -> list[int]:
        """Seeds that all these models have."""
        found = [{result.cell.seed for result in self.cells.get((data, model), [])} for model in models]
        return sorted(set.intersection(*found)) if found else []

    def of_model(self, data: str, model: str, seeds: Sequence[int]) -> list[CellOutcome]:
        return [result for result in self.cells.get((data, model), []) if result.cell.seed in seeds]

    def stack(self, data: str, model: str, name: str, seeds: Sequence[int]) -> Array:
        """A measurement of all these seeds: ``(S, *shape)``."""
        return np.stack([result.array(name) for result in self.of_model(data, model, seeds)])

    def both_over_lambda(self, data: str, models: tuple[str, str], name: str, seeds: Sequence[int]) -> list[Array]:
        """:meth:`over_lambda` of two models, over individuals for whom both have a value at that λ_energy and seed."""
        tables = [self.stack(data, model, name, seeds) for model in models]
        missing = np.isnan(tables[0]) | np.isnan(tables[1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the mean over nobody is NaN
            return [np.nanmean(np.where(missing, np.nan, table), 1) for table in tables]

    def over_lambda(self, data: str, model: str, name: str, seeds: Sequence[int]) -> Array:
        """Mean of a measurement ``(λ, n)`` over the λ_energy that have a value: ``(S, n)``."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing is NaN
            return np.nanmean(self.stack(data, model, name, seeds), axis=1)

    def numbers(self, data: str, model: str, name: str, seeds: Sequence[int]) -> Array:
        """A single number of all these seeds: ``(S,)``."""
        return np.array([result.numbers[name] for result in self.of_model(data, model, seeds)])

    def settings_table(self) -> pd.DataFrame:
        """What was trained and how: one row per data set, with the settings of CT if such a model is there."""
        rows = []
        for data in PAPER_ORDER:
            found = [result for (name, _), results in self.cells.items() if name == data for result in results]
            if found:
                first = next((result for result in found if result.cell.objective == "full"), found[0])
                parts = first.made["settings"]
                models = sorted({result.cell.model for result in found})
                seeds = sorted({result.cell.seed for result in found})
                flat = {**parts["training"], **parts["objective"], "generator": parts["generator"]["name"]}
                # Both the training and the search have a learning rate and neither a seed of its own.
                flat |= {f"search {key}": value for key, value in parts["generator"].items() if key != "name"}
                rows.append({"data": data, "models": ", ".join(models), "seeds": len(seeds), **flat})
        return pd.DataFrame(rows).drop(columns=["seed", "threads"], errors="ignore")
