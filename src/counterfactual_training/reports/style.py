"""How the paper's figures look: one palette, one font size, quiet axes."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from counterfactual_training.reports.extra import need

COLOURS = {
    "vanilla": "#7a7a7a",
    "full": "#1764ab",
    "adversarial": "#d9822b",
    "divergence": "#3a8f5c",
    "full protected": "#7b4fa3",
}
NAMES = {
    "vanilla": "BL (conventional)",
    "full": "CT",
    "adversarial": "AR (adversarial only)",
    "divergence": "CD (divergence only)",
    "full protected": "CT, protected features",
}
METRIC_NAMES = {"implausibility": "IP", "implausibility_mmd": "IP*", "cost": "cost", "validity": "validity"}
PUBLISHED = {"marker": "D", "color": "black", "markersize": 4, "linestyle": "none", "label": "published"}
_RC = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
}
_DPI = 160
_LETTER_INCHES = 0.08  # of a legend's or a note's text
_MARGIN_INCHES = 0.6  # for the legend


def panels(num: int, columns: int, width: float = 2.3, height: float = 2.0, **options: Any) -> tuple[Any, list[Any]]:
    """A figure of small multiples, at most so many in a row, and its axes in reading order; the rest stays blank."""
    rows = -(-num // columns)
    columns = -(-num // rows)  # rows as even as can be
    # Figures made by hand leave no trace in pyplot's list, and need no closing.
    figure = need("matplotlib.figure").Figure(
        figsize=(width * columns, height * rows + _MARGIN_INCHES), layout="constrained"
    )
    flat = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for axis in flat[num:]:
        axis.set_axis_off()
    return figure, flat[:num]


def label_edges(axes: Sequence[Any], x: str, y: str) -> None:
    """Titles of the axes, only on the lowest panel of each column and the first of each row."""
    lowest = {}
    for axis in axes:
        place = axis.get_subplotspec()
        lowest[place.colspan.start] = axis
        if place.colspan.start == 0:
            axis.set_ylabel(y)
    for axis in lowest.values():
        axis.set_xlabel(x)
        axis.tick_params(labelbottom=True)


def legend_below(figure: Any, axes: Sequence[Any]) -> None:
    """One legend for all panels, each entry once, in as many columns as the figure is wide for."""
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        wide = 0.5 + _LETTER_INCHES * max(len(label) for label in entries)
        columns = max(1, min(len(entries), int(figure.get_figwidth() / wide)))
        figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)


def note(figure: Any, text: str) -> None:
    """What the reader must know first, above everything: that this is only a quick look, say."""
    if text:
        letters = int(figure.get_figwidth() / _LETTER_INCHES)
        figure.suptitle(textwrap.fill(text, max(20, letters)), fontsize=9, color="#a03030")


def drawn(make: Callable[..., Any]) -> Callable[..., bytes]:
    """A function that makes a figure, turned into one that gives its PNG, drawn in the style of this file."""

    @wraps(make)
    def draw(*arguments: Any, **options: Any) -> bytes:
        with need("matplotlib").rc_context(_RC):
            buffer = io.BytesIO()
            # No date and no version inside: the same figure is the same file.
            make(*arguments, **options).savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
        return buffer.getvalue()

    return draw
