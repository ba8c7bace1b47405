"""``ct explain``: what would have to change, for chosen rows."""

from __future__ import annotations

import argparse

import pandas as pd

from counterfactual_training.cli.options import add_model, names
from counterfactual_training.cli.output import emit
from counterfactual_training.cli.parsing import pick_label, pick_rows
from counterfactual_training.cli.saved_models import TableModel, open_model

DESCRIPTION = "Search counterfactual explanations for chosen rows and describe them in words."
EPILOG = """\
examples:
  ct explain loan.safetensors --rows 0,1,2
  ct explain loan.safetensors --rows 0-9 --target "loan granted" --confidence 0.9 --json
  ct explain people.safetensors --data people.csv --rows 4 --target yes --options 3"""


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--rows", default="0,1,2", help="numbers of rows from 0, such as 0,1,2 or 0-9")
    wanted = "the wanted class (default: the one named by `ct train --positive`, else the next most probable one)"
    parser.add_argument("--target", metavar="CLASS", help=wanted)
    parser.add_argument("--confidence", type=float, metavar="P", help="probability to reach (default: the decision)")
    parser.add_argument("--options", type=int, default=1, metavar="N", help="how many different answers per row")
    parser.add_argument("--lock", metavar="COLUMNS", help="columns that may not change, separated by commas")
    parser.add_argument("--vary", metavar="COLUMNS", help="the only columns that may change")
    parser.add_argument("--max-changes", type=int, metavar="N", help="the largest number of columns to change")


def run(arguments: argparse.Namespace) -> None:
    opened = open_model(arguments.model)
    people: pd.DataFrame = pick_rows(opened.rows(arguments.data), arguments.rows)
    classifier = opened.classifier()
    target = pick_label(arguments.target, classifier.classes_)
    if target is None and isinstance(opened, TableModel) and opened.origin is not None:
        target = opened.origin.positive
    explanation = classifier.explain(
        people,
        target,
        n_options=arguments.options,
        confidence=arguments.confidence,
        lock=names(arguments.lock),
        vary=names(arguments.vary),
        max_changes=arguments.max_changes,
    )
    document = {
        "model": arguments.model,
        "data": arguments.data or opened.name,
        "confidence": explanation.asked,
        "rows": explanation.records(),
    }
    emit(arguments, document, f"{explanation}\n\n" + "\n".join(explanation.changes()))
