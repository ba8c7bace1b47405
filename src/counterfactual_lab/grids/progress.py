"""Progress of many runs: on a terminal one line that renews itself, elsewhere plain lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TextIO

from counterfactual_training.progress import StatusLine, bar
from counterfactual_training.text import duration

_TICK_SECONDS = 0.5
_FIRST_GUESS = 0.02  # of the cost; before that, starting up is most of the time spent


class Running(NamedTuple):
    """A job that is running."""

    label: str
    members: int  # models in it
    share: float  # of it that is done, 0 to 1
    cost: float


class RunProgress:
    """Counts runs, estimates the time left from the expected cost of what is done, shows the best
    so far.

    Args:
        total: number of runs; ``done`` of them were finished before.
        cost: expected, of everything left to do; in any unit.
        stream: where to write.
        watch: what is running now; called twice a second, and only for a terminal.
    """

    def __init__(
        self,
        total: int,
        done: int,
        cost: float,
        stream: TextIO,
        watch: Callable[[], Sequence[Running]] = list,
    ) -> None:
        self.total = total
        self.count = done
        self.cost = cost
        self.watch = watch
        self.started = time.monotonic()
        self.spent = 0.0  # cost of what has been finished
        self.best = ""
        self._status = StatusLine(stream)
        self.say = self._status.say
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> RunProgress:
        if self.count and self.count < self.total:
            self.say(f"{self.count} of {self.total} runs were done before")
        if self._status.live:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._status.live:
            self._thread.join()
            self._status.close()

    def finished(
        self, label: str, runs: int, cost: float, seconds: float, best: str = ""
    ) -> None:
        """Some runs are done."""
        self.count += runs
        self.spent += cost
        self.best = best or self.best
        parts = [
            f"[{self.count}/{self.total}] {label}: {duration(seconds)}",
            self._time_left(()),
            self.best,
        ]
        self.say(" · ".join(filter(None, parts)))

    def failed(self, label: str, cost: float, reason: str) -> None:
        """Some runs will not be done."""
        self.cost -= cost
        self.say(f"[{self.count}/{self.total}] {label} failed: {reason}")

    def line(self) -> str:
        """The state now, in one line."""
        running = self.watch()
        share = (self.count + sum(job.members * job.share for job in running)) / max(
            1, self.total
        )
        parts = [
            f"{bar(share)} {self.count}/{self.total} models",
            f"{sum(job.members for job in running)} training" if running else "",
            self._time_left(running),
            self.best,
            ", ".join(f"{job.label} {100 * job.share:.0f} %" for job in running),
        ]
        return " · ".join(filter(None, parts))

    def _time_left(self, running: Sequence[Running]) -> str:
        """Time left, at the speed so far."""
        spent = self.spent + sum(job.cost * job.share for job in running)
        cost = max(0.0, self.cost - spent)
        if spent < _FIRST_GUESS * self.cost or cost <= 0:
            return ""
        return f"about {duration((time.monotonic() - self.started) * cost / spent)} left"

    def _tick(self) -> None:
        while not self._over.wait(_TICK_SECONDS):
            self._status.show(self.line())
