"""The report of the demo: figures and one page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from counterfactual_lab.demo import DemoResult
from counterfactual_lab.reports.comparison import pairs
from counterfactual_lab.reports.files import Image, fill_template
from counterfactual_lab.reports.panel_figures import DARK, draw_panels
from counterfactual_training.evaluation.metrics import METRICS
from counterfactual_training.tables.pages.files import RunInfo, write_files

# Files to serve, by training; and people to ask about.
LENDERS = {
    "counterfactual": "loan.safetensors",
    "conventional": "loan-conventional.safetensors",
}
PEOPLE = "loan.csv"
_FIGURES = {"loan": "figure1", "moons": "moons"}


def write_demo(result: DemoResult, folder: str | Path, run: RunInfo | None = None) -> list[str]:
    """Write ``report.html``, ``figure1.png`` and ``moons.png``, as ``ct demo`` does; returns the
    paths.

    Also the two loan classifiers and people to ask them about, for ``ct serve``.

    Example: ``write_demo(run_demo(), "demo")``.
    """
    images = {}
    for data, name in _FIGURES.items():
        panels = [panel for panel in result.panels if panel.data == data]
        caption = f"Four panels: {'; '.join(panel.title for panel in panels)}."
        images[data] = Image(name, caption, draw_panels(panels), draw_panels(panels, DARK))
    page = demo_page(result, images, run or RunInfo())
    pictures = {f"{image.name}.png": image.png for image in images.values()}
    people = {PEOPLE: result.applicants.to_csv(index=False)}
    written = write_files(folder, {"report.html": page, **pictures, **people})
    for training, name in LENDERS.items():
        result.lenders[training].save(Path(folder) / name)
    return [*written, *(str(Path(folder) / name) for name in LENDERS.values())]


def demo_page(result: DemoResult, images: Mapping[str, Image], run: RunInfo) -> str:
    """The page as HTML; ``images`` by data set."""
    return fill_template(
        "demo.html",
        metrics=METRICS.values(),
        compared={(pair.data, pair.free): pair for pair in pairs(result.table)},
        images=images,
        people=result.advice.to_dict("records"),
        debt_per_year=result.debt_per_year,
        settings=result.settings,
        epsilon=result.protocol.epsilons[0],
        run=run,
    )
