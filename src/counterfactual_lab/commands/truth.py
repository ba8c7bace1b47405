"""``ct truth``: methods compared by a protocol that depends neither on a step size nor on the scale
of the logits.
"""

from __future__ import annotations

import argparse
import sys

from counterfactual_lab.commands import complain, need_figures
from counterfactual_lab.truth.caps import METHODS, METHODS_HELP, UNCAPPED, Caps
from counterfactual_training.cli.options import (
    add_engine,
    add_register,
    chosen_engine,
    names,
)
from counterfactual_training.cli.output import emit, folder, writable

_CAPS = Caps()
DESCRIPTION = """\
Train every method on the same rows, search counterfactuals that end just past τ, and judge \
them by models fitted to other rows. Prints each method beside its conventional reference, real \
rows, unmoved people, nearest unlike neighbours and the published reductions. You can stop at \
any time: the same command resumes."""
EPILOG = f"""\
methods by default: {", ".join(METHODS)}.

{METHODS_HELP}"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        metavar="A,B",
        help="only these data sets, e.g. LS,CH,MNIST (default: all nine)",
    )
    parser.add_argument(
        "--methods",
        metavar="A,B",
        help="only these methods and their references (default: all)",
    )
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="training seeds (default: 5, and 3 for MNIST)"
    )
    add_register(parser)
    test = (
        "measure on the test rows, once, after all choices are made (default: rows held out of "
        "the training rows)"
    )
    parser.add_argument("--test", action="store_true", help=test)
    caps = (
        f"at most {_CAPS.rows} rows, {_CAPS.epochs} epochs, batches of at most "
        f"{_CAPS.batch_size}"
    )
    uncapped = f"train on all rows with the published epochs and batches (default: {caps})"
    parser.add_argument("--uncapped", action="store_true", help=uncapped)
    page = "also draw figures, which needs more training, and write a page around them"
    parser.add_argument("--page", metavar="FILE", help=page)
    parser.add_argument("--out", default="truth", metavar="DIR", help="for tables")
    parser.add_argument("--runs", default="runs/truth", metavar="DIR", help="for results")
    add_engine(parser)


def run(arguments: argparse.Namespace) -> None:
    need_figures()
    out = folder(arguments.out)
    # A page is written after hours of training, so check now that it can be.
    if arguments.page:
        writable(arguments.page, "--page")
    from counterfactual_lab.reports.truth_report import (
        truth_head,
        truth_texts,
        write_truth,
        write_truth_page,
    )
    from counterfactual_lab.truth.gains import picture_tables
    from counterfactual_lab.truth.truth import Truth, run_truth
    from counterfactual_lab.truth.truth_results import truth_tables

    truth = Truth(
        arguments.runs,
        data=names(arguments.data),
        seeds=arguments.seeds,
        methods=names(arguments.methods),
        on_test=arguments.test,
        caps=UNCAPPED if arguments.uncapped else _CAPS,
    )
    failures = run_truth(truth, engine=chosen_engine(arguments), stream=sys.stderr)
    tables = truth_tables(truth)
    head = truth_head(truth, arguments.command_line)
    files = write_truth(tables, out, head)
    if arguments.page:
        if len(tables["truth"]):
            measured = list(dict.fromkeys(tables["truth"]["data"]))
        else:
            measured = []
        files += write_truth_page(
            arguments.page, tables | picture_tables(truth, measured), out, head
        )
    document = {
        "rows": truth.kind_of_rows,
        "tables": {name: table.to_dict("records") for name, table in tables.items()},
        "files": files,
        "failures": failures,
    }
    texts = [text.text() for text in truth_texts(tables)]
    emit(arguments, document, "\n\n".join([head, *texts, f"{len(files)} files in {out}"]))
    complain(failures)
