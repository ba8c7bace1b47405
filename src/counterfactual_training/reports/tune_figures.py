"""Figures of a study: the trade-off between objectives, and the importance of each setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterfactual_training.reports.style import COLOURS, drawn, panels
from counterfactual_training.tuning import OBJECTIVES, Tuning, TuningTrial
from counterfactual_training.tuning.goal import Target, excess

_LABELS = {
    "implausibility": "implausibility (IP)",
    "cost": "cost",
    "accuracy": "accuracy",
    "robust_accuracy": "accuracy under attack",
}
_FRONT, _BEST = COLOURS["full"], COLOURS["adversarial"]
_MOST_SETTINGS = 12


@drawn
def draw_front(tuning: Tuning) -> Any:
    """Every measured trial: the first objective against each other one, or against accuracy if it is the only one."""
    first, *rest = tuning.goal.targets
    others = rest or [OBJECTIVES["accuracy" if first.metric != "accuracy" else "ip"]]
    figure, axes = panels(len(others), columns=3, width=3.6 if len(others) > 1 else 5.0, height=3.2)
    for axis, other in zip(axes, others, strict=True):
        _scatter(axis, tuning, other, first)
        if other.metric == "accuracy" and tuning.limits.accuracy > 0:
            axis.axvline(tuning.limits.accuracy, color="#a03030", linewidth=1, linestyle=":", label="accuracy to keep")
    return figure


def _scatter(axis: Any, tuning: Tuning, x: Target, y: Target) -> None:
    def points(trials: Sequence[TuningTrial]) -> list[list[float]]:
        return [[trial.metrics[target.metric] for trial in trials] for target in (x, y)]

    missed = [trial for trial in tuning.complete if excess(trial.violations) > 0]
    allowed = [trial for trial in tuning.complete if excess(trial.violations) == 0]
    for trials, colour, label in ((missed, "#d5c4c4", "misses a bound"), (allowed, "#9db8d6", "trial")):
        if trials:
            axis.scatter(*points(trials), s=16, color=colour, linewidths=0, label=label, zorder=2)
    if len(tuning.goal.objectives) > 1:
        axis.plot(*points(tuning.front), "o", color=_FRONT, markersize=4.5, label="undominated", zorder=3)
    conventional = tuning.conventional[x.metric], tuning.conventional[y.metric]
    axis.plot(*conventional, "s", color=COLOURS["vanilla"], markersize=6, label="conventional", zorder=4)
    axis.plot(*points([tuning.published]), "D", color="black", markersize=6, label="published", zorder=5)
    star = {"color": _BEST, "markersize": 13, "markeredgecolor": "black"}
    axis.plot(*points([tuning.best]), "*", label="chosen", zorder=6, **star)
    axis.set_xlabel(f"{_LABELS[x.metric]} {'(← better)' if x.sign > 0 else '(better →)'}")
    axis.set_ylabel(f"{_LABELS[y.metric]} ({'lower' if y.sign > 0 else 'higher'} is better)")


@drawn
def draw_importances(tuning: Tuning) -> Any:
    """For each objective, the share of its variance over trials that each setting explains."""
    known = [both for both in zip(tuning.goal.targets, tuning.importances, strict=True) if both[1]]
    figure, axes = panels(max(1, len(known)), columns=4, width=3.0 if len(known) > 1 else 5.0, height=3.0, sharey=True)
    if not known:
        axes[0].text(0.5, 0.5, "too few trials to tell", ha="center", va="center", transform=axes[0].transAxes)
        axes[0].set_axis_off()
        return figure
    total = {name: sum(shares.get(name, 0.0) for _, shares in known) for name in known[0][1]}
    names = sorted(total, key=lambda name: total[name])[-_MOST_SETTINGS:]
    for axis, (target, shares) in zip(axes, known, strict=True):
        axis.barh(names, [shares.get(name, 0.0) for name in names], color=_FRONT, height=0.65)
        axis.set_title(_LABELS[target.metric])
        axis.set_xlabel("share of the variance")
        axis.grid(axis="y", visible=False)
    return figure
