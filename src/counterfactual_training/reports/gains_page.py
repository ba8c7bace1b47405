"""The page *What the published gains are made of*: prose in ``templates/gains.md``, every number from the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from counterfactual_training.reports.gains_aims import aims_table, select
from counterfactual_training.reports.page import render
from counterfactual_training.reports.text_table import NOTHING, TextTable, number

# Tables of the figures that the page quotes beside those of the truth experiment.
PICTURED = ("overshoot", "rescaled")
_STEPS, _HALF, _SURE = "50 × 0.1", ".5", ".95*"
_TAUS = {_STEPS: "published steps", _HALF: "line, τ = .5", _SURE: "line, τ = .95\\*"}
# Probabilities are written with five digits, so that one just past τ = .5 may read .5.
_ARRIVED = 0.5 - 1e-4
_COUNTED = {"nn5": "5-NN", "boosting": "boosting", "ip_star": "IP*", "cost": "cost"}


def gains_page(tables: Mapping[str, pd.DataFrame], folder: str, head: str) -> str:
    """The page as Markdown.

    Args:
        tables: those of :func:`truth_tables`, and ``overshoot`` and ``rescaled`` of :func:`picture_tables`.
        folder: where tables and ``figures/`` are, seen from the page.
        head: which rows were measured, and by which command.
    """
    truth, performance, gains = tables["truth"], tables["truth_performance"], tables["truth_gains"]
    return render(
        "gains.md",
        head=head,
        folder=folder,
        steps=_STEPS,
        data=_unique(truth["data"]),
        models=_unique(truth["model"]),
        seeds=" or ".join(str(n) for n in sorted({int(n) for n in truth["seeds"]})),
        on=partial(_on, truth),
        accuracy_loss=_accuracy_loss(performance),
        compared=_compared(truth),
        overshoot=_overshoot(tables["overshoot"]),
        left_ip=_left_over(gains, "implausibility", "IP, every feature free"),
        left_cost=_left_over(gains, "cost", "Cost, protected features immutable"),
        rescaled=_rescaled(tables["rescaled"]),
        floors=_floors(truth),
        methods=_methods(truth, performance),
        prices=_prices(truth),
        diversity=_by_data(truth, "diversity", "free", (_HALF,), 2),
        validity=_by_data(truth, "validity", "protected", (_HALF, _SURE), 0, 100),
        aims=aims_table(tables),
    )


def _unique(column: pd.Series) -> list[str]:
    return [str(name) for name in dict.fromkeys(column)]


def _table(header: Iterable[str], rows: Sequence[tuple[str, ...]], title: str = "") -> str:
    """As Markdown; nothing where there is neither a title nor a row."""
    if not (rows or title):
        return ""
    escaped = tuple(name.replace("*", "\\*") for name in header)
    return TextTable(title, escaped, tuple(rows)).markdown().rstrip("\n")


def _verdicts(
    truth: pd.DataFrame, model: str, metric: str, tau: str, setting: str = "free"
) -> tuple[list[str], list[str]]:
    """The data sets on which a model is better and worse than its twin."""
    cell = select(truth, model, metric, tau, setting)
    better, worse = (list(cell.loc[cell["verdict"] == verdict, "data"]) for verdict in ("better", "worse"))
    return better, worse


def _on(truth: pd.DataFrame, model: str, metric: str, tau: str, setting: str = "free", verdict: str = "better") -> str:
    """``3 of 9 data sets (LS, CH, GMSC)``: where a model is better than its twin, of those it was measured on."""
    names = _verdicts(truth, model, metric, tau, setting)[verdict == "worse"]
    measured = truth.loc[truth["model"] == model, "data"].nunique()
    return f"{len(names) or 'none'} of {measured} data sets" + (f" ({', '.join(names)})" if names else "")


def _accuracy_loss(performance: pd.DataFrame) -> tuple[str, str] | None:
    """Where CT changes accuracy for the worse most: the data set and the points."""
    drops = performance[(performance["model"] == "CT") & (performance["metric"] == "accuracy")].dropna(subset="change")
    if drops.empty:
        return None
    worst = drops.sort_values("change").iloc[0]
    return str(worst["data"]), number(100 * worst["change"], 1)


def _compared(truth: pd.DataFrame) -> str:
    wanted = [("CT", "ip", _STEPS), ("BL rescaled", "ip", _STEPS)]
    wanted += [("CT", metric, tau) for tau in (_HALF, _SURE) for metric in ("ip", "nn5", "cost")]
    rows = []
    for model, metric, tau in (one for one in wanted if one[0] in set(truth["model"])):
        names = (", ".join(found) or NOTHING for found in _verdicts(truth, model, metric, tau))
        change = number(-select(truth, model, metric, tau)["change"].median(), 0)
        rows.append((model, {"ip": "IP", **_COUNTED}[metric], _TAUS[tau], *names, change))
    return _table(("compared with BL", "measure", "search", "better on", "worse on", "median change %"), rows)


def _overshoot(table: pd.DataFrame) -> str:
    """Medians of the distance of those who arrive, by data set and model."""
    rows = []
    ends = table[(table["step"] < 0) & (table["probability"] > _ARRIVED)] if len(table) else table
    for (data, model), part in ends.groupby(["data", "model"], sort=False) if len(ends) else ():
        medians = part.groupby("search", sort=False)["distance"].median()
        rows.append((str(data), str(model), *(number(medians.iloc[place], 2) for place in (0, 1))))
    return _table(("data", "model", "median way by fixed steps", "by line search"), rows)


def _rescaled(table: pd.DataFrame) -> str:
    """IP and cost of three points of the figure."""
    rows = []
    for data, part in table.groupby("data", sort=False) if len(table) else ():
        for model, factor in (("BL", 1.0), ("BL", 0.25), ("CT", 1.0)):
            own = part[(part["model"] == model) & np.isclose(part["factor"], factor)]
            cells = [number(float(value), 2) for metric in ("ip", "cost") for value in own[metric]]
            rows.append((str(data), f"{model} × {factor:g}" if factor != 1 else model, *cells))
    return _table(("data", "model", "IP, steps", "IP, line search", "cost, steps", "cost, line search"), rows)


def _left_over(gains: pd.DataFrame, metric: str, title: str) -> str:
    columns = {
        "published": "published",
        f"CT, {_STEPS}": "CT, steps",
        f"BL rescaled, {_STEPS}": "BL rescaled, steps",
        f"CT, {_HALF}": "CT, line .5",
        f"CT, {_SURE}": "CT, line .95*",
    }
    part = gains[gains["metric"] == metric]
    rows = [(str(row["data"]), *(number(row.get(name, np.nan), 1) for name in columns)) for _, row in part.iterrows()]
    return _table(("data", *columns.values()), rows, title)


def _floors(truth: pd.DataFrame) -> str:
    rows = []
    for data in _unique(truth["data"]):
        parts = (select(truth, "CT", "nn5", tau) for tau in (_HALF, _STEPS))
        half, steps = (part[part["data"] == data] for part in parts)
        if len(half) and len(steps):
            values = (half["real"], half["nearest_unlike"], half["unmoved"], steps["baseline"], steps["value"],
                      half["baseline"], half["value"])  # fmt: skip
            rows.append((data, *(number(float(value.iloc[0]), 3) for value in values)))
    header = ("data", "real rows", "nearest unlike", "unmoved", "BL, steps", "CT, steps", "BL, line .5", "CT, line .5")
    return _table(header, rows, "5-NN distance")


def _methods(truth: pd.DataFrame, performance: pd.DataFrame) -> str:
    """Better / worse than the twin, by method."""
    accuracy = performance[performance["metric"] == "accuracy"]
    compared = [(metric, tau) for metric in _COUNTED for tau in (_HALF, _SURE)]
    rows = []
    for model in _unique(truth.loc[truth["model"] != truth["twin"], "model"]):
        found = [_verdicts(truth, model, *one) for one in compared]
        found.append(_verdicts(truth, model, "cost", _HALF, "protected"))
        worst = 100 * accuracy.loc[accuracy["model"] == model, "change"].min()
        rows.append((model, *(f"{len(better)} / {len(worse)}" for better, worse in found), number(worst, 2)))
    titles = [f"{_COUNTED[metric]} {tau}" for metric, tau in compared]
    header = ("method", *titles, "cost, protected .5", "worst accuracy, pp")
    return _table(header, rows, "Better / worse than the conventional twin")


def _by_data(
    truth: pd.DataFrame, column: str, setting: str, taus: Sequence[str], digits: int, factor: float = 1.0
) -> str:
    """A row per data set, a column per method and τ; without the rescaled baseline, which ends where BL does."""
    pairs = [(model, tau) for tau in taus for model in _unique(truth["model"]) if model != "BL rescaled"]
    rows = []
    for data in _unique(truth["data"]):
        cells = []
        for model, tau in pairs:
            values = select(truth, model, "nn5", tau, setting).set_index("data")[column]
            cells.append(number(factor * float(values[data]), digits) if data in values else NOTHING)
        rows.append((data, *cells))
    return _table(("data", *(f"{model} {tau}" if len(taus) > 1 else model for model, tau in pairs)), rows)


def _prices(truth: pd.DataFrame) -> str:
    """Medians over data sets of the change in distance and in cost."""
    rows = []
    for model in _unique(truth.loc[truth["model"] != truth["twin"], "model"]):
        cells = []
        for tau in (_HALF, _SURE):
            nearest, cost = (select(truth, model, metric, tau) for metric in ("nn5", "cost"))
            cells += [number(-part["change"].median(), 0) for part in (nearest, cost)]
            cells.append(number(100 * nearest["validity"].median(), 0))
        rows.append((model, *cells))
    titles = (f"{what} {tau}" for tau in (_HALF, _SURE) for what in ("5-NN %", "cost %", "valid %"))
    return _table(("method", *titles), rows, "Median change over data sets; below zero is nearer, or cheaper")
