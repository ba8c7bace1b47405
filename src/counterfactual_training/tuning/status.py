"""The progress of a study as text: trials done, the best so far, the time left."""

from __future__ import annotations

from typing import TextIO

from counterfactual_training.progress import StatusLine
from counterfactual_training.text import duration
from counterfactual_training.tuning.goal import OBJECTIVES
from counterfactual_training.tuning.result import Tuning
from counterfactual_training.tuning.tuner import StudyProgress


class StudyStatus:
    """A listener of :func:`tune`: one status line on a terminal, elsewhere one line per batch."""

    def __init__(self, stream: TextIO | None = None, prefix: str = "") -> None:
        self.status, self.prefix = StatusLine(stream), prefix
        self._finished = -1  # trials in the last message that stayed

    def __call__(self, progress: StudyProgress) -> None:
        text = f"{self.prefix}{line(progress)}"
        if self.status.live and progress.finished < progress.total:
            self.status.show(text)
        elif progress.tuning is not None and progress.finished > self._finished:
            self._finished = progress.finished
            self.status.say(text)


def line(progress: StudyProgress) -> str:
    """``[32/64] best ip 1.23 (published 1.31), 7 pruned, about 2 min left``."""
    if progress.tuning is None:
        return f"reference models: epoch {progress.epoch} of {progress.epochs}"
    parts = [f"[{progress.finished}/{progress.total}] best {comparison(progress.tuning)}"]
    pruned = sum(trial.state == "PRUNED" for trial in progress.tuning.trials)
    parts += [f"{pruned} pruned"] if pruned else []
    if progress.finished < progress.total:
        if progress.epoch < progress.epochs:
            parts.append(f"epoch {progress.epoch} of {progress.epochs}")
        if progress.seconds_left is not None:
            parts.append(f"about {duration(progress.seconds_left)} left")
    return ", ".join(parts)


def comparison(tuning: Tuning) -> str:
    """The best trial beside the published setting, in each objective."""
    best, start = tuning.best, tuning.published
    shown = []
    for name in tuning.goal.objectives:
        its, was = (trial.metrics.get(OBJECTIVES[name].metric, float("nan")) for trial in (best, start))
        shown.append(f"{name} {its:.3f} (published {was:.3f})")
    return shown[0] if len(shown) == 1 else f"trial {best.number}: {', '.join(shown)}"
