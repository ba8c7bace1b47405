"""The paper's experiments as files and as sections of a page: tables, figures, and how they were
made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from counterfactual_lab.grids.grid_run import GridRun
from counterfactual_lab.grids.notes import noted_kinds
from counterfactual_lab.paper.names import EXPERIMENTS, FIGURE1
from counterfactual_lab.paper.paper_results import Results
from counterfactual_lab.paper.reproduce import (
    FULL,
    Effort,
    Reproduction,
    effort_in_words,
    reproduction_of,
)
from counterfactual_lab.reports import paper_figures as draw
from counterfactual_lab.reports.files import Image, Section, fill_template
from counterfactual_lab.reports.paper_tables import text_tables
from counterfactual_lab.runs.outcome import Outcome, check_versions
from counterfactual_lab.runs.store import Store
from counterfactual_training.errors import InputError
from counterfactual_training.persistence import atomic_write
from counterfactual_training.tables.pages.files import csv_text, json_text, write_files
from counterfactual_training.text import duration
from counterfactual_training.text_table import TextTable

_CAPTIONS = {
    "main": "Reduction by CT: published ± SD of one pair of models; ours over training seeds with "
    "a 95 % interval, and each seed by the authors' estimator, a mean of ratios.",
    "by_lambda": "Reduction of IP by CT over the energy penalty of the test-time generator; boxes "
    "span seeds and runs.",
    "maturity": "Share of counterfactuals that reach the decision threshold in training; bands "
    "span the seeds.",
    "ablation": "Reduction by each term of the objective, published values as diamonds.",
    "robustness": "Accuracy under attack over ε, published values as diamonds; bands are 95 % "
    "intervals over training seeds.",
    "attribution": "Sensitivity to protected features by integrated gradients, median and 95 % of "
    "the rounds.",
}
_FIGURE1_CAPTION = (
    "Counterfactuals (stars) of linear classifiers trained in four ways. The authors' learning "
    "rate and epochs are not "
    "on record; ours were chosen after other learning rates had failed to show what (b) and (d) "
    "show."
)


def write_reproduction(one: Reproduction, folder: str | Path) -> list[str]:
    """Write the tables (CSV, Markdown, LaTeX), figures and provenance of an experiment, as ``ct
    reproduce`` does.

    Returns the paths. Example, which makes ``results/main.md`` and the files beside it::

        for one in reproduce("main", "runs"):
            write_reproduction(one, "results")
    """
    files: dict[str, str | bytes] = {}
    for name, table in result_tables(one).items():
        if len(table):
            files[f"{_file_name(one, name)}.csv"] = csv_text(table)
    readable = text_tables(one.name, one.tables)
    if readable:
        head = f"## {one.title}\n\n{_origin(one)}\n\n"
        files[f"{one.name}.md"] = head + "\n".join(table.markdown() for table in readable)
        files[f"{one.name}.tex"] = "\n".join(table.latex() for table in readable)
    for image in _images(one):
        files[f"figures/{_file_name(one, image.name)}.png"] = image.png
    files[f"provenance/{one.name}.json"] = json_text(one.provenance)
    return write_files(folder, files)


def result_tables(one: Reproduction) -> dict[str, pd.DataFrame]:
    """The tables of an experiment without ``by_lambda``, thousands of rows that only a figure
    needs.
    """
    return {name: table for name, table in one.tables.items() if name != "by_lambda"}


def effort_remark(effort: Effort) -> str:
    """The warning on everything that was not made with the published settings."""
    if effort == FULL:
        return ""
    return (
        f"A quick look ({effort_in_words(effort)}), not the published settings: do not compare "
        "these numbers."
    )


def _file_name(one: Reproduction, name: str) -> str:
    """Several experiments have, say, a table of maturity, so file names begin with the
    experiment's.
    """
    prefix = one.name.partition("-")[0]
    if name.startswith(prefix):
        return name
    return f"{prefix}_{name}"


def _images(one: Reproduction) -> list[Image]:
    """Every figure whose tables have rows."""
    remark = effort_remark(one.effort)
    images = []
    for name, caption in _CAPTIONS.items():
        wanted = (name, "main_by_seed") if name == "main" else (name,)
        tables = [one.tables.get(table, pd.DataFrame()) for table in wanted]
        if all(len(table) for table in tables):
            images.append(
                Image(name, caption, getattr(draw, f"{name}_figure")(*tables, remark=remark))
            )
    if one.panels:
        from counterfactual_lab.reports.panel_figures import draw_panels

        images.append(Image("figure1", _FIGURE1_CAPTION, draw_panels(one.panels)))
    return images + _digits(one, remark)


def _digits(one: Reproduction, remark: str) -> list[Image]:
    images = []
    for digits in one.digits:
        caption = (
            f"MNIST, {digits.title}: counterfactuals, factuals framed on the diagonal, targets "
            "in columns."
        )
        png = draw.digits_figure(digits.title, digits.grid.numpy(), remark=remark)
        images.append(Image(f"mnist_{digits.title.replace(' ', '_')}", caption, png))
    if one.digits:
        parts = zip(
            *((d.title, d.grid.numpy(), d.attributions.numpy()) for d in one.digits),
            strict=True,
        )
        caption = (
            "MNIST: a factual 0, its counterfactuals 1 to 4, integrated gradients of 5 to 9 (0 "
            "blue … 1 red)."
        )
        images.append(
            Image("mnist_overview", caption, draw.digits_overview(*parts, remark=remark))
        )
    return images


def _origin(one: Reproduction) -> str:
    provenance = one.provenance
    warning = effort_remark(one.effort)
    versions = ", ".join(f"{name} {number}" for name, number in provenance["versions"].items())
    time = duration(provenance["seconds"]["train"] + provenance["seconds"]["evaluate"])
    sentences = [
        f"Made by `{provenance['command']}`.",
        f"{provenance['runs']} models, {provenance['effort']}; {time} of computing, finished "
        f"{provenance['last'] or 'just now'}.",
        f"Versions: {versions}.",
    ]
    return " ".join([f"**{warning}**"] * bool(warning) + sentences)


# ---- the page of `ct report`: everything that was reproduced, in one HTML file -------------------


def write_report(
    runs: Sequence[str], page: str | Path, tables: str | Path = "reproduced"
) -> dict[str, Any]:
    """Write one page of all finished models in some folders, as ``ct report`` does.

    Args:
        runs: folders that :func:`reproduce` filled.
        page: the HTML file to write.
        tables: where :func:`write_reproduction` wrote Figure 1, which is not made of finished
            models.

    Returns:
        The titles of the page's ``sections`` and the number of ``models``.
    """
    sections: list[Section] = []
    settings: list[TextTable] = []
    remarks: list[str] = []
    outcomes: list[Outcome[GridRun]] = []
    for root in runs:
        store = Store(root, any_version=True)
        kinds = noted_kinds(store)
        if not kinds:
            raise InputError(
                f"There are no finished models in {root!r}. Fill it with: ct reproduce main "
                f"--runs {root}"
            )
        # Models trained with another effort or other settings are never summarised together.
        for (effort, _), runs in kinds:
            results = Results.load(store, runs)
            outcomes += results.all
            settings.append(_settings(results.settings_table(), f"Settings of {root}"))
            remarks.append(effort_remark(effort))
            # Figure 1 has no runs; it would have to train.
            names = [name for name in EXPERIMENTS if name != FIGURE1]
            for one in (reproduction_of(name, results, effort) for name in names):
                part = Section(
                    one.title, tuple(text_tables(one.name, one.tables)), tuple(_images(one))
                )
                sections += [part] * bool(part.tables or part.figures)
    check_versions(outcomes)
    sections = [*_figure1(Path(tables)), *sections]
    facts = {
        "models": str(len(outcomes)),
        "computing time": duration(sum(sum(outcome.seconds.values()) for outcome in outcomes)),
        "finished": max(outcome.origin["date"] for outcome in outcomes),
        **outcomes[-1].origin["versions"],  # python and pandas may differ: those of the last
    }
    content = fill_template(
        "sections.html",
        title="Counterfactual training, reproduced",
        subtitle="The paper's experiments run again, published numbers beside ours.",
        warning=" ".join(filter(None, dict.fromkeys(remarks))),
        sections=[*sections, Section("Settings", tuple(settings))],
        settings=facts,
        commands=list(dict.fromkeys(outcome.origin["command"] for outcome in outcomes)),
    )
    atomic_write(page, content.encode())
    return {"sections": [part.title for part in sections], "models": len(outcomes)}


def _figure1(folder: Path) -> list[Section]:
    """Figure 1 as :func:`write_reproduction` left it in a folder, if it did."""
    table = folder / "figure1.csv"
    figure = folder / "figures" / "figure1.png"
    provenance = folder / "provenance" / "figure1.json"
    if not (table.exists() and figure.exists() and provenance.exists()):
        return []
    effort = json.loads(provenance.read_text(encoding="utf-8"))["effort"]
    image = Image("figure1", f"{_FIGURE1_CAPTION} Made with: {effort}.", figure.read_bytes())
    tables = text_tables("figure1", {"figure1": pd.read_csv(table)})
    return [Section(EXPERIMENTS[FIGURE1], tuple(tables), (image,))]


def _settings(table: pd.DataFrame, title: str) -> TextTable:
    """A row per setting, a column per data set."""
    names = [str(name) for name in table.columns if name != "data"]
    rows = tuple((name, *(str(value) for value in table[name])) for name in names)
    return TextTable(title, ("setting", *table["data"]), rows)
