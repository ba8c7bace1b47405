"""What several commands share: common options, and checks before and after the work."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from counterfactual_training import defaults
from counterfactual_training.cli.parsing import is_file_name
from counterfactual_training.errors import InputError
from counterfactual_training.rules import WAYS, meaning

if TYPE_CHECKING:
    from counterfactual_training.engine.launch import Engine

VARIANTS = (
    "default (the paper's rows), as_run (with the quirks of the published run), or full (all "
    "rows)"
)


# Options that only CSV files have; --test-share is none of them, because it has a default.
_CSV_ONLY = ("target", "separator", "na", "text", "drop", "keep", "schema", "special")


def add_common(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """``--json`` and ``--debug``, which every command and action has."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document, and nothing else, on stdout",
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def add_model(parser: argparse.ArgumentParser) -> None:
    """``MODEL`` and ``--data``."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a file saved by `ct train` or CounterfactualClassifier.save",
    )
    where = "a CSV file, or the model's own data set (its test rows; the default)"
    parser.add_argument("--data", metavar="DATASET", help=where)


def add_engine(parser: Any, all_processors: bool = False) -> None:
    """``--workers``, ``--engine`` and ``--address``; by default, a worker for each of
    ``all_processors``.
    """
    from counterfactual_training.engine.launch import Engine, EngineName

    usual = Engine()
    if all_processors:
        every = "tasks at once (default: one per processor)"
        parser.add_argument("--workers", type=int, metavar="N", help=every)
    else:
        parser.add_argument(
            "--workers", type=int, default=usual.workers, metavar="N", help="tasks at once"
        )
    where = (
        f"run in processes of this machine or on a Ray cluster (default: {usual.name}; ray with "
        "--address)"
    )
    parser.add_argument("--engine", choices=get_args(EngineName), help=where)
    cluster = "of the Ray cluster: auto, host:port or ray://host:port (default: a local Ray)"
    parser.add_argument("--address", metavar="A", help=cluster)


def add_register(parser: Any) -> None:
    """``--register``: files that make the user's own methods known by name."""
    files = "Python files that register methods or generators of your own, before anything else"
    parser.add_argument("--register", **several("FILE"), help=files)


def several(form: str) -> dict[str, Any]:
    """What `add_argument` needs for an option with several values of this form; given again, it
    adds to them.
    """
    return {"nargs": "+", "action": "extend", "metavar": form}


def add_columns(group: Any) -> None:
    """How to read a CSV file, which column holds the class, and what to leave out."""
    group.add_argument(
        "--target", "--target-column", metavar="COLUMN", help="the column that holds the class"
    )
    group.add_argument(
        "--separator", metavar="CHAR", help="what separates cells (default: found out)"
    )
    na = "texts that mean 'not known', besides blanks and NA, such as ?,unknown"
    group.add_argument("--na", metavar="TEXTS", help=na)
    text = "columns to keep as written, such as codes: 00123 is no number, and NA a category"
    group.add_argument("--text", **several("COLUMNS"), help=text)
    group.add_argument(
        "--drop", **several("COLUMNS"), help="columns to leave out, such as id,name"
    )
    keep = "columns to use although they look like the number or the name of a row"
    group.add_argument("--keep", **several("COLUMNS"), help=keep)


def add_schema(group: Any) -> None:
    """``--schema`` and ``--missing``."""
    schema = "TOML or JSON file that describes columns; `ct schema` writes a first draft"
    group.add_argument("--schema", metavar="FILE", help=schema)
    missing = (
        "blank cells: refuse them, or fill in the median or the most frequent category (default: "
        "error)"
    )
    group.add_argument("--missing", choices=["error", "impute"], help=missing)


def add_table(group: Any, gate: str) -> None:
    """Options on a CSV file to train on: columns, how they may change, blanks, held-out rows."""
    add_columns(group)
    group.add_argument(
        "--positive",
        metavar="CLASS",
        help="the class that people want; advice leads there by default",
    )
    group.add_argument(
        "--increase", **several("COLUMNS"), help=f"columns that {WAYS['increase']}"
    )
    group.add_argument(
        "--decrease", **several("COLUMNS"), help=f"columns that {WAYS['decrease']}"
    )
    group.add_argument("--mutability", **several("COLUMN=HOW"), help=meaning("mutability"))
    group.add_argument("--domain", **several("COLUMN=LOW:HIGH"), help=meaning("domain"))
    group.add_argument(
        "--special", **several("COLUMN=CODES"), help=f"{meaning('special')}; write late=-9,-8"
    )
    add_schema(group)
    group.add_argument(
        "--gate",
        choices=["none", *defaults.GATES],
        help=f"keeps explanations near real rows{gate}",
    )
    group.add_argument(
        "--test-share", type=float, default=0.2, metavar="SHARE", help="of the rows, held out"
    )


def refuse_other_options(arguments: argparse.Namespace, more: Sequence[str] = ()) -> None:
    """Raise if an option for CSV files was given with a data set, or the reverse.

    Args:
        more: other options that this command has for CSV files only.
    """
    if is_file_name(arguments.data):
        if arguments.variant != defaults.VARIANT:
            raise InputError("--variant is for named data sets, not for CSV files.")
        return
    for option in (*_CSV_ONLY, *more):
        if getattr(arguments, option) is not None:
            raise InputError(
                f"--{option} is for CSV files; {arguments.data!r} is the name of a data set."
            )


def chosen_engine(arguments: argparse.Namespace) -> Engine:
    """The engine that the options name; an address means Ray."""
    from counterfactual_training.engine.launch import Engine

    # Only Ray has addresses, so naming one is enough.
    name = arguments.engine or (Engine.name if arguments.address is None else "ray")
    if arguments.workers is None:
        workers = os.cpu_count() or 1
    else:
        workers = arguments.workers
    return Engine(name, workers, arguments.address)


def at_least_one(text: str) -> int:
    """A whole number from 1; argparse names the option in its message."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def not_negative(text: str) -> int:
    """A whole number from 0."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {number}")
    return number


at_least_one.__name__ = not_negative.__name__ = (
    "whole number"  # argparse: "invalid whole number value"
)


def names(text: str | None) -> list[str] | None:
    """``"LS, CH"`` as a list; nothing where nothing was given. Commas in brackets belong to a name:
    ``"pgd(epsilon=0.1, steps=5), ct"``.
    """
    if text:
        parts = re.split(r",(?![^()]*\))", text)
        return [name.strip() for name in parts if name.strip()]
    return None
