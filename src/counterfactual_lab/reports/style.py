"""How the paper's figures look: one palette, one font size, quiet axes."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pandas as pd

from counterfactual_lab.paper_data import ADVERSARIAL, CONVENTIONAL, CT, DIVERGENCE, PROTECTED
from counterfactual_training.errors import need_extra
from counterfactual_training.evaluation.metrics import METRICS

_LOOKS = {
    CONVENTIONAL: ("#7a7a7a", "conventional"),
    CT: ("#1764ab", "CT"),
    ADVERSARIAL: ("#d9822b", "adversarial term only"),
    DIVERGENCE: ("#3a8f5c", "divergence only"),
    PROTECTED: ("#7b4fa3", "CT, protected features"),
}
COLOURS = {model: colour for model, (colour, _) in _LOOKS.items()}
NAMES = {model: name for model, (_, name) in _LOOKS.items()}
METRIC_NAMES = {name: metric.label for name, metric in METRICS.items()}
PUBLISHED_MARK = {
    "marker": "D",
    "color": "black",
    "markersize": 4,
    "linestyle": "none",
    "label": "published",
}
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
# Width of a letter and height of a line in legends and remarks.
_LETTER_INCHES, _LINE_INCHES = (
    0.08,
    0.2,
)
_MARGIN_INCHES = 0.6  # for the legend


def panels(
    num: int, columns: int, width: float = 2.3, height: float = 2.0, **options: Any
) -> tuple[Any, list[Any]]:
    """A figure of ``num`` panels with at most ``columns`` in a row, and its axes in reading
    order.
    """
    rows = -(-num // columns)
    columns = -(-num // rows)  # a last row of one panel looks odd
    # Not pyplot: it would keep every figure in memory until it is closed.
    figure = need_extra("matplotlib.figure", "lab").Figure(
        figsize=(width * columns, height * rows + _MARGIN_INCHES), layout="constrained"
    )
    flat = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for axis in flat[num:]:
        axis.set_axis_off()
    return figure, flat[:num]


def facets(
    table: pd.DataFrame, key: str, columns: int, width: float, height: float, **options: Any
) -> Any:
    """A figure with a panel per value of a column, and for each panel its axis, the value and the
    rows with it.
    """
    names = unique(table[key])
    figure, axes = panels(len(names), columns, width, height, **options)
    for axis, name in zip(axes, names, strict=True):
        axis.set_title(name)
    return figure, [
        (axis, name, table[table[key] == name]) for axis, name in zip(axes, names, strict=True)
    ]


def label_edges(figure: Any, x: str, y: str) -> None:
    """Label the x axis below each column and the y axis left of each row."""
    lowest = {}
    for axis in (axis for axis in figure.axes if axis.axison):
        place = axis.get_subplotspec()
        lowest[place.colspan.start] = axis
        if place.colspan.start == 0:
            axis.set_ylabel(y)
    for axis in lowest.values():
        axis.set_xlabel(x)
        axis.tick_params(labelbottom=True)


def band(
    axis: Any, x: pd.Series, rows: pd.DataFrame, colour: str, label: str, width: float = 1.5
) -> None:
    """A line of our values with their interval."""
    axis.plot(x, rows["ours"], color=colour, linewidth=width, label=label)
    axis.fill_between(x, rows["low"], rows["high"], color=colour, alpha=0.15, linewidth=0)


def show_image(axis: Any, pixels: Any, cmap: str = "gray_r", low: float = -1) -> None:
    """An image without ticks, grid and frame."""
    axis.imshow(pixels, cmap=cmap, vmin=low, vmax=1)
    axis.set(xticks=[], yticks=[])
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)


def unique(column: Iterable[Any]) -> list[str]:
    """The names of a column, each once, in order of appearance."""
    return [str(name) for name in dict.fromkeys(column)]


def _legend_below(figure: Any) -> None:
    """One legend for all panels, each entry once, in as many columns as fit; none if panels have
    their own.
    """
    entries: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries and not any(axis.get_legend() for axis in figure.axes):
        wide = 0.5 + _LETTER_INCHES * max(len(label) for label in entries)
        columns = max(1, min(len(entries), int(figure.get_figwidth() / wide)))
        lines = -(-len(entries) // columns) - 1  # each more line would squeeze the panels
        figure.set_figheight(figure.get_figheight() + lines * _LINE_INCHES)
        figure.legend(
            entries.values(), entries.keys(), loc="outside lower center", ncols=columns
        )


def drawn(make: Callable[..., Any]) -> Callable[..., bytes]:
    """Turn a function that makes a figure into one that adds a legend and returns a PNG in the
    style of this file.

    The new function also takes ``remark``, a warning that is written above everything.
    """

    @wraps(make)
    def draw(*arguments: Any, remark: str = "", **options: Any) -> bytes:
        with need_extra("matplotlib", "lab").rc_context(_RC):
            figure = make(*arguments, **options)
            buffer = io.BytesIO()
            _legend_below(figure)
            if remark:
                lines = textwrap.wrap(
                    remark, max(20, int(figure.get_figwidth() / _LETTER_INCHES))
                )
                figure.set_figheight(figure.get_figheight() + len(lines) * _LINE_INCHES)
                figure.suptitle("\n".join(lines), fontsize=9, color="#a03030")
            # Neither a date nor a version goes into the file, so that the same figure is the same
            # file.
            figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
        return palette_png(buffer.getvalue())

    return draw


def palette_png(png: bytes) -> bytes:
    """The same picture with at most 256 colours: about a third of the bytes, and white stays
    white.
    """
    image = need_extra("PIL.Image", "lab")
    reduced = io.BytesIO()
    colours = image.open(io.BytesIO(png)).convert("RGB")
    colours = colours.quantize(256, method=image.Quantize.MEDIANCUT, dither=image.Dither.NONE)
    colours.save(reduced, format="PNG", optimize=True)
    return reduced.getvalue()
