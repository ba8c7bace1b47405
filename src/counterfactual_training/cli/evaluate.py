"""``ct evaluate``: plausibility, cost, accuracy and robustness of a saved model."""

from __future__ import annotations

import argparse
from typing import Any

from counterfactual_training.cli.options import add_command, add_model
from counterfactual_training.cli.output import emit
from counterfactual_training.cli.saved_models import open_model
from counterfactual_training.evaluation.evaluate import evaluate, summarise
from counterfactual_training.evaluation.protocol import PROTOCOLS, EvaluationProtocol, protocol_named
from counterfactual_training.reports.metrics import metrics_text

_EXAMPLES = """\
examples:
  ct evaluate moons.safetensors
  ct evaluate moons.safetensors --protocol published --runs 20 --json
  ct evaluate people.safetensors --data test.csv --target-column granted"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = add_command(
        commands,
        "evaluate",
        "measure a saved model on test rows",
        "Measure the plausibility, cost and validity of a model's counterfactuals, its accuracy, and its accuracy "
        "under attack. Counterfactuals are searched with the fixed steps of the protocol, without a gate; `ct truth` "
        "compares methods, gates among them, without fixed steps.",
        epilog=_EXAMPLES,
        parents=[common],
    )
    add_model(parser)
    parser.add_argument("--target-column", metavar="NAME", help="column of the CSV file that holds the class")
    parser.add_argument(
        "--protocol",
        default="paired",
        choices=list(PROTOCOLS),
        help="paired: every test row, the same for every model; published: as in the paper, with the 100 individuals "
        "per run of its tabular data sets (default: %(default)s)",
    )
    parser.add_argument("--individuals", type=int, metavar="N", help="individuals per run (default: the protocol's)")
    parser.add_argument("--runs", type=int, metavar="N", help="repetitions (default: the protocol's)")
    parser.add_argument(
        "--epsilons", type=float, nargs="+", metavar="ε", help="budgets of the attack (default: the protocol's)"
    )
    parser.add_argument("--attack", choices=["fgsm", "pgd"], help="default: the protocol's")
    parser.add_argument("--seed", type=int, help="of random draws (default: the protocol's)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    opened = open_model(arguments.model)
    protocol = _protocol(arguments)
    model, x, y, constraints = opened.measurable(arguments.data, arguments.target_column)
    table = evaluate(model, (x, y), protocol, constraints)
    numbers = summarise(table)
    document = {
        "model": arguments.model,
        "data": arguments.data or opened.name,
        "protocol": protocol.name,
        "test_rows": len(y),
        "epsilons": protocol.epsilons,
        **{str(name): float(value) for name, value in numbers.items()},
        "by_lambda_energy": table.to_dict("records"),
    }
    attack = f"robust_accuracy: {protocol.attacks[0].upper()} with ε = {protocol.epsilons[0]:g}."
    emit(arguments, document, f"{metrics_text(numbers)}\n\n{attack} Protocol: {protocol.name}, {len(y):,} test rows.")


def _protocol(arguments: argparse.Namespace) -> EvaluationProtocol:
    options = {
        "num_individuals": arguments.individuals,
        "num_runs": arguments.runs,
        "epsilons": None if arguments.epsilons is None else tuple(arguments.epsilons),
        "attacks": None if arguments.attack is None else (arguments.attack,),
        "seed": arguments.seed,
    }
    return protocol_named(arguments.protocol, **{name: value for name, value in options.items() if value is not None})
