"""``ct explain``: what would have to change, for chosen rows."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from counterfactual_training import defaults
from counterfactual_training.cli.options import (
    add_engine,
    add_model,
    add_positive,
    chosen_engine,
    several,
)
from counterfactual_training.cli.output import emit, not_over, writable
from counterfactual_training.cli.parsing import (
    RANGE,
    assignments,
    columns,
    interval_ends,
    pick_label,
    pick_rows,
)
from counterfactual_training.errors import InputError, check_name, lookup
from counterfactual_training.rules import meaning, with_trait

if TYPE_CHECKING:
    from counterfactual_training.tables.columns.feature import Feature
    from counterfactual_training.tables.columns.schema import Schema
    from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier

# Rows explained if none are named.
_FIRST = 3
# Options that only --all has.
_FOR_ALL = ("out", "label", "workers", "engine", "address")
DESCRIPTION = """\
Search counterfactual explanations for chosen rows and describe them in words; or, with \
--all, for every row of a file of any length, into a table. You can stop that at any time: \
the same command resumes."""
EPILOG = """\
examples:
  ct explain loan.safetensors --rows 0,1,2
  ct explain loan.safetensors --rows 0-9 --lasting 0.8
  ct explain loan.safetensors --rows 0-9 --positive "loan granted" --confidence 0.9 --json
  ct explain people.safetensors --data people.csv --rows 4 --positive yes --options 3
  ct explain people.safetensors --rows 4 --max-changes 2 --step debt=100 --domain debt=0:30000 \
job=clerk,nurse
  ct explain people.safetensors --data big.csv --all --out answers.csv --label customer_id \
--workers 8"""


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--rows", help="numbers of rows from 0, such as 0,1,2 or 0-9 (default: the first three)"
    )
    every = "explain every row, a block at a time, and write the answers to --out"
    parser.add_argument("--all", action="store_true", help=every)
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="with --all: the CSV file for the answers, a line for each",
    )
    names = (
        "with --all: a column that names people, such as customer_id, to copy to the answers"
    )
    parser.add_argument("--label", metavar="COLUMN", help=names)
    wanted = (
        "the class that people want (default: that of `ct train --positive`, else the next most "
        "probable one)"
    )
    add_positive(parser, wanted)
    parser.add_argument(
        "--confidence",
        type=float,
        metavar="P",
        help="probability to reach (default: the decision)",
    )
    parser.add_argument(
        "--lasting",
        type=float,
        metavar="SHARE",
        help=f"share of witnesses that should accept the answer, or 0 for what is just enough "
        f"(default: {defaults.LASTING:g} of a model trained with --witnesses, else 0)",
    )
    parser.add_argument(
        "--options",
        type=int,
        default=1,
        metavar="N",
        help="how many different answers per row, up to 100",
    )
    # Not `several`, which would take a MODEL that follows for one more column.
    lock = f"{meaning('lock')}; write age,sex, or a name with a comma in a --lock of its own"
    parser.add_argument("--lock", action="append", metavar="COLUMNS", help=lock)
    parser.add_argument("--vary", action="append", metavar="COLUMNS", help=meaning("vary"))
    parser.add_argument("--max-changes", type=int, metavar="N", help=meaning("max_changes"))
    leads = f"{meaning('domain')}; write debt=0:30 or job=clerk,nurse"
    parser.add_argument("--domain", **several("COLUMN=RANGE"), help=leads)
    for rule in with_trait("number"):
        parser.add_argument(_flag(rule), **several("COLUMN=NUMBER"), help=meaning(rule))
    parser.add_argument(
        "--relations",
        **several("RELATION"),
        help=f"{meaning('relations')}; write 'paid <= total'",
    )
    add_engine(parser.add_argument_group("with --all, where to search"), all_processors=True)


def run(arguments: argparse.Namespace) -> None:
    _check_options(arguments)
    if arguments.all:
        _explain_all(arguments)
        return
    from counterfactual_training.cli.saved_models import open_model

    opened = open_model(arguments.model)
    rows = opened.rows(arguments.data)
    # A file of new cases may hold a single one.
    if arguments.rows is None:
        people = rows.head(_FIRST).reset_index(drop=True)
    else:
        people = pick_rows(rows, arguments.rows)
    explanation = opened.classifier.explain(
        people, **_question(arguments, opened.classifier, opened.positive)
    )
    if explanation.lasting is None:
        share = None
    else:
        share = explanation.lasting.share
    document = {
        "model": arguments.model,
        "data": arguments.data or opened.name,
        "confidence": explanation.asked,
        "lasting": share,
        "rows": explanation.records(),
    }
    rest = f"\n\n{len(people)} of {len(rows)} rows; --rows 0-{len(rows) - 1} explains all."
    if arguments.rows is None and len(rows) > len(people):
        more = rest
    else:
        more = ""
    emit(arguments, document, f"{explanation}\n\n" + "\n".join(explanation.changes()) + more)


def _check_options(arguments: argparse.Namespace) -> None:
    if not arguments.all:
        for option in _FOR_ALL:
            if getattr(arguments, option) is not None:
                raise InputError(
                    f"--{option} is for --all, which explains every row and writes a file."
                )
        return
    if arguments.rows is not None:
        raise InputError(
            "--all explains every row, --rows some of them: leave one of the two out."
        )
    if arguments.out is None:
        raise InputError(
            "--all writes its answers to a file: name it with --out, such as --out answers.csv."
        )


def _explain_all(arguments: argparse.Namespace) -> None:
    engine = chosen_engine(arguments)
    writable(arguments.out)
    not_over(arguments.out, arguments.model, arguments.data)
    from counterfactual_training.cli.saved_models import open_model
    from counterfactual_training.tables.portfolio import explain_portfolio, file_mark

    opened = open_model(arguments.model)
    question = _question(arguments, opened.classifier, opened.positive)
    portfolio = explain_portfolio(
        opened.classifier,
        opened.portfolio(arguments.data, arguments.label),
        arguments.out,
        question,
        file_mark(arguments.model),
        engine=engine,
        stream=sys.stderr,
    )
    document = {
        "model": arguments.model,
        "data": arguments.data or opened.name,
        "out": arguments.out,
        "rows": portfolio.rows,
        "status": portfolio.status,
        "resumed": portfolio.resumed,
    }
    counts = ", ".join(
        f"{count:,} {name.replace('_', ' ')}"
        for name, count in sorted(portfolio.status.items())
    )
    if counts:
        ending = f": {counts}."
    else:
        ending = "."
    emit(arguments, document, f"{portfolio.rows:,} row(s) explained in {arguments.out}{ending}")


def _question(
    arguments: argparse.Namespace, classifier: CounterfactualClassifier, positive: Any
) -> dict[str, Any]:
    """What is asked of each row, as arguments of ``explain``."""
    if arguments.lasting and classifier.witnesses_ is None:
        raise InputError(
            f"--lasting {arguments.lasting:g} asks witnesses, and {arguments.model!r} has none: "
            "train it with `ct train --witnesses 10`."
        )
    schema = classifier.schema_
    return {
        "target": pick_label(arguments.positive, classifier.classes_, positive),
        "n_options": arguments.options,
        "confidence": arguments.confidence,
        "lasting": arguments.lasting,
        "lock": columns(arguments.lock, schema.names, "--lock") or None,
        "vary": columns(arguments.vary, schema.names, "--vary") or None,
        "max_changes": arguments.max_changes,
        "domain": _domains(arguments.domain, schema),
        **{rule: _numbers(arguments, rule) for rule in with_trait("number")},
        "relations": arguments.relations,
    }


def _flag(rule: str) -> str:
    return f"--{rule.replace('_', '-')}"


def _numbers(arguments: argparse.Namespace, rule: str) -> dict[str, float] | None:
    """``--step debt=100`` and the like by column."""
    stated = getattr(arguments, rule)
    name = _flag(rule).removeprefix("--")
    return assignments(stated, name, "COLUMN=NUMBER", float) or None


def _domains(items: Sequence[str] | None, schema: Schema) -> dict[str, Any] | None:
    """``["debt=0:30", "job=clerk,nurse", "degree=BSc:"]`` by column; categories as the model knows
    them.
    """
    domains: dict[str, Any] = {}
    for name, text in assignments(items, "domain", "COLUMN=RANGE").items():
        check_name("column in --domain", name, schema.names)
        feature = schema[name]
        # The same flag says ranges of numbers, lists of categories, and ranges of ordered ones.
        if not feature.is_category:
            domains |= assignments([f"{name}={text}"], "domain", RANGE, interval_ends)
            continue
        domains[name] = _categories(feature, text)
    return domains or None


def _categories(feature: Feature, text: str) -> list[Any]:
    """Two ends of ordered categories, ``None`` where open; of others, a list."""
    categories = {str(category): category for category in feature.levels}
    what = f"category of {feature.name} in --domain"
    if feature.kind != "ordinal":
        listed = [text] if text in categories else text.split(",")
        return [lookup(what, category, categories) for category in listed]
    ends = text.split(":")
    if len(ends) != 2:
        raise InputError(
            f"--domain of {feature.name!r}, whose categories have an order, takes LOW:HIGH, got "
            f"{text!r}."
        )
    return [lookup(what, end, categories) if end else None for end in ends]
