"""``ct tune``: better settings for a named data set, found on validation rows, confirmed once on test rows."""

from __future__ import annotations

import argparse
import sys
import time

from counterfactual_training.cli.csv_file import is_file_name
from counterfactual_training.cli.options import VARIANTS, names
from counterfactual_training.cli.output import emit, folder, note
from counterfactual_training.datasets import load_dataset
from counterfactual_training.errors import InputError
from counterfactual_training.experiments.trained import Recipe
from counterfactual_training.experiments.tune import TuningEffort, confirm, named_task
from counterfactual_training.reports import write_tuning
from counterfactual_training.reports.tune_report import tuning_text
from counterfactual_training.tuning import OBJECTIVES, Goal, TuningPlan, tune
from counterfactual_training.tuning.status import StudyStatus
from counterfactual_training.tuning.storage import is_url

DESCRIPTION = "Find settings of counterfactual training that beat the published ones, on validation rows only."
EPILOG = """\
examples:
  ct tune moons --minimise ip --at-most-lost 1 --out tuned --confirm
  ct tune gmsc --objectives ip,cost,accuracy,robustness --trials 128
  ct tune gmsc --minimise ip --at-most-lost 0 --against published
  ct tune moons --space ranges.toml --storage postgresql://user@host/base --study moons

An interrupted study is resumed by the same command; several commands with one storage share the work. A file of ranges
has a table per setting, such as [lambda_reg] with low, high and log, or choices = […]; "published" keeps one fixed."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATASET", help="a name from `ct data list`")
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument("--objectives", metavar="NAME,…", help=f"improve several measures: {', '.join(OBJECTIVES)}")
    goal.add_argument("--minimise", "--improve", metavar="NAME", help="one measure to improve (default: ip)")
    lost = "percentage points of accuracy (default with --minimise: 1)"
    parser.add_argument("--at-most-lost", type=float, metavar="POINTS", help=lost)
    against, reference = ("conventional", "published"), "the model whose accuracy is the reference"
    parser.add_argument("--against", choices=against, default=Goal.against, help=reference)
    parser.add_argument("--trials", type=int, default=TuningPlan.num_trials, help="in total")
    parser.add_argument("--batch", type=int, default=TuningPlan.batch, help="trials per fleet")
    parser.add_argument("--epochs", type=int, default=TuningEffort.epochs, help="of each trial")
    parser.add_argument("--seeds", type=int, default=TuningEffort.num_seeds, help="trainings per trial")
    parser.add_argument("--seed", type=int, default=TuningEffort.seed, help="of everything random")
    parser.add_argument("--space", metavar="FILE", help="TOML file of ranges that differ from the default ones")
    parser.add_argument("--variant", default=Recipe.variant, help=VARIANTS)
    parser.add_argument("--out", default="tuned", metavar="FOLDER", help="for tables, figures")
    storage = "where to keep the study (default: study.journal in the folder)"
    parser.add_argument("--storage", metavar="URL|FILE", help=storage)
    parser.add_argument("--study", metavar="NAME", help="name of the study (default: the data set's)")
    parser.add_argument("--confirm", action="store_true", help="measure the result on the test rows, once per study")


def run(arguments: argparse.Namespace) -> None:
    if is_file_name(arguments.data):
        raise InputError("ct tune takes named data sets; for a table of your own, use CounterfactualClassifier.tune.")
    goal, started = _goal(arguments), time.monotonic()
    data = load_dataset(arguments.data, arguments.variant)
    effort = TuningEffort(arguments.epochs, arguments.seeds, arguments.seed)
    out = folder(arguments.out)
    storage = arguments.storage or out / "study.journal"
    plan = TuningPlan(arguments.trials, arguments.batch, storage, arguments.study or data.name, arguments.seed)
    note(f"tuning {goal.describe()}; study {plan.study!r} in {'a database' if is_url(storage) else storage}")
    task = named_task(data, effort)
    tuning = tune(task, goal, plan, arguments.space, StudyStatus(sys.stderr, "ct: "))
    files = write_tuning(tuning, data.name, effort, out)
    confirmation = None
    if arguments.confirm:
        confirmation, first = confirm(data, task, tuning, plan, effort, out)
        if not first:
            note(f"the test rows were looked at before, on {confirmation['date']}; showing that result again")
    seconds = time.monotonic() - started
    document = {
        "data": data.name,
        "goal": goal.to_dict(),
        "trials": tuning.num_finished,
        "pruned": sum(trial.state == "PRUNED" for trial in tuning.trials),
        "seconds": seconds,
        "conventional": tuning.conventional,
        "published": tuning.published.metrics,
        "best": {"trial": tuning.best.number, "settings": tuning.settings(tuning.best), **tuning.best.metrics},
        "front": [{"trial": trial.number, **trial.metrics} for trial in tuning.front],
        "confirmation": confirmation,
        "files": files,
    }
    text = tuning_text(tuning, confirmation, seconds)
    emit(arguments, document, f"{text}\n\nWritten: {', '.join(files)}.")


def _goal(arguments: argparse.Namespace) -> Goal:
    lost = arguments.at_most_lost
    if arguments.objectives is not None:
        return Goal(tuple(names(arguments.objectives) or ()), lost, arguments.against)
    return Goal((arguments.minimise or "ip",), 1.0 if lost is None else lost, arguments.against)
