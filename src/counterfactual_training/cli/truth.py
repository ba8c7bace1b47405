"""``ct truth``: methods compared by a protocol that neither the step size nor the scale of the logits can please."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from counterfactual_training.cli import engine
from counterfactual_training.cli.output import emit, folder, writable
from counterfactual_training.errors import CounterfactualTrainingError
from counterfactual_training.experiments.truth.gains import picture_tables
from counterfactual_training.experiments.truth.methods import METHODS, UNCAPPED, Caps
from counterfactual_training.experiments.truth.results import truth_tables
from counterfactual_training.experiments.truth.truth import Scope, TruthFailure, run_truth
from counterfactual_training.persistence import atomic_write
from counterfactual_training.reports.extra import need
from counterfactual_training.reports.gains_figures import (
    floor_figure,
    gallery_figure,
    overshoot_figure,
    rescaled_figure,
)
from counterfactual_training.reports.gains_page import MATERIAL, gains_page
from counterfactual_training.reports.truth_figures import price_figure
from counterfactual_training.reports.truth_tables import truth_texts

_CAPS = Caps()
_PICTURES = {"overshoot": overshoot_figure, "rescaled": rescaled_figure, "digits": gallery_figure}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "truth",
        parents=[common],
        help="what is left of the gains when neither step size nor scale of the logits counts",
        description="Trains every method on the same rows, searches counterfactuals that end just past τ, and has them "
        "judged by what was fitted to rows that no model saw. Prints every method beside its conventional twin, beside "
        "real rows, unmoved factuals and nearest unlike neighbours, and beside the published reductions. Stop it "
        "whenever you like: the same command goes on from there.",
        epilog=f"methods: {', '.join(METHODS)}",
    )
    parser.add_argument("--data", metavar="A,B", help="only these data sets, e.g. LS,CH,MNIST (default: all nine)")
    parser.add_argument("--methods", metavar="A,B", help="only these methods; their twins come along (default: all)")
    parser.add_argument("--seeds", type=int, metavar="N", help="training seeds (default: 5, and 3 for MNIST)")
    parser.add_argument(
        "--test",
        action="store_true",
        help="measure on the test rows; look once, when nothing is left to choose (default: rows cut from the training "
        "rows)",
    )
    parser.add_argument(
        "--uncapped",
        action="store_true",
        help="train on all rows, with published epochs and batches "
        f"(default: at most {_CAPS.rows} rows, {_CAPS.epochs} epochs, batches of at most {_CAPS.batch_size})",
    )
    parser.add_argument(
        "--page",
        metavar="FILE",
        help="also draw a picture of each idea, for which the first seed is trained once more, and write the page",
    )
    parser.add_argument("--out", default="truth", metavar="DIR", help="for tables (%(default)s)")
    parser.add_argument("--runs", default="runs/truth", metavar="DIR", help="for finished results (%(default)s)")
    engine.add(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    need("matplotlib")  # better told now than after the training
    out = folder(arguments.out)
    if arguments.page:
        writable(arguments.page, "--page")
    scope = Scope(
        arguments.runs,
        data=_names(arguments.data),
        seeds=arguments.seeds,
        methods=_names(arguments.methods),
        on_test=arguments.test,
        caps=UNCAPPED if arguments.uncapped else Caps(),
    )
    failures = run_truth(scope, engine=engine.chosen(arguments), stream=sys.stderr)
    tables = truth_tables(scope)
    texts = truth_texts(tables)
    rows = "the test rows" if arguments.test else "rows cut from the training rows"
    caps = scope.caps
    limits = f"at most {caps.rows:,} rows, " if caps.rows is not None else ""
    head = f"Measured on {rows}; trained on {limits}{caps.epochs} epochs. Made with: {arguments.command_line}"
    files = write_truth(tables, out, head)
    if arguments.page:
        names = list(dict.fromkeys(tables["truth"]["data"])) if len(tables["truth"]) else []
        pictures = picture_tables(scope, names)
        files += write_page(Path(arguments.page), tables | pictures, out, head)
    document = {
        "rows": "test" if arguments.test else "tuning",
        "tables": {name: table.to_dict("records") for name, table in tables.items()},
        "files": files,
        "failures": [failure._asdict() for failure in failures],
    }
    emit(arguments, document, "\n\n".join([head, *(text.text() for text in texts), f"{len(files)} files in {out}"]))
    complain(failures)


def write_truth(tables: Mapping[str, pd.DataFrame], out: Path, head: str) -> list[str]:
    """Tables as CSV and Markdown; floors, and cost against plausibility, as pictures; the files written."""
    files = {f"{name}.csv": _csv(table) for name, table in tables.items() if len(table)}
    texts = (text.markdown() for text in truth_texts(tables))
    files["truth.md"] = "\n".join([f"## What the gains are made of\n\n{head}\n", *texts]).encode()
    if len(tables["truth"]):
        files["figures/price.png"] = price_figure(tables["truth"])
        files["figures/floor.png"] = floor_figure(tables["truth"])
    for name, content in files.items():
        atomic_write(out / name, content)
    return [str(out / name) for name in files]


def write_page(page: Path, tables: Mapping[str, pd.DataFrame], out: Path, head: str) -> list[str]:
    """*What the published gains are made of*, its pictures and what they show; the files written."""
    files = {out / f"{name}.csv": _csv(tables[name]) for name in MATERIAL}
    for name, draw in _PICTURES.items():
        if len(tables[name]):
            files[out / "figures" / f"{name}.png"] = draw(tables[name])
    # From the tables as they are written, so that the page follows from the files to the last digit.
    told = {name: _read(_csv(table)) if len(table) else table for name, table in tables.items() if name != "digits"}
    files[page] = gains_page(told, Path(os.path.relpath(out, page.parent)).as_posix(), head).encode()
    for path, content in files.items():
        atomic_write(path, content)
    return [str(path) for path in files]


def complain(failures: Sequence[TruthFailure]) -> None:
    """Models that failed are missing from the tables, and that is said."""
    if failures:
        first = failures[0]
        raise CounterfactualTrainingError(
            f"{len(failures)} models are missing from these tables, the first being {first.data} {first.method} seed "
            f"{first.seed}: {first.reason} The same command tries them again."
        )


def _names(text: str | None) -> list[str] | None:
    return [name.strip() for name in text.split(",") if name.strip()] if text else None


def _read(content: bytes) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(content), dtype={"tau": str})


def _csv(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False, float_format="%.6g", lineterminator="\n").encode()
