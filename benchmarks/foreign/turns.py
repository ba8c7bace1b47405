"""What every script here shares: it runs in a process of its own and takes a turn whenever it is
asked to.

Imported before the library it serves, so that the library finds one core where it is to use one.
Speaks JSON lines; whatever the library prints goes to the log instead.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

if os.environ.get("BENCH_ONE_CORE") and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
_ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def serve(turn: Callable[..., dict[str, Any]], *packages: str) -> None:
    """Greet with the versions of the packages, then answer every request with
    ``turn(**request)``.
    """
    greet(*packages)
    while True:
        answer(turn(**next_request()))


def greet(*packages: str) -> None:
    answer({"versions": {package: version(package) for package in packages}})


def next_request() -> dict[str, Any]:
    """Wait to be asked; without anybody left who could ask, end."""
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    return json.loads(line)


def answer(values: dict[str, Any]) -> None:
    _ANSWERS.write(json.dumps(values) + "\n")
    _ANSWERS.flush()
