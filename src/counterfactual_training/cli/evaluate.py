"""``ct evaluate``: plausibility, cost, accuracy and robustness of a saved model."""

from __future__ import annotations

import argparse

from counterfactual_training.cli.options import add_model
from counterfactual_training.cli.output import emit
from counterfactual_training.defaults import PROTOCOLS

DESCRIPTION = """\
Measure the plausibility, cost and validity of a model's counterfactuals, its accuracy, and \
its accuracy under attack, on rows that it was not trained on. Counterfactuals are searched \
with the fixed steps of the protocol, without a gate; `ct truth` compares methods, gates \
among them, without fixed steps."""
EPILOG = """\
examples:
  ct evaluate moons.safetensors
  ct evaluate moons.safetensors --protocol published --runs 20 --json
  ct evaluate people.safetensors --data people.csv
  ct evaluate people.safetensors --data others.csv --all-rows"""


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    target = "the column of the CSV file that holds the class (default: as in training)"
    parser.add_argument("--target", "--target-column", metavar="COLUMN", help=target)
    every = (
        "measure on all rows of the CSV file, those of the training among them (default: only on "
        "others)"
    )
    parser.add_argument("--all-rows", action="store_true", help=every)
    parser.add_argument(
        "--protocol",
        default=PROTOCOLS[0],
        choices=PROTOCOLS,
        help="paired: every test row, the same for every model; published: as in the paper, with "
        "the 100 individuals "
        "per run of its tabular data sets",
    )
    changes = parser.add_argument_group("instead of the protocol's own")
    changes.add_argument(
        "--individuals",
        type=int,
        metavar="N",
        dest="num_individuals",
        help="individuals per run",
    )
    changes.add_argument("--runs", type=int, metavar="N", dest="num_runs", help="repetitions")
    changes.add_argument(
        "--epsilons", type=float, nargs="+", metavar="ε", help="budgets of the attack"
    )
    # A list of one, because a protocol has several attacks.
    changes.add_argument(
        "--attack", choices=["fgsm", "pgd"], nargs=1, dest="attacks", help="attack"
    )
    changes.add_argument("--seed", type=int, help="of random draws")


def run(arguments: argparse.Namespace) -> None:
    from counterfactual_training.cli.saved_models import TableModel, open_model
    from counterfactual_training.evaluation.evaluate import evaluate, summarise
    from counterfactual_training.evaluation.metrics_text import metrics_text
    from counterfactual_training.evaluation.protocol import protocol_named

    opened = open_model(arguments.model)
    stated = {
        name: getattr(arguments, name)
        for name in ("num_individuals", "num_runs", "epsilons", "attacks", "seed")
    }
    changes = {
        n: tuple(v) if isinstance(v, list) else v for n, v in stated.items() if v is not None
    }
    protocol = protocol_named(arguments.protocol, **changes)
    model, x, y, constraints, rows = opened.measurable(
        arguments.data, arguments.target, arguments.all_rows
    )
    table = evaluate(model, (x, y), protocol, constraints)
    numbers = summarise(table)
    document = {
        "model": arguments.model,
        "data": arguments.data or opened.name,
        "protocol": protocol.name,
        "test_rows": len(y),
        "rows": rows,
        "epsilons": protocol.epsilons,
        **{str(name): float(value) for name, value in numbers.items()},
        "by_lambda_energy": table.to_dict("records"),
    }
    attack = (
        f"robust_accuracy: {protocol.attacks[0].upper()} with ε = {protocol.epsilons[0]:g}."
    )
    text = f"{metrics_text(numbers)}\n\nMeasured on {rows}. {attack} Protocol: {protocol.name}."
    if isinstance(opened, TableModel):
        text += (
            " It searches with fixed steps and shortens nothing; `ct report` measures the advice "
            "of `ct explain`."
        )
    emit(arguments, document, text)
