"""Figures of a grid: changes against conventional training as boxes, and the share of mature
counterfactuals per epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_lab.reports.style import (
    METRIC_NAMES,
    drawn,
    label_edges,
    panels,
    unique,
)
from counterfactual_training.errors import need_extra

# Settings as the paper writes them.
LABELS = {
    "generator.name": "generator",
    "generator.max_steps": "steps T",
    "generator.learning_rate": "step size η",
    "generator.decision_threshold": "threshold τ",
    "generator.epsilon": "ε",
    "generator.lambda_cost": "λ_cst",
    "generator.lambda_energy": "λ_egy",
    "method": "method",
    "objective.lambda_class": "λ_clf",
    "objective.lambda_div": "λ_div",
    "objective.lambda_reg": "λ_reg",
    "objective.lambda_adv": "λ_adv",
    "training.burn_in": "burn-in",
    "training.num_counterfactuals": "counterfactuals",
    "model.hidden": "hidden layers",
}
_NAMED = {"ecco": "#1764ab", "generic": "#d9822b", "revise": "#7b4fa3"}
_PLAIN = ("#1764ab", "#d9822b", "#7b4fa3", "#3a8f5c", "#a03030", "#7a7a7a")
# Boxes beyond these limits are cut off; an arrow shows their median.
_LOWEST = -105.0
_HIGHEST = 120.0


def label(axis: str) -> str:
    return LABELS.get(axis, axis.rpartition(".")[2].replace("_", " "))


@drawn
def axis_overview_figure(changes: pd.DataFrame, axes: Sequence[str], metric: str) -> Any:
    """A row per data set, a panel per axis: for each value, the change in % over all settings with
    it.
    """
    figure, parts = _data_by_axis(changes[changes["metric"] == metric], axes, 2.4)
    for axis, key, part in parts:
        values = _ordered(part[key])
        boxes = [_finite(part.loc[part[key] == value, "change"]) for value in values]
        _boxes(axis, boxes, range(1, len(values) + 1), _colours(key, values), 0.6)
        axis.set_xticks(range(1, len(values) + 1), [text(value) for value in values])
        axis.grid(axis="x", visible=False)
    for start in range(0, len(parts), len(axes)):
        _same_height(figure.axes[start : start + len(axes)])
        figure.axes[start].set_ylabel(f"change of {METRIC_NAMES.get(metric, metric)} in %")
    return figure


def _data_by_axis(
    table: pd.DataFrame, axes: Sequence[str], width: float, **options: Any
) -> tuple[Any, list[Any]]:
    """A figure with a row per data set and a panel per axis, and for each panel itself, its axis
    and its rows.
    """
    places = [(data, key) for data in unique(table["data"]) for key in axes]
    figure, flat = panels(len(places), len(axes), width, 2.0, **options)
    for panel, (data, key) in zip(flat, places, strict=True):
        panel.set_title(f"{data}: {label(key)}")
    return figure, [
        (p, key, table[table["data"] == data])
        for p, (data, key) in zip(flat, places, strict=True)
    ]


@drawn
def detail_figure(changes: pd.DataFrame, axes: Sequence[str], data: str, metric: str) -> Any:
    """One data set as in the paper's appendix: up to four axes, as colour, position, column and
    row.
    """
    rows = changes[(changes["metric"] == metric) & (changes["data"] == data)]
    colour, place, column, line = _roles(rows, axes)
    hues, groups, columns, lines = (
        _ordered(rows[key]) if key else [None] for key in (colour, place, column, line)
    )
    wide = max(2.6, 0.24 * len(groups) * len(hues) + 0.9)
    figure, flat = panels(len(columns) * len(lines), len(columns), wide, 1.9, sharey=True)
    colours = _colours(colour or place, hues if colour else groups)
    width = 0.8 / len(hues)
    for axis, (high, wide_) in zip(flat, itertools.product(lines, columns), strict=True):
        part = _where(_where(rows, line, high), column, wide_)
        for shade, hue in enumerate(hues):
            boxes = [
                _finite(_where(_where(part, colour, hue), place, group)["change"])
                for group in groups
            ]
            at = np.arange(1, len(groups) + 1) + (shade - (len(hues) - 1) / 2) * width
            if not colour:
                _boxes(axis, boxes, at, colours, 0.85 * width)
                continue
            shade_colour = colours[shade]
            _boxes(axis, boxes, at, [shade_colour] * len(groups), 0.85 * width)
            axis.plot([], [], "s", color=shade_colour, alpha=0.6, label=_named(colour, hue))
        titles = [_named(key, value) for key, value in ((line, high), (column, wide_)) if key]
        axis.set_title(", ".join(titles) or data)
        axis.set_xticks(range(1, len(groups) + 1), [text(group) for group in groups])
        axis.grid(axis="x", visible=False)
    _same_height(flat)
    label_edges(figure, label(place), f"{data}: {METRIC_NAMES.get(metric, metric)}, %")
    return figure


@drawn
def axis_maturity_figure(maturity: pd.DataFrame, axes: Sequence[str]) -> Any:
    """Share of mature counterfactuals per epoch: a line per value of an axis; bands hold half of
    the settings.
    """
    figure, parts = _data_by_axis(maturity, axes, 2.5, sharey=True)
    for axis, key, part in parts:
        values = _ordered(part[key])
        for value, colour in zip(values, _colours(key, values), strict=True):
            curves = part[part[key] == value].groupby("epoch")["share mature"]
            low = curves.quantile(0.25)
            middle = curves.mean()
            high = curves.quantile(0.75)
            axis.plot(middle.index, middle, color=colour, linewidth=1.5, label=text(value))
            axis.fill_between(middle.index, low, high, color=colour, alpha=0.07, linewidth=0)
        axis.set_ylim(-0.03, 1.03)
        axis.legend(fontsize=7, handlelength=1.2, loc="best")
    label_edges(figure, "epoch", "share mature")
    return figure


def _roles(
    rows: pd.DataFrame, axes: Sequence[str]
) -> tuple[str | None, str, str | None, str | None]:
    """Which axes are shown as colour, position on the x axis, column and row; others are pooled."""
    by_size = sorted(axes, key=lambda key: -rows[key].nunique())
    if len(axes) == 1:
        return None, axes[0], None, None
    if "generator.name" in axes:
        colour = "generator.name"
    else:
        colour = by_size[1]
    place, column, line = [*(key for key in by_size if key != colour), None, None][:3]
    return colour, str(place), column, line


def _boxes(
    axis: Any, values: Sequence[np.ndarray], at: Any, colours: Sequence[Any], width: float
) -> None:
    """Median and quartiles, whiskers from 5 to 95 %."""
    quiet = {"linewidth": 0.8, "color": "#555555"}
    look = {
        "medianprops": {"color": "black", "linewidth": 1.1},
        "whiskerprops": quiet,
        "capprops": quiet,
    }
    place = {"positions": list(at), "widths": width, "manage_ticks": False}
    shown = axis.boxplot(
        values, whis=(5, 95), patch_artist=True, showfliers=False, **place, **look
    )
    for box, colour in zip(shown["boxes"], colours, strict=True):
        box.set(facecolor=colour, alpha=0.6, linewidth=0.7)
    for x, group in zip(at, values, strict=True):
        if len(group) and np.median(group) > _HIGHEST:
            axis.annotate(
                f"▴{np.median(group):.0f}",
                (x, _HIGHEST),
                ha="center",
                va="top",
                fontsize=6,
                rotation=90,
            )
    axis.axhline(0, color="#999999", linewidth=0.8, zorder=1)


def _same_height(axes: Sequence[Any]) -> None:
    """Give panels that are compared one scale, which outliers do not stretch."""
    low = min(axis.get_ylim()[0] for axis in axes)
    high = max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.set_ylim(max(low, _LOWEST), min(high, _HIGHEST))


def _colours(key: str | None, values: Sequence[Any]) -> list[Any]:
    """Distinct colours for names, a scale from light to dark for numbers."""
    if any(isinstance(value, (str, bool)) for value in values) or key is None:
        return [
            _NAMED.get(str(value), _PLAIN[i % len(_PLAIN)]) for i, value in enumerate(values)
        ]
    scale = need_extra("matplotlib", "lab").colormaps["YlGnBu"]
    if len(values) > 1:
        return [scale(shade) for shade in np.linspace(0.4, 0.95, len(values))]
    return [_PLAIN[0]]


def _ordered(values: pd.Series) -> list[Any]:
    """Numbers sorted, names in order of appearance."""
    different = list(dict.fromkeys(values))
    numbers = all(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in different
    )
    if numbers:
        return sorted(different)
    return different


def _where(rows: pd.DataFrame, key: str | None, value: Any) -> pd.DataFrame:
    if key is None:
        return rows
    return rows[rows[key] == value]


def _finite(values: pd.Series) -> np.ndarray:
    numbers = values.to_numpy(dtype=float)
    return numbers[np.isfinite(numbers)]


def _named(key: str, value: Any) -> str:
    """``τ 0.9``; names of generators need no label."""
    if key.endswith(".name"):
        return text(value)
    return f"{label(key)} {text(value)}"


def text(value: Any) -> str:
    """A value of an axis."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:g}"
    return str(value)
