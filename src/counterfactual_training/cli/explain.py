"""``ct explain``: what would have to change, for chosen rows."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from counterfactual_training.cli.options import add_model, several
from counterfactual_training.cli.output import emit
from counterfactual_training.cli.parsing import RANGE, assignments, columns, interval, pick_label, pick_rows
from counterfactual_training.errors import InputError, check_name, lookup

if TYPE_CHECKING:
    from counterfactual_training.tabular.schema import Schema

# Rows explained if none are named.
_FIRST = 3
DESCRIPTION = "Search counterfactual explanations for chosen rows and describe them in words."
EPILOG = """\
examples:
  ct explain loan.safetensors --rows 0,1,2
  ct explain loan.safetensors --rows 0-9 --target "loan granted" --confidence 0.9 --json
  ct explain people.safetensors --data people.csv --rows 4 --target yes --options 3
  ct explain people.safetensors --rows 4 --max-changes 2 --step debt=100 --domain debt=0:30000 job=clerk,nurse"""


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--rows", help="numbers of rows from 0, such as 0,1,2 or 0-9 (default: the first three)")
    wanted = "the wanted class (default: the one named by `ct train --positive`, else the next most probable one)"
    parser.add_argument("--target", metavar="CLASS", help=wanted)
    parser.add_argument("--confidence", type=float, metavar="P", help="probability to reach (default: the decision)")
    parser.add_argument("--options", type=int, default=1, metavar="N", help="how many different answers per row")
    # Not `several`, which would take a MODEL that follows for one more column.
    lock = "columns that may not change, such as age,sex; a name with a comma needs a --lock of its own"
    parser.add_argument("--lock", action="append", metavar="COLUMNS", help=lock)
    parser.add_argument("--vary", action="append", metavar="COLUMNS", help="the only columns that may change")
    parser.add_argument("--max-changes", type=int, metavar="N", help="the largest number of columns to change")
    leads = "where advice may lead, such as debt=0:30 or job=clerk,nurse"
    parser.add_argument("--domain", **several("COLUMN=RANGE"), help=leads)
    parser.add_argument("--step", **several("COLUMN=NUMBER"), help="advice names multiples of this number")
    parser.add_argument("--max-change", **several("COLUMN=NUMBER"), help="the largest change of a column")
    dear = "how many times dearer than usual a change is"
    parser.add_argument("--difficulty", **several("COLUMN=NUMBER"), help=dear)
    related = "relations between columns that advice keeps, such as 'paid <= total'"
    parser.add_argument("--relations", **several("RELATION"), help=related)


def run(arguments: argparse.Namespace) -> None:
    from counterfactual_training.cli.saved_models import open_model

    opened = open_model(arguments.model)
    rows = opened.rows(arguments.data)
    # A file of new cases may hold a single one.
    people = rows.head(_FIRST).reset_index(drop=True) if arguments.rows is None else pick_rows(rows, arguments.rows)
    classifier = opened.classifier
    explanation = classifier.explain(
        people,
        pick_label(arguments.target, classifier.classes_, opened.positive),
        n_options=arguments.options,
        confidence=arguments.confidence,
        lock=columns(arguments.lock, classifier.schema_.names, "--lock") or None,
        vary=columns(arguments.vary, classifier.schema_.names, "--vary") or None,
        max_changes=arguments.max_changes,
        domain=_domains(arguments.domain, classifier.schema_),
        step=assignments(arguments.step, "step", "COLUMN=NUMBER", float) or None,
        max_change=assignments(arguments.max_change, "max-change", "COLUMN=NUMBER", float) or None,
        difficulty=assignments(arguments.difficulty, "difficulty", "COLUMN=NUMBER", float) or None,
        relations=arguments.relations,
    )
    document = {
        "model": arguments.model,
        "data": arguments.data or opened.name,
        "confidence": explanation.asked,
        "rows": explanation.records(),
    }
    rest = f"\n\n{len(people)} of {len(rows)} rows; --rows 0-{len(rows) - 1} explains all."
    more = rest if arguments.rows is None and len(rows) > len(people) else ""
    emit(arguments, document, f"{explanation}\n\n" + "\n".join(explanation.changes()) + more)


def _domains(items: Sequence[str] | None, schema: Schema) -> dict[str, Any] | None:
    """``["debt=0:30", "job=clerk,nurse", "degree=BSc:"]`` by column; categories as the model knows them."""
    found: dict[str, Any] = {}
    for name, text in assignments(items, "domain", "COLUMN=RANGE").items():
        check_name("column in --domain", name, schema.names)
        feature = schema[name]
        # The same flag says ranges of numbers, lists of categories, and ranges of ordered ones.
        if not feature.is_category:
            found |= assignments([f"{name}={text}"], "domain", RANGE, interval)
            continue
        ordered = feature.kind == "ordinal"
        known, what = {str(category): category for category in feature.levels}, f"category of {name} in --domain"
        ends = [text] if text in known and not ordered else text.split(":" if ordered else ",")
        if ordered and len(ends) != 2:
            raise InputError(f"--domain of {name!r}, whose categories have an order, takes LOW:HIGH, got {text!r}.")
        found[name] = [lookup(what, end, known) if end or not ordered else None for end in ends]
    return found or None
