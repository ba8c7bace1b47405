"""Tuning on a named data set or a table: on validation rows, confirmed once on test rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from sklearn.base import clone

import counterfactual_training
from counterfactual_lab.grids.settings import published
from counterfactual_lab.networks import untrained
from counterfactual_lab.tuning import Task, Tuning, TuningPlan, train_batch
from counterfactual_lab.tuning.classifier import tuning_task
from counterfactual_lab.tuning.storage import open_study
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.datasets.synthetic import stratified_split
from counterfactual_training.defaults import EPOCHS, SEED, TRAININGS_PER_TRIAL
from counterfactual_training.errors import InputError
from counterfactual_training.persistence import atomic_write
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.fit import VALIDATION_SHARE, PreparedFit, prepare
from counterfactual_training.tables.estimators.inputs import frame_and_labels
from counterfactual_training.tables.estimators.validation import MEASURED, ValidationRows
from counterfactual_training.training.method import Method

_NOTE = "confirmation"


@dataclass(frozen=True)
class TuningEffort:
    """How a trial is trained.

    Attributes:
        epochs: passes over the data.
        num_seeds: trainings per trial, averaged.
        seed: of weights, draws and the validation split.
        confirm_seeds: trainings of each setting that is looked at on test rows.
    """

    epochs: int = EPOCHS
    num_seeds: int = TRAININGS_PER_TRIAL
    seed: int = SEED
    confirm_seeds: int = 5

    def __post_init__(self) -> None:
        if self.num_seeds < 1 or self.confirm_seeds < 1:
            raise InputError(
                f"seeds must be 1 or more, got {self.num_seeds} and {self.confirm_seeds}."
            )


def named_task(
    data: Dataset, effort: TuningEffort, method: str | Method = "ct_published"
) -> Task:
    """A method with the paper's numbers for a data set, trained and measured on its training rows
    only.
    """
    paper = data.settings
    num = paper.num_validation or len(data.y_train) // 5  # the loan example holds none out
    rows, held_out = stratified_split(
        data.y_train, num, torch.Generator().manual_seed(effort.seed)
    )
    numbers = {"training.epochs": effort.epochs, "training.seed": effort.seed}
    start = published(method, paper).replace(numbers)
    start = replace(start, constraints=data.training_constraints)
    start = start.with_rows(data.x_train[rows], data.y_train[rows])
    measure = ValidationRows(data.x_train[held_out], data.y_train[held_out], data.constraints)
    return Task(
        partial(untrained, data),
        data.x_train[rows],
        data.y_train[rows],
        measure,
        start,
        effort.num_seeds,
    )


def table_task(
    classifier: CounterfactualClassifier,
    frame: pd.DataFrame,
    labels: pd.Series,
    effort: TuningEffort,
) -> tuple[Task, PreparedFit]:
    """The classifier's own method, trained and measured on rows of a table; and how these rows
    were prepared.
    """
    copied = clone(classifier)
    params = copied.get_params(deep=False)
    prepared = prepare(params, *frame_and_labels(copied, frame, labels), effort.seed)
    return tuning_task(prepared, VALIDATION_SHARE, effort.num_seeds), prepared


def held_out_rows(
    prepared: PreparedFit, frame: pd.DataFrame, labels: pd.Series
) -> ValidationRows:
    """Rows of a table, encoded as those of the training, to confirm on."""
    index = {label: i for i, label in enumerate(prepared.classes.tolist())}
    x = torch.as_tensor(prepared.encoder.transform(frame)).to(prepared.x)
    return ValidationRows(
        x, torch.tensor([index[label] for label in labels.tolist()]), prepared.constraints
    )


def confirm(
    test: ValidationRows,
    task: Task,
    tuning: Tuning,
    plan: TuningPlan,
    effort: TuningEffort,
    out: Path,
) -> tuple[dict[str, Any], bool]:
    """Measure the tuned method on test rows, beside the method as it was and a conventional one.

    A study does this once: the result is noted in the study and in ``confirmation.json``. A second
    call only reads the note; for another choice it raises an error, because choosing is what the
    validation rows are for.

    Returns:
        The numbers, and whether they were measured just now.
    """
    best = tuning.best
    study = open_study(
        plan.storage,
        plan.study,
        tuple(target.sign for target in tuning.goal.targets),
        effort.epochs,
    )
    try:
        look: dict[str, Any] | None = study.note(_NOTE)
        if look is None:
            look = _looked(test, task, tuning, effort)
            study.set_note(_NOTE, look)
            atomic_write(out / "confirmation.json", json.dumps(look, indent=2).encode())
            return look, True
    finally:
        study.leave()
    if look["trial"] != best.number:
        raise InputError(
            f"The test rows were already used on {look['date']}, for trial {look['trial']}; "
            "the best is now trial "
            f"{best.number}. A second look would choose by test rows. Start a new study with "
            "another seed."
        )
    return look, False


def _looked(
    test: ValidationRows, task: Task, tuning: Tuning, effort: TuningEffort
) -> dict[str, Any]:
    best = tuning.best
    tuned, gate = task.tried(best.settings)
    methods = {
        "conventional": task.start.conventional(),
        "published": task.start,
        "tuned": tuned,
    }
    # Other seeds than those of the study, which may have been lucky with its own.
    fresh = [method.seeded(effort.seed + 1000) for method in methods.values()]
    trained = train_batch(replace(task, num_seeds=effort.confirm_seeds), fresh)
    gates = ("none", task.gate, gate)
    models = [
        one
        for outcome, kind in zip(trained, gates, strict=True)
        for one in task.gated(outcome.models, kind)
    ]
    numbers = test([[model] for model in models])
    names = [name for name in methods for _ in range(effort.confirm_seeds)]
    table = pd.DataFrame(numbers, columns=list(MEASURED)).assign(model=names)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "trial": best.number,
        "test_rows": len(test.y),
        "seeds": effort.confirm_seeds,
        "mean": _nested(table.groupby("model", sort=False).mean()),
        "deviation": _nested(table.groupby("model", sort=False).std(ddof=1).fillna(0.0)),
    }


def _nested(table: pd.DataFrame) -> dict[str, dict[Any, Any]]:
    return {
        str(k): row
        for k, row in table.astype(object).where(table.notna(), None).to_dict("index").items()
    }


def best_file(data: str, task: Task, tuning: Tuning) -> str:
    """The tuned method as a grid file of one run."""
    best = tuning.best
    method, gate = task.tried(best.settings)
    numbers = {name: value for name, value in best.settings.items() if name in method.numbers}
    tables: dict[str, dict[str, Any]] = {"generator": {}, "objective": {}, "training": {}}
    if method.needs_counterfactuals:
        tables["generator"]["name"] = method.generator.name
    for path, value in {**tuning.start, **best.settings}.items():
        part, _, name = path.partition(".")
        if name:
            tables[part][name] = value
    tables["training"]["epochs"] = method.training.epochs
    reached = ", ".join(f"{name} {best.metrics[name]:.4f}" for name in MEASURED)
    lines = [
        f"# Trial {best.number} of {tuning.num_finished}: the best found for "
        f"{tuning.goal.describe()}.",
        f"# On validation rows: {reached}.",
        f"# Written by ct tune {counterfactual_training.__version__}; `ct grid run` trains it "
        "again.",
        f'name = "{data}-tuned"',
        f'data = ["{data}"]',
        f"method = {json.dumps(_text(method.name, numbers))}",
    ]
    if gate != "none":
        lines.append(f'gate = "{gate}"')
    for table, values in tables.items():
        if values:
            lines += [
                "",
                f"[{table}]",
                *(f"{key} = {json.dumps(value)}" for key, value in values.items()),
            ]
    return "\n".join(lines) + "\n"


def _text(name: str, numbers: Mapping[str, Any]) -> str:
    """A method as text, with numbers of its own."""
    if not numbers:
        return name
    return (
        f"{name}({', '.join(f'{argument}={value!r}' for argument, value in numbers.items())})"
    )
