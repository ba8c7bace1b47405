"""Progress that a person likes to watch: on a terminal one line that renews itself, elsewhere plain lines."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from counterfactual_training.text import duration

_TICK_SECONDS = 0.5
_BAR = 20
_FIRST_GUESS = 0.02  # of the cost; before that, starting up is most of the time spent


@dataclass(frozen=True)
class Running:
    """A piece of work that is under way.

    Attributes:
        members: models in it.
        share: of it that is done, 0 to 1.
    """

    label: str
    members: int
    share: float
    cost: float


def nothing_running() -> Sequence[Running]:
    return ()


class Progress:
    """Counts cells, guesses the time left from the expected cost of what is done and what is not, shows the best.

    Args:
        total: number of cells, of which ``done`` were there before.
        cost: expected, of all that is to do; in any unit.
        stream: where to write.
        watch: what is under way just now; asked about twice a second, and only for a terminal.
    """

    def __init__(
        self,
        total: int,
        done: int,
        cost: float,
        stream: TextIO,
        watch: Callable[[], Sequence[Running]] = nothing_running,
    ) -> None:
        self.total, self.count, self.cost, self.stream, self.watch = total, done, cost, stream, watch
        self.started = time.monotonic()
        self.spent = 0.0  # cost of what has been finished
        self.best = ""
        self._live = stream.isatty()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        if self.count and self.count < self.total:
            self.say(f"{self.count} of {self.total} cells were done before")
        if self._live:
            self._thread = threading.Thread(target=self._tick, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._replace("")

    def finished(self, label: str, cells: int, cost: float, seconds: float, best: str = "") -> None:
        """Some cells are done."""
        with self._lock:
            self.count += cells
            self.spent += cost
            self.best = best or self.best
        parts = [f"[{self.count}/{self.total}] {label}: {duration(seconds)}", self._left(()), self.best]
        self.say(" · ".join(filter(None, parts)))

    def failed(self, label: str, cost: float, reason: str) -> None:
        """Some cells will not be done."""
        with self._lock:
            self.cost -= cost
        self.say(f"[{self.count}/{self.total}] {label} failed: {reason}")

    def say(self, text: str) -> None:
        """A line that stays."""
        with self._lock:
            start = "\r\033[K" if self._live else ""
            print(f"{start}{text}", file=self.stream, flush=True)

    def line(self) -> str:
        """How things stand now, in one line."""
        running = self.watch()
        under_way = sum(task.members * task.share for task in running)
        share = (self.count + under_way) / max(1, self.total)
        filled = min(_BAR, int(_BAR * share))
        now = ", ".join(f"{task.label} {100 * task.share:.0f} %" for task in running)
        parts = [
            f"{'━' * filled}{'─' * (_BAR - filled)} {self.count}/{self.total} models",
            f"{sum(task.members for task in running)} training" if running else "",
            self._left(running),
            self.best,
            now,
        ]
        return " · ".join(filter(None, parts))

    def _left(self, running: Sequence[Running]) -> str:
        """Time left, by how long things have taken until now."""
        spent = self.spent + sum(task.cost * task.share for task in running)
        left = max(0.0, self.cost - spent)
        if spent < _FIRST_GUESS * self.cost or left <= 0:
            return ""
        return f"about {duration((time.monotonic() - self.started) * left / spent)} left"

    def _tick(self) -> None:
        while not self._over.wait(_TICK_SECONDS):
            self._replace(self.line())

    def _replace(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        shown = text if len(text) <= width else f"{text[: width - 1]}…"
        with self._lock:
            print(f"\r\033[K{shown}", end="", file=self.stream, flush=True)
