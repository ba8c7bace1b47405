"""A study as a person likes to watch it: trials, the best so far, the time left."""

from __future__ import annotations

import sys
from typing import TextIO

from counterfactual_training.text import duration
from counterfactual_training.tuning.goal import OBJECTIVES
from counterfactual_training.tuning.result import Tuning
from counterfactual_training.tuning.study import Progress
from counterfactual_training.tuning.trials import Trial


class Lines:
    """One line that is written anew on a terminal; elsewhere one line per batch."""

    def __init__(self, stream: TextIO | None = None, prefix: str = "") -> None:
        self.stream = sys.stderr if stream is None else stream
        self.prefix = prefix
        self._last = ""
        self._finished = -1

    def __call__(self, progress: Progress) -> None:
        text = f"{self.prefix}{line(progress)}"
        if self.stream.isatty():
            ended = progress.finished >= progress.total
            if text != self._last:
                print(f"\r\033[K{text}", end="\n" if ended else "", file=self.stream, flush=True)
        elif progress.finished > self._finished and progress.tuning is not None:
            print(text, file=self.stream, flush=True)
        if progress.tuning is not None:
            self._finished = max(self._finished, progress.finished)
        self._last = text


def line(progress: Progress) -> str:
    """``[32/64] best ip 1.23 (published 1.31, trial 19), 7 given up, about 2 min left``."""
    if progress.tuning is None:
        return f"reference models: epoch {progress.epoch} of {progress.epochs}"
    parts = [f"[{progress.finished}/{progress.total}] best {comparison(progress.tuning)}"]
    pruned = sum(trial.state == "PRUNED" for trial in progress.tuning.trials)
    parts += [f"{pruned} given up"] if pruned else []
    if progress.finished < progress.total:
        if progress.epoch < progress.epochs:
            parts.append(f"epoch {progress.epoch} of {progress.epochs}")
        if progress.seconds_left is not None:
            parts.append(f"about {duration(progress.seconds_left)} left")
    return ", ".join(parts)


def comparison(tuning: Tuning) -> str:
    """The best trial beside the starting point, in the objectives."""
    best, start = tuning.best, tuning.published
    shown = []
    for name in tuning.goal.objectives:
        metric = OBJECTIVES[name].metric
        shown.append(f"{name} {_number(best, metric)} (published {_number(start, metric)})")
    return " ".join(shown) if len(shown) == 1 else f"trial {best.number}: {', '.join(shown)}"


def _number(trial: Trial, metric: str) -> str:
    return f"{trial.metrics.get(metric, float('nan')):.3f}"
