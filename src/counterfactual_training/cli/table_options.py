"""Options of commands that read a CSV file: its columns, their rules, and the rows held out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from counterfactual_training import defaults
from counterfactual_training.cli.options import add_positive, add_target, several
from counterfactual_training.cli.parsing import is_file_name
from counterfactual_training.errors import InputError
from counterfactual_training.rules import WAYS, meaning

# Options that only CSV files have.
_CSV_ONLY = (
    "target",
    "separator",
    "na",
    "text",
    "drop",
    "keep",
    "schema",
    "special",
    "test_share",
)


def add_columns(group: Any) -> None:
    """How to read a CSV file, which column holds the class, and what to leave out."""
    add_target(group, "the column that holds the class")
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
    add_positive(group, "the class that people want; advice leads there by default")
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
    add_test_share(group)


def add_test_share(group: Any) -> None:
    """``--test-share``; without a default, so that it is noticed where it means nothing."""
    held_out = f"of the rows of a CSV file, held out (default: {defaults.TEST_SHARE})"
    group.add_argument("--test-share", type=float, metavar="SHARE", help=held_out)


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
                f"--{option.replace('_', '-')} is for CSV files; {arguments.data!r} is the name of "
                "a data set."
            )
