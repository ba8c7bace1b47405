"""Figures of a comparison: what plausibility costs in distance, accuracy and robustness, and which
methods are on the front.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_lab.paper_data import ADVERSARIAL, CONVENTIONAL, DIVERGENCE
from counterfactual_lab.reports.style import NAMES, drawn, facets, label_edges, panels, unique
from counterfactual_training.evaluation.metrics import ACCEPTANCE

# Colour by family, marker within it; methods that are not named here come last.
_LOOKS = {
    "conventional": ("#555555", "o"),
    "ensemble": ("#555555", "s"),
    "bag": ("#20242c", "o"),
    "bag + density": ("#20242c", "*"),
    "ct": ("#d16ba5", "o"),
    "ct + density": ("#d16ba5", "*"),
    "conventional + density": ("#1a9850", "*"),
    "ct_published + density": ("#1764ab", "*"),
    "ct_published": ("#1764ab", "o"),
    "ct_as_printed": ("#1764ab", "s"),
    "cheap_recourse": ("#1764ab", "D"),
    DIVERGENCE: ("#1764ab", "v"),
    ADVERSARIAL: ("#1764ab", "^"),
    "pgd": ("#d9822b", "o"),
    "trades": ("#d9822b", "s"),
    "jem": ("#7b4fa3", "o"),
    "dat": ("#7b4fa3", "s"),
    "ross": ("#a03030", "o"),
    "misob": ("#a03030", "s"),
    "counternet": ("#2aa5a0", "D"),
    "counternet itself": ("#2aa5a0", "o"),
    "gradient_supervision": ("#b8a02a", "o"),
    "cat": ("#b8a02a", "s"),
}
# The methods whose line from τ to τ is drawn, where not all fit into a figure.
_FRONTIERS = (
    CONVENTIONAL,
    f"{CONVENTIONAL} + density",
    "bag",
    "bag + density",
    "ct",
    "ct + density",
    "ct_published",
    "ct_published + density",
    "pgd",
    "trades",
    "gradient_supervision",
)
_OTHER = ("#8fb04c", "h")
_LINE = {"color": "#bbbbbb", "linewidth": 1.2, "zorder": 1}
_LETTER, _HEIGHT = 0.0148, 0.042  # of a label, in shares of the panel
# In per cent: points farther off are drawn at this edge, because they would squeeze all others.
_WORST = -50.0
# Methods by which fewer people arrive are hollow and left out of the front, because easy cases
# alone look good.
ENOUGH = 0.9


def _front(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which points ``(n,)`` no other beats in both, where small x and large y are better."""
    worse = (
        (x[None] <= x[:, None])
        & (y[None] >= y[:, None])
        & ((x[None] < x[:, None]) | (y[None] > y[:, None]))
    )
    return np.asarray(~worse.any(1))


@drawn
def overview_figure(overview: pd.DataFrame, tau: str) -> Any:
    """Medians over data sets: what people pay, against how much nearer to real rows they end; a
    panel per search.
    """
    part = overview[overview["tau"] == tau]
    figure, axes = panels(part["generator"].nunique(), 2, 5.2, 3.9, sharey=True)
    drawn_at = []
    for axis, (search, rows) in zip(axes, part.groupby("generator", sort=False), strict=True):
        x = 1 - rows["cost"].fillna(0).to_numpy() / 100
        y = rows["nn5"].fillna(0).to_numpy()
        _draw(axis, x, y, list(rows["method"]), rows["valid"].to_numpy() >= ENOUGH)
        axis.set_xscale("log")
        _ticks(axis, x)
        axis.margins(0.12)
        axis.axhline(0, linewidth=0.8, color="#999999", zorder=0)
        axis.set_title(f"searched by {search}, τ = {tau}")
        drawn_at.append((x, y, list(rows["method"])))
    label_edges(
        figure,
        "cost, as a multiple of the conventional model's: left is cheaper",
        "nearer to real rows by, %",
    )
    # After all panels: they share one scale.
    for axis, points in zip(axes, drawn_at, strict=True):
        _labels(axis, *points)
        axis.legend().set_visible(False)
    return figure


@drawn
def price_figure(cells: pd.DataFrame, search: str, tau: str) -> Any:
    """Cost against distance to real rows for every data set, as ratios to the conventional model,
    with the front.
    """
    part = cells[(cells["generator"] == search) & (cells["tau"] == tau)]
    wide = part.pivot(index=["data", "method"], columns="metric", values="change")[
        ["nn5", "cost"]
    ].fillna(0.0)
    wide["arrive"] = _arrive(part)
    figure, axes = facets(part, "data", 3, 3.0, 2.4)
    for axis, data, _ in axes:
        rows = wide.loc[data].reindex(unique(part.loc[part["data"] == data, "method"]))
        arrive = rows["arrive"].to_numpy(dtype=bool)
        nearer = rows["nn5"].clip(lower=_WORST).to_numpy()
        _draw(axis, 1 - rows["cost"].to_numpy() / 100, nearer, list(rows.index), arrive)
        axis.axhline(0, linewidth=0.8, color="#999999", zorder=0)
        axis.set_xscale("log")
        _ticks(axis, 1 - rows["cost"].to_numpy() / 100)
    label_edges(figure, "cost, × conventional", "nearer to real rows, %")
    return figure


@drawn
def acceptance_figure(cells: pd.DataFrame, search: str) -> Any:
    """Cost, as a multiple of the conventional model's at the first τ, against the share of judges
    of other families that accept; a line per method from the first τ to the last, a panel per data
    set. The methods of :data:`_FRONTIERS`, or all of fewer.
    """
    part = cells[cells["generator"] == search]
    names = unique(part["method"])
    if len(names) > len(_FRONTIERS):
        part = part[part["method"].isin(_FRONTIERS)]
    wide = part.pivot(index=["data", "method", "tau"], columns="metric", values="value")
    taus = unique(part["tau"])
    figure, axes = facets(part, "data", 3, 3.0, 2.4)
    for axis, data, rows in axes:
        unit = float(wide.loc[(data, CONVENTIONAL, taus[0]), "cost"])
        for name in unique(rows["method"]):
            points = wide.loc[(data, name)].reindex(taus)
            colour, marker = _LOOKS.get(name, _OTHER)
            look = {"color": colour, "markeredgecolor": "white", "zorder": 3}
            axis.plot(points["cost"] / unit, points[ACCEPTANCE], "-", color=colour, linewidth=1)
            axis.plot(
                points["cost"] / unit,
                points[ACCEPTANCE],
                marker,
                markersize=10 if marker == "*" else 6.5,
                label=name,
                **look,
            )
        axis.set_ylim(-0.03, 1.03)
        axis.set_xscale("log")
        _ticks(axis, (wide.loc[data]["cost"] / unit).dropna().to_numpy())
    label_edges(figure, "cost, × conventional at the first τ", "accepted by other families")
    return figure


@drawn
def accuracy_figure(cells: pd.DataFrame, models: pd.DataFrame, search: str, tau: str) -> Any:
    """Accuracy against distance to real rows for every data set, with the front."""
    part = cells[
        (cells["generator"] == search) & (cells["tau"] == tau) & (cells["metric"] == "nn5")
    ]
    nearer = part.set_index(["data", "method"])["change"].fillna(0.0).clip(lower=_WORST)
    accuracy = models[models["metric"] == "accuracy"].set_index(["data", "method"])["value"]
    figure, axes = facets(part, "data", 3, 3.0, 2.4)
    for axis, data, rows in axes:
        names = unique(rows["method"])
        x, y = (
            np.array([values[data, name] for name in names]) for values in (accuracy, nearer)
        )
        arrive = _arrive(rows)[data].reindex(names).to_numpy(dtype=bool)
        _draw(axis, x, y, names, arrive, better=-1)
        axis.axhline(0, linewidth=0.8, color="#999999", zorder=0)
    label_edges(figure, "accuracy", "nearer to real rows, %")
    return figure


@drawn
def robust_figure(models: pd.DataFrame, metric: str) -> Any:
    """Accuracy against accuracy under attack for every data set, with the front."""
    wide = models.pivot(index=["data", "method"], columns="metric", values="value")
    figure, axes = facets(models, "data", 3, 3.0, 2.4)
    for axis, data, rows in axes:
        names = unique(rows["method"])
        row = wide.loc[data].reindex(names)
        everybody = np.ones(len(names), dtype=bool)
        _draw(
            axis,
            row["accuracy"].to_numpy(),
            row[metric].to_numpy(),
            names,
            everybody,
            better=-1,
        )
    label_edges(figure, "accuracy", f"accuracy under attack, ε = {metric.partition('@')[2]}")
    return figure


def _arrive(cells: pd.DataFrame) -> pd.Series:
    """By data set and model: whether enough people get a valid counterfactual."""
    validity = cells[cells["metric"] == "nn5"].set_index(["data", "method"])["validity"]
    return validity >= ENOUGH


def _draw(
    axis: Any,
    x: np.ndarray,
    y: np.ndarray,
    names: list[str],
    arrive: np.ndarray,
    better: int = 1,
) -> None:
    """A mark per method, hollow where few arrive, and the front of the others; −1: large x are
    better.
    """
    full = np.flatnonzero(arrive)
    best = full[_front(better * x[full], y[full])]
    best = best[np.argsort(x[best])]
    axis.plot(x[best], y[best], "-", **_LINE)
    for name, a, b, filled in zip(names, x, y, arrive, strict=True):
        colour, marker = _LOOKS.get(name, _OTHER)
        look = {"markersize": 11 if marker == "*" else 6.5, "color": colour, "zorder": 3}
        # In the legend always filled.
        axis.plot([], [], marker, **look, markeredgecolor="white", label=name)
        if filled:
            edge = {"markeredgecolor": "white"}
        else:
            edge = {"markerfacecolor": "white"}
        axis.plot([a], [b], marker, **look, **edge)


def _ticks(axis: Any, x: np.ndarray) -> None:
    """Plain numbers on a logarithmic axis."""
    usual = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50]
    shown = [tick for tick in usual if 0.8 * x.min() <= tick <= 1.25 * x.max()]
    if len(shown) < 2:  # a narrow range
        shown = sorted({float(f"{tick:.2g}") for tick in (x.min(), 1.0, x.max())})
    axis.set_xticks(shown, [f"{tick:g}" for tick in shown])
    axis.minorticks_off()


def _labels(axis: Any, x: np.ndarray, y: np.ndarray, names: list[str]) -> None:
    """Names beside the points, where they cover neither a name nor a point; a line connects those
    far off.
    """
    low, high = axis.get_ylim()
    left, right = np.log(np.asarray(axis.get_xlim()))
    points = np.stack([(np.log(x) - left) / (right - left), (y - low) / (high - low)], -1)
    boxes: list[tuple[float, float, float, float]] = []
    # Crowded points last: the others have more room to give way.
    for place in np.argsort(-((points[:, None] - points[None]) ** 2).sum(-1).mean(1)):
        name = names[place]
        # The terms of CT have shorter names than texts.
        if "(" in name:
            name = NAMES.get(name, name)
        at = points[place]
        width = _LETTER * len(name)
        tried = [(far, centre, _box(centre, width)) for far, centre in _around(at, width)]
        free = [
            one
            for one in tried
            if min(one[2]) >= 0 and max(one[2]) <= 1 and not _covers(one[2], boxes, points)
        ]
        far, centre, box = (free or tried)[0]
        boxes.append(box)
        colour = _LOOKS.get(names[place], _OTHER)[0]
        look = {"color": colour, "fontsize": 8, "transform": axis.transAxes}
        axis.text(*centre, name, va="center", ha="center", zorder=4, **look)
        if far:
            end = np.clip(at, (box[0], box[1]), (box[2], box[3]))
            axis.plot(
                *zip(at, end, strict=True),
                color=colour,
                linewidth=0.5,
                transform=axis.transAxes,
                zorder=2,
            )


def _around(at: np.ndarray, width: float) -> Iterator[tuple[bool, np.ndarray]]:
    """Centres for a label around a point, the nearest first, and whether it is so far that a line
    is needed.
    """
    for side in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        yield (
            False,
            at + np.array([side[0] * (width / 2 + 0.018), side[1] * (_HEIGHT / 2 + 0.018)]),
        )
    for radius in np.arange(0.05, 0.6, 0.02):
        for angle in np.arange(0, 2 * np.pi, np.pi / 8):
            way = np.array([np.cos(angle), np.sin(angle)])
            yield True, at + radius * way + np.array([np.sign(round(way[0], 6)) * width / 2, 0])


def _box(centre: np.ndarray, width: float) -> tuple[float, float, float, float]:
    """Left, bottom, right and top of a label."""
    x, y = centre
    return x - width / 2, y - _HEIGHT / 2, x + width / 2, y + _HEIGHT / 2


def _covers(
    box: tuple[float, ...], others: list[tuple[float, float, float, float]], points: np.ndarray
) -> bool:
    left, bottom, right, top = box
    meets = any(left < r and lo < right and bottom < t and b < top for lo, b, r, t in others)
    inside = (
        (points[:, 0] > left)
        & (points[:, 0] < right)
        & (points[:, 1] > bottom)
        & (points[:, 1] < top)
    )
    return meets or bool(inside.any())
