"""Options that say where work runs, for every command that has a lot of it."""

from __future__ import annotations

import argparse
from typing import get_args

from counterfactual_training.experiments.engine.engine import Engine, EngineName

_DEFAULT = Engine()


def add(parser: argparse.ArgumentParser) -> None:
    """``--workers``, ``--engine`` and ``--address``."""
    parser.add_argument(
        "--workers", type=int, default=_DEFAULT.workers, metavar="N", help="pieces of work at once (%(default)s)"
    )
    parser.add_argument(
        "--engine",
        choices=get_args(EngineName),
        help=f"where they run: processes of this machine, or a Ray cluster ({_DEFAULT.name}, or ray with --address)",
    )
    parser.add_argument(
        "--address", metavar="A", help="of the Ray cluster: auto, host:port or ray://host:port (a Ray of its own here)"
    )


def chosen(arguments: argparse.Namespace) -> Engine:
    """The engine these options name; an address means Ray."""
    name = arguments.engine or (_DEFAULT.name if arguments.address is None else "ray")
    return Engine(name, arguments.workers, arguments.address)
