"""``ct explain``: what would have to change, for chosen rows."""

from __future__ import annotations

import argparse
from typing import Any

import pandas as pd

from counterfactual_training.cli.models import open_model
from counterfactual_training.cli.output import emit
from counterfactual_training.cli.sources import pick_label, pick_rows

_EXAMPLES = """\
examples:
  ct explain loan.safetensors --rows 0,1,2
  ct explain loan.safetensors --rows 0-9 --target "loan granted" --threshold 0.9 --json
  ct explain people.safetensors --data people.csv --rows 4 --target yes"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "explain",
        parents=[common],
        help="say what would have to change for chosen rows",
        description="Search counterfactual explanations of chosen rows and say them in words.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a file that `ct train` or CounterfactualClassifier.save wrote")
    parser.add_argument(
        "--data",
        metavar="DATASET",
        help="a CSV file, or the data set of the model, whose test rows are taken (default)",
    )
    parser.add_argument(
        "--rows", default="0,1,2", help="numbers of rows from 0, such as 0,1,2 or 0-9 (default: %(default)s)"
    )
    parser.add_argument("--target", metavar="CLASS", help="the class wanted; by default the next most probable one")
    parser.add_argument("--threshold", type=float, metavar="P", help="probability of the target to reach")
    parser.add_argument("--target-column", metavar="NAME", help="a column of the CSV file to be left out")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    opened = open_model(arguments.model)
    people: pd.DataFrame = pick_rows(opened.rows(arguments.data, arguments.target_column), arguments.rows)
    classifier = opened.classifier()
    target = pick_label(arguments.target, classifier.classes_)
    explanation = classifier.explain(people, target, decision_threshold=arguments.threshold)
    document = {
        "model": arguments.model,
        "data": arguments.data or opened.name,
        "decision_threshold": explanation.decision_threshold,
        "rows": explanation.records(),
    }
    emit(arguments, document, f"{explanation}\n\n" + "\n".join(explanation.changes()))
