"""The paper's figures from tidy tables; black diamonds are published values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_training.reports.style import (
    COLOURS,
    METRIC_NAMES,
    NAMES,
    PUBLISHED,
    drawn,
    label_edges,
    legend_below,
    panels,
)

# Reductions far below −100 % divide by almost zero; the axis ends before them and an arrow shows their value.
_LOWEST, _HIGHEST = -110.0, 105.0
_ORDER = ("LS", "Circ", "Moon", "OL", "Adult", "CH", "Cred", "GMSC", "MNIST")


@drawn
def main_figure(main: pd.DataFrame, by_seed: pd.DataFrame) -> Any:
    """Reductions of the main table: every seed, our mean with its interval, and the published ±."""
    metrics = list(dict.fromkeys(main["metric"]))
    figure, axes = panels(len(metrics), 3, 3.1, 0.36 * main["data"].nunique() + 1.5, sharey=True)
    for axis, metric in zip(axes, metrics, strict=True):
        rows = main[(main["metric"] == metric) & (main["quantity"] == "reduction")].reset_index(drop=True)
        seeds = by_seed[by_seed["metric"] == metric]
        for place, row in rows.iterrows():
            _reduction(axis, int(str(place)), row, seeds[seeds["data"] == row["data"]])
        axis.set_yticks(range(len(rows)), rows["data"])
        axis.axvline(0, color="#999999", linewidth=0.8)
        axis.set_title(f"reduction of {METRIC_NAMES.get(metric, metric)} in %")
        low, high = axis.get_xlim()
        axis.set_xlim(max(low, _LOWEST), min(high, _HIGHEST))
        axis.grid(axis="y", visible=False)
    axes[0].set_ylim(main["data"].nunique() - 0.45, -0.55)
    legend_below(figure, axes)
    return figure


def _reduction(axis: Any, place: int, row: pd.Series, seeds: pd.DataFrame) -> None:
    spread = float(seeds["published_spread"].iloc[0]) if len(seeds) else float("nan")
    if row["published"] > _LOWEST:
        axis.errorbar(row["published"], place - 0.2, xerr=spread, capsize=2, elinewidth=1, **PUBLISHED)
    mine = {"color": COLOURS["full"], "zorder": 3}
    axis.plot(seeds["ours"], [place + 0.2] * len(seeds), "|", markersize=7, label="each training seed", **mine)
    bars = np.array([[row["ours"] - row["low"]], [row["high"] - row["ours"]]])
    mean = {"fmt": "o", "markersize": 5, "capsize": 2, "label": "ours, 95 %"}
    axis.errorbar(row["ours"], place + 0.2, xerr=np.nan_to_num(bars), **mean, **mine)
    for value, height in ((row["published"], place - 0.2), (row["ours"], place + 0.2)):
        if value < _LOWEST:
            axis.annotate(f"◂ {value:.0f}", (_LOWEST, height), va="center", fontsize=7)


@drawn
def robustness_figure(robustness: pd.DataFrame) -> Any:
    """Accuracy over ε, one column per data set, FGSM above PGD."""
    names, attacks = list(dict.fromkeys(robustness["data"])), list(dict.fromkeys(robustness["metric"]))
    # Like the paper, leave out the synthetic sets, on which attacks do little, unless there are no others.
    names = [name for name in names if name not in ("LS", "Circ", "Moon", "OL")] or names
    figure, axes = panels(len(names) * len(attacks), len(names), 2.2, 2.1, sharex=True, sharey="col")
    for axis, (attack, name) in zip(axes, [(a, n) for a in attacks for n in names], strict=True):
        rows = robustness[(robustness["data"] == name) & (robustness["metric"] == attack)]
        for objective, curve in rows.groupby("quantity", sort=False):
            colour = COLOURS[str(objective)]
            axis.plot(curve["epsilon"], curve["ours"], color=colour, linewidth=1.6, label=NAMES[str(objective)])
            axis.fill_between(curve["epsilon"], curve["low"], curve["high"], color=colour, alpha=0.15, linewidth=0)
            style = {**PUBLISHED, "color": colour, "markeredgecolor": "black", "markeredgewidth": 0.6}
            axis.plot(curve["epsilon"], curve["published"], **{**style, "label": ""})
        axis.plot([], [], **{**PUBLISHED, "color": "white", "markeredgecolor": "black"})
        axis.set_title(f"{name}, {attack.upper()}")
    label_edges(axes, "ε", "accuracy")
    legend_below(figure, axes)
    return figure


@drawn
def ablation_figure(ablation: pd.DataFrame) -> Any:
    """Reduction by each term of the objective: bars ours, diamonds published."""
    metrics = list(dict.fromkeys(ablation["metric"]))
    names = list(dict.fromkeys(ablation["data"]))
    objectives = list(dict.fromkeys(ablation["quantity"]))
    figure, axes = panels(len(metrics), 1, max(4.0, 0.85 * len(names) + 1.5), 2.4)
    width = 0.8 / max(1, len(objectives))
    for axis, metric in zip(axes, metrics, strict=True):
        for place, objective in enumerate(objectives):
            rows = ablation[(ablation["metric"] == metric) & (ablation["quantity"] == objective)]
            at = np.array([names.index(name) for name in rows["data"]]) + (place - (len(objectives) - 1) / 2) * width
            errors = np.nan_to_num(np.array([rows["ours"] - rows["low"], rows["high"] - rows["ours"]]))
            axis.bar(at, rows["ours"], 0.92 * width, color=COLOURS[objective], label=NAMES[objective])
            axis.errorbar(at, rows["ours"], yerr=errors, fmt="none", ecolor="#333333", elinewidth=0.8)
            axis.plot(at, rows["published"], **PUBLISHED)
        axis.axhline(0, color="#999999", linewidth=0.8)
        axis.set_xticks(range(len(names)), names)
        axis.set_ylabel(f"{METRIC_NAMES.get(metric, metric)} reduction in %")
        low, high = axis.get_ylim()
        axis.set_ylim(max(low, _LOWEST), min(high, _HIGHEST))
        axis.grid(axis="x", visible=False)
    legend_below(figure, axes)
    return figure


@drawn
def maturity_figure(maturity: pd.DataFrame) -> Any:
    """Share of counterfactuals that reach τ in training, per epoch; the band spans the seeds."""
    names = list(dict.fromkeys(maturity["data"]))
    order = sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    figure, axes = panels(len(order), 5, 2.2, 1.9, sharex=True, sharey=True)
    for axis, name in zip(axes, order, strict=True):
        for model, rows in maturity[maturity["data"] == name].groupby("model", sort=False):
            colour = COLOURS.get(str(model), "#444444")
            axis.plot(rows["epoch"], rows["ours"], color=colour, label=NAMES.get(str(model), str(model)))
            axis.fill_between(rows["epoch"], rows["low"], rows["high"], color=colour, alpha=0.15, linewidth=0)
        axis.set_title(name)
        axis.set_ylim(-0.03, 1.03)
    label_edges(axes, "epoch", "share mature")
    legend_below(figure, axes)
    return figure


@drawn
def by_lambda_figure(by_lambda: pd.DataFrame) -> Any:
    """Reduction of IP over the energy penalty of the test-time generator; boxes span seeds and evaluation runs."""
    names = list(dict.fromkeys(by_lambda["data"]))
    figure, axes = panels(len(names), 5, 2.2, 1.9, sharex=True)
    for axis, name in zip(axes, names, strict=True):
        rows = by_lambda[by_lambda["data"] == name]
        strengths = sorted(rows["lambda_energy"].unique())
        boxes = [rows.loc[rows["lambda_energy"] == s, "ours"].dropna().to_numpy() for s in strengths]
        drawn = axis.boxplot(boxes, widths=0.6, patch_artist=True, showfliers=False, medianprops={"color": "black"})
        for box in drawn["boxes"]:
            box.set(facecolor=COLOURS["full"], alpha=0.45, linewidth=0.8)
        known = rows.groupby("lambda_energy")["published"].first()
        axis.plot(range(1, len(strengths) + 1), known.loc[strengths], **{**PUBLISHED, "label": "published in a draft"})
        axis.axhline(0, color="#999999", linewidth=0.8)
        axis.set_xticks(range(1, len(strengths) + 1), [f"{s:g}" for s in strengths])
        axis.set_title(name)
        axis.grid(axis="x", visible=False)
    label_edges(axes, "λ_egy at test time", "IP reduction in %")
    legend_below(figure, axes)
    return figure


@drawn
def attribution_figure(attribution: pd.DataFrame) -> Any:
    """Sensitivity to protected features, median and 95 % of the rounds, on a logarithmic axis."""
    names = list(dict.fromkeys(attribution["data"]))
    figure, (axis,) = panels(1, 1, max(4.0, 0.8 * len(names) + 1.5), 2.9)
    floor = 1e-3
    for quantity, model, shift in (("baseline", "vanilla", -0.18), ("ct", "full protected", 0.18)):
        rows = attribution[attribution["quantity"] == quantity]
        at = np.array([names.index(name) for name in rows["data"]]) + shift
        ours = {"fmt": "o", "color": COLOURS[model], "label": f"{NAMES[model]}, ours"}
        theirs = {"fmt": "D", "color": "black", "mfc": COLOURS[model], "label": f"{NAMES[model]}, published"}
        for prefix, offset, style in (("", 0.05, ours), ("published_", -0.05, theirs)):
            middle = rows["published" if prefix else "ours"].clip(lower=floor)
            low, high = rows[f"{prefix}low"].clip(lower=floor), rows[f"{prefix}high"].clip(lower=floor)
            errors = np.nan_to_num(np.array([middle - low, high - middle])).clip(min=0)
            axis.errorbar(at + offset, middle, yerr=errors, markersize=4, elinewidth=1, **style)
    axis.set_yscale("log")
    axis.set_xticks(range(len(names)), names)
    axis.set_ylabel("sensitivity to protected features")
    axis.grid(axis="x", visible=False)
    legend_below(figure, [axis])
    return figure


@drawn
def digits_figure(title: str, grid: np.ndarray) -> Any:
    """Counterfactual images ``(k, k, h, w)``: rows factuals, columns targets, the factuals framed on the diagonal."""
    k = len(grid)
    figure, axes = panels(k * k, k, 0.62, 0.62)
    for place, axis in enumerate(axes):
        row, column = divmod(place, k)
        axis.imshow(grid[row, column], cmap="gray_r", vmin=-1, vmax=1)
        axis.set(xticks=[], yticks=[])
        axis.grid(visible=False)
        factual = row == column
        for spine in axis.spines.values():
            spine.set(visible=factual, color=COLOURS["full"], linewidth=2)
        if row == 0:
            axis.set_title(str(column), fontsize=9, pad=2)
        if column == 0:
            axis.set_ylabel(str(row), rotation=0, labelpad=8, va="center")
    figure.get_layout_engine().set(w_pad=0.01, h_pad=0.01, wspace=0, hspace=0)
    figure.supxlabel(f"target class · {title}", fontsize=9)
    figure.supylabel("factual class (framed)", fontsize=9)
    return figure


@drawn
def digits_overview(titles: Sequence[str], grids: Sequence[np.ndarray], attributions: Sequence[np.ndarray]) -> Any:
    """The paper's overview: per model a factual 0, its counterfactuals 1 to 4, integrated gradients of 5 to 9."""
    figure, axes = panels(len(titles) * 10, 10, 0.95, 0.8)
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.02)
    for row, (title, grid, attribution) in enumerate(zip(titles, grids, attributions, strict=True)):
        line = axes[10 * row : 10 * row + 10]
        for column, axis in enumerate(line):
            if column < 5:
                axis.imshow(grid[0, column], cmap="Blues" if column == 0 else "gray_r", vmin=-1, vmax=1)
                heading = "factual 0" if column == 0 else f"target {column}"
            else:
                axis.imshow(attribution[column], cmap="coolwarm", vmin=0, vmax=1)
                heading = f"IG {column}"
            axis.set(xticks=[], yticks=[])
            axis.grid(visible=False)
            axis.spines[:].set_visible(False)
            if row == 0:
                axis.set_title(heading, fontsize=8)
        line[0].set_ylabel(title.replace(" ", "\n"), fontsize=8)
    return figure
