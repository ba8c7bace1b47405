"""The results of a grid as tables: every number, changes against conventional training, a row per
setting, means per axis.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_lab.grids.grid import Grid, Point, runs_of
from counterfactual_lab.grids.grid_run import AS_TRAINED, GridRun
from counterfactual_lab.grids.settings import CONVENTIONAL
from counterfactual_lab.runs.outcome import Outcome
from counterfactual_lab.runs.store import Store
from counterfactual_training.evaluation.metrics import COUNTERFACTUAL, RATIOS

# A setting whose counterfactuals mostly fail is not good, however plausible the others are.
_LEAST_VALID = 0.5
_NOTHING = np.array(np.nan)

Means = dict[str, Any]  # over conventional models: ratios (λ,), and the accuracy


@dataclass(frozen=True, eq=False)
class GridResults:
    """Tables of the finished points of a grid; ``missing`` points are not in them.

    A setting is compared with the mean of all conventional models of the grid with the same data
    set, architecture, epochs, batch size and learning rate, so that a single lucky one does not
    shift a whole figure.

    Attributes:
        tidy: a row per setting, metric and λ_energy; means over evaluation runs and their spread.
        summary: a row per setting; reductions are negative changes in %.
        changes: a row per setting that is not conventional, metric, λ_energy and run: the change
            in %.
        maturity: share of mature counterfactuals per setting and epoch.
        marginal: per data set, axis and value, over all settings that have it.
    """

    grid: Grid
    tidy: pd.DataFrame
    summary: pd.DataFrame
    changes: pd.DataFrame
    maturity: pd.DataFrame
    marginal: pd.DataFrame
    points: int
    missing: int
    models: int
    seconds: float

    @classmethod
    def load(cls, grid: Grid, points: Sequence[Point], store: Store) -> GridResults:
        """Of all points whose model and conventional model are done."""
        done = store.done()
        finished = [p for p in points if p.run.id in done and p.conventional.id in done]
        outcomes = {run: store.load(run) for run in runs_of(finished)}
        conventional = _conventional(finished, outcomes)
        tidy = []
        summary = []
        changes = []
        maturity = []
        for point in finished:
            outcome = outcomes[point.run]
            means = conventional[_group(point)]
            head = _head(point, grid)
            tidy += [{**head, **row} for row in _tidy(outcome, point.run)]
            summary.append({**head, **_summary(outcome, means)})
            if head["method"] != CONVENTIONAL or head["gate"] != "none":
                changes += [{**head, **row} for row in _changes(outcome, means, point.run)]
            if not point.run.is_conventional:
                shares = enumerate(outcome.history.get("share_mature", ()), 1)
                maturity += [
                    {**head, "epoch": epoch, "share mature": float(share)}
                    for epoch, share in shares
                ]
        wide = pd.DataFrame(summary)
        return cls(
            grid,
            pd.DataFrame(tidy),
            wide,
            pd.DataFrame(changes),
            pd.DataFrame(maturity),
            _marginal(grid, wide),
            len(points),
            len(points) - len(finished),
            len(outcomes),
            sum(sum(outcome.seconds.values()) for outcome in outcomes.values()),
        )


def _group(point: Point) -> tuple[Any, ...]:
    model = point.conventional
    return (
        model.data,
        model.settings,
        model.measurement,
        point.run.constraint_kinds[0],
    )


def _metrics(outcome: Outcome[GridRun]) -> Mapping[str, np.ndarray]:
    return metrics_of(outcome, outcome.run.constraint_kinds[0])


def metrics_of(outcome: Outcome[GridRun], kind: str) -> Mapping[str, np.ndarray]:
    """Arrays ``(λ, runs)`` by metric, searched under these constraints."""
    if outcome.run.measurement.protected != AS_TRAINED:
        return outcome.arrays
    start = f"published/{kind}/"
    return {
        name.removeprefix(start): array
        for name, array in outcome.arrays.items()
        if name.startswith(start)
    }


def _conventional(
    points: Sequence[Point], outcomes: dict[GridRun, Outcome[GridRun]]
) -> dict[tuple[Any, ...], Means]:
    members: dict[tuple[Any, ...], dict[GridRun, Outcome[GridRun]]] = {}
    for point in points:
        members.setdefault(_group(point), {})[point.conventional] = outcomes[point.conventional]
    out: dict[tuple[Any, ...], Means] = {}
    for key, outcomes_of_key in members.items():
        same = list(outcomes_of_key.values())  # a mean over models and runs, for each λ_energy
        out[key] = {
            m: finite_mean(np.stack([metrics_of(one, key[-1])[m] for one in same]), (0, 2))
            for m in RATIOS
        }
        out[key]["accuracy"] = float(np.mean([one.numbers["accuracy"] for one in same]))
    return out


def _head(point: Point, grid: Grid) -> dict[str, Any]:
    """The columns that identify a setting in every table: data set, seed, axes."""
    values = dict(point.values)
    axes = {name: _shown(values[name]) for name in grid.axes}
    method = values.get("method", point.run.name)
    if point.run.is_conventional:
        method = CONVENTIONAL
    return {
        "data": point.data,
        "seed": point.seed,
        **axes,
        "method": method,
        "gate": point.run.gate,
        "run": point.run.id,
    }


def differs(summary: pd.DataFrame) -> pd.Series:
    """Which settings of a summary are compared: all but the conventional network alone."""
    return (summary["method"] != CONVENTIONAL) | (summary["gate"] != "none")


def _shown(value: Any) -> Any:
    """Widths of layers as text, ``32-32``; other values as they are."""
    if isinstance(value, tuple):
        return "-".join(map(str, value)) or "linear"
    return value


def _tidy(outcome: Outcome[GridRun], run: GridRun) -> list[dict[str, Any]]:
    rows = []
    for metric, values in _metrics(outcome).items():
        for strength, runs in zip(run.measurement.protocol.lambda_energy, values, strict=True):
            finite = runs[np.isfinite(runs)]
            if len(finite):
                mean = finite.mean()
            else:
                mean = np.nan
            if len(finite) > 1:
                sd = finite.std(ddof=1)
            else:
                sd = np.nan
            row = {
                "metric": metric,
                "evaluation lambda_energy": strength,
                "value": mean,
                "sd": sd,
                "runs": len(finite),
            }
            rows.append(row)
    return rows + [
        {"metric": metric, "value": value, "runs": 1}
        for metric, value in outcome.numbers.items()
    ]


def _summary(outcome: Outcome[GridRun], means: Means) -> dict[str, Any]:
    values = {
        metric: float(finite_mean(_metrics(outcome)[metric])) for metric in COUNTERFACTUAL
    }
    changes = {
        f"{metric} change %": 100 * (values[metric] / float(finite_mean(means[metric])) - 1)
        for metric in RATIOS
    }
    mature = outcome.history.get("share_mature", np.array([np.nan]))
    return {
        **values,
        **outcome.numbers,
        **changes,
        "accuracy change, points": 100 * (outcome.numbers["accuracy"] - means["accuracy"]),
        "share mature": float(finite_mean(mature)),
        "share mature at the end": float(mature[-1]) if len(mature) else np.nan,
        "epochs trained": len(outcome.history.get("loss", ())),
        "stopped": outcome.stopped or "",
        "seconds": round(sum(outcome.seconds.values()), 3),
    }


def _changes(outcome: Outcome[GridRun], means: Means, run: GridRun) -> list[dict[str, Any]]:
    strengths = run.measurement.protocol.lambda_energy
    changes = {
        metric: 100 * (_metrics(outcome)[metric] / means[metric][:, None] - 1)
        for metric in RATIOS
    }
    return [
        {"metric": metric, "evaluation lambda_energy": strength, "run": run, "change": value}
        for metric, change in changes.items()
        for strength, runs in zip(strengths, change, strict=True)
        for run, value in enumerate(runs)
    ]


def _marginal(grid: Grid, summary: pd.DataFrame) -> pd.DataFrame:
    """Medians and quartiles of the settings that share a value."""
    rows: list[dict[str, Any]] = []
    if not len(summary):
        return pd.DataFrame(rows)
    trained = summary[differs(summary)]
    for data in grid.data:
        for axis, values in grid.axes.items():
            for value in map(_shown, values):
                part = trained[(trained["data"] == data) & (trained[axis] == value)]
                if len(part):
                    rows.append({"data": data, "axis": axis, "value": value, **_spread(part)})
    return pd.DataFrame(rows)


def _spread(part: pd.DataFrame) -> dict[str, Any]:
    out: dict[str, Any] = {"settings": len(part)}
    for metric in RATIOS:
        low, median, high = part[f"{metric} change %"].quantile([0.25, 0.5, 0.75])
        out |= {f"{metric} low": low, f"{metric} median": median, f"{metric} high": high}
    out |= {
        name: part[name].mean()
        for name in ("validity", "accuracy change, points", "share mature")
    }
    return {**out, "stopped": int((part["stopped"] != "").sum())}


def finite_mean(values: np.ndarray, axis: int | tuple[int, ...] | None = None) -> Any:
    """Mean of the values that exist; NaN where there are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmean(values, axis=axis)


class Leaders:
    """The best settings so far, for the progress line: per data set, the lowest implausibility
    among valid ones.
    """

    def __init__(self, points: Sequence[Point], store: Store, done: set[str]) -> None:
        self.points = {
            point.run.id: point for point in points if point.run != point.conventional
        }
        self.conventional = {point.conventional.id: point.data for point in points}
        values: dict[str, set[str]] = {}
        for point in points:
            for name, value in point.values:
                values.setdefault(name, set()).add(str(value))
        # Only settings that vary are shown; all leaders train with counterfactuals.
        self.varied = [
            name
            for name, different in values.items()
            if len(different) > 1 and name != "method"
        ]
        self.leaders: dict[str, tuple[float, Point]] = {}
        self.usual: dict[str, list[float]] = {}
        self.add({run.id: store.load(run) for run in runs_of(points) if run.id in done})

    def add(self, outcomes: Mapping[str, Outcome[GridRun]]) -> None:
        """Take runs, by identity, into account."""
        for name, outcome in outcomes.items():
            value, valid = (
                float(finite_mean(_metrics(outcome).get(m, _NOTHING)))
                for m in ("implausibility", "validity")
            )
            if name in self.conventional and np.isfinite(value):
                self.usual.setdefault(self.conventional[name], []).append(value)
            if name in self.points and valid >= _LEAST_VALID:
                point = self.points[name]
                if value < self.leaders.get(point.data, (np.inf,))[0]:
                    self.leaders[point.data] = (value, point)

    def best(self, data: str) -> str:
        """``best on Moon: IP 1.31 (−18 %), ecco, max_steps 50``; nothing while there is none."""
        if data not in self.leaders:
            return ""
        value, point = self.leaders[data]
        usual = np.mean(self.usual[data]) if data in self.usual else np.nan
        if np.isfinite(usual):
            change = f" ({100 * (value / usual - 1):+.0f} %)".replace("-", "−")
        else:
            change = ""
        values = {name: str(chosen) for name, chosen in point.values}
        words = {name: name.rpartition(".")[2] for name in self.varied}
        settings = [
            values[name] if word == "name" else f"{word} {values[name]}"
            for name, word in words.items()
        ]
        return ", ".join([f"best on {data}: IP {value:.2f}{change}", *settings])
