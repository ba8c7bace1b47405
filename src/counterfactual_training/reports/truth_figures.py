"""The price of plausibility in one picture."""

from __future__ import annotations

from typing import Any

import pandas as pd

from counterfactual_training.reports.style import drawn, label_edges, legend_below, note, panels

_COLOURS = (
    "#7a7a7a",
    "#d9822b",
    "#1764ab",
    "#3a8f5c",
    "#7b4fa3",
    "#a03030",
    "#2aa5a0",
    "#b8a02a",
    "#d16ba5",
    "#20242c",
)
_FLOORS = {"real": ("real rows", ":"), "unmoved": ("people as they are, unmoved", "--")}


@drawn
def price_figure(truth: pd.DataFrame, remark: str = "") -> Any:
    """Cost against 5-NN distance, one panel per data set: every method at each step-free τ, joined by a line.

    Down is more plausible, left is cheaper; lines across show real rows and the factuals as they are.
    """
    free = truth[(truth["setting"] == "free") & ~truth["tau"].str.contains("×")]
    wide = free.pivot(index=["data", "model", "tau"], columns="metric", values="value")
    models, names = list(dict.fromkeys(free["model"])), list(dict.fromkeys(free["data"]))
    taus = list(dict.fromkeys(free["tau"]))
    figure, axes = panels(len(names), 3, 2.8, 2.3)
    for axis, data in zip(axes, names, strict=True):
        floors = free[(free["data"] == data) & (free["metric"] == "nn5")].iloc[0]
        for floor, (label, style) in _FLOORS.items():
            axis.axhline(floors[floor], color="#999999", linestyle=style, linewidth=1, label=label)
        for place, model in enumerate(models):
            if (data, model, taus[0]) in wide.index:
                points = wide.loc[[(data, model, tau) for tau in taus if (data, model, tau) in wide.index]]
                # The rescaled baseline lies where the baseline does: first methods on top, later ones a little larger.
                look = {"color": _COLOURS[place % len(_COLOURS)], "zorder": 3 + len(models) - place}
                edge = {"markeredgecolor": "white", "markeredgewidth": 0.6} if place > 1 else {}
                size = 4 + min(place, 2)
                axis.plot(points["cost"], points["nn5"], "-", linewidth=1, **look)
                axis.plot(points["cost"][:1], points["nn5"][:1], "o", markersize=size, label=model, **look, **edge)
                axis.plot(points["cost"][1:], points["nn5"][1:], "s", markersize=size, **look, **edge)
        axis.plot([], [], "s", color="#555555", label=f"square: τ = {taus[-1]}")
        axis.set_title(data)
        axis.margins(0.08)
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
    label_edges(axes, "cost (L1): left is cheaper", "5-NN: down is nearer")
    legend_below(figure, axes)
    note(figure, remark)
    return figure
