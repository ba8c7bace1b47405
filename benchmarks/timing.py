"""Times on a noisy machine: contestants take turns, and the quickest turn of each counts."""

from __future__ import annotations

import time
from collections.abc import Callable


def race(contestants: dict[str, Callable[[], object]], rounds: int = 7) -> dict[str, float]:
    """Seconds of each contestant's quickest turn, after one turn to warm up."""
    best = dict.fromkeys(contestants, float("inf"))
    for turn in range(rounds + 1):
        for name, run in contestants.items():
            started = time.perf_counter()
            run()
            if turn:
                best[name] = min(best[name], time.perf_counter() - started)
    return best


def turns(contestants: dict[str, Callable[[], float]], rounds: int = 7) -> dict[str, float]:
    """As :func:`race`, for contestants that measure their own seconds, such as programs in other
    environments.
    """
    best = dict.fromkeys(contestants, float("inf"))
    for turn in range(rounds + 1):
        for name, run in contestants.items():
            seconds = run()
            if turn:
                best[name] = min(best[name], seconds)
    return best


def timed(run: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
