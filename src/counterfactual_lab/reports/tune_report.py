"""The report of ``ct tune``: files, figures, and a text for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterfactual_lab.paper_data import ADVERSARIAL, CONVENTIONAL, CT
from counterfactual_lab.reports.style import COLOURS, drawn, panels
from counterfactual_lab.tuning import OBJECTIVES, Task, Tuning, TuningTrial
from counterfactual_lab.tuning.data_tasks import best_file
from counterfactual_lab.tuning.goal import Target, excess
from counterfactual_lab.tuning.tuner import comparison
from counterfactual_training.evaluation.metrics import METRICS
from counterfactual_training.tables.estimators.validation import MEASURED
from counterfactual_training.tables.pages.files import write_files
from counterfactual_training.text import duration
from counterfactual_training.text_table import NOTHING, ruled

_MOST_SHOWN = 10
_FRONT = COLOURS[CT]
_BEST = COLOURS[ADVERSARIAL]
_MOST_SETTINGS = 12


def write_tuning(tuning: Tuning, data: str | None, task: Task, folder: str | Path) -> list[str]:
    """Write all trials, the best setting as a grid file, and two figures, as ``ct tune`` does;
    returns the paths.

    Args:
        data: name of the data set; a table has none, and no grid file.
        task: what was tuned; ``best.toml`` repeats it.
    """
    texts = {"trials.csv": tuning.table().to_csv(index=False)}
    if data is not None:
        texts["best.toml"] = best_file(data, task, tuning)
    figures = {"front.png": draw_front(tuning), "importance.png": draw_importances(tuning)}
    return write_files(folder, {**texts, **figures})


def tuning_text(tuning: Tuning, confirmation: Mapping[str, Any] | None, seconds: float) -> str:
    """The best trials beside conventional and published settings; then, if given, what test rows
    say.
    """
    if len(tuning.goal.objectives) > 1:
        shown = tuning.front
    else:
        shown = [tuning.best]
    best = [trial for trial in shown if not trial.published][:_MOST_SHOWN]
    if tuning.best.number not in {trial.number for trial in [*best, tuning.published]}:
        best.append(tuning.best)
    parts = [
        f"{tuning.num_finished} trials in {duration(seconds)}, goal: {tuning.goal.describe()}.",
        f"Best on validation rows: {comparison(tuning)}.",
        ruled(_rows(tuning, best), num_left=1),
    ]
    if len(shown) > len(best) + 1:
        parts.append(
            f"… and {len(shown) - len(best)} more undominated trials; trials.csv has all."
        )
    if confirmation is not None:
        parts.append(_confirmed(confirmation))
    return "\n\n".join(parts)


def _rows(tuning: Tuning, trials: Sequence[TuningTrial]) -> list[list[str]]:
    """A column per model, the references first; a row per metric, then per setting."""
    columns = [tuning.published, *trials]
    rows = [["* best", "conventional"]]
    for trial in columns:
        if trial.published:
            name = "published"
        else:
            name = f"trial {trial.number}"
        rows[0].append(f"{name} *" if trial.number == tuning.best.number else name)
    for metric in MEASURED:
        values = [tuning.conventional[metric], *(trial.metrics[metric] for trial in columns)]
        rows.append([metric, *(f"{value:.3f}" for value in values)])
    for setting in tuning.published.settings:
        chosen = [trial.settings[setting] for trial in columns]
        rows.append(
            [
                setting,
                "",
                *(value if isinstance(value, str) else f"{value:.3g}" for value in chosen),
            ]
        )
    return rows


def _confirmed(confirmation: Mapping[str, Any]) -> str:
    rows = [["on test rows", *MEASURED]]
    for name, means in confirmation["mean"].items():
        both = [(means[metric], confirmation["deviation"][name][metric]) for metric in MEASURED]
        rows.append(
            [
                name,
                *(
                    NOTHING if None in pair else "{:.3f} ± {:.3f}".format(*pair)
                    for pair in both
                ),
            ]
        )
    seeds = confirmation["seeds"]
    date = confirmation["date"]
    return (
        f"{ruled(rows)}\nMean ± standard deviation over {seeds} new seeds; the test rows were "
        f"used once, on {date}."
    )


@drawn
def draw_front(tuning: Tuning) -> Any:
    """Every measured trial: the first objective against each other one, or against accuracy if it
    is the only one.
    """
    first, *rest = tuning.goal.targets
    others = rest or [OBJECTIVES["accuracy" if first.metric != "accuracy" else "ip"]]
    figure, axes = panels(
        len(others), columns=3, width=3.6 if len(others) > 1 else 5.0, height=3.2
    )
    for axis, other in zip(axes, others, strict=True):
        _scatter(axis, tuning, other, first)
        if other.metric == "accuracy" and tuning.limits.accuracy > 0:
            axis.axvline(
                tuning.limits.accuracy,
                color="#a03030",
                linewidth=1,
                linestyle=":",
                label="accuracy to keep",
            )
    return figure


def _scatter(axis: Any, tuning: Tuning, x: Target, y: Target) -> None:
    def points(trials: Sequence[TuningTrial]) -> list[list[float]]:
        return [[trial.metrics[target.metric] for trial in trials] for target in (x, y)]

    missed = [trial for trial in tuning.complete if excess(trial.violations) > 0]
    allowed = [trial for trial in tuning.complete if excess(trial.violations) == 0]
    for trials, colour, label in (
        (missed, "#d5c4c4", "misses a bound"),
        (allowed, "#9db8d6", "trial"),
    ):
        if trials:
            axis.scatter(
                *points(trials), s=16, color=colour, linewidths=0, label=label, zorder=2
            )
    if len(tuning.goal.objectives) > 1:
        axis.plot(
            *points(tuning.front),
            "o",
            color=_FRONT,
            markersize=4.5,
            label="undominated",
            zorder=3,
        )
    conventional = tuning.conventional[x.metric], tuning.conventional[y.metric]
    axis.plot(
        *conventional,
        "s",
        color=COLOURS[CONVENTIONAL],
        markersize=6,
        label="conventional",
        zorder=4,
    )
    axis.plot(
        *points([tuning.published]),
        "D",
        color="black",
        markersize=6,
        label="published",
        zorder=5,
    )
    star = {"color": _BEST, "markersize": 13, "markeredgecolor": "black"}
    axis.plot(*points([tuning.best]), "*", label="chosen", zorder=6, **star)
    axis.set_xlabel(f"{METRICS[x.metric].words} {'(← better)' if x.sign > 0 else '(better →)'}")
    axis.set_ylabel(
        f"{METRICS[y.metric].words} ({'lower' if y.sign > 0 else 'higher'} is better)"
    )


@drawn
def draw_importances(tuning: Tuning) -> Any:
    """For each objective, the share of its variance over trials that each setting explains."""
    explained = [
        both for both in zip(tuning.goal.targets, tuning.importances, strict=True) if both[1]
    ]
    figure, axes = panels(
        max(1, len(explained)),
        columns=4,
        width=3.0 if len(explained) > 1 else 5.0,
        height=3.0,
        sharey=True,
    )
    if not explained:
        axes[0].text(
            0.5,
            0.5,
            "too few trials to tell",
            ha="center",
            va="center",
            transform=axes[0].transAxes,
        )
        axes[0].set_axis_off()
        return figure
    total = {
        name: sum(shares.get(name, 0.0) for _, shares in explained) for name in explained[0][1]
    }
    names = sorted(total, key=lambda name: total[name])[-_MOST_SETTINGS:]
    for axis, (target, shares) in zip(axes, explained, strict=True):
        axis.barh(names, [shares.get(name, 0.0) for name in names], color=_FRONT, height=0.65)
        axis.set_title(METRICS[target.metric].words)
        axis.set_xlabel("share of the variance")
        axis.grid(axis="y", visible=False)
    return figure
