"""The tuning loop: ask for a batch of settings, train it as a fleet, measure on validation rows,
tell the study.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, TextIO

from counterfactual_lab.tuning.batch import Pruner, Task, mean_accuracy, train_batch
from counterfactual_lab.tuning.goal import OBJECTIVES, Goal
from counterfactual_lab.tuning.result import Tuning
from counterfactual_lab.tuning.space import (
    GATE,
    Choice,
    Space,
    make_space,
    neighbours,
    tunable_numbers,
)
from counterfactual_lab.tuning.storage import Storage, open_study
from counterfactual_lab.tuning.study import Study, TuningTrial
from counterfactual_training.defaults import STUDY, TRIALS, TRIALS_PER_FLEET
from counterfactual_training.errors import InputError
from counterfactual_training.progress import StatusLine
from counterfactual_training.text import duration
from counterfactual_training.training.run import Run

_POLL_SECONDS = 0.5


class StudyProgress(NamedTuple):
    """How far a study is.

    Attributes:
        finished, total: trials of all processes together.
        epoch, epochs: of the batch in training.
        seconds_left: an estimate; ``None`` before the first batch.
        tuning: the result so far; ``None`` before the reference models are measured.
    """

    finished: int
    total: int
    epoch: int
    epochs: int
    seconds_left: float | None
    tuning: Tuning | None


Listener = Callable[[StudyProgress], None]


@dataclass(frozen=True)
class TuningPlan:
    """How much to try, and where to store it.

    Attributes:
        num_trials: in the whole study, including trials of earlier and of other processes.
        batch: trials that train as one fleet.
        storage: a journal file, the URL of a database, or ``None`` for memory.
        study: its name in the storage.
        seed: of the proposed settings.
    """

    num_trials: int = TRIALS
    batch: int = TRIALS_PER_FLEET
    storage: Storage = None
    study: str = STUDY
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_trials < 1 or self.batch < 1:
            raise InputError(
                f"num_trials and batch must be 1 or more, got {self.num_trials} and {self.batch}."
            )


def tune(
    task: Task,
    goal: Goal,
    plan: TuningPlan | None = None,
    changes: Any = None,
    listener: Listener | None = None,
) -> Tuning:
    """Improve the settings of a method. An existing study is resumed; several processes may share
    one.

    The method as it stands is the first trial, so the result is never worse on the validation rows.
    A conventionally trained model trains beside it; the bounds of the goal follow from these two.

    Args:
        task: what to train and how to measure it.
        goal: what to optimise.
        plan: how many trials, and where they are stored.
        changes: of the ranges, see :func:`make_space`.
        listener: called with the progress after every epoch.
    """
    plan = plan or TuningPlan()
    space = make_space(task.start, changes, task.gate)
    signs = tuple(target.sign for target in goal.targets)
    study = open_study(plan.storage, plan.study, signs, task.start.training.epochs, plan.seed)
    _check_same(study, plan.study, description(task, goal, space))
    tuner = _Tuner(task, goal, plan, space, study, listener or (lambda progress: None))
    try:
        return tuner.run()
    finally:
        study.leave()


def description(task: Task, goal: Goal, space: Space) -> dict[str, Any]:
    """What all trials of a study must share, as plain values."""
    rows = hashlib.sha256()
    for tensor in (task.x, task.y, task.measure.x, task.measure.y):
        rows.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    described = {
        "goal": goal.to_dict(),
        "space": {name: asdict(values) for name, values in space.items()},
        "method": task.start.name,
        "start": {k: v for k, v in task.start.settings().items() if k != "training.threads"},
        "num_seeds": task.num_seeds,
        "gate": task.gate,
        "rows": rows.hexdigest()[:16],
    }
    # As a storage returns it: lists instead of tuples.
    return dict(json.loads(json.dumps(described)))


def _check_same(study: Study, name: str, wanted: dict[str, Any]) -> None:
    """Raise if the study holds trials of other data, ranges or goals, which cannot be compared."""
    description = study.note("description")
    if description is None:
        study.set_note("description", wanted)
        return
    if other := [key for key in wanted if description.get(key) != wanted[key]]:
        raise InputError(
            f"The study {name!r} in {study.where} was made for something else: "
            f"{', '.join(other)} differ. "
            "Repeat the call as it was, or give this study another name."
        )


@dataclass(eq=False)
class _Tuner:
    task: Task
    goal: Goal
    plan: TuningPlan
    space: Space
    study: Study
    listener: Listener
    seconds: float = 0.0  # spent by this process on batches
    done: int = 0  # trials in them

    # Measures of the two reference models, and their pace.
    references: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Tuning:
        self.study.recover()
        self.references = self._references()
        while True:
            self.study.recover()
            remaining = self.plan.num_trials - sum(
                t.finished or t.state == "RUNNING" for t in self.study.trials()
            )
            if remaining > 0:
                trials = self.study.ask(
                    self.space, min(remaining, self.plan.batch), self.plan.num_trials
                )
            else:
                trials = []
            if not trials:
                return replace(self._state(), importances=self.study.importances())
            self._batch(trials)

    def _batch(self, trials: list[TuningTrial]) -> None:
        started = time.monotonic()
        state = self._state()
        tried = [self.task.tried(trial.settings) for trial in trials]
        numbers = [trial.number for trial in trials]
        pace = self.references["pace"]
        pruner = Pruner(self.task, self.study, numbers, tried, self.goal, state.limits, pace)
        pruner.on_epoch = lambda epoch: self._announce(state, epoch)
        trained = train_batch(self.task, [method for method, _ in tried], pruner)
        self.study.alive()
        finished = [
            (outcome, gate)
            for outcome, (_, gate) in zip(trained, tried, strict=True)
            if outcome.stopped is None
        ]
        gated = [self.task.gated(outcome.models, gate) for outcome, gate in finished]
        measured = iter(self.task.measure(gated))
        seconds = (time.monotonic() - started) / len(trials)
        for place, (number, outcome) in enumerate(zip(numbers, trained, strict=True)):
            if outcome.stopped is not None:
                self.study.prune(
                    number, outcome.stopped, pruner.violations.get(place, {"sound": 1.0})
                )
                continue
            metrics = next(measured)
            self.study.complete(
                number,
                self.goal.values(metrics),
                metrics,
                state.limits.violations(metrics),
                seconds,
            )
        self.seconds = self.seconds + time.monotonic() - started
        self.done = self.done + len(trials)
        self._announce(self._state(), self.task.start.training.epochs)

    def _references(self) -> dict[str, Any]:
        """Measures of conventional training and of the method as it is; one process makes them."""
        while True:
            references: dict[str, Any] | None = self.study.note("references")
            if references is not None:
                return references
            claimed = self._claim()
            if claimed is None:
                time.sleep(_POLL_SECONDS)
                self.study.recover()
                continue
            started = time.monotonic()
            pair = (self.task.start.conventional(), self.task.start)
            trained = train_batch(self.task, pair, self._watch_references)
            # Measurement warnings are shown here, once for the whole study.
            models = [trained[0].models, self.task.gated(trained[1].models, self.task.gate)]
            conventional, published = self.task.measure(models, quiet=False)
            paces = zip(
                *(mean_accuracy(outcome.histories) for outcome in trained), strict=False
            )
            pace = [min(pair) for pair in paces]
            # One of the two may have stopped early.
            pace += pace[-1:] * (self.task.start.training.epochs - len(pace))
            self.study.set_note(
                "references",
                {"conventional": conventional, "published": published, "pace": pace},
            )
            violations = self.goal.limits(conventional, published).violations(published)
            seconds = time.monotonic() - started
            self.study.complete(
                claimed.number, self.goal.values(published), published, violations, seconds
            )
            # Random settings are mostly bad, so half of the first batch tries neighbours of the
            # start.
            for near in neighbours(
                self.space, self._start, self.plan.batch // 2, self.plan.seed
            ):
                self.study.enqueue(near)

    def _watch_references(self, run: Run, trials: Mapping[int, list[int]]) -> dict[int, str]:
        self.study.alive()
        self._announce(None, run.epoch)
        return {}

    def _claim(self) -> TuningTrial | None:
        """The trial of the starting setting, or ``None`` if another process has it."""
        published = [trial for trial in self.study.trials() if trial.published]
        if any(trial.state == "RUNNING" for trial in published):
            return None
        if not any(trial.state == "WAITING" for trial in published):
            self.study.enqueue({name: self._start[name] for name in self.space}, published=True)
        trials = self.study.ask(self.space, 1)
        if trials and not trials[0].published:
            self.study.fail(trials[0].number, "another process took the first trial")
            return None
        if trials:
            return trials[0]
        return None

    def _state(self) -> Tuning:
        conventional = self.references["conventional"]
        published = self.references["published"]
        limits = self.goal.limits(conventional, published)
        return Tuning(self.goal, limits, conventional, self._start, self.study.trials())

    @property
    def _start(self) -> dict[str, Choice]:
        return {**tunable_numbers(self.task.start), GATE: self.task.gate}

    def _announce(self, state: Tuning | None, epoch: int) -> None:
        if state is None:
            finished = 0
        else:
            finished = state.num_finished
        total = self.plan.num_trials
        if self.done:
            seconds = self.seconds / self.done * max(0, total - finished)
        else:
            seconds = None
        self.listener(
            StudyProgress(
                finished, total, epoch, self.task.start.training.epochs, seconds, state
            )
        )


# ---- progress as text ----------------------------------------------------------------------------


class StudyStatus:
    """A listener of :func:`tune`: one status line on a terminal, elsewhere one line per batch."""

    def __init__(self, stream: TextIO | None = None, prefix: str = "") -> None:
        self.status = StatusLine(stream)
        self.prefix = prefix
        self._finished = -1  # trials in the last message that stayed

    def __call__(self, progress: StudyProgress) -> None:
        text = f"{self.prefix}{progress_line(progress)}"
        if self.status.live and progress.finished < progress.total:
            self.status.show(text)
        elif progress.tuning is not None and progress.finished > self._finished:
            self._finished = progress.finished
            self.status.say(text)


def progress_line(progress: StudyProgress) -> str:
    """``[32/64] best ip 1.23 (published 1.31), 7 pruned, about 2 min left``."""
    if progress.tuning is None:
        return f"reference models: epoch {progress.epoch} of {progress.epochs}"
    parts = [f"[{progress.finished}/{progress.total}] best {comparison(progress.tuning)}"]
    pruned = sum(trial.state == "PRUNED" for trial in progress.tuning.trials)
    if pruned:
        parts += [f"{pruned} pruned"]
    if progress.finished < progress.total:
        if progress.epoch < progress.epochs:
            parts.append(f"epoch {progress.epoch} of {progress.epochs}")
        if progress.seconds_left is not None:
            parts.append(f"about {duration(progress.seconds_left)} left")
    return ", ".join(parts)


def comparison(tuning: Tuning) -> str:
    """The best trial beside the published setting, in each objective."""
    best = tuning.best
    start = tuning.published
    shown = []
    for name in tuning.goal.objectives:
        its, was = (
            trial.metrics.get(OBJECTIVES[name].metric, float("nan")) for trial in (best, start)
        )
        shown.append(f"{name} {its:.3f} (published {was:.3f})")
    if len(shown) == 1:
        return shown[0]
    return f"trial {best.number}: {', '.join(shown)}"
