"""``ct card``: the model card as Markdown."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from counterfactual_training import defaults
from counterfactual_training.cli.options import (
    add_model,
    add_positive,
    add_target,
    at_least_one,
    not_negative,
)
from counterfactual_training.cli.output import emit, not_over, note, writable
from counterfactual_training.cli.parsing import columns, pick_label

DESCRIPTION = """\
Write the model card of a saved model as Markdown: what it is and is not for, its data, \
columns and rules, measures with intervals, advice by group, limits and versions. Without \
rows to measure on, the card says so."""
EPILOG = """\
examples:
  ct card people.safetensors --data people.csv --out card.md
  ct card people.safetensors                                 without measures
  ct card adult.safetensors --positive '>50K' --group sex,race --out card.md"""


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_positive(parser)
    groups = "columns of groups (default: those that people cannot change)"
    parser.add_argument("--group", action="append", metavar="COLUMNS", help=groups)
    people = "the most to explain"
    parser.add_argument(
        "--people", type=at_least_one, default=defaults.CARD_PEOPLE, metavar="N", help=people
    )
    add_target(parser)
    parser.add_argument(
        "--all-rows",
        action="store_true",
        help="measure on all rows, those of the training among them",
    )
    parser.add_argument("--out", metavar="FILE", help="the card (default: print it)")
    parser.add_argument(
        "--seed", type=not_negative, default=defaults.SEED, help="of random draws"
    )


def run(arguments: argparse.Namespace) -> None:
    if arguments.out is not None:
        not_over(writable(arguments.out), arguments.model, arguments.data)
    from counterfactual_training.cli.audit import people_of
    from counterfactual_training.cli.saved_models import TableModel, open_model
    from counterfactual_training.persistence import atomic_write
    from counterfactual_training.tables.card import CardRows, ModelFacts, make_card

    opened = open_model(arguments.model)
    rows = CardRows()
    groups = None
    if arguments.data is None and isinstance(opened, TableModel):
        note("without --data there is nothing to measure; the card says so")
    else:
        people = people_of(opened, arguments.data, arguments.target, arguments.all_rows)
        rows = CardRows(people.frame, people.labels, people.description)
        column_names = list(map(str, people.frame.columns))
        groups = columns(arguments.group, column_names, "--group") or None
    if not isinstance(opened, TableModel):
        name = opened.name
    elif opened.origin:
        name = f"a classifier of {opened.origin.target}"
    else:
        name = "a classifier"
    about = ModelFacts(
        name=name,
        facts=[
            (key, Path(value).name if key == "file" else value) for key, value in opened.facts()
        ],
        sha256=hashlib.sha256(Path(arguments.model).read_bytes()).hexdigest(),
        command=arguments.command_line,
    )
    card = make_card(
        opened.classifier,
        about,
        rows,
        target=pick_label(arguments.positive, opened.classifier.classes_, opened.positive),
        groups=groups,
        people=arguments.people,
        seed=arguments.seed,
    )
    if arguments.out is not None:
        atomic_write(arguments.out, card.to_markdown().encode())
    written = f"Written: {arguments.out}."
    emit(
        arguments,
        {**card.to_dict(), "file": arguments.out},
        card.to_markdown().rstrip() if arguments.out is None else written,
    )
