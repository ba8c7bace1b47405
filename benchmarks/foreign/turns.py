"""What every script here shares: it runs in another library's environment and takes a turn whenever it is asked to.

Imported before the library itself, so that the library finds one core where it is to use one. Speaks JSON lines;
whatever the library prints goes to the log instead.
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
    """Greet with the versions of the packages, then answer every request with ``turn(**request)``."""
    _say({"versions": {package: version(package) for package in packages}})
    for line in sys.stdin:
        _say(turn(**json.loads(line)))


def _say(answer: dict[str, Any]) -> None:
    _ANSWERS.write(json.dumps(answer) + "\n")
    _ANSWERS.flush()
