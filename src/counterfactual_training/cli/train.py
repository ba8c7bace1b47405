"""``ct train``: a classifier of a named data set or of a CSV file, saved as one file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from counterfactual_training import defaults
from counterfactual_training.cli.options import (
    VARIANTS,
    add_register,
    at_least_one,
    not_negative,
)
from counterfactual_training.cli.output import emit, not_over, note, writable
from counterfactual_training.cli.parsing import is_file_name
from counterfactual_training.cli.table_options import add_table, refuse_other_options
from counterfactual_training.errors import InputError
from counterfactual_training.rules import WAYS

DESCRIPTION = """\
Train a classifier and save it, with the gate that keeps its explanations near real rows."""
EPILOG = f"""\
examples:
  ct train moons --method ct --out moons.safetensors
  ct train loan --immutable age --witnesses 10 --out loan.safetensors
  ct train adult --method "ct_published(lambda_adv=0)" --epochs 30 --out adult.safetensors
  ct train people.csv --target granted --positive yes --immutable age,sex --decrease debt \
--drop name
  ct train people.csv --target granted --schema rules.toml --missing impute

Methods: {", ".join(defaults.METHODS)};
settings follow in brackets. Of a CSV file, separators, encoding, decimal commas, kinds of columns,
categories and ranges are found out; the options add what a file cannot tell. A fifth of its rows is
held out; the model file remembers which, and `ct evaluate` and `ct report` measure on them. A named
data set is trained in the same way, and its test rows are held out. `ct reproduce` trains the
paper's own models."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data", metavar="DATASET", help="a name from `ct data list`, or a CSV file"
    )
    parser.add_argument("--out", default="model.safetensors", metavar="FILE", help="the model")
    checkpoint = (
        "save to this file while training, and resume from it: the same command goes on where it "
        "was killed"
    )
    parser.add_argument("--checkpoint", metavar="FILE", help=checkpoint)
    parser.add_argument(
        "--method",
        default=defaults.METHOD,
        help="how to train, such as ct, pgd or 'ct_published(lambda_adv=0)'",
    )
    add_register(parser)
    parser.add_argument(
        "--epochs", type=at_least_one, help="passes over the data (default: the method's)"
    )
    parser.add_argument("--learning-rate", type=float, help="of Adam (default: the method's)")
    hidden = "widths of hidden layers; without any, the classifier is linear (default: 64 64)"
    parser.add_argument("--hidden", type=int, nargs="*", metavar="WIDTH", help=hidden)
    parser.add_argument("--activation", choices=["relu", "swish", "tanh"], help="of the layers")
    parser.add_argument(
        "--scaling", choices=["standard", "robust", "quantile"], help="of numbers"
    )
    witnesses = (
        "train so many networks again on bootstrap samples, which say how long advice lasts; at "
        "least four (default: none)"
    )
    parser.add_argument("--witnesses", type=at_least_one, metavar="N", help=witnesses)
    parser.add_argument(
        "--seed", type=not_negative, default=defaults.SEED, help="of everything random"
    )
    protect = (
        f"columns that {WAYS['none']}; of a named data set, without names: those that the paper "
        "protects"
    )
    parser.add_argument(
        "--immutable", nargs="*", action="extend", metavar="COLUMNS", help=protect
    )
    gate = ": a density of each class, a network trained with counterfactuals, or both"
    add_table(parser.add_argument_group("columns and files"), f"{gate} (default: density)")
    named = parser.add_argument_group("named data sets")
    named.add_argument("--variant", default=defaults.VARIANT, help=VARIANTS)


def run(arguments: argparse.Namespace) -> None:
    refuse_other_options(arguments)
    not_over(writable(arguments.out), arguments.data, arguments.schema)
    if arguments.checkpoint is not None:
        checkpoint = writable(arguments.checkpoint, "--checkpoint")
        not_over(
            checkpoint, arguments.data, arguments.schema, arguments.out, option="--checkpoint"
        )
    document = _train(arguments)
    if arguments.checkpoint is not None:
        Path(arguments.checkpoint).unlink(missing_ok=True)  # the model is saved
    emit(arguments, document, _in_words(document))


def _train(arguments: argparse.Namespace) -> dict[str, Any]:
    from counterfactual_training.cli.table import named_table, rules, training_table
    from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier

    if is_file_name(arguments.data):
        if arguments.immutable == []:
            raise InputError("--immutable needs names of columns if the data are a CSV file.")
        table = training_table(arguments)
    else:
        table = named_table(arguments)
        if arguments.immutable == []:
            arguments.immutable = list(_protected(arguments))
    stated = ("epochs", "learning_rate", "activation", "scaling", "gate")
    chosen = {
        name: getattr(arguments, name)
        for name in stated
        if getattr(arguments, name) is not None
    }
    if arguments.hidden:
        chosen["hidden"] = tuple(arguments.hidden)
    elif arguments.hidden is not None:
        chosen["model"] = "linear"
    classifier = CounterfactualClassifier(
        arguments.method, random_state=arguments.seed, **rules(arguments, table), **chosen
    )
    train, held_out = table.split(arguments.test_share, arguments.seed)
    rows = (table.frame.iloc[train], table.labels.iloc[train])
    classifier.fit(*rows, checkpoint=arguments.checkpoint)
    if arguments.witnesses is not None:
        classifier.add_witnesses(*rows, arguments.witnesses, seed=arguments.seed)
    classifier.origin_ = table.origin(train, held_out)
    classifier.save(arguments.out)
    if is_file_name(arguments.data):
        note(f"columns as understood:\n{classifier.schema_}")
    if len(held_out):
        tested = classifier.score(table.frame.iloc[held_out], table.labels.iloc[held_out])
    else:
        tested = float("nan")
    return {
        "data": table.source,
        "target": table.target,
        "positive": table.positive,
        "left_out": table.dropped_columns,
        "classes": classifier.classes_.tolist(),
        "method": str(classifier.method),
        "gate": classifier.gate,
        "witnesses": arguments.witnesses or 0,
        "epochs": len(classifier.history_.records),
        "train_rows": len(train),
        "test_rows": len(held_out),
        "accuracy": float(tested),
        "training_accuracy": classifier.history_.last("accuracy"),
        "share_mature": _share_mature(classifier),
        "trained": classifier.trained_,
        "out": arguments.out,
    }


def _share_mature(classifier: Any) -> float:
    """Of the counterfactuals of the last epoch; NaN of a method that learns from nascent ones only,
    which are not meant to mature, and without any.
    """
    if classifier.method_.minimised.needs_divergence:
        return classifier.history_.last("share_mature")
    return float("nan")


def _protected(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The columns that the paper protected in this data set."""
    from counterfactual_training.datasets import load_dataset

    return load_dataset(arguments.data, arguments.variant).protected_columns


def _in_words(document: dict[str, Any]) -> str:
    """What was trained, and how good it is, in one line."""
    parts = []
    # NaN, the only number that differs from itself, where nothing was held out or no counterfactual
    # was made.
    tested = document["accuracy"]
    if tested == tested:
        parts.append(f"accuracy {tested:.3f} on {document['test_rows']:,} held-out rows")
    mature = document["share_mature"]
    if mature == mature:
        parts.append(f"{mature:.0%} of the counterfactuals of the last epoch mature")
    saved = ", ".join([*parts, f"saved as {document['out']}"])
    return f"{document['trained']}. {saved[0].upper()}{saved[1:]}."
