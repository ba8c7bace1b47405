"""Times on a noisy machine: libraries take turns, and the quickest turn of each counts."""

from __future__ import annotations

import time
from collections.abc import Callable


def race(runs: dict[str, Callable[[], object]], rounds: int = 7) -> dict[str, float]:
    """Seconds of each run's quickest turn, after one turn to warm up."""
    best = dict.fromkeys(runs, float("inf"))
    for turn in range(rounds + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if turn:
                best[name] = min(best[name], time.perf_counter() - started)
    return best


def turns(runs: dict[str, Callable[[], float]], rounds: int = 7) -> dict[str, float]:
    """As :func:`race`, for runs that measure their own seconds, such as programs in other
    environments.
    """
    best = dict.fromkeys(runs, float("inf"))
    for turn in range(rounds + 1):
        for name, run in runs.items():
            seconds = run()
            if turn:
                best[name] = min(best[name], seconds)
    return best


def timed(run: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
