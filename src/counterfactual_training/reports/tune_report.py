"""The report of ``ct tune``: files, and a text for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterfactual_training.experiments.tune import TuningEffort, best_file
from counterfactual_training.reports.files import write_files
from counterfactual_training.reports.text_table import NOTHING, ruled
from counterfactual_training.reports.tune_figures import draw_front, draw_importances
from counterfactual_training.text import duration
from counterfactual_training.tuning import METRICS, Tuning, TuningTrial
from counterfactual_training.tuning.status import comparison

_MOST_SHOWN = 10


def write_tuning(tuning: Tuning, data: str, effort: TuningEffort, folder: str | Path) -> list[str]:
    """Write all trials, the best setting as a grid file, and two figures, as ``ct tune`` does; returns the paths.

    Args:
        data: name of the data set.
        effort: how trials were trained; ``best.toml`` repeats it.
    """
    files: dict[str, str | bytes] = {
        "trials.csv": tuning.table().to_csv(index=False),
        "best.toml": best_file(data, tuning, effort),
        "front.png": draw_front(tuning),
        "importance.png": draw_importances(tuning),
    }
    return write_files(folder, files)


def tuning_text(tuning: Tuning, confirmation: Mapping[str, Any] | None, seconds: float) -> str:
    """The best trials beside conventional and published settings; then, if given, what test rows say."""
    shown = tuning.front if len(tuning.goal.objectives) > 1 else [tuning.best]
    best = [trial for trial in shown if not trial.published][:_MOST_SHOWN]
    if tuning.best.number not in {trial.number for trial in [*best, tuning.published]}:
        best.append(tuning.best)
    parts = [
        f"{tuning.num_finished} trials in {duration(seconds)}, goal: {tuning.goal.describe()}.",
        f"Best on validation rows: {comparison(tuning)}.",
        ruled(_rows(tuning, best), num_left=1),
    ]
    if len(shown) > len(best) + 1:
        parts.append(f"… and {len(shown) - len(best)} more undominated trials; trials.csv has all.")
    if confirmation is not None:
        parts.append(_confirmed(confirmation))
    return "\n\n".join(parts)


def _rows(tuning: Tuning, trials: Sequence[TuningTrial]) -> list[list[str]]:
    """A column per model, the references first; a row per metric, then per setting."""
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


def _confirmed(confirmation: Mapping[str, Any]) -> str:
    rows = [["on test rows", *METRICS]]
    for name, means in confirmation["mean"].items():
        spread = confirmation["deviation"][name]
        rows.append([name, *(_plus_minus(means[metric], spread[metric]) for metric in METRICS)])
    seeds, date = confirmation["seeds"], confirmation["date"]
    return f"{ruled(rows)}\nMean ± standard deviation over {seeds} new seeds; the test rows were used once, on {date}."


def _plus_minus(mean: float | None, deviation: float | None) -> str:
    return NOTHING if mean is None or deviation is None else f"{mean:.3f} ± {deviation:.3f}"
