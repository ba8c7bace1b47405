"""``ct train``: a classifier of a named data set or of a CSV file, saved as one file."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from counterfactual_training.cli.options import VARIANTS
from counterfactual_training.cli.output import emit, note, writable
from counterfactual_training.cli.parsing import assignments, interval, is_csv, read_csv
from counterfactual_training.datasets import load_dataset
from counterfactual_training.errors import InputError
from counterfactual_training.estimator import CounterfactualClassifier
from counterfactual_training.evaluation.performance import accuracy, predict_logits
from counterfactual_training.experiments.trained import Recipe, fit, protected_columns
from counterfactual_training.gates import KINDS as GATES
from counterfactual_training.search import GENERATORS
from counterfactual_training.training import OBJECTIVES

HELP = "train a classifier and save it"
DESCRIPTION = "Train a classifier by counterfactual training (or, to compare, conventionally) and save it."
EPILOG = """\
examples:
  ct train moons --out moons.safetensors
  ct train loan --protect age --out loan.safetensors
  ct train adult --objective vanilla --epochs 30 --out adult.safetensors
  ct train people.csv --target-column granted --mutability age=none debt=decrease --domain debt=0:

A named data set is trained with the paper's settings. For a CSV file, kinds of columns, categories and ranges are
inferred from the data; --mutability, --domain and --schema add what cannot be inferred."""

# Options that mean the same for named data sets and for CSV files.
_SHARED = ("objective", "generator", "hidden", "epochs", "learning_rate", "burn_in")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATASET", help="a name from `ct data list`, or a CSV file")
    parser.add_argument("--out", default="model.safetensors", metavar="FILE", help="the model")
    _add_training(parser)
    _add_csv(parser.add_argument_group("CSV files"))
    named = parser.add_argument_group("named data sets")
    named.add_argument("--variant", default=Recipe.variant, help=VARIANTS)


def _add_training(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--objective",
        choices=list(OBJECTIVES),
        help="full is counterfactual training (default for named data sets), vanilla is conventional, the others leave "
        "terms out; by default, a CSV file is learned conventionally and a gate keeps explanations near real rows",
    )
    generator = f"of training counterfactuals (default: {Recipe.generator})"
    parser.add_argument("--generator", choices=list(GENERATORS), help=generator)
    parser.add_argument("--epochs", type=int, default=Recipe.epochs, help="passes over the data")
    burn_in = "share of the epochs, at the start, trained conventionally"
    parser.add_argument("--burn-in", type=float, default=Recipe.burn_in, metavar="SHARE", help=burn_in)
    parser.add_argument("--learning-rate", type=float, default=Recipe.learning_rate, help="of Adam")
    hidden = "widths of hidden layers; without any, the classifier is linear (default: 32)"
    parser.add_argument("--hidden", type=int, nargs="*", default=Recipe.hidden, metavar="WIDTH", help=hidden)
    parser.add_argument("--seed", type=int, default=Recipe.seed, help="of everything random")
    protect = "columns that people cannot change; without names, those that the paper protects"
    parser.add_argument("--protect", nargs="*", metavar="COLUMN", help=protect)


def _add_csv(group: Any) -> None:
    group.add_argument("--target-column", metavar="NAME", help="column that holds the class")
    mutability = "how a column may change: both, none, increase or decrease"
    group.add_argument("--mutability", nargs="+", metavar="COLUMN=HOW", help=mutability)
    group.add_argument("--domain", nargs="+", metavar="COLUMN=LOW:HIGH", help="range of a column, in its own units")
    group.add_argument("--schema", metavar="FILE", help="TOML or JSON file that describes columns")
    group.add_argument(
        "--gate",
        choices=["none", *GATES],
        help="keeps explanations near real rows: a density of each class, a network trained with counterfactuals, or "
        "both (default: density; none if an objective or a generator is chosen)",
    )
    group.add_argument("--test-share", type=float, default=0.2, metavar="SHARE", help="of the rows, held out")


def run(arguments: argparse.Namespace) -> None:
    writable(arguments.out)
    arguments.hidden = tuple(arguments.hidden)
    document = _train_csv(arguments) if is_csv(arguments.data) else _train_named(arguments)
    tested = document["accuracy"]
    said = "" if tested != tested else f"accuracy {tested:.3f} on {document['test_rows']:,} test rows, "
    mature = document["share_mature"]
    said += "" if mature != mature else f"{mature:.0%} of the counterfactuals of the last epoch mature, "
    emit(arguments, document, f"Trained on {document['train_rows']:,} rows: {said}saved as {document['out']}.")


def _train_named(arguments: argparse.Namespace) -> dict[str, Any]:
    for option in ("target_column", "mutability", "domain", "schema", "gate"):
        if getattr(arguments, option) is not None:
            flag = option.replace("_", "-")
            raise InputError(f"--{flag} is for CSV files; {arguments.data!r} is the name of a data set.")
    data = load_dataset(arguments.data, arguments.variant)
    protected = protected_columns(data) if arguments.protect == [] else tuple(dict.fromkeys(arguments.protect or ()))
    chosen = {name: getattr(arguments, name) for name in (*_SHARED, "seed") if getattr(arguments, name) is not None}
    recipe = Recipe(data=data.name, variant=data.variant, protected=protected, **chosen)
    trained = fit(recipe, data)
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
    if arguments.protect == []:
        raise InputError("--protect needs names of columns if the data are a CSV file.")
    if arguments.variant != Recipe.variant:
        raise InputError("--variant is for named data sets, not for CSV files.")
    if not 0 <= arguments.test_share < 1:
        raise InputError(f"--test-share must be at least 0 and below 1, got {arguments.test_share}.")
    source = read_csv(arguments.data, arguments.target_column)
    labels = source.need_labels()
    papers = arguments.objective is not None or arguments.generator is not None
    classifier = CounterfactualClassifier(
        preset="as_run" if papers else "default",
        model="mlp" if arguments.hidden else "linear",
        gate=arguments.gate,
        mutability=assignments(arguments.mutability, "mutability") | dict.fromkeys(arguments.protect or (), "none"),
        domain={name: interval(text) for name, text in assignments(arguments.domain, "domain").items()},
        schema=arguments.schema,
        random_state=arguments.seed,
        **{name: getattr(arguments, name) for name in _SHARED},
    )
    order = np.random.default_rng(arguments.seed).permutation(len(labels))
    test, train = np.split(order, [round(arguments.test_share * len(order))])
    classifier.fit(source.frame.iloc[np.sort(train)], labels.iloc[np.sort(train)])
    classifier.save(arguments.out)
    note(f"columns as understood:\n{classifier.schema_}")
    tested = classifier.score(source.frame.iloc[test], labels.iloc[test]) if len(test) else float("nan")
    gates = [] if classifier.gate_ is None else [str(part["kind"]) for part in classifier.gate_.describe()]
    return {
        "data": str(source.path),
        "target_column": arguments.target_column,
        "classes": classifier.classes_.tolist(),
        "objective": arguments.objective or ("full" if papers else "vanilla"),
        "gate": "both" if len(gates) > 1 else "".join(gates) or "none",
        "epochs": arguments.epochs,
        "train_rows": len(train),
        "test_rows": len(test),
        "accuracy": float(tested),
        "training_accuracy": classifier.history_.last("accuracy"),
        "share_mature": classifier.history_.last("share_mature"),
        "out": arguments.out,
    }
