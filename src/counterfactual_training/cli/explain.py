"""``ct explain``: what would have to change, for chosen rows."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pandas as pd

from counterfactual_training.cli.options import add_model, names
from counterfactual_training.cli.output import emit
from counterfactual_training.cli.parsing import assignments, interval, pick_label, pick_rows
from counterfactual_training.cli.saved_models import TableModel, open_model
from counterfactual_training.errors import InputError, check_name, lookup
from counterfactual_training.tabular.feature import Feature
from counterfactual_training.tabular.schema import Schema

DESCRIPTION = "Search counterfactual explanations for chosen rows and describe them in words."
EPILOG = """\
examples:
  ct explain loan.safetensors --rows 0,1,2
  ct explain loan.safetensors --rows 0-9 --target "loan granted" --confidence 0.9 --json
  ct explain people.safetensors --data people.csv --rows 4 --target yes --options 3
  ct explain people.safetensors --rows 4 --max-changes 2 --step debt=100 --domain debt=0:30000 job=clerk,nurse"""


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
    leads = "where advice may lead, such as debt=0:30 or job=clerk,nurse"
    parser.add_argument("--domain", nargs="+", metavar="COLUMN=RANGE", help=leads)
    parser.add_argument("--step", nargs="+", metavar="COLUMN=NUMBER", help="advice names multiples of this number")
    parser.add_argument("--max-change", nargs="+", metavar="COLUMN=NUMBER", help="the largest change of a column")
    dear = "how many times dearer than usual a change is"
    parser.add_argument("--difficulty", nargs="+", metavar="COLUMN=NUMBER", help=dear)
    related = "relations between columns that advice keeps, such as 'paid <= total'"
    parser.add_argument("--relations", nargs="+", metavar="RELATION", help=related)


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
        domain=_domains(arguments.domain, classifier.schema_),
        step=_numbers(arguments.step, "step"),
        max_change=_numbers(arguments.max_change, "max-change"),
        difficulty=_numbers(arguments.difficulty, "difficulty"),
        relations=arguments.relations,
    )
    document = {
        "model": arguments.model,
        "data": arguments.data or opened.name,
        "confidence": explanation.asked,
        "rows": explanation.records(),
    }
    emit(arguments, document, f"{explanation}\n\n" + "\n".join(explanation.changes()))


def _numbers(items: Sequence[str] | None, flag: str) -> dict[str, float] | None:
    """``["debt=100"]`` as numbers by column."""
    found = {}
    for name, text in assignments(items, flag, "COLUMN=NUMBER").items():
        try:
            found[name] = float(text)
        except ValueError:
            raise InputError(f"--{flag} takes COLUMN=NUMBER, got {name}={text}.") from None
    return found or None


def _domains(items: Sequence[str] | None, schema: Schema) -> dict[str, Any] | None:
    """``["debt=0:30", "job=clerk,nurse"]`` by column; categories as the model knows them."""
    found: dict[str, Any] = {}
    for name, text in assignments(items, "domain", "COLUMN=RANGE").items():
        check_name("column in --domain", name, schema.names)
        feature = schema[name]
        if feature.kind == "ordinal":
            found[name] = _ranks(feature, text)
        elif feature.is_category:
            known = {str(category): category for category in feature.categories or ()}
            found[name] = [lookup(f"category of {name} in --domain", part, known) for part in text.split(",")]
        else:
            found[name] = interval(text)
    return found or None


def _ranks(feature: Feature, text: str) -> tuple[Any, ...]:
    """``school:MSc`` as two categories of an ordinal column; either side may be empty."""
    low, colon, high = text.partition(":")
    if not colon:
        raise InputError(f"--domain of {feature.name!r}, whose categories have an order, takes LOW:HIGH, got {text!r}.")
    known = {str(category): category for category in feature.categories or ()}
    what = f"category of {feature.name} in --domain"
    return tuple(lookup(what, end, known) if end else None for end in (low, high))
