"""``ct tune``: better settings for a data set or a CSV file, found on validation rows, confirmed
once on test rows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from counterfactual_lab.commands import need_figures
from counterfactual_training import defaults
from counterfactual_training.cli.options import (
    VARIANTS,
    add_register,
    at_least_one,
    names,
    not_negative,
    several,
)
from counterfactual_training.cli.output import emit, folder, note
from counterfactual_training.cli.parsing import is_file_name
from counterfactual_training.cli.table_options import add_table, refuse_other_options
from counterfactual_training.errors import InputError, need_extra

if TYPE_CHECKING:
    from counterfactual_lab.tuning import Goal, Task, Tuning
    from counterfactual_lab.tuning.data_tasks import TuningEffort
    from counterfactual_training.tables.estimators.validation import ValidationRows

DESCRIPTION = """\
Find settings of a method that beat its usual ones, on validation rows \
only. Of a CSV file, a part is held out as by `ct train`, and the best settings are trained \
and saved as model.safetensors."""
# Options on the columns of a CSV file; a named data set has the paper's rules.
_RULES = (
    "positive",
    "immutable",
    "increase",
    "decrease",
    "mutability",
    "domain",
    "missing",
    "gate",
)
EPILOG = """\
examples:
  ct tune moons --method ct_published --improve ip --at-most-lost 1 --out tuned --confirm
  ct tune gmsc --method ct_published --objectives ip,cost,accuracy,robustness --trials 128
  ct tune gmsc --method ct_published --improve ip --at-most-lost 0 --reference published
  ct tune people.csv --method ct_published --target granted --positive yes --immutable age,sex \
--trials 32
  ct tune moons --method pgd --improve robustness
  ct tune moons --method noise --register noise.py --space noise.toml
  ct tune moons --method ct_published --space ranges.toml --storage postgresql://user@host/base

An interrupted study is resumed by the same command; several commands with one storage share the
work. A file of ranges has a table per setting, such as [objective.lambda_reg] or, short,
[lambda_reg], with low, high and log, or choices = […]; "published" keeps one fixed."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data", metavar="DATASET", help="a name from `ct data list`, or a CSV file"
    )
    parser.add_argument(
        "--method",
        required=True,
        help="to tune, such as ct_published, pgd or 'ct_published(generator=generic)'",
    )
    add_register(parser)
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument(
        "--objectives",
        metavar="NAME,…",
        help=f"improve several measures: {', '.join(defaults.GOALS)}",
    )
    goal.add_argument("--improve", metavar="NAME", help="one measure to improve (default: ip)")
    lost = "percentage points of accuracy (default with --improve: 1)"
    parser.add_argument("--at-most-lost", type=float, metavar="POINTS", help=lost)
    reference = "the model whose accuracy is the reference"
    parser.add_argument(
        "--reference",
        choices=get_args(defaults.Reference),
        default=defaults.REFERENCE,
        help=reference,
    )
    parser.add_argument("--trials", type=at_least_one, default=defaults.TRIALS, help="in total")
    parser.add_argument(
        "--batch", type=int, default=defaults.TRIALS_PER_FLEET, help="trials per fleet"
    )
    parser.add_argument(
        "--epochs", type=at_least_one, default=defaults.EPOCHS, help="of each trial"
    )
    parser.add_argument(
        "--seeds",
        type=at_least_one,
        default=defaults.TRAININGS_PER_TRIAL,
        help="trainings per trial",
    )
    parser.add_argument(
        "--seed", type=not_negative, default=defaults.SEED, help="of everything random"
    )
    parser.add_argument(
        "--space", metavar="FILE", help="TOML file of ranges that differ from the default ones"
    )
    parser.add_argument("--variant", default=defaults.VARIANT, help=VARIANTS)
    parser.add_argument("--out", default="tuned", metavar="DIR", help="for tables, figures")
    storage = "where to keep the study (default: study.journal in the folder)"
    parser.add_argument("--storage", metavar="URL|FILE", help=storage)
    parser.add_argument(
        "--study", metavar="NAME", help="name of the study (default: the data set's)"
    )
    parser.add_argument(
        "--confirm",
        action="store_true",
        help="measure the result on the test rows, once per study",
    )
    group = parser.add_argument_group("CSV files")
    add_table(group, gate=" (default: none)")
    immutable = "columns that people cannot change"
    group.add_argument("--immutable", **several("COLUMNS"), help=immutable)


@dataclass(frozen=True, eq=False)
class _Job:
    """What is tuned.

    Attributes:
        name: of the data set, or of the file without its ending.
        space: the ranges that differ from the default ones.
        test: rows to confirm on, if asked for.
        save: trains a model with the best settings and returns its file; ``None`` for named data
            sets.
    """

    name: str
    task: Task
    space: Any
    test: ValidationRows | None
    save: Callable[[Tuning, Path], str] | None = None


def run(arguments: argparse.Namespace) -> None:
    refuse_other_options(arguments, _RULES)
    need_extra("optuna", "lab")
    need_figures()
    from counterfactual_lab.reports.tune_report import tuning_text, write_tuning
    from counterfactual_lab.tuning import TuningPlan, tune
    from counterfactual_lab.tuning.data_tasks import TuningEffort, confirm
    from counterfactual_lab.tuning.space import check_tunable
    from counterfactual_lab.tuning.storage import is_url
    from counterfactual_lab.tuning.tuner import StudyStatus

    started = time.monotonic()
    goal = _goal(arguments)
    effort = TuningEffort(arguments.epochs, arguments.seeds, arguments.seed)
    job = (_table_job if is_file_name(arguments.data) else _named_job)(arguments, effort)
    check_tunable(job.task.start)
    out = folder(arguments.out)
    storage = arguments.storage or out / "study.journal"
    plan = TuningPlan(
        arguments.trials, arguments.batch, storage, arguments.study or job.name, arguments.seed
    )
    note(
        f"tuning {goal.describe()}; study {plan.study!r} in "
        f"{'a database' if is_url(storage) else storage}"
    )
    tuning = tune(job.task, goal, plan, job.space, StudyStatus(sys.stderr, "ct: "))
    files = write_tuning(tuning, job.name if job.save is None else None, job.task, out)
    confirmation = None
    # Test rows are looked at once per study, or they would become validation rows.
    if arguments.confirm and job.test is not None:
        confirmation, first = confirm(job.test, job.task, tuning, plan, effort, out)
        if not first:
            note(
                f"the test rows were looked at before, on {confirmation['date']}; showing that "
                "result again"
            )
    if job.save is not None:
        files.append(job.save(tuning, out))
    seconds = time.monotonic() - started
    document = {
        "data": job.name,
        "goal": goal.to_dict(),
        **_tuning_document(tuning),
        "seconds": seconds,
        "confirmation": confirmation,
        "files": files,
    }
    text = tuning_text(tuning, confirmation, seconds)
    emit(arguments, document, f"{text}\n\nWritten: {', '.join(files)}.")


def _goal(arguments: argparse.Namespace) -> Goal:
    from counterfactual_lab.tuning import Goal

    lost = arguments.at_most_lost
    if arguments.objectives is None and lost is None:
        lost = 1.0  # one measure alone would cost accuracy
    if arguments.objectives is not None:
        aims = names(arguments.objectives)
    else:
        aims = [arguments.improve or "ip"]
    return Goal(tuple(aims or ()), lost, arguments.reference)


def _tuning_document(tuning: Tuning) -> dict[str, Any]:
    """A study for JSON."""
    return {
        "trials": tuning.num_finished,
        "pruned": sum(trial.state == "PRUNED" for trial in tuning.trials),
        "conventional": tuning.conventional,
        "published": tuning.published.metrics,
        "best": {
            "trial": tuning.best.number,
            "settings": tuning.settings(tuning.best),
            **tuning.best.metrics,
        },
        "front": [{"trial": trial.number, **trial.metrics} for trial in tuning.front],
    }


def _named_job(arguments: argparse.Namespace, effort: TuningEffort) -> _Job:
    from counterfactual_lab.tuning.data_tasks import named_task
    from counterfactual_training.datasets import load_dataset
    from counterfactual_training.tables.estimators.validation import ValidationRows

    data = load_dataset(arguments.data, arguments.variant)
    test = ValidationRows(data.x_test, data.y_test, data.constraints)
    task = named_task(data, effort, arguments.method)
    return _Job(data.name, task, arguments.space, test)


def _table_job(arguments: argparse.Namespace, effort: TuningEffort) -> _Job:
    from sklearn.base import clone

    from counterfactual_lab.tuning.classifier import tuned
    from counterfactual_lab.tuning.data_tasks import held_out_rows, table_task
    from counterfactual_training.cli.table import rules, training_table
    from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier

    table = training_table(arguments)
    classifier = CounterfactualClassifier(
        arguments.method,
        gate=arguments.gate or "none",
        epochs=effort.epochs,
        random_state=effort.seed,
        progress=False,
        **rules(arguments, table),
    )
    train, held_out = table.split(arguments.test_share, arguments.seed)
    frame = table.frame.iloc[train]
    labels = table.labels.iloc[train]
    task, prepared = table_task(classifier, frame, labels, effort)
    if arguments.confirm and not len(held_out):
        raise InputError("--confirm needs rows to confirm on: --test-share above 0.")
    rows = table.frame.iloc[held_out], table.labels.iloc[held_out]
    if arguments.confirm:
        test = held_out_rows(prepared, *rows)
    else:
        test = None

    # Trials train on a part of these rows; the model that is saved trains on all of them.
    def save(tuning: Tuning, out: Path) -> str:
        path = str(out / "model.safetensors")
        params = classifier.get_params(deep=False)
        best = clone(classifier).set_params(**tuned(params, tuning.best.settings))
        best.fit(frame, labels)
        best.origin_ = table.origin(train, held_out)
        best.save(path)
        return path

    return _Job(Path(table.source).stem, task, arguments.space, test, save)
