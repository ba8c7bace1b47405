"""Classifiers of two features as panels: training rows, the decision boundary, and
counterfactuals.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterfactual_lab.panels import DecisionPanel
from counterfactual_training.errors import InputError, need_extra

_COLUMNS = 2
_PANEL_INCHES = (5.0, 3.9)
_DPI = 160
_MOST_POINTS = 600
_MOST_PATHS = 25


@dataclass(frozen=True)
class Theme:
    """Colours; colour-blind readers can tell blue, orange and green apart."""

    paper: str
    ink: str
    faint: str
    classes: tuple[str, str]
    boundary: str
    star: str
    star_edge: str


LIGHT = Theme(
    "#ffffff", "#1c2430", "#8a94a3", ("#3b76b8", "#e8851f"), "#1d8a4a", "#ffd84d", "#1c2430"
)
DARK = Theme(
    "#171c24", "#e6eaf0", "#7d8796", ("#6aa7ea", "#f39a42"), "#3ccf7c", "#ffe27a", "#0b0e13"
)


def draw_panels(panels: Sequence[DecisionPanel], theme: Theme = LIGHT) -> bytes:
    """Draw panels on common axes, two in a row; returns a PNG."""
    if not panels:
        raise InputError("There is no panel to draw.")
    rows = -(-len(panels) // _COLUMNS)
    width = _COLUMNS * _PANEL_INCHES[0]
    height = rows * _PANEL_INCHES[1] + 0.45
    make = need_extra("matplotlib.figure", "lab").Figure
    canvas = make(figsize=(width, height), dpi=_DPI, facecolor=theme.paper)
    grid = canvas.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw(axes, panel, theme)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel(panels[0].axes[1], color=theme.ink)
    for axes in grid[-1]:
        axes.set_xlabel(panels[0].axes[0], color=theme.ink)
    handles, names = grid[0, 0].get_legend_handles_labels()
    look = {"frameon": False, "labelcolor": theme.ink, "fontsize": 10, "markerscale": 1.6}
    legend = canvas.legend(handles, names, loc="lower center", ncols=len(names), **look)
    for (
        handle
    ) in legend.legend_handles:  # points are faint, their entries in the legend should not be
        handle.set_alpha(1.0)
    # Fixed margins in inches: measuring them, as tight_layout does, takes longer than drawing.
    sides = {
        "left": 0.65 / width,
        "right": 1 - 0.12 / width,
        "bottom": 0.95 / height,
        "top": 1 - 0.35 / height,
    }
    canvas.subplots_adjust(**sides, wspace=0.05, hspace=0.14)
    drawn = io.BytesIO()
    small = io.BytesIO()
    canvas.savefig(drawn, format="png", facecolor=theme.paper)
    image = need_extra("PIL.Image", "lab")  # comes with Matplotlib
    # With a palette of 256 colours, a third of the size and no visible difference.
    image.open(drawn).convert("RGB").quantize(256, dither=image.Dither.NONE).save(
        small, format="png"
    )
    return small.getvalue()


def _draw(axes: Any, panel: DecisionPanel, theme: Theme) -> None:
    axes.set_facecolor(theme.paper)
    field = panel.grid_x, panel.grid_y, panel.probability
    shades = [theme.classes[0]] * 5 + [theme.classes[1]] * 5
    axes.contourf(*field, np.linspace(0, 1, 11), colors=shades, alpha=0.10, antialiased=True)
    for k, (name, colour) in enumerate(zip(panel.classes, theme.classes, strict=True)):
        rows = panel.points[panel.labels == k][:_MOST_POINTS]
        axes.scatter(*rows.T, s=9, color=colour, alpha=0.45, linewidths=0, label=name, zorder=2)
    for start, end in zip(
        panel.factuals[:_MOST_PATHS], panel.counterfactuals[:_MOST_PATHS], strict=True
    ):
        axes.plot(
            [start[0], end[0]],
            [start[1], end[1]],
            color=theme.faint,
            linewidth=0.6,
            alpha=0.7,
            zorder=3,
        )
    axes.contour(*field, [0.5], colors=[theme.boundary], linewidths=2.2, zorder=4)
    # Contours have no legend entry.
    axes.plot([], [], color=theme.boundary, linewidth=2.2, label="decision boundary")
    star = {
        "marker": "*",
        "s": 85,
        "color": theme.star,
        "edgecolors": theme.star_edge,
        "linewidths": 0.7,
    }
    axes.scatter(*panel.counterfactuals.T, label="counterfactuals", zorder=5, **star)
    axes.set_xlim(panel.grid_x[0], panel.grid_x[-1])
    axes.set_ylim(panel.grid_y[0], panel.grid_y[-1])
    axes.set_title(panel.title, loc="left", fontsize=11.5, color=theme.ink, fontweight="bold")
    axes.tick_params(colors=theme.ink, labelsize=9)
    for side in axes.spines.values():
        side.set_color(theme.faint)
