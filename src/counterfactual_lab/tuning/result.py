"""The result of tuning: all trials, the Pareto front, the best one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from counterfactual_lab.tuning.goal import Goal, Metrics, TrialLimits, excess, front
from counterfactual_lab.tuning.space import Choice
from counterfactual_lab.tuning.study import TuningTrial
from counterfactual_training.errors import InputError
from counterfactual_training.tables.estimators.validation import MEASURED


@dataclass(frozen=True, eq=False)
class Tuning:
    """The state of a study. All measures are on validation rows.

    Attributes:
        goal, limits: what was optimised, and the bounds that followed from the reference models.
        conventional: measures of the model trained without counterfactuals.
        start: all numbers of the method that tuning started from, by dotted name, and its gate.
        trials: every trial, by number.
        importances: for each objective, the share of its variance that each setting explains.
    """

    goal: Goal
    limits: TrialLimits
    conventional: Metrics
    start: Mapping[str, Choice]
    trials: Sequence[TuningTrial]
    importances: Sequence[Mapping[str, float]] = ()

    @property
    def complete(self) -> list[TuningTrial]:
        return [trial for trial in self.trials if trial.state == "COMPLETE"]

    @property
    def num_finished(self) -> int:
        return sum(trial.finished for trial in self.trials)

    @property
    def published(self) -> TuningTrial:
        """The trial of the setting that tuning started from."""
        trial_published = next((trial for trial in self.complete if trial.published), None)
        if trial_published is None:
            raise InputError("The study has no trial of the setting it started from yet.")
        return trial_published

    @property
    def front(self) -> list[TuningTrial]:
        """The Pareto front of the trials that keep the bounds, sorted by the first objective."""
        allowed = [trial for trial in self.complete if excess(trial.violations) == 0]
        best = [allowed[i] for i in front([trial.values for trial in allowed])]
        return sorted(best, key=lambda trial: (trial.values, trial.number))

    @property
    def best(self) -> TuningTrial:
        """The trial to use.

        With one objective: the best that keeps the bounds, or the nearest to them if none does.
        With several: the trial of the front that is not worse than the starting point in any
        objective and gains most on average.
        """
        if len(self.goal.objectives) == 1 or not self.front:
            return min(
                self.complete,
                key=lambda trial: (excess(trial.violations), trial.values, trial.number),
            )
        start = self.published.values
        not_worse = [
            t for t in self.front if all(a <= b for a, b in zip(t.values, start, strict=True))
        ]
        return max(
            not_worse or self.front,
            key=lambda trial: (_gain(trial.values, start), -trial.number),
        )

    def settings(self, trial: TuningTrial) -> dict[str, Choice]:
        """All settings of a trial: the tuned ones, and the others as they were at the start."""
        return {**self.start, **trial.settings}

    def table(self) -> pd.DataFrame:
        """One row per trial that ended: state, measures, settings, whether it is allowed, on the
        front, the best.
        """
        ended = [
            trial for trial in self.trials if trial.state in ("COMPLETE", "PRUNED", "FAIL")
        ]
        on_front = {trial.number for trial in self.front}
        rows = [
            {
                "trial": trial.number,
                "state": trial.state.lower(),
                "published": trial.published,
                "best": bool(self.complete) and trial.number == self.best.number,
                "front": trial.number in on_front,
                "allowed": trial.state == "COMPLETE" and excess(trial.violations) == 0,
                **{name: trial.metrics.get(name, float("nan")) for name in MEASURED},
                **trial.settings,
                "seconds": trial.seconds,
                "reason": trial.reason,
            }
            for trial in ended
        ]
        return pd.DataFrame(rows)


def _gain(values: Sequence[float], start: Sequence[float]) -> float:
    """The mean of relative gains, because objectives have different units."""
    return sum((b - a) / max(abs(b), 1e-12) for a, b in zip(values, start, strict=True)) / len(
        start
    )
