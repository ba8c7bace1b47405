"""``ct evaluate``: plausibility, cost, accuracy and robustness of a saved model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from counterfactual_training.cli.options import (
    add_model,
    add_target,
    names,
    not_negative,
)
from counterfactual_training.cli.output import emit
from counterfactual_training.defaults import PROTOCOLS

if TYPE_CHECKING:
    import pandas as pd

    from counterfactual_training.evaluation.acceptance import Maker

DESCRIPTION = """\
Measure the plausibility, cost and validity of a model's counterfactuals, whether models of \
other families would accept them, its accuracy, and its accuracy under attack, on rows that it \
was not trained on. Counterfactuals are searched \
with the fixed steps of the protocol, without a gate; `ct truth` compares methods, gates \
among them, without fixed steps."""
EPILOG = """\
examples:
  ct evaluate moons.safetensors
  ct evaluate moons.safetensors --protocol published --repeats 20 --json
  ct evaluate people.safetensors --data people.csv
  ct evaluate people.safetensors --data others.csv --all-rows
  ct evaluate people.safetensors --data people.csv --judges "boosting,neighbours"

judges: boosting, logistic regression, support vectors and neighbours, fitted to the measured rows:
one half of these judges the people of the other. Name fewer if one of them helped to train the
model."""


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_target(parser)
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
        "the 100 people "
        "per repetition of its tabular data sets",
    )
    judges = "families that judge whether advice would work, or none (default: all four)"
    parser.add_argument("--judges", metavar="A,B", help=judges)
    changes = parser.add_argument_group("instead of the protocol's own")
    changes.add_argument(
        "--people",
        type=int,
        metavar="N",
        dest="num_individuals",
        help="people per repetition",
    )
    changes.add_argument(
        "--repeats", type=int, metavar="N", dest="num_runs", help="repetitions"
    )
    changes.add_argument(
        "--epsilons", type=float, nargs="+", metavar="ε", help="budgets of the attack"
    )
    # A list of one, because a protocol has several attacks.
    changes.add_argument(
        "--attack", choices=["fgsm", "pgd"], nargs=1, dest="attacks", help="attack"
    )
    changes.add_argument("--seed", type=not_negative, help="of random draws")


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
    families = _families(arguments.judges)
    table = evaluate(model, (x, y), protocol, constraints, families=families)
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
    text += _acceptance_in_words(numbers)
    if isinstance(opened, TableModel):
        text += (
            "\n\nThis protocol searches with fixed steps and shortens nothing; `ct report` "
            "measures the advice of `ct explain`."
        )
    emit(arguments, document, text)


def _families(text: str | None) -> dict[str, Maker] | None:
    """The judges that were named; all if none were, nobody if ``none`` was."""
    from counterfactual_training.errors import lookup
    from counterfactual_training.evaluation.acceptance import FAMILIES

    chosen = names(text)
    if chosen is None:
        return None
    if chosen == ["none"]:
        return {}
    return {name: lookup("family of judges", name, FAMILIES) for name in chosen}


def _acceptance_in_words(numbers: pd.Series) -> str:
    """Whether advice would work, and who says so; nothing where nobody judged."""
    from counterfactual_training.evaluation.metrics import ACCEPTANCE, JURY_ACCURACY

    share = numbers.get(ACCEPTANCE)
    if share is None or share != share:
        return ""
    prefix = f"{ACCEPTANCE}@"
    families = {
        str(name).removeprefix(prefix): value
        for name, value in numbers.items()
        if str(name).startswith(prefix)
    }
    by_family = ", ".join(f"{name} {value:.0%}" for name, value in families.items())
    return (
        "\n\nWould the advice work? Models of other families give people who follow it the other "
        f"decision in {share:.0%} of all cases ({by_family}). Each was fitted to the half of "
        "these rows that the person is not in. About real rows of the other half they are right "
        f"in {numbers[JURY_ACCURACY]:.0%} of all cases."
    )
