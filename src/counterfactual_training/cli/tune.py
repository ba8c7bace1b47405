"""``ct tune``: better settings for a named data set, found on validation rows, confirmed once on test rows."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterfactual_training.cli.output import emit, folder, note
from counterfactual_training.cli.sources import is_csv
from counterfactual_training.errors import InputError
from counterfactual_training.experiments.trained import Recipe, named_dataset
from counterfactual_training.experiments.tune import TuningEffort, best_file, confirm, named_task
from counterfactual_training.persistence import atomic_write
from counterfactual_training.reports.tables import aligned
from counterfactual_training.reports.tune_figures import draw_front, draw_importances
from counterfactual_training.text import duration
from counterfactual_training.tuning import METRICS, OBJECTIVES, Goal, Plan, Trial, Tuning, tune
from counterfactual_training.tuning.progress import Lines, comparison
from counterfactual_training.tuning.storage import is_url

_MOST_SHOWN = 10
_EXAMPLES = """\
examples:
  ct tune moons --minimise ip --at-most-lost 1 --out tuned --confirm
  ct tune gmsc --objectives ip,cost,accuracy,robustness --trials 128
  ct tune gmsc --minimise ip --at-most-lost 0 --against published
  ct tune moons --space ranges.toml --storage postgresql://user@host/base --study moons

The same command goes on where a killed one ended; several at a time, with one storage, share the work. A file of ranges
has a table per setting, such as [lambda_reg] with low, high and log, or choices = […]; "published" keeps one fixed."""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "tune",
        parents=[common],
        help="find better settings for a data set",
        description="Find settings of counterfactual training that beat the published ones, on validation rows only.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", metavar="DATASET", help="a name from `ct data list`")
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument(
        "--objectives",
        metavar="NAME,…",
        help=f"several measures to improve at once: {', '.join(OBJECTIVES)}",
    )
    goal.add_argument("--minimise", "--improve", metavar="NAME", help="one measure to improve (default: ip)")
    parser.add_argument(
        "--at-most-lost", type=float, metavar="POINTS", help="of accuracy, in hundredths (default with --minimise: 1)"
    )
    parser.add_argument(
        "--against",
        choices=["conventional", "published"],
        default=Goal.against,
        help="the model that accuracy is compared with (default: %(default)s)",
    )
    parser.add_argument("--trials", type=int, default=Plan.num_trials, help="altogether (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=Plan.batch, help="trials per fleet (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=TuningEffort.epochs, help="of each trial (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=int, default=TuningEffort.num_seeds, help="trainings per trial, averaged (default: 1)"
    )
    parser.add_argument(
        "--seed", type=int, default=TuningEffort.seed, help="of everything random (default: %(default)s)"
    )
    parser.add_argument("--space", metavar="FILE", help="TOML file of ranges that differ from the usual ones")
    parser.add_argument("--variant", default=Recipe.variant, help="default, as_run or full; see `ct data info`")
    parser.add_argument(
        "--out", default="tuned", metavar="FOLDER", help="for tables and figures (default: %(default)s)"
    )
    parser.add_argument(
        "--storage", metavar="URL|FILE", help="where the study is kept (default: study.journal in the folder)"
    )
    parser.add_argument("--study", metavar="NAME", help="its name there (default: the data set's)")
    parser.add_argument(
        "--confirm", action="store_true", help="at the end, look at the test rows; each study gets one look"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    if is_csv(arguments.data):
        raise InputError("ct tune takes named data sets; for a table of your own, use CounterfactualClassifier.tune.")
    goal, started = _goal(arguments), time.monotonic()
    data = named_dataset(arguments.data, arguments.variant)
    effort = TuningEffort(arguments.epochs, arguments.seeds, arguments.seed)
    out = folder(arguments.out)
    storage = arguments.storage or out / "study.journal"
    plan = Plan(arguments.trials, arguments.batch, storage, arguments.study or data.name, arguments.seed)
    note(f"tuning {goal.describe()}; the study {plan.study!r} is in {_place(storage)}")
    task = named_task(data, effort)
    tuning = tune(task, goal, plan, arguments.space, Lines(sys.stderr, "ct: "))
    files = _write(out, data.name, tuning, effort)
    confirmation = None
    if arguments.confirm:
        confirmation, first = confirm(data, task, tuning, plan, effort, out)
        if not first:
            note(f"the test rows were looked at before, on {confirmation['date']}: that result is shown again")
    document = {
        "data": data.name,
        "goal": goal.to_dict(),
        "trials": tuning.num_finished,
        "pruned": sum(trial.state == "PRUNED" for trial in tuning.trials),
        "seconds": time.monotonic() - started,
        "conventional": tuning.conventional,
        "published": tuning.published.metrics,
        "best": {"trial": tuning.best.number, "settings": tuning.settings(tuning.best), **tuning.best.metrics},
        "front": [{"trial": trial.number, **trial.metrics} for trial in tuning.front],
        "confirmation": confirmation,
        "files": files,
    }
    emit(arguments, document, _text(tuning, confirmation, files, time.monotonic() - started))


def _goal(arguments: argparse.Namespace) -> Goal:
    lost = arguments.at_most_lost
    if arguments.objectives is not None:
        return Goal(tuple(name.strip() for name in arguments.objectives.split(",")), lost, arguments.against)
    return Goal((arguments.minimise or "ip",), 1.0 if lost is None else lost, arguments.against)


def _place(storage: str | Path) -> str:
    return "a database" if is_url(storage) else str(storage)


def _write(out: Path, data: str, tuning: Tuning, effort: TuningEffort) -> list[str]:
    content = {
        "trials.csv": tuning.table().to_csv(index=False).encode(),
        "best.toml": best_file(data, tuning, effort).encode(),
        "front.png": draw_front(tuning),
        "importance.png": draw_importances(tuning),
    }
    for name, data_bytes in content.items():
        atomic_write(out / name, data_bytes)
    return [str(out / name) for name in content]


def _text(tuning: Tuning, confirmation: dict[str, Any] | None, files: Sequence[str], seconds: float) -> str:
    several = len(tuning.goal.objectives) > 1
    shown = tuning.front if several else [tuning.best]
    best = [trial for trial in shown if not trial.published][:_MOST_SHOWN]
    if tuning.best.number not in {trial.number for trial in [*best, tuning.published]}:
        best.append(tuning.best)
    parts = [
        f"{tuning.num_finished} trials in {duration(seconds)}, goal: {tuning.goal.describe()}.",
        f"Best on validation rows: {comparison(tuning)}.",
        aligned(_rows(tuning, best), numbers_from=1),
    ]
    if len(shown) > len(best) + 1:
        parts.append(f"… and {len(shown) - len(best)} more undominated trials; trials.csv has all.")
    if confirmation is not None:
        parts.append(_confirmed(confirmation))
    return "\n\n".join([*parts, f"Written: {', '.join(files)}."])


def _rows(tuning: Tuning, trials: Sequence[Trial]) -> list[list[str]]:
    """A column per model, the references first; measures, then settings."""
    columns = [tuning.published, *trials]
    names = ["published" if trial.published else f"trial {trial.number}" for trial in columns]
    names = [f"{n} *" if t.number == tuning.best.number else n for n, t in zip(names, columns, strict=True)]
    rows = [["* best", "conventional", *names]]
    for metric in METRICS:
        values = [tuning.conventional[metric], *(trial.metrics[metric] for trial in columns)]
        rows.append([metric, *(f"{value:.3f}" for value in values)])
    for setting in tuning.published.settings:
        chosen = [trial.settings[setting] for trial in columns]
        rows.append([setting, "", *(value if isinstance(value, str) else f"{value:.3g}" for value in chosen)])
    return rows


def _confirmed(confirmation: dict[str, Any]) -> str:
    rows = [["on test rows", *METRICS]]
    for name, means in confirmation["mean"].items():
        spread = confirmation["deviation"][name]
        rows.append([name, *(_spread(means[metric], spread[metric]) for metric in METRICS)])
    seeds, date = confirmation["seeds"], confirmation["date"]
    return f"{aligned(rows)}\nMean ± standard deviation over {seeds} new seeds; looked at once, {date}."


def _spread(mean: float | None, deviation: float | None) -> str:
    return "–" if mean is None or deviation is None else f"{mean:.3f} ± {deviation:.3f}"
