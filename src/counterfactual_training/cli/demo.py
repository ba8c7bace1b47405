"""``ct demo``: the main job."""

from __future__ import annotations

import argparse
import time
from datetime import datetime
from typing import Any

from counterfactual_training.cli.output import emit, folder, note
from counterfactual_training.experiments.demo import DemoResult, run_demo
from counterfactual_training.experiments.grid.outcome import versions
from counterfactual_training.persistence import atomic_write
from counterfactual_training.reports.extra import need
from counterfactual_training.reports.figures import DARK, draw_panels
from counterfactual_training.reports.page import Picture, RunInfo, demo_page
from counterfactual_training.reports.tables import pairs_text

_FIGURES = {"loan": "figure1.png", "moons": "moons.png"}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "demo",
        parents=[common],
        help="conventional against counterfactual training on two small data sets: a table, figures, a page",
        description="Train six small classifiers, conventionally and by counterfactual training, with and without a "
        "protected feature. Prints a table; writes report.html, figure1.png (the four panels of the paper's Figure 1) "
        "and moons.png. Takes about half a minute.",
    )
    parser.add_argument("--out", default="demo", metavar="DIR", help="folder to write to (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another draw of weights and counterfactuals")
    parser.add_argument("--quick", action="store_true", help="seconds instead of half a minute, too short to mean much")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    started = time.perf_counter()
    for package in ("matplotlib", "jinja2"):  # better told now than after the training
        need(package)
    out = folder(arguments.out)
    result = run_demo(arguments.quick, arguments.seed, note)
    pictures = [_picture(result, name) for name in _FIGURES]
    for picture in pictures:
        atomic_write(out / _FIGURES[picture.data], picture.light)
    seconds = time.perf_counter() - started
    info = RunInfo(arguments.command_line, datetime.now().astimezone(), seconds, versions(), arguments.quick)
    page = demo_page(
        result.table,
        pictures,
        result.advice,
        result.debt_per_year,
        result.settings,
        result.protocol.epsilons[0],
        info,
    )
    atomic_write(out / "report.html", page.encode())
    files = ["report.html", *_FIGURES.values()]
    document = {
        "rows": result.table.to_dict("records"),
        "advice": result.advice.to_dict("records"),
        "debt_per_year": result.debt_per_year,
        "settings": result.settings,
        "epsilon": result.protocol.epsilons[0],
        "quick": arguments.quick,
        "files": [str(out / name) for name in files],
        "versions": info.versions,
        "date": info.date.isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
    }
    text = f"{pairs_text(result.table)}\n\n* better one of the pair as printed. Open {out / 'report.html'} to read on."
    emit(arguments, document, text)


def _picture(result: DemoResult, data: str) -> Picture:
    panels = [panel for panel in result.panels if panel.data == data]
    description = "; ".join(panel.title for panel in panels)
    return Picture(data, draw_panels(panels), draw_panels(panels, DARK), f"Four panels: {description}.")
