"""Options that several commands share, and what they stand for."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from counterfactual_training.engine.launch import Engine

VARIANTS = (
    "default (the paper's rows), as_run (with the quirks of the published run), or full (all "
    "rows)"
)


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


def add_target(parser: Any, column: str = "") -> None:
    """``--target``: the column of the class."""
    told = column or "the column that holds the class (default: as in training)"
    parser.add_argument("--target", metavar="COLUMN", help=told)


def add_positive(parser: Any, wanted: str = "") -> None:
    """``--positive``: the class that people want."""
    told = wanted or "the class that people want (default: that of `ct train --positive`)"
    parser.add_argument("--positive", metavar="CLASS", help=told)


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
