"""``ct evaluate``: plausibility, cost, accuracy and robustness of a saved model."""

from __future__ import annotations

import argparse
from typing import Any

from counterfactual_training.cli.models import open_model
from counterfactual_training.cli.output import emit
from counterfactual_training.evaluation.evaluate import evaluate, summarise
from counterfactual_training.evaluation.protocol import PROTOCOLS, EvaluationProtocol, protocol_named
from counterfactual_training.reports.tables import METRICS, aligned

_EXAMPLES = """\
examples:
  ct evaluate moons.safetensors
  ct evaluate moons.safetensors --protocol published --runs 20 --json
  ct evaluate people.safetensors --data test.csv --target-column granted"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "evaluate",
        parents=[common],
        help="measure a saved model on test rows",
        description="Measure plausibility, cost and validity of a model's counterfactuals, its accuracy, and its "
        "accuracy under attack. Counterfactuals are those of the protocol, with its fixed steps and without a gate; "
        "`ct truth` measures methods, gates among them, free of both.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a file that `ct train` or CounterfactualClassifier.save wrote")
    parser.add_argument(
        "--data",
        metavar="DATASET",
        help="a CSV file, or the data set of the model, whose test rows are taken (default)",
    )
    parser.add_argument("--target-column", metavar="NAME", help="the column of the CSV file that holds the class")
    parser.add_argument(
        "--protocol",
        default="paired",
        choices=list(PROTOCOLS),
        help="paired: every test row, the same for every model; published: as in the paper, "
        "with the 100 people a run of its tabular sets (default: %(default)s)",
    )
    parser.add_argument("--individuals", type=int, metavar="N", help="people per run, instead of the protocol's number")
    parser.add_argument("--runs", type=int, metavar="N", help="repetitions, instead of the protocol's number")
    parser.add_argument("--epsilons", type=float, nargs="+", metavar="ε", help="budgets of the attack")
    parser.add_argument("--attack", choices=["fgsm", "pgd"], help="instead of the protocol's")
    parser.add_argument("--seed", type=int, help="of the draws")
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
    described = {metric.name: metric for metric in METRICS}
    lines = [["metric", "value", "better", "meaning"]]
    for name, metric in described.items():
        lines.append([name, metric.text(float(numbers[name])), metric.better, metric.meaning])
    lines += [[str(name), f"{value:.3f}", "", ""] for name, value in numbers.items() if name not in described]
    attack = f"robust_accuracy: {protocol.attacks[0].upper()} with ε = {protocol.epsilons[0]:g}."
    emit(arguments, document, f"{aligned(lines)}\n\n{attack} Protocol: {protocol.name}, {len(y):,} test rows.")


def _protocol(arguments: argparse.Namespace) -> EvaluationProtocol:
    options = {
        "num_individuals": arguments.individuals,
        "num_runs": arguments.runs,
        "epsilons": None if arguments.epsilons is None else tuple(arguments.epsilons),
        "attacks": None if arguments.attack is None else (arguments.attack,),
        "seed": arguments.seed,
    }
    return protocol_named(arguments.protocol, **{name: value for name, value in options.items() if value is not None})
