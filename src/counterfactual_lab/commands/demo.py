"""``ct demo``: conventional against counterfactual training, on one page."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from counterfactual_lab.commands import need_figures
from counterfactual_training.cli.options import not_negative
from counterfactual_training.cli.output import emit, folder, note

DESCRIPTION = """\
Train six small classifiers, conventionally and by counterfactual training, with and without \
a protected feature. Prints a table; writes report.html, figure1.png (the four panels of the \
paper's Figure 1), moons.png, and two models and people to ask about with `ct serve`. Takes \
about half a minute."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="demo", metavar="DIR", help="folder to write to")
    parser.add_argument(
        "--seed", type=not_negative, default=0, help="of weights and counterfactuals"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few seconds, too short for meaningful numbers"
    )


def run(arguments: argparse.Namespace) -> None:
    started = time.perf_counter()
    need_figures()
    from counterfactual_lab.demo import run_demo
    from counterfactual_lab.reports.comparison import pairs_text
    from counterfactual_lab.reports.demo_report import LENDERS, PEOPLE, write_demo
    from counterfactual_training.tables.pages.files import RunInfo

    out = folder(arguments.out)
    result = run_demo(arguments.quick, arguments.seed, note)
    info = RunInfo(arguments.command_line, time.perf_counter() - started, arguments.quick)
    files = write_demo(result, out, info)
    document = {
        "rows": result.table.to_dict("records"),
        "advice": result.advice.to_dict("records"),
        "debt_per_year": result.debt_per_year,
        "settings": result.settings,
        "epsilon": result.protocol.epsilons[0],
        "quick": arguments.quick,
        "files": files,
        "versions": info.versions,
        "date": info.date.isoformat(timespec="seconds"),
        "seconds": round(info.seconds, 1),
    }
    text = (
        f"{pairs_text(result.table)}\n\n* the better one of each pair. Open "
        f"{out / 'report.html'} to read on."
    )
    ours, other = (shlex.quote(str(out / name)) for name in LENDERS.values())
    people = shlex.quote(str(out / PEOPLE))
    # The ct that runs may not be on the PATH, as after `make demo`.
    if Path(sys.argv[0]).name == "ct":
        command = shlex.quote(sys.argv[0])
    else:
        command = "ct"
    ask = f"To ask these models yourself: {command} serve {ours} --against {other} --data {people}"
    emit(arguments, document, f"{text}\n{ask}")
