"""The paper's figures from tidy tables; black diamonds are published values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_lab.paper_data import CONVENTIONAL, CT, PROTECTED, SYNTHETIC, in_paper_order
from counterfactual_lab.reports import style
from counterfactual_lab.reports.style import (
    COLOURS,
    METRIC_NAMES,
    NAMES,
    PUBLISHED_MARK,
    drawn,
    facets,
    panels,
    unique,
)

# Reductions far below −100 % divide by almost zero; the axis ends before them and an arrow shows
# their value.
_LOWEST = -110.0
_HIGHEST = 105.0
_ZERO = {"color": "#999999", "linewidth": 0.8}


@drawn
def main_figure(main: pd.DataFrame, by_seed: pd.DataFrame) -> Any:
    """Reductions of the main table: every seed, our mean with its interval, and the published ±."""
    height = main["data"].nunique()
    figure, parts = facets(main, "metric", 3, 3.1, 0.36 * height + 1.5, sharey=True)
    for axis, metric, part in parts:
        rows = part[part["quantity"] == "reduction"]
        seeds = by_seed[by_seed["metric"] == metric]
        for place, (_, row) in enumerate(rows.iterrows()):
            _reduction(axis, place, row, seeds[seeds["data"] == row["data"]])
        axis.set_yticks(range(len(rows)), rows["data"])
        axis.axvline(0, **_ZERO)
        axis.set_title(f"reduction of {METRIC_NAMES.get(metric, metric)} in %")
        low, high = axis.get_xlim()
        axis.set_xlim(max(low, _LOWEST), min(high, _HIGHEST))
        axis.set_ylim(height - 0.45, -0.55)
        axis.grid(axis="y", visible=False)
    return figure


def _reduction(axis: Any, place: int, row: pd.Series, seeds: pd.DataFrame) -> None:
    if len(seeds):
        spread = float(seeds["published_spread"].iloc[0])
    else:
        spread = float("nan")
    if row["published"] > _LOWEST:
        axis.errorbar(
            row["published"],
            place - 0.2,
            xerr=spread,
            capsize=2,
            elinewidth=1,
            **PUBLISHED_MARK,
        )
    mine = {"color": COLOURS[CT], "zorder": 3}
    axis.plot(
        seeds["ours"],
        [place + 0.2] * len(seeds),
        "|",
        markersize=7,
        label="each training seed",
        **mine,
    )
    mean = {"fmt": "o", "markersize": 5, "capsize": 2, "label": "ours, 95 %"}
    axis.errorbar(row["ours"], place + 0.2, xerr=_errors(row).reshape(2, 1), **mean, **mine)
    for value, height in ((row["published"], place - 0.2), (row["ours"], place + 0.2)):
        if value < _LOWEST:
            axis.annotate(f"◂ {value:.0f}", (_LOWEST, height), va="center", fontsize=7)


def _errors(
    rows: Any, middle: str = "ours", low: str = "low", high: str = "high"
) -> np.ndarray:
    """How far intervals reach below and above; not at all where they are unknown."""
    return np.nan_to_num(np.array([rows[middle] - rows[low], rows[high] - rows[middle]]))


@drawn
def robustness_figure(robustness: pd.DataFrame) -> Any:
    """Accuracy over ε, one column per data set, FGSM above PGD."""
    names = unique(robustness["data"])
    attacks = unique(robustness["metric"])
    # Like the paper, leave out the synthetic sets, on which attacks do little, unless there are no
    # others.
    names = [name for name in names if name not in SYNTHETIC] or names
    figure, axes = panels(
        len(names) * len(attacks), len(names), 2.2, 2.1, sharex=True, sharey="col"
    )
    edge = {**PUBLISHED_MARK, "markeredgecolor": "black"}
    for axis, (attack, name) in zip(
        axes, [(a, n) for a in attacks for n in names], strict=True
    ):
        rows = robustness[(robustness["data"] == name) & (robustness["metric"] == attack)]
        for method, curve in rows.groupby("quantity", sort=False):
            colour = COLOURS[str(method)]
            style.band(axis, curve["epsilon"], curve, colour, NAMES[str(method)], 1.6)
            look = {**edge, "color": colour, "markeredgewidth": 0.6, "label": ""}
            axis.plot(curve["epsilon"], curve["published"], **look)
        axis.plot([], [], **{**edge, "color": "white"})
        axis.set_title(f"{name}, {attack.upper()}")
    style.label_edges(figure, "ε", "accuracy")
    return figure


@drawn
def ablation_figure(ablation: pd.DataFrame) -> Any:
    """Reduction by each term of the objective: bars ours, diamonds published."""
    names = unique(ablation["data"])
    methods = unique(ablation["quantity"])
    figure, parts = facets(ablation, "metric", 1, max(4.0, 0.85 * len(names) + 1.5), 2.4)
    width = 0.8 / max(1, len(methods))
    for axis, metric, part in parts:
        for place, method in enumerate(methods):
            rows = part[part["quantity"] == method]
            at = (
                np.array([names.index(name) for name in rows["data"]])
                + (place - (len(methods) - 1) / 2) * width
            )
            axis.bar(at, rows["ours"], 0.92 * width, color=COLOURS[method], label=NAMES[method])
            axis.errorbar(
                at,
                rows["ours"],
                yerr=_errors(rows),
                fmt="none",
                ecolor="#333333",
                elinewidth=0.8,
            )
            axis.plot(at, rows["published"], **PUBLISHED_MARK)
        axis.axhline(0, **_ZERO)
        axis.set_xticks(range(len(names)), names)
        axis.set(title="", ylabel=f"{METRIC_NAMES.get(metric, metric)} reduction in %")
        low, high = axis.get_ylim()
        axis.set_ylim(max(low, _LOWEST), min(high, _HIGHEST))
        axis.grid(axis="x", visible=False)
    return figure


@drawn
def maturity_figure(maturity: pd.DataFrame) -> Any:
    """Share of counterfactuals that reach τ in training, per epoch; the band spans the seeds."""
    figure, parts = facets(
        in_paper_order(maturity), "data", 5, 2.2, 1.9, sharex=True, sharey=True
    )
    for axis, _, part in parts:
        for model, rows in part.groupby("model", sort=False):
            colour = COLOURS.get(str(model), "#444444")
            label = NAMES.get(str(model), str(model))
            style.band(axis, rows["epoch"], rows, colour, label)
        axis.set_ylim(-0.03, 1.03)
    style.label_edges(figure, "epoch", "share mature")
    return figure


@drawn
def by_lambda_figure(by_lambda: pd.DataFrame) -> Any:
    """Reduction of IP over the energy penalty of the test-time generator; boxes span seeds and
    evaluation runs.
    """
    figure, parts = facets(by_lambda, "data", 5, 2.2, 1.9, sharex=True)
    for axis, _, rows in parts:
        strengths = sorted(rows["lambda_energy"].unique())
        boxes = [
            rows.loc[rows["lambda_energy"] == s, "ours"].dropna().to_numpy() for s in strengths
        ]
        drawn = axis.boxplot(
            boxes,
            widths=0.6,
            patch_artist=True,
            showfliers=False,
            medianprops={"color": "black"},
        )
        for box in drawn["boxes"]:
            box.set(facecolor=COLOURS[CT], alpha=0.45, linewidth=0.8)
        published = rows.groupby("lambda_energy")["published"].first()
        axis.plot(
            range(1, len(strengths) + 1),
            published.loc[strengths],
            **{**PUBLISHED_MARK, "label": "published in a draft"},
        )
        axis.axhline(0, **_ZERO)
        axis.set_xticks(range(1, len(strengths) + 1), [f"{s:g}" for s in strengths])
        axis.grid(axis="x", visible=False)
    style.label_edges(figure, "λ_egy at test time", "IP reduction in %")
    return figure


@drawn
def attribution_figure(attribution: pd.DataFrame) -> Any:
    """Sensitivity to protected features, median and 95 % of the rounds, on a logarithmic axis."""
    names = unique(attribution["data"])
    figure, (axis,) = panels(1, 1, max(4.0, 0.8 * len(names) + 1.5), 2.9)
    values = ["ours", "low", "high", "published", "published_low", "published_high"]
    for quantity, model, shift in (
        (CONVENTIONAL, CONVENTIONAL, -0.18),
        (CT, PROTECTED, 0.18),
    ):
        rows = attribution[attribution["quantity"] == quantity]
        at = np.array([names.index(name) for name in rows["data"]]) + shift
        shown = rows[values].clip(lower=1e-3)
        ours = {"fmt": "o", "color": COLOURS[model], "label": f"{NAMES[model]}, ours"}
        theirs = {
            "fmt": "D",
            "color": "black",
            "mfc": COLOURS[model],
            "label": f"{NAMES[model]}, published",
        }
        for columns, offset, look in ((values[:3], 0.05, ours), (values[3:], -0.05, theirs)):
            errors = _errors(shown, *columns).clip(min=0)
            axis.errorbar(
                at + offset, shown[columns[0]], yerr=errors, markersize=4, elinewidth=1, **look
            )
    axis.set_yscale("log")
    axis.set_xticks(range(len(names)), names)
    axis.set_ylabel("sensitivity to protected features")
    axis.grid(axis="x", visible=False)
    return figure


@drawn
def digits_figure(title: str, grid: np.ndarray) -> Any:
    """Counterfactual images ``(k, k, h, w)``: rows factuals, columns targets, the factuals framed
    on the diagonal.
    """
    k = len(grid)
    figure, axes = panels(k * k, k, 0.62, 0.62)
    for place, axis in enumerate(axes):
        row, column = divmod(place, k)
        style.show_image(axis, grid[row, column])
        if row == column:
            axis.spines[:].set(visible=True, color=COLOURS[CT], linewidth=2)
        if row == 0:
            axis.set_title(str(column), fontsize=9, pad=2)
        if column == 0:
            axis.set_ylabel(str(row), rotation=0, labelpad=8, va="center")
    figure.get_layout_engine().set(w_pad=0.01, h_pad=0.01, wspace=0, hspace=0)
    figure.supxlabel(f"target class · {title}", fontsize=9)
    figure.supylabel("factual class (framed)", fontsize=9)
    return figure


@drawn
def digits_overview(
    titles: Sequence[str], grids: Sequence[np.ndarray], attributions: Sequence[np.ndarray]
) -> Any:
    """The paper's overview: per model a factual 0, its counterfactuals 1 to 4, integrated gradients
    of 5 to 9.
    """
    figure, axes = panels(len(titles) * 10, 10, 0.95, 0.8)
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.02)
    for place, axis in enumerate(axes):
        row, column = divmod(place, 10)
        if column < 5:
            style.show_image(axis, grids[row][0, column], "Blues" if column == 0 else "gray_r")
        else:
            style.show_image(axis, attributions[row][column], "coolwarm", low=0)
        if row == 0:
            if column == 0:
                heading = "factual 0"
            elif column < 5:
                heading = f"target {column}"
            else:
                heading = f"IG {column}"
            axis.set_title(heading, fontsize=8)
        if column == 0:
            axis.set_ylabel(titles[row].replace(" ", "\n"), fontsize=8)
    return figure
