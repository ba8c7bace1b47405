"""``ct compare``: methods on the same rows, measured alike."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from counterfactual_lab.arena.caps import GENERATORS, GRADIENTS
from counterfactual_lab.commands import complain, need_figures
from counterfactual_lab.truth.caps import METHODS_HELP, UNCAPPED, Caps
from counterfactual_training.cli.options import add_engine, add_register, chosen_engine, names
from counterfactual_training.cli.output import emit, folder, note
from counterfactual_training.cli.parsing import is_file_name
from counterfactual_training.cli.table_options import add_columns, add_schema, add_test_share
from counterfactual_training.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from counterfactual_training.datasets.dataset import Dataset

_CAPS = Caps()
_CSV_ONLY = (
    "target",
    "separator",
    "na",
    "text",
    "drop",
    "keep",
    "schema",
    "missing",
    "test_share",
)
DESCRIPTION = """\
Train by every method on the same rows with at most as many input gradients, search \
counterfactuals that end just past τ, and judge them by models fitted to other rows. Writes \
one table, pictures of what plausibility costs, and one page. You can stop at any time: the \
same command resumes."""
EPILOG = f"""\
examples:
  ct compare --data moons --methods "ct,pgd,pgd(epsilon=0.2),pgd + density"
  ct compare --data moons --methods noise --register noise.py

{METHODS_HELP}
The conventional network always takes part."""


def add(parser: argparse.ArgumentParser) -> None:
    data = "data sets, e.g. adult,ch, or a CSV file (default: the paper's nine)"
    parser.add_argument("--data", metavar="A,B", help=data)
    parser.add_argument("--methods", metavar="A,B", help="only these (default: all)")
    add_register(parser)
    searches = (
        "recipes that search the counterfactuals to measure, by a line search where they can"
    )
    parser.add_argument(
        "--generators", default=",".join(GENERATORS), metavar="A,B", help=searches
    )
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="training seeds (default: 5, and 3 for MNIST)"
    )
    gradients = "input gradients that a method may take per row and epoch"
    parser.add_argument("--gradients", type=int, default=GRADIENTS, metavar="K", help=gradients)
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
    parser.add_argument(
        "--out", default="arena", metavar="DIR", help="for tables, pictures and the page"
    )
    parser.add_argument("--runs", default="runs/arena", metavar="DIR", help="for results")
    add_engine(parser)
    group = parser.add_argument_group("a CSV file")
    add_columns(group)
    add_schema(group)
    add_test_share(group)


def run(arguments: argparse.Namespace) -> None:
    need_figures()
    out = folder(arguments.out)
    from counterfactual_lab.arena.arena import Arena, run_arena
    from counterfactual_lab.arena.arena_results import arena_tables
    from counterfactual_lab.reports.arena_report import arena_sections, write_arena

    arena = Arena(
        arguments.runs,
        data=_data(arguments),
        methods=names(arguments.methods),
        generators=tuple(names(arguments.generators) or GENERATORS),
        seeds=arguments.seeds,
        gradients=arguments.gradients,
        on_test=arguments.test,
        caps=UNCAPPED if arguments.uncapped else _CAPS,
    )
    failures = run_arena(arena, engine=chosen_engine(arguments), stream=sys.stderr)
    tables = arena_tables(arena)
    _tell_what_is_replaced(out, tables["arena"])
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


def _tell_what_is_replaced(out: Path, table: pd.DataFrame) -> None:
    """Another choice of data sets or methods writes the same files, so note what they held."""
    import pandas as pd

    if len(table) and (before := out / "arena.csv").is_file():
        old = pd.read_csv(before)
        for column, what in (("data", "data sets"), ("method", "methods")):
            if gone := [
                str(name) for name in old[column].unique() if name not in set(table[column])
            ]:
                note(
                    f"note: the tables in {str(out)!r} no longer show the {what} "
                    f"{', '.join(gone)}; --out keeps both"
                )


def _data(arguments: argparse.Namespace) -> list[str | Dataset] | None:
    """The named data sets, or the one in a CSV file."""
    if arguments.data is None or not is_file_name(arguments.data):
        for option in _CSV_ONLY:
            if getattr(arguments, option) is not None:
                raise InputError(
                    f"--{option.replace('_', '-')} is for CSV files; name one with --data."
                )
        data = names(arguments.data)
        if data is None:
            return None
        return [*data]
    from counterfactual_training.cli.table import rules, training_table
    from counterfactual_training.datasets.frames import frame_dataset
    from counterfactual_training.tables.estimators.inputs import resolve_schema

    arguments.positive = None  # every class is somebody's target
    table = training_table(arguments)
    stated = rules(arguments, table)
    missing = stated.pop("missing")
    if arguments.test and arguments.test_share == 0:
        raise InputError(
            "--test measures on rows held out of the CSV file: give --test-share above 0."
        )
    train, held = table.split(arguments.test_share, 0)
    frames = [table.frame.iloc[part].reset_index(drop=True) for part in (train, held)]
    labels = [table.labels.iloc[part] for part in (train, held)]
    schema = resolve_schema(frames[0], **stated)
    name = Path(arguments.data).stem
    return [frame_dataset(name, frames[0], labels[0], frames[1], labels[1], schema, missing)]
