"""An Optuna study that several processes share, and that survives when one of them is killed."""

from __future__ import annotations

import math
import os
import socket
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from counterfactual_lab.tuning.space import Choice, Range, Space, Values
from counterfactual_training.errors import need_extra

# Proposals that repeat a trial are dropped; after so many the space is taken to be exhausted.
_MOST_REPEATS = 50
# A process of another machine counts as dead after so many seconds without a sign of life.
PATIENCE_SECONDS = 600.0
# How often a living process gives one.
EVERY_SECONDS = 15.0
_LIVE = ("WAITING", "RUNNING", "COMPLETE", "PRUNED")


def optuna() -> ModuleType:
    """Optuna, imported when it is first needed."""
    return need_extra("optuna", "lab")


@dataclass(frozen=True)
class TuningTrial:
    """One setting that is or was tried.

    Attributes:
        state: ``COMPLETE``, ``PRUNED``, ``FAIL``, ``RUNNING`` or ``WAITING``.
        settings: the tuned values.
        values: the objectives, each to be minimised.
        metrics: all measures, on validation rows.
        violations: by how much bounds were violated.
        published: whether it is the setting that tuning started from.
        reason: why it was pruned or failed.
    """

    number: int
    state: str
    settings: dict[str, Choice]
    values: tuple[float, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    violations: dict[str, float] = field(default_factory=dict)
    published: bool = False
    reason: str = ""
    seconds: float = math.nan

    @property
    def finished(self) -> bool:
        """Whether it was measured, or pruned on purpose."""
        return self.state in ("COMPLETE", "PRUNED")


class Study:
    """Asks Optuna for trials and tells it results, with signs of life for others."""

    def __init__(self, study: Any, signs: tuple[int, ...], seed: int, where: str) -> None:
        self._study = study
        self._signs = signs
        self._seed = seed
        self.where = where
        self._worker = uuid.uuid4().hex[:12]
        self._open: dict[int, Any] = {}  # trials asked for and not yet told
        self._last_sign = -math.inf
        self.alive()

    def note(self, name: str) -> Any:
        """A value shared by all processes; ``None`` if not set."""
        return self._study.user_attrs.get(name)

    def set_note(self, name: str, value: Any) -> None:
        self._study.set_user_attr(name, value)

    def alive(self) -> None:
        """Show the other processes that this one is alive, at most every few seconds."""
        if time.monotonic() - self._last_sign >= EVERY_SECONDS:
            self._last_sign = time.monotonic()
            self._study.set_user_attr(f"worker {self._worker}", sign_of_life())

    def leave(self) -> None:
        """Say that this process has ended; its unfinished trials are free for others."""
        self._study.set_user_attr(f"worker {self._worker}", sign_of_life(present=False))

    def trials(self) -> list[TuningTrial]:
        return [self._plain(trial) for trial in self._study.get_trials(deepcopy=False)]

    def enqueue(self, settings: Mapping[str, Choice], **attributes: Any) -> None:
        """Queue a setting to be tried next."""
        self._study.enqueue_trial(dict(settings), user_attrs=attributes)

    def ask(self, space: Space, num: int, most: int | None = None) -> list[TuningTrial]:
        """Up to ``num`` new trials; fewer if the proposals only repeat earlier ones.

        Args:
            most: trials of the whole study; if two processes exceed it together, the later one
                gives its trial back.
        """
        self._study.sampler = self._sampler()
        distributions = {name: _distribution(values) for name, values in space.items()}
        trials: list[TuningTrial] = []
        repeats = 0
        while len(trials) < num and repeats < _MOST_REPEATS:
            # Asked and claimed before it is compared: two processes that ask at once see each
            # other's trial.
            trial = self._study.ask(distributions)
            trial.set_user_attr("worker", self._worker)
            self._open[trial.number] = trial
            before = [
                other
                for other in self.trials()
                if other.number < trial.number and other.state in _LIVE
            ]
            same = [other.number for other in before if other.settings == trial.params]
            if same:
                repeats += 1
                self.fail(trial.number, f"repeats trial {same[0]}")
            elif most is not None and sum(other.state != "WAITING" for other in before) >= most:
                self.fail(trial.number, "not needed: other processes asked for the last trials")
                break
            else:
                published = trial.user_attrs.get("published", False)
                trials.append(
                    TuningTrial(
                        trial.number, "RUNNING", dict(trial.params), published=published
                    )
                )
        return trials

    def report(self, number: int, step: int, value: float) -> bool:
        """Report an intermediate value; whether the trial should be pruned."""
        trial = self._open[number]
        trial.report(self._signs[0] * value, step)
        return bool(trial.should_prune())

    def complete(
        self,
        number: int,
        values: Sequence[float],
        metrics: Mapping[str, float],
        violations: Mapping[str, float],
        seconds: float,
    ) -> None:
        signed = [sign * value for sign, value in zip(self._signs, values, strict=True)]
        # JSON has no NaN
        finite = {
            name: value if math.isfinite(value) else None for name, value in metrics.items()
        }
        self._tell(number, "COMPLETE", violations, signed, metrics=finite, seconds=seconds)

    def prune(self, number: int, reason: str, violations: Mapping[str, float]) -> None:
        self._tell(number, "PRUNED", violations, reason=reason)

    def fail(self, number: int, reason: str) -> None:
        self._tell(number, "FAIL", {}, reason=reason)

    def recover(self) -> int:
        """Fail the trials of dead processes and queue their settings again; returns how many."""
        states = optuna().trial.TrialState
        lost = 0
        for trial in self._study.get_trials(deepcopy=False, states=(states.RUNNING,)):
            if not self._is_orphan(trial):
                continue
            try:
                self._study.tell(trial.number, state=states.FAIL)
            except (ValueError, optuna().exceptions.UpdateFinishedTrialError):
                continue  # another process was faster
            lost += 1
            if settings := _settings(trial):
                self.enqueue(
                    settings,
                    retry_of=trial.number,
                    published=trial.user_attrs.get("published", False),
                )
        return lost

    def importances(self) -> list[dict[str, float]]:
        """For each objective, the share of variance that each setting explains (fANOVA)."""
        shares_by_objective: list[dict[str, float]] = []
        for index in range(len(self._signs)):
            values = [
                trial.values[index] for trial in self.trials() if trial.state == "COMPLETE"
            ]
            worst = max((value for value in values if math.isfinite(value)), default=0.0)

            def target(trial: Any, index: int = index, worst: float = worst) -> float:
                return min(self._signs[index] * trial.values[index], worst)

            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # Optuna's, about experimental features
                    evaluator = optuna().importance.FanovaImportanceEvaluator(seed=0)
                    shares = optuna().importance.get_param_importances(
                        self._study, evaluator=evaluator, target=target
                    )
            except (ValueError, RuntimeError, ZeroDivisionError):
                shares = {}
            shares_by_objective.append({name: float(share) for name, share in shares.items()})
        return shares_by_objective

    def _sampler(self) -> Any:
        """A sampler seeded by the number of trials, so that a resumed study proposes what it would
        have proposed.
        """
        seed = self._seed * 1_000_003 + len(self._study.get_trials(deepcopy=False))
        mark = f"worker {self._worker}"
        signs = self._study.user_attrs.items()
        if any(
            name.startswith("worker ") and name != mark and not is_dead(sign)
            for name, sign in signs
        ):
            # Two living processes must not propose the same.
            seed = seed * 1_000_003 + int(self._worker, 16)
        return optuna().samplers.TPESampler(seed=seed % 2**32)

    def _is_orphan(self, trial: Any) -> bool:
        owner = trial.user_attrs.get("worker")
        if trial.number in self._open or owner == self._worker:
            return False
        if owner is not None:
            return is_dead(self._study.user_attrs.get(f"worker {owner}"))
        # Its process has not noted its id yet; give it a minute.
        return (
            trial.datetime_start is not None
            and time.time() - trial.datetime_start.timestamp() > 60
        )

    def _tell(
        self,
        number: int,
        state: str,
        violations: Mapping[str, float],
        values: list[float] | None = None,
        **attributes: Any,
    ) -> None:
        trial = self._open.pop(number)
        # If this process was thought dead, another one may have finished its trial; that result
        # counts.
        with suppress(optuna().exceptions.UpdateFinishedTrialError):
            for name, value in attributes.items():
                trial.set_user_attr(name, value)
            for name, value in violations.items():
                trial.set_constraint(name, value if math.isfinite(value) else 1.0)
            self._study.tell(
                trial, values, optuna().trial.TrialState[state], skip_if_finished=True
            )

    def _plain(self, trial: Any) -> TuningTrial:
        attributes = trial.user_attrs
        values = (
            zip(self._signs, trial.values, strict=True)
            if trial.state.name == "COMPLETE"
            else ()
        )
        return TuningTrial(
            number=trial.number,
            state=trial.state.name,
            settings=_settings(trial),
            values=tuple(sign * value for sign, value in values),
            metrics={
                name: math.nan if v is None else v
                for name, v in attributes.get("metrics", {}).items()
            },
            violations=dict(trial.constraints),
            **{
                name: attributes[name]
                for name in ("published", "reason", "seconds")
                if name in attributes
            },
        )


def _settings(trial: Any) -> dict[str, Choice]:
    """The values of a trial; for one that waits, those it will have."""
    return dict(trial.params or trial.system_attrs.get("fixed_params", {}))


def _distribution(values: Values) -> Any:
    distributions = optuna().distributions
    if not isinstance(values, Range):
        return distributions.CategoricalDistribution(values.values)
    if values.integer:
        return distributions.IntDistribution(int(values.low), int(values.high), log=values.log)
    return distributions.FloatDistribution(values.low, values.high, log=values.log)


# ---- signs of life: a killed process leaves trials that never end --------------------------------


def sign_of_life(pid: int | None = None, present: bool = True) -> dict[str, Any]:
    """What a process (by default this one) stores in a study: id, and when last alive."""
    if pid is None:
        pid = os.getpid()
    return {
        "host": _host(),
        "pid": pid,
        "started": _started(pid),
        "seen": time.time(),
        "present": present,
    }


def is_dead(sign: Mapping[str, Any] | None) -> bool:
    """On this machine: is there such a process? On others: has it been silent for too long?"""
    if sign is None or not sign.get("present", False):
        return True
    if sign["host"] == _host():
        return not _runs(int(sign["pid"]), str(sign["started"]))
    return time.time() - float(sign["seen"]) > PATIENCE_SECONDS


def _host() -> str:
    """The machine and its PID namespace: process numbers of another container mean nothing here."""
    try:
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        space = ""
    return f"{socket.gethostname()} {space}".strip()


def _runs(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's process, so it exists
    return _started(pid) == started


def _started(pid: int) -> str:
    """When a process started, because numbers are reused; empty if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    # A zombie has ended; its parent has not noticed yet.
    if fields[0] == "Z":
        return ""
    return fields[19]
