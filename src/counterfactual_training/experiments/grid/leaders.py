"""The best settings found so far, for the progress line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from counterfactual_training.experiments.grid.grid import Point
from counterfactual_training.experiments.grid.outcome import CellOutcome
from counterfactual_training.experiments.grid.store import Store

# A setting whose counterfactuals mostly fail is not a good one, however plausible the rest.
_LEAST_VALID = 0.5


class Leaders:
    """Per data set, the lowest implausibility of a setting that mostly finds counterfactuals."""

    def __init__(self, points: Sequence[Point], store: Store, done: set[str]) -> None:
        self.points = {point.cell.id: point for point in points if point.cell != point.baseline}
        self.baselines = {point.baseline.id: point.data for point in points}
        values: dict[str, set[str]] = {}
        for point in points:
            for name, value in point.values:
                values.setdefault(name, set()).add(str(value))
        # Only settings that vary are shown; all leaders train with counterfactuals.
        self.varied = [name for name, found in values.items() if len(found) > 1 and name != "objective.name"]
        self.found: dict[str, tuple[float, Point]] = {}
        self.baseline: dict[str, list[float]] = {}
        cells = {cell.id: cell for point in points for cell in (point.cell, point.baseline)}
        self.add({name: store.load(cell) for name, cell in cells.items() if name in done})

    def add(self, outcomes: Mapping[str, CellOutcome]) -> None:
        """Take cells, by identity, into account."""
        for name, outcome in outcomes.items():
            value = _mean(outcome, "implausibility")
            if name in self.baselines and np.isfinite(value):
                self.baseline.setdefault(self.baselines[name], []).append(value)
            if name in self.points and _mean(outcome, "validity") >= _LEAST_VALID:
                point = self.points[name]
                if value < self.found.get(point.data, (np.inf,))[0]:
                    self.found[point.data] = (value, point)

    def best(self, data: str) -> str:
        """``best on Moon: IP 1.31 (−18 %), ecco, max_steps 50``; nothing while there is none."""
        if data not in self.found:
            return ""
        value, point = self.found[data]
        usual = np.mean(self.baseline[data]) if data in self.baseline else np.nan
        change = f" ({100 * (value / usual - 1):+.0f} %)".replace("-", "−") if np.isfinite(usual) else ""
        return f"best on {data}: IP {value:.2f}{change}, {self._described(point)}"

    def _described(self, point: Point) -> str:
        """``ecco, max_steps 50``."""
        values = dict(point.values)
        words = {name: name.rpartition(".")[2] for name in self.varied}
        return ", ".join(str(values[n]) if word == "name" else f"{word} {values[n]}" for n, word in words.items())


def _mean(outcome: CellOutcome, metric: str) -> float:
    values = outcome.metrics(outcome.cell.constraint_kinds[0]).get(metric)
    return float(np.nanmean(values)) if values is not None and np.isfinite(values).any() else float("nan")
