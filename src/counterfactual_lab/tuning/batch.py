"""A batch of trials, trained as one fleet, with pruning."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor, nn

from counterfactual_lab.tuning.goal import Goal, Metrics, TrialLimits, excess
from counterfactual_lab.tuning.space import GATE, Choice
from counterfactual_lab.tuning.study import Study
from counterfactual_training.gates import fit_gate
from counterfactual_training.tables.estimators.validation import ValidationRows
from counterfactual_training.training.callbacks import Callback
from counterfactual_training.training.fleet import Fleet, Member
from counterfactual_training.training.method import Method
from counterfactual_training.training.registry import of_one_network
from counterfactual_training.training.run import History, Run, TrainResult

# Trials of one objective are compared with earlier ones after these shares of the epochs.
_RUNGS = (1 / 3, 2 / 3)
# But only after so much counterfactual training, so that a long burn-in is no disadvantage.
_LEAST_SHARE = 1 / 4

# Called after every epoch with the run and, by its place in the batch, the members of each trial
# that still trains; returns which of them to stop, and why.
Watch = Callable[[Run, Mapping[int, list[int]]], dict[int, str]]


@dataclass(frozen=True, eq=False)
class Task:
    """What is tuned.

    Attributes:
        make_model: makes an untrained model, given a seed.
        x, y: training rows.
        measure: of trained models, on validation rows.
        start: the method to improve.
        num_seeds: trainings per trial, whose measures are averaged.
        gate: of the classifier to improve; fitted to the trained model before it is measured.
        class_weight: as for :func:`train`.
        held_out: rows and classes that a training logs its loss on, and may stop by; by default
            those of the measure.
        callbacks: makes those of a training, so that trials train as what is fitted afterwards
            does.
    """

    make_model: Callable[[int], nn.Module]
    x: Tensor
    y: Tensor
    measure: ValidationRows
    start: Method
    num_seeds: int = 1
    gate: str = "none"
    class_weight: Any = None
    held_out: tuple[Tensor, Tensor] | None = None
    callbacks: Callable[[], Sequence[Callback]] = tuple

    def tried(self, settings: Mapping[str, Choice]) -> tuple[Method, str]:
        """The starting method and gate with some values changed."""
        changes: dict[str, Any] = {
            name: value for name, value in settings.items() if name != GATE
        }
        return self.start.replace(changes), str(settings.get(GATE, self.gate))

    def gated(self, models: Sequence[nn.Module], gate: str) -> list[nn.Module]:
        """Trained models, each with a gate of this kind, by the training rows and the rules of the
        measure.
        """
        if gate == "none":
            return list(models)
        rules = self.measure.constraints
        seed = self.start.training.seed
        return [
            fit_gate(model, self.x, self.y, gate, constraints=rules, seed=seed)
            for model in models
        ]


@dataclass(frozen=True, eq=False)
class TrainedTrial:
    """The models of one trial, one per seed, and why it was given up, if it was."""

    models: list[nn.Module]
    histories: list[History]
    stopped: str | None = None


def train_batch(
    task: Task, methods: Sequence[Method], watch: Watch | None = None
) -> list[TrainedTrial]:
    """Train by all methods, each with every seed, in few fleets; ``watch`` may stop trials."""
    # Members of a fleet must search the same number of counterfactuals: tensors have one shape.
    groups: dict[int, list[int]] = defaultdict(list)
    for place, method in enumerate(methods):
        groups[method.training.num_counterfactuals].append(place)
    trained: dict[int, TrainedTrial] = {}
    validation = task.held_out or (task.measure.x, task.measure.y)
    for places in groups.values():
        every = [
            (methods[place], methods[place].training.seed + i)
            for place in places
            for i in range(task.num_seeds)
        ]
        fleet = Fleet(
            [
                Member(task.make_model(seed), of_one_network(method).seeded(seed))
                for method, seed in every
            ]
        )
        watcher = _Watcher(places, task.num_seeds, watch)
        callbacks = [*task.callbacks(), watcher]
        options: dict[str, Any] = {
            "callbacks": callbacks,
            "class_weight": task.class_weight,
            "progress": False,
        }
        results = iter(fleet.train(task.x, task.y, validation=validation, **options))
        for first, place in enumerate(places):
            members = list(islice(results, task.num_seeds))
            stopped = watcher.reasons.get(place) or watcher.divergence(
                first * task.num_seeds, members
            )
            trained[place] = TrainedTrial(
                [r.model for r in members], [r.history for r in members], stopped
            )
    return [trained[place] for place in range(len(methods))]


class _Watcher(Callback):
    """Shows the running trials to the watch after every epoch, and stops those it names."""

    def __init__(self, places: Sequence[int], num_seeds: int, watch: Watch | None) -> None:
        self.places = places
        self.num_seeds = num_seeds
        self.watch = watch
        self.reasons: dict[int, str] = {}
        # Members stopped by a callback; all others that stop have diverged.
        self.sound: set[int] = set()

    def divergence(self, start: int, results: Sequence[TrainResult]) -> str | None:
        """Why members from ``start`` on diverged, if any did."""
        for member, result in enumerate(results, start):
            if member not in self.sound and result.history.stopped:
                return result.history.stopped
        return None

    def on_stop(self, run: Run, i: int) -> None:
        self.sound.add(run.members[i])

    def on_epoch_end(self, run: Run) -> None:
        running: dict[int, list[int]] = defaultdict(list)
        for i in run.running:
            running[self.places[run.members[i] // self.num_seeds]].append(i)
        if self.watch is None or not running:  # the last ones may just have diverged
            return
        for place, reason in self.watch(run, running).items():
            self.reasons[place] = reason
            for i in running[place]:
                run.stop(reason, i)


def mean_accuracy(histories: Sequence[History]) -> list[float]:
    """Accuracy on the validation rows, epoch by epoch, averaged over seeds."""
    records = zip(*(history.records for history in histories), strict=False)
    return [
        float(np.mean([record["validation_accuracy"] for record in epoch])) for epoch in records
    ]


@dataclass(eq=False)
class Pruner:
    """Stops trials of collapsed accuracy and, with one objective, those behind the median."""

    task: Task
    study: Study
    numbers: Sequence[int]  # of the trials of the batch
    tried: Sequence[tuple[Method, str]]  # their methods and gates
    goal: Goal
    limits: TrialLimits
    # Accuracy of the reference models; pace[0] is that after the first epoch.
    pace: Sequence[float]
    on_epoch: Callable[[int], None] = lambda epoch: None
    violations: dict[int, dict[str, float]] = field(default_factory=dict)

    def __call__(self, run: Run, trials: Mapping[int, list[int]]) -> dict[int, str]:
        self.study.alive()
        self.on_epoch(run.epoch)
        reasons: dict[int, str] = {}
        hopeful: dict[int, list[nn.Module]] = {}
        for place, members in trials.items():
            accuracy = mean_accuracy([run.histories[i] for i in members])[-1]
            if self._collapsed(place, run.epoch, accuracy):
                reasons[place] = f"accuracy {accuracy:.3f} after {run.epoch} epochs"
            elif self._at_rung(place, run.epoch):
                hopeful[place] = self.task.gated(
                    [run.snapshot(i) for i in members], self.tried[place][1]
                )
        for place, metrics in zip(
            hopeful, self.task.measure.quick([*hopeful.values()]), strict=True
        ):
            if self.study.report(self.numbers[place], run.epoch, self._standing(metrics)):
                self.violations[place] = self.limits.violations(metrics)
                reasons[place] = f"behind the median after {run.epoch} epochs"
        return reasons

    def _collapsed(self, place: int, epoch: int, accuracy: float) -> bool:
        epochs = self.tried[place][0].training.epochs
        floor = self.pace[epoch - 1] - self.limits.patience
        # A NaN is below every floor, so compare by >=.
        if not math.ceil(_RUNGS[0] * epochs) <= epoch < epochs or accuracy >= floor:
            return False
        self.violations[place] = {"accuracy": floor - accuracy if accuracy < floor else 1.0}
        return True

    def _at_rung(self, place: int, epoch: int) -> bool:
        config = self.tried[place][0].training
        late = epoch - config.burn_in_epochs >= _LEAST_SHARE * config.epochs
        rungs = {math.ceil(share * config.epochs) for share in _RUNGS} - {config.epochs}
        # Optuna prunes studies with one objective only.
        return len(self.goal.objectives) == 1 and epoch in rungs and late

    def _standing(self, metrics: Metrics) -> float:
        """The objective plus a penalty so large that trials that violate a bound rank last."""
        missed = excess(self.limits.violations(metrics))
        # Few individuals are measured here, and accuracy still grows: small violations are ignored.
        return self.goal.values(metrics)[0] + (1e3 * missed if missed > 0.03 else 0.0)
