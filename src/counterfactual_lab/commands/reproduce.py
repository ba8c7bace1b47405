"""``ct reproduce``: the paper's experiments, published numbers beside ours."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from counterfactual_lab.commands import complain, need_figures
from counterfactual_lab.paper.names import ALL, EXPERIMENTS
from counterfactual_training.cli.options import (
    add_engine,
    chosen_engine,
    names,
)
from counterfactual_training.cli.output import emit, folder
from counterfactual_training.cli.parsing import settings

if TYPE_CHECKING:
    import pandas as pd

    from counterfactual_lab.paper.reproduce import Reproduction

DESCRIPTION = """\
Train the models of an experiment, measure them by the published protocol and by a paired \
one, and write tables (CSV, Markdown, LaTeX) and figures with the published numbers beside \
ours. You can stop at any time: finished models are kept, and the same command resumes."""
_LISTED = [f"  {name:<14} {title}" for name, title in EXPERIMENTS.items()]
EPILOG = "\n".join(["experiments:", *_LISTED, f"  {ALL:<14} all of them"])


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "experiment",
        choices=[*EXPERIMENTS, ALL],
        metavar="EXPERIMENT",
        help="see the list below",
    )
    parser.add_argument(
        "--data",
        metavar="A,B",
        help="only these data sets, e.g. LS,CH,MNIST (default: all it uses)",
    )
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="training seeds (default: 5, and 3 for MNIST)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a minute or less: synthetic data, short training"
    )
    parser.add_argument(
        "--out", default="reproduced", metavar="DIR", help="for tables, figures"
    )
    parser.add_argument("--runs", default="runs", metavar="DIR", help="for finished models")
    add_engine(parser)
    changed = (
        "train with a setting other than the published one, e.g. adversarial_label=predicted"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help=changed
    )


def run(arguments: argparse.Namespace) -> None:
    need_figures()
    out = folder(arguments.out)
    from counterfactual_lab.paper.reproduce import Extent, reproduce, step_free
    from counterfactual_lab.reports.paper_report import (
        effort_remark,
        result_tables,
        write_reproduction,
    )
    from counterfactual_lab.reports.paper_tables import text_tables
    from counterfactual_lab.reports.truth_report import truth_texts, write_truth

    extent = Extent(
        names(arguments.data), arguments.seeds, arguments.quick, settings(arguments.set)
    )
    reproductions = reproduce(
        arguments.experiment,
        arguments.runs,
        extent,
        command=arguments.command_line,
        stream=sys.stderr,
        engine=chosen_engine(arguments),
    )
    files = [path for one in reproductions for path in write_reproduction(one, out)]
    texts = [
        table.text() for one in reproductions for table in text_tables(one.name, one.tables)
    ]
    tables = {
        name: table for one in reproductions for name, table in result_tables(one).items()
    }
    failures = {
        label: reason for one in reproductions for label, reason in one.failures.items()
    }
    # The main table comes with its comparison that depends on no step size.
    if arguments.experiment in ("main", ALL):
        truth, lost = step_free(arguments.runs, extent, arguments.workers, sys.stderr)
        files += write_truth(
            truth, out, f"Measured on the test rows. Made with: {arguments.command_line}"
        )
        texts += [table.text() for table in truth_texts(truth)]
        tables |= truth
        failures |= lost
    texts += [effort_remark(reproductions[0].effort)] * arguments.quick
    document = {**_document(reproductions, tables), "files": files, "failures": failures}
    emit(arguments, document, "\n\n".join([*texts, f"{len(files)} files in {out}"]))
    complain(failures)


def _document(
    reproductions: Sequence[Reproduction], tables: Mapping[str, pd.DataFrame]
) -> dict[str, Any]:
    """Experiments and tables for ``--json``."""
    from counterfactual_lab.paper.reproduce import FULL

    return {
        "experiments": [one.name for one in reproductions],
        "quick": any(one.effort != FULL for one in reproductions),
        "tables": {name: table.to_dict("records") for name, table in tables.items()},
    }
