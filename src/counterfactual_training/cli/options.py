"""What several commands share: common options, and checks before and after the work."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

from counterfactual_training.errors import CounterfactualTrainingError, need_extra

if TYPE_CHECKING:
    from counterfactual_training.experiments.engine.launch import Engine

VARIANTS = "default (the paper's rows), as_run (with the quirks of the published run), or full (all rows)"


def add_common(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """``--json`` and ``--debug``, which every command and action has."""
    parser.add_argument("--json", action="store_true", help="print one JSON document, and nothing else, on stdout")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def add_model(parser: argparse.ArgumentParser) -> None:
    """``MODEL`` and ``--data``."""
    parser.add_argument("model", metavar="MODEL", help="a file saved by `ct train` or CounterfactualClassifier.save")
    where = "a CSV file, or the model's own data set (its test rows; the default)"
    parser.add_argument("--data", metavar="DATASET", help=where)


def add_engine(parser: argparse.ArgumentParser) -> None:
    """``--workers``, ``--engine`` and ``--address``."""
    from counterfactual_training.experiments.engine.launch import Engine, EngineName

    usual = Engine()
    parser.add_argument("--workers", type=int, default=usual.workers, metavar="N", help="tasks at once")
    where = f"run in processes of this machine or on a Ray cluster (default: {usual.name}; ray with --address)"
    parser.add_argument("--engine", choices=get_args(EngineName), help=where)
    cluster = "of the Ray cluster: auto, host:port or ray://host:port (default: a local Ray)"
    parser.add_argument("--address", metavar="A", help=cluster)


def chosen_engine(arguments: argparse.Namespace) -> Engine:
    """The engine that the options name; an address means Ray."""
    from counterfactual_training.experiments.engine.launch import Engine

    name = arguments.engine or (Engine.name if arguments.address is None else "ray")
    return Engine(name, arguments.workers, arguments.address)


def at_least_one(text: str) -> int:
    """A whole number from 1; argparse names the option in its message."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


at_least_one.__name__ = "whole number"  # argparse: "invalid whole number value"


def names(text: str | None) -> list[str] | None:
    """``"LS, CH"`` as a list; nothing where nothing was given."""
    return [name.strip() for name in text.split(",") if name.strip()] if text else None


def need_report() -> None:
    """Stop before hours of training rather than after, if the packages for figures and pages are missing."""
    for package in ("matplotlib", "jinja2"):
        need_extra(package, "report")


def complain(failures: Mapping[str, str], consequence: str = "These tables are incomplete") -> None:
    """Raise an error if something failed; ``failures`` maps names to reasons."""
    for name, reason in failures.items():
        raise CounterfactualTrainingError(
            f"{consequence}: {len(failures)} failed, the first being {name}: {reason.rstrip('.')}. The same command "
            "tries again what failed."
        )
