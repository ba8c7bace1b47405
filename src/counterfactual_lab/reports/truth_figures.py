"""Figures of ``ct truth``: overshoot, the rescaled control, floors, the price of plausibility, and
digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from counterfactual_lab.paper_data import CONVENTIONAL, CT
from counterfactual_lab.reports.style import (
    drawn,
    facets,
    label_edges,
    panels,
    show_image,
    unique,
)
from counterfactual_training.evaluation.metrics import ACCEPTANCE

_MODELS = {
    CONVENTIONAL: "conventional",
    CT: "counterfactual training",
    "conventional + learned": "conventional + gate",
}
# Of fixed steps and of the line search, in every picture.
_STEPS, _LINE = (
    ("#d9822b", "o"),
    ("#1764ab", "*"),
)
_QUIET = "#8a8a8a"
_DARK = "#444444"
_FAINT = {"alpha": 0.45, "zorder": 2}
_LEGEND = (
    "where fixed steps of 0.1 end, each person",
    "where the line search ends, each person",
    "one person, step by step (large: the end)",
)
_METHOD_COLOURS = (
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
# More methods than colours take the next marker.
_METHOD_MARKERS = ("o", "D", "v")
# Points that no model made: label, marker and colour.
_FLOORS = {
    "real": ("real rows of the wanted class", "|", "black"),
    "unmoved": ("people as they are, unmoved", "X", "#7b4fa3"),
    "nearest_unlike": ("nearest real row of the wanted class", "P", "#3a8f5c"),
}


@drawn
def overshoot_figure(table: pd.DataFrame) -> Any:
    """Distance moved against probability, by fixed steps and by the line search; a row per data
    set.
    """
    data = unique(table["data"])
    models = unique(table["method"])
    figure, axes = panels(
        len(data) * len(models), len(models), 3.1, 2.6, sharey=True, sharex="row"
    )
    for axis, (name, model) in zip(axes, ((d, m) for d in data for m in models), strict=True):
        part = table[(table["data"] == name) & (table["method"] == model)]
        steps, line = (part[part["search"] == kind] for kind in dict.fromkeys(part["search"]))
        ends = steps[steps["step"] < 0]
        path = steps[steps["step"] >= 0].sort_values("step")
        axis.axhline(
            0.5,
            color="black",
            linewidth=1,
            linestyle="--",
            label="τ = .5: here the decision changes",
        )
        full_steps = path[np.isclose(path["step"] % 1, 0)]
        for rows, mark, look in (
            (
                ends,
                "o",
                {
                    **_FAINT,
                    "color": _STEPS[0],
                    "markersize": 4,
                    "markeredgewidth": 0,
                    "label": _LEGEND[0],
                },
            ),
            (line, "|", {**_FAINT, "color": _LINE[0], "markersize": 9, "label": _LEGEND[1]}),
            (path, "-", {"color": _DARK, "linewidth": 1}),
            (full_steps, ".", {"color": _DARK, "markersize": 7, "label": _LEGEND[2]}),
            (
                full_steps[-1:],
                "o",
                {"color": _STEPS[0], "markersize": 8, "markeredgecolor": _DARK, "zorder": 5},
            ),
        ):
            axis.plot(rows["distance"], rows["probability"], mark, **look)
        medians = [f"{points['distance'].median():.2f}" for points in (ends, line)]
        axis.set_title(
            f"{name}, {_called(model)}\nmedian way: steps {medians[0]}, line search {medians[1]}"
        )
        axis.set_ylim(-0.03, 1.03)
    for first in range(0, len(axes), len(models)):  # cut off the few who go very far
        shown = table[(table["data"] == data[first // len(models)]) & (table["step"] < 0)]
        axes[first].set_xlim(0, 1.05 * float(shown["distance"].quantile(0.97)))
    label_edges(figure, "distance moved (L1)", "probability of the wanted class")
    return figure


def _called(model: str) -> str:
    name, _, factor = model.partition(" × ")
    return _MODELS.get(name, name) + (f", logits × {factor}" if factor else "")


@drawn
def rescaled_figure(table: pd.DataFrame) -> Any:
    """IP and cost of the conventional model over the factor of its logits, by both searches; dashed
    lines are CT.
    """
    data = unique(table["data"])
    metrics = {"ip": "IP (mean distance to real rows)", "cost": "cost (L1)"}
    figure, axes = panels(len(data) * len(metrics), len(metrics), 3.6, 2.4, sharex=True)
    looks = dict(zip(dict.fromkeys(table["search"]), (_STEPS, _LINE), strict=True))
    search_names = dict(zip(looks, ("fixed steps of 0.1", "line search"), strict=True))
    for axis, (name, metric) in zip(axes, ((d, m) for d in data for m in metrics), strict=True):
        for kind, (colour, marker) in looks.items():
            part = table[(table["data"] == name) & (table["search"] == kind)]
            ct = part.loc[part["method"] == CT, metric].iloc[0]
            dashes = (0 if marker == "o" else 4, (4, 4))  # both stay visible where they overlap
            axis.axhline(
                ct,
                color=colour,
                linestyle=dashes,
                linewidth=1.4,
                label=f"CT, {search_names[kind]}",
            )
            part = part[part["method"] == CONVENTIONAL].sort_values("factor")
            axis.plot(part["factor"], part[metric], "-", color=colour, linewidth=1.2)
            look = {
                "color": colour,
                "linestyle": "none",
                "markersize": 5 if marker == "o" else 8,
            }
            for few, fill in (
                (False, {"label": f"conventional, {search_names[kind]}"}),
                (True, {"markerfacecolor": "white"}),
            ):
                some = part[(part["valid"] < 0.95) == few]
                axis.plot(some["factor"], some[metric], marker, **look, **fill)
        axis.plot(
            [],
            [],
            "o",
            color=_QUIET,
            markerfacecolor="white",
            label="hollow: under 95 % arrive",
        )
        axis.axvline(1, color=_QUIET, linewidth=0.8, linestyle=":")
        axis.set_xscale("log", base=2)
        axis.set_xticks([0.125, 0.25, 0.5, 1, 2], ["⅛", "¼", "½", "1", "2"])
        axis.set_title(f"{name}: {metrics[metric]}")
    label_edges(figure, "factor of the logits (1: as trained)", "")
    return figure


@drawn
def floor_figure(truth: pd.DataFrame) -> Any:
    """5-NN distance of points that no model made, beside conventional training and CT by fixed
    steps and by the line search.

    In units of what real rows score, so that data sets share an axis: 1 is as near as real rows
        are.
    """
    part = truth[
        (truth["setting"] == "free")
        & (truth["metric"] == "nn5")
        & truth["method"].isin([CONVENTIONAL, CT])
    ]
    names = unique(part["data"])
    figure, (axis,) = panels(1, 1, 7.6, 0.6 + 0.42 * len(names))
    for place, name in enumerate(names):
        cell = part[part["data"] == name]
        real = cell["real"].iloc[0]
        for floor, (label, marker, colour) in _FLOORS.items():
            if floor == "real":
                size = 16
            else:
                size = 7
            axis.plot(
                cell[floor].iloc[0] / real,
                place,
                marker,
                color=colour,
                markersize=size,
                label=label,
                zorder=3,
            )
        for model, height, colour in (
            (CONVENTIONAL, place - 0.16, "#7a7a7a"),
            (CT, place + 0.16, "#1764ab"),
        ):
            scores = cell[cell["method"] == model].set_index("tau")["value"] / real
            steps = scores[scores.index.str.contains("×")]
            free = scores[scores.index == ".5"]
            if len(steps) and len(free):
                hollow = {"markerfacecolor": "white", "label": f"{_MODELS[model]}, fixed steps"}
                axis.plot([*steps, *free], [height] * 2, "-", color=colour, linewidth=1)
                axis.plot(steps, [height], "o", color=colour, markersize=5, **hollow)
                axis.plot(
                    free,
                    [height],
                    "o",
                    color=colour,
                    markersize=6,
                    label=f"{_MODELS[model]}, line search",
                )
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xscale("log")
    axis.set_xticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
    axis.minorticks_off()
    scale = "1: as near to real rows as they are to each other"
    axis.set_xlabel(f"5-NN distance in units of what real rows score ({scale})")
    return figure


@drawn
def truth_price_figure(truth: pd.DataFrame) -> Any:
    """Cost against 5-NN distance, one panel per data set: every method at each step-free τ, joined
    by a line.

    Down is more plausible, left is cheaper; horizontal lines are real rows and unmoved people.
    """
    free = truth[(truth["setting"] == "free") & ~truth["tau"].str.contains("×")]
    wide = free.pivot(index=["data", "method", "tau"], columns="metric", values="value")
    models = unique(free["method"])
    taus = unique(free["tau"])
    figure, parts = facets(free, "data", 3, 2.8, 2.3)
    for axis, data, part in parts:
        floors = part[part["metric"] == "nn5"].iloc[0]
        for floor, label, style in (
            ("real", "real rows", ":"),
            ("unmoved", "people as they are, unmoved", "--"),
        ):
            axis.axhline(
                floors[floor], color="#999999", linestyle=style, linewidth=1, label=label
            )
        for place, model in enumerate(models):
            if (data, model, taus[0]) in wide.index:
                points = wide.loc[
                    [(data, model, tau) for tau in taus if (data, model, tau) in wide.index]
                ]
                # The rescaled model coincides with the conventional one: first methods on top,
                # later ones a little larger.
                look = {
                    "color": _METHOD_COLOURS[place % len(_METHOD_COLOURS)],
                    "zorder": 3 + len(models) - place,
                }
                if place > 1:
                    edge = {"markeredgecolor": "white", "markeredgewidth": 0.6}
                else:
                    edge = {}
                size = 4 + min(place, 2)
                axis.plot(points["cost"], points["nn5"], "-", linewidth=1, **look)
                axis.plot(
                    points["cost"][:1],
                    points["nn5"][:1],
                    "o",
                    markersize=size,
                    label=model,
                    **look,
                    **edge,
                )
                axis.plot(
                    points["cost"][1:], points["nn5"][1:], "s", markersize=size, **look, **edge
                )
        axis.plot([], [], "s", color="#555555", label=f"square: τ = {taus[-1]}")
        axis.margins(0.08)
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
    label_edges(figure, "cost (L1): left is cheaper", "5-NN: down is nearer")
    return figure


@drawn
def truth_acceptance_figure(truth: pd.DataFrame) -> Any:
    """Cost against the share of judges of other families that accept, one panel per data set:
    every method at each step-free τ, joined by a line; a horizontal line for real rows.
    """
    free = truth[(truth["setting"] == "free") & ~truth["tau"].str.contains("×")]
    wide = free.pivot(index=["data", "method", "tau"], columns="metric", values="value")
    models = unique(free["method"])
    taus = unique(free["tau"])
    figure, parts = facets(free, "data", 3, 2.8, 2.3)
    for axis, data, part in parts:
        real = part.loc[part["metric"] == ACCEPTANCE, "real"].iloc[0]
        axis.axhline(real, color="#999999", linestyle=":", linewidth=1, label="real rows")
        for place, model in enumerate(models):
            if (data, model, taus[0]) not in wide.index:
                continue
            points = wide.loc[(data, model)].reindex(taus)
            look = {"color": _METHOD_COLOURS[place % len(_METHOD_COLOURS)], "zorder": 3}
            axis.plot(points["cost"], points[ACCEPTANCE], "-", linewidth=1, **look)
            shape = _METHOD_MARKERS[place // len(_METHOD_COLOURS) % len(_METHOD_MARKERS)]
            axis.plot(
                points["cost"],
                points[ACCEPTANCE],
                shape,
                markersize=5,
                markeredgecolor="white",
                markeredgewidth=0.6,
                label=model,
                **look,
            )
        axis.set_xlim(left=0)
        axis.set_ylim(-0.03, 1.03)
    label_edges(figure, "cost (L1): left is cheaper", "accepted by other families")
    return figure


@drawn
def gallery_figure(table: pd.DataFrame) -> Any:
    """Images (columns) and their counterfactuals by model (rows); searches that did not arrive are
    crossed out.
    """
    models = unique(table["method"])
    first = table[table["method"] == table["method"].iloc[0]]
    pixels = [str(column) for column in table if str(column).isdigit()]
    side = round(len(pixels) ** 0.5)
    figure, axes = panels(len(models) * len(first), len(first), 0.85, 0.62)
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0.02)
    rows = {"factual": "image"} | {
        name: called.replace(" ", "\n", 1) for name, called in _MODELS.items()
    }
    for place, (axis, (_, image)) in enumerate(zip(axes, table.iterrows(), strict=True)):
        show_image(axis, image[pixels].to_numpy(dtype=float).reshape(side, side))
        if place < len(first):
            axis.set_title(f"{image['label']} → {image['target']}", fontsize=10)
        if place % len(first) == 0:
            axis.set_ylabel(
                rows.get(image["method"], image["method"]), rotation=0, ha="right", va="center"
            )
        if not image["valid"]:
            axis.plot([0, side - 1], [0, side - 1], color="#a03030", linewidth=1)
    return figure
