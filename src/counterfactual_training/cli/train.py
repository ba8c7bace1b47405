"""``ct train``: a classifier of a named data set or of a CSV file, saved as one file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from counterfactual_training import defaults
from counterfactual_training.cli.options import (
    VARIANTS,
    add_table,
    at_least_one,
    refuse_other_options,
)
from counterfactual_training.cli.output import emit, not_over, note, writable
from counterfactual_training.cli.parsing import columns, is_file_name
from counterfactual_training.errors import InputError
from counterfactual_training.rules import WAYS

DESCRIPTION = """\
Train a classifier by counterfactual training (or, to compare, conventionally) and save it."""
EPILOG = """\
examples:
  ct train moons --out moons.safetensors
  ct train loan --protect age --out loan.safetensors
  ct train adult --objective vanilla --epochs 30 --out adult.safetensors
  ct train people.csv --target granted --positive yes --immutable age,sex --decrease debt \
--drop name
  ct train people.csv --target granted --schema rules.toml --missing impute

A named data set is trained with the paper's settings. Of a CSV file, separators, encoding, decimal
commas, kinds of columns, categories and ranges are found out; the options add what a file cannot
tell. A fifth of its rows is held out; the model file remembers which, and `ct evaluate` and `ct
report` measure on them."""

# Options that mean the same for named data sets and for CSV files.
_SHARED = ("objective", "generator", "hidden", "epochs", "learning_rate", "burn_in")


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
        "--objective",
        choices=list(defaults.OBJECTIVES),
        help="full is counterfactual training (default for named data sets), vanilla is "
        "conventional, the others leave "
        "terms out; by default, a CSV file is learned conventionally and a gate keeps "
        "explanations near real rows",
    )
    generator = f"of training counterfactuals (default: {defaults.GENERATOR})"
    parser.add_argument("--generator", choices=defaults.GENERATORS, help=generator)
    parser.add_argument(
        "--epochs", type=at_least_one, default=defaults.EPOCHS, help="passes over the data"
    )
    burn_in = "share of the epochs, at the start, trained conventionally"
    parser.add_argument(
        "--burn-in", type=float, default=defaults.BURN_IN, metavar="SHARE", help=burn_in
    )
    parser.add_argument(
        "--learning-rate", type=float, default=defaults.LEARNING_RATE, help="of Adam"
    )
    hidden = (
        "widths of hidden layers; without any, the classifier is linear (default: 32; for CSV "
        "files 64 64)"
    )
    parser.add_argument("--hidden", type=int, nargs="*", metavar="WIDTH", help=hidden)
    parser.add_argument("--seed", type=int, default=defaults.SEED, help="of everything random")
    protect = f"columns that {WAYS['none']}; without names, those that the paper protects"
    parser.add_argument(
        "--protect", "--immutable", nargs="*", action="extend", metavar="COLUMNS", help=protect
    )
    gate = (
        ": a density of each class, a network trained with counterfactuals, or both (default: "
        "density; none if an "
    )
    add_table(
        parser.add_argument_group("CSV files"), gate + "objective or a generator is chosen)"
    )
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
    if arguments.hidden is None:
        arguments.hidden = None
    else:
        arguments.hidden = tuple(arguments.hidden)
    if is_file_name(arguments.data):
        document = _train_csv(arguments)
    else:
        document = _train_named(arguments)
    if arguments.checkpoint is not None:
        Path(arguments.checkpoint).unlink(missing_ok=True)  # the model is saved
    # NaN, the only number that differs from itself, where nothing was held out or no counterfactual
    # was made.
    tested = document["accuracy"]
    if is_file_name(arguments.data):
        which = "held-out"
    else:
        which = "test"
    if tested != tested:
        said = ""
    else:
        said = f"accuracy {tested:.3f} on {document['test_rows']:,} {which} rows, "
    mature = document["share_mature"]
    if mature != mature:
        said += ""
    else:
        said += f"{mature:.0%} of the counterfactuals of the last epoch mature, "
    emit(
        arguments,
        document,
        f"Trained on {document['train_rows']:,} rows: {said}saved as {document['out']}.",
    )


def _train_named(arguments: argparse.Namespace) -> dict[str, Any]:
    from counterfactual_training.datasets import load_dataset
    from counterfactual_training.evaluation.performance import accuracy, predict_logits
    from counterfactual_training.experiments.trained import (
        Recipe,
        encoder_of,
        fit,
        protected_columns,
    )

    data = load_dataset(arguments.data, arguments.variant)
    if arguments.protect:
        known = encoder_of(data).slices_
    else:
        known = {}
    # `--protect` without names asks for the columns that the paper protected.
    protected = (
        protected_columns(data)
        if arguments.protect == []
        else columns(arguments.protect, [*known], "--protect")
    )
    chosen = {
        name: getattr(arguments, name)
        for name in (*_SHARED, "seed")
        if getattr(arguments, name) is not None
    }
    recipe = Recipe(data=data.name, variant=data.variant, protected=tuple(protected), **chosen)
    trained = fit(recipe, data, checkpoint=arguments.checkpoint)
    trained.save(arguments.out)
    return {
        "data": data.name,
        "variant": data.variant,
        "objective": recipe.objective,
        "protected": protected,
        "epochs": recipe.epochs,
        "train_rows": len(data.y_train),
        "test_rows": len(data.y_test),
        "accuracy": float(accuracy(predict_logits(trained.model, data.x_test), data.y_test)),
        **trained.numbers,
        "out": arguments.out,
    }


def _train_csv(arguments: argparse.Namespace) -> dict[str, Any]:
    from counterfactual_training.cli.table import rules, training_table
    from counterfactual_training.tables.estimators import CounterfactualClassifier

    if arguments.protect == []:
        raise InputError("--immutable needs names of columns if the data are a CSV file.")
    table = training_table(arguments)
    # Objectives and generators are those of the paper, so naming one asks for its method.
    papers = arguments.objective is not None or arguments.generator is not None
    classifier = CounterfactualClassifier(
        preset="as_run" if papers else "default",
        model="linear" if arguments.hidden == () else "mlp",
        gate=arguments.gate,
        random_state=arguments.seed,
        **rules(arguments, table),
        **{name: getattr(arguments, name) for name in _SHARED},
    )
    train, held_out = table.split(arguments.test_share, arguments.seed)
    classifier.fit(
        table.frame.iloc[train], table.labels.iloc[train], checkpoint=arguments.checkpoint
    )
    classifier.origin_ = table.origin(train, held_out)
    classifier.save(arguments.out)
    note(f"columns as understood:\n{classifier.schema_}")
    scored = len(held_out) > 0
    if scored:
        tested = classifier.score(table.frame.iloc[held_out], table.labels.iloc[held_out])
    else:
        tested = float("nan")
    if classifier.gate_ is None:
        gates = []
    else:
        gates = [str(part["kind"]) for part in classifier.gate_.describe()]
    return {
        "data": str(table.path),
        "target": table.target,
        "positive": table.positive,
        "left_out": table.left_out,
        "classes": classifier.classes_.tolist(),
        "objective": arguments.objective or ("full" if papers else "vanilla"),
        "gate": "both" if len(gates) > 1 else "".join(gates) or "none",
        "epochs": arguments.epochs,
        "train_rows": len(train),
        "test_rows": len(held_out),
        "accuracy": float(tested),
        "training_accuracy": classifier.history_.last("accuracy"),
        "share_mature": classifier.history_.last("share_mature"),
        "out": arguments.out,
    }
