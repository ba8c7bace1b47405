"""``ct compare``: ways to train, on the same rows, measured alike."""

from __future__ import annotations

import argparse
import sys

from counterfactual_training.cli.options import add_engine, chosen_engine, complain, names, need_report
from counterfactual_training.cli.output import emit, folder
from counterfactual_training.experiments.arena.caps import GENERATORS, GRADIENTS, MEMBERS
from counterfactual_training.experiments.truth.caps import UNCAPPED, Caps

_CAPS = Caps()
DESCRIPTION = """Train every regime on the same rows with as many input gradients, search counterfactuals that end \
just past τ, and judge them by models fitted to other rows. Writes one table, pictures of what plausibility costs, and \
one page. You can stop at any time: the same command resumes."""
EPILOG = f"""regimes: those of docs/regimes.md, `ensemble` ({MEMBERS} conventional networks) and `gated` (a \
conventional network with a gate); also `ensemble of jem`, `gated pgd` and the like. The conventional network always \
takes part."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="A,B", help="only these data sets, e.g. adult,ch (default: the paper's nine)")
    parser.add_argument("--regimes", default="all", metavar="A,B", help="only these")
    searches = "recipes that search the counterfactuals to measure, by a line search where they can"
    parser.add_argument("--generators", default=",".join(GENERATORS), metavar="A,B", help=searches)
    parser.add_argument("--seeds", type=int, metavar="N", help="training seeds (default: 5, and 3 for MNIST)")
    gradients = "input gradients that a regime may take per row and epoch"
    parser.add_argument("--gradients", type=int, default=GRADIENTS, metavar="K", help=gradients)
    test = "measure on the test rows, once, after all choices are made (default: rows held out of the training rows)"
    parser.add_argument("--test", action="store_true", help=test)
    caps = f"at most {_CAPS.rows} rows, {_CAPS.epochs} epochs, batches of at most {_CAPS.batch_size}"
    uncapped = f"train on all rows with the published epochs and batches (default: {caps})"
    parser.add_argument("--uncapped", action="store_true", help=uncapped)
    parser.add_argument("--out", default="arena", metavar="DIR", help="for tables, pictures and the page")
    parser.add_argument("--runs", default="runs/arena", metavar="DIR", help="for results")
    add_engine(parser)


def run(arguments: argparse.Namespace) -> None:
    need_report()
    out = folder(arguments.out)
    from counterfactual_training.experiments.arena.arena import Arena, run_arena
    from counterfactual_training.experiments.arena.arena_results import arena_tables
    from counterfactual_training.reports import write_arena
    from counterfactual_training.reports.arena_report import arena_sections

    arena = Arena(
        arguments.runs,
        data=names(arguments.data),
        contestants=None if arguments.regimes == "all" else names(arguments.regimes),
        generators=tuple(names(arguments.generators) or GENERATORS),
        seeds=arguments.seeds,
        gradients=arguments.gradients,
        on_test=arguments.test,
        caps=UNCAPPED if arguments.uncapped else _CAPS,
    )
    failures = run_arena(arena, engine=chosen_engine(arguments), stream=sys.stderr)
    tables = arena_tables(arena)
    files = write_arena(tables, out, arena, arguments.command_line)
    document = {
        "rows": arena.kind_of_rows,
        "tables": {name: table.to_dict("records") for name, table in tables.items()},
        "files": files,
        "failures": failures,
    }
    shown = [table.text() for section in arena_sections(tables)[:2] for table in section.tables]
    emit(arguments, document, "\n\n".join([*shown, f"{len(files)} files in {out}"]))
    complain(failures)
