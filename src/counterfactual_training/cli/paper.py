"""What the paper's experiments leave behind: tables, figures, sections of a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from counterfactual_training.experiments.paper.reproduce import EXPERIMENTS, FULL, Effort, Reproduction
from counterfactual_training.persistence import atomic_write
from counterfactual_training.reports import paper_figures as draw
from counterfactual_training.reports.figures import draw_panels
from counterfactual_training.reports.paper_page import Picture, Section
from counterfactual_training.reports.paper_tables import text_tables
from counterfactual_training.text import duration

Draw = Callable[[Reproduction, str], bytes]

# Tables that only figures need: thousands of rows.
MATERIAL = ("by_lambda",)
# Of each figure: the table or material it needs, its caption, and how to draw it.
_FIGURES: dict[str, tuple[str, str, Draw]] = {
    "main": (
        "main_by_seed",
        "Reduction by CT: published ± SD of one pair of models; ours over training seeds with a 95 % interval, and "
        "each seed by the authors' estimator, a mean of ratios.",
        lambda r, note: draw.main_figure(r.tables["main"], r.tables["main_by_seed"], note),
    ),
    "by_lambda": (
        "by_lambda",
        "Reduction of IP by CT over the energy penalty of the test-time generator; boxes span seeds and runs.",
        lambda r, note: draw.by_lambda_figure(r.tables["by_lambda"], note),
    ),
    "maturity": (
        "maturity",
        "Share of counterfactuals that reach the decision threshold in training; bands span the seeds.",
        lambda r, note: draw.maturity_figure(r.tables["maturity"], note),
    ),
    "ablation": (
        "ablation",
        "Reduction by each term of the objective, published values as diamonds.",
        lambda r, note: draw.ablation_figure(r.tables["ablation"], note),
    ),
    "robustness": (
        "robustness",
        "Accuracy under attack over ε, published values as diamonds; bands are 95 % intervals over training seeds.",
        lambda r, note: draw.robustness_figure(r.tables["robustness"], note),
    ),
    "attribution": (
        "attribution",
        "Sensitivity to protected features by integrated gradients, median and 95 % of the rounds.",
        lambda r, note: draw.attribution_figure(r.tables["attribution"], note),
    ),
    "figure1": (
        "figure1",
        "Counterfactuals (stars) of linear classifiers trained in four ways. The authors' learning rate and epochs are "
        "not on record; ours were chosen after other learning rates had failed to show what (b) and (d) show.",
        lambda r, note: draw_panels(r.panels),
    ),
}


def write_files(one: Reproduction, out: Path) -> list[str]:
    """Tables as CSV, Markdown and LaTeX, figures as PNG, and how they came about; the files written."""
    files: dict[Path, bytes] = {}
    for name, table in one.tables.items():
        if name not in MATERIAL and len(table):
            files[out / f"{_named(one, name)}.csv"] = table.to_csv(
                index=False, float_format="%.6g", lineterminator="\n"
            ).encode()
    readable = text_tables(one.name, one.tables)
    if readable:
        head = f"## {one.title}\n\n{_made(one)}\n\n"
        files[out / f"{one.name}.md"] = (head + "\n".join(table.markdown() for table in readable)).encode()
        files[out / f"{one.name}.tex"] = "\n".join(table.latex() for table in readable).encode()
    for name, _, content in figures(one):
        files[out / "figures" / f"{_named(one, name)}.png"] = content
    files[out / "provenance" / f"{one.name}.json"] = (json.dumps(one.provenance, indent=2) + "\n").encode()
    for path, content in files.items():
        atomic_write(path, content)
    return [str(path) for path in files]


def _named(one: Reproduction, name: str) -> str:
    """A file name that says of which experiment it is, for several make tables and figures of one kind."""
    own = one.name.partition("-")[0]
    return name if name.startswith(own) else f"{own}_{name}"


def figures(one: Reproduction) -> list[tuple[str, str, bytes]]:
    """Name, caption and PNG of every figure that the experiment has material for."""
    note = remark(one.effort)
    out = []
    for name, (table, caption, make) in _FIGURES.items():
        if len(one.tables.get(table, pd.DataFrame())):
            out.append((name, caption, make(one, note)))
    for digits in one.digits:
        name = f"mnist_{digits.title.replace(' ', '_')}"
        caption = f"MNIST, {digits.title}: counterfactuals, factuals framed on the diagonal, targets in columns."
        out.append((name, caption, draw.digits_figure(digits.title, digits.grid.numpy(), note)))
    if one.digits:
        parts = [(d.title, d.grid.numpy(), d.attributions.numpy()) for d in one.digits]
        caption = "MNIST: a factual 0, its counterfactuals 1 to 4, integrated gradients of 5 to 9 (0 blue … 1 red)."
        out.append(("mnist_overview", caption, draw.digits_overview(*zip(*parts, strict=True), note)))
    return out


def figure1_section(out: Path) -> Section | None:
    """Figure 1 as :func:`write_files` left it in a folder, if it did: no finished models stand for it."""
    table, figure = out / "figure1.csv", out / "figures" / "figure1.png"
    made = out / "provenance" / "figure1.json"
    if not (table.exists() and figure.exists() and made.exists()):
        return None
    effort = json.loads(made.read_text(encoding="utf-8"))["effort"]
    _, caption, _ = _FIGURES["figure1"]
    tables = text_tables("figure1", {"figure1": pd.read_csv(table)})
    picture = Picture(f"{caption} Made with: {effort}.", figure.read_bytes())
    return Section(EXPERIMENTS["figure1"].title, tuple(tables), (picture,))


def section(one: Reproduction) -> Section:
    """The experiment as a part of a page."""
    pictures = tuple(Picture(caption, content) for _, caption, content in figures(one))
    reasons = tuple(f"{failure.cell.label} failed: {failure.reason}" for failure in one.failures)
    return Section(one.title, tuple(text_tables(one.name, one.tables)), pictures, reasons)


def remark(effort: Effort) -> str:
    """What must stand on everything that was not made with the published settings."""
    if effort == FULL:
        return ""
    return f"A quick look ({effort.describe()}), not the published settings: do not compare these numbers."


def _made(one: Reproduction) -> str:
    made = one.provenance
    versions = ", ".join(f"{name} {number}" for name, number in made["versions"].items())
    time = duration(made["seconds"]["train"] + made["seconds"]["evaluate"])
    sentences = [
        f"Made by `{made['command']}`.",
        f"{made['cells']} models, {made['effort']}; {time} of computing, finished {made['last'] or 'just now'}.",
        f"Versions: {versions}.",
    ]
    warning = remark(one.effort)
    return " ".join([f"**{warning}**"] * bool(warning) + sentences)
