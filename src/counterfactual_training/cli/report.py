"""``ct report``: one page of everything that was reproduced."""

from __future__ import annotations

import argparse

from counterfactual_training.cli.output import emit
from counterfactual_training.reports import write_report

DESCRIPTION = """Read folders that `ct reproduce` filled and write one self-contained page: figures, sortable tables, \
settings, and the commands to run it again. Trains nothing."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="folders of finished models")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="the page")
    where = "where `ct reproduce figure1` wrote Figure 1, which is not made of finished models"
    parser.add_argument("--tables", default="reproduced", metavar="DIR", help=where)


def run(arguments: argparse.Namespace) -> None:
    found = write_report(arguments.runs, arguments.out, arguments.tables)
    emit(arguments, {"page": arguments.out, **found}, f"Open {arguments.out} to read.")
