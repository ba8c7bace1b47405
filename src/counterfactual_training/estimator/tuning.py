"""A classifier's own settings, tuned on rows held out of its training rows."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from counterfactual_training.errors import InputError
from counterfactual_training.estimator.preparing import Prepared, validation_split
from counterfactual_training.estimator.settings import WEIGHTS
from counterfactual_training.search import Generator
from counterfactual_training.tuning import Goal, Measure, Task, Tuning, TuningPlan, make_space, tune
from counterfactual_training.tuning.space import FIXED
from counterfactual_training.tuning.status import StudyStatus


def tune_settings(
    prepared: Prepared,
    params: Mapping[str, Any],
    goal: Goal,
    plan: TuningPlan,
    space: Mapping[str, Any] | str | Path | None,
    validation_share: float,
    num_seeds: int,
) -> Tuning:
    """A study of the settings of a classifier that is ready to train."""
    if not prepared.setting.objective.needs_counterfactuals:
        raise InputError(
            "This classifier trains without counterfactuals: there is nothing to tune. preset='as_run', the paper's "
            "method, or objective='full' trains with them."
        )
    ready_made = isinstance(params["generator"], Generator)
    fixed = [n for n in prepared.setting.numbers() if n not in params or (ready_made and n in WEIGHTS)]
    changes: Any = space
    if ready_made:
        if isinstance(space, str | Path) or set(WEIGHTS) & set(space or {}):
            raise InputError(
                f"{' and '.join(WEIGHTS)} of a ready-made generator cannot be tuned: name a generator, such as "
                "'ecco', or give the ranges of the other settings as a dict."
            )
        changes = dict.fromkeys(fixed, FIXED) | dict(space or {})
    for name in fixed:
        if name in make_space(prepared.setting, changes, prepared.gate):
            raise InputError(f"{name!r} is no parameter of the classifier and cannot be tuned by it.")
    train, held_out = validation_split(prepared.y, validation_share, prepared.setting.config.seed)
    x, y = prepared.x, prepared.y
    task = Task(
        prepared.make_model,
        x[train],
        y[train],
        Measure(x[held_out], y[held_out], prepared.finder.constraints),
        prepared.setting,
        num_seeds,
        prepared.gate,
    )
    shown = sys.stderr.isatty() if params["progress"] is None else params["progress"]
    return tune(task, goal, plan, changes, StudyStatus() if shown else None)
