"""Bootstrap over people, for all measures of a group at once.

A measure is a function of sums over people, and most people add the same to every sum: all who are
not denied, and all who are denied but not explained. People who are alike are drawn together, by
one multinomial draw, so that a group of a hundred thousand costs no more than the people who were
explained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from counterfactual_training.evaluation.bootstrap import percentile_interval
from counterfactual_training.tables.audits.groups import Grouping
from counterfactual_training.tables.audits.measures import Measure
from counterfactual_training.tables.audits.people import ModelAdvice

FEW = 10
# Widths below this are noise of the arithmetic.
_NO_WIDTH = 1e-12
# Counts (resamples × people) that are in memory at once.
_BLOCK = 2**22
# Draws of each measure by (model, group, measure), and its estimate.
Draws = dict[tuple[int, int, str], tuple[float, np.ndarray]]


def resample(terms: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Sums ``(resamples, q)`` of ``terms`` ``(n, q)`` over n people drawn with replacement."""
    alike, counts = np.unique(terms, axis=0, return_counts=True)
    share = counts / counts.sum()
    block = max(1, _BLOCK // len(alike))
    sizes = [min(block, resamples - first) for first in range(0, resamples, block)]
    return np.concatenate(
        [rng.multinomial(len(terms), share, size=size) @ alike for size in sizes]
    )


def draw_measures(
    models: Sequence[ModelAdvice],
    grouping: Grouping,
    measures: Sequence[Measure],
    resamples: int,
    rng: np.random.Generator,
) -> Draws:
    """Every measure of every model and group: estimate and draws ``(resamples,)``."""
    pairs = [
        advice.terms(models[1 - i] if len(models) > 1 else None)
        for i, advice in enumerate(models)
    ]
    names = list(pairs[0])
    table = np.concatenate(
        [np.stack([terms[name] for name in names], axis=1) for terms in pairs], axis=1
    )
    results: Draws = {}
    for group in range(len(grouping.names)):
        part = table[grouping.codes == group]
        sums = part.sum(0, keepdims=True)
        drawn = resample(part, resamples, rng)
        for i, advice in enumerate(models):
            columns = slice(i * len(names), (i + 1) * len(names))
            exact = dict(zip(names, sums[:, columns].T, strict=True))
            draws = dict(zip(names, drawn[:, columns].T, strict=True))
            m = len(advice.subject.schema.names)
            for measure in measures:
                value = float(measure.value(exact, m)[0])
                resampled = measure.value(draws, m)
                if measure.id == "implausible" and not advice.gated:
                    value = np.nan  # not none, but not judged
                if measure.unit == "share" and value in (0.0, 1.0):
                    resampled = _near_bound(
                        value, num_counted(models, i, grouping, group, measure), resamples, rng
                    )
                results[i, group, measure.id] = (value, resampled)
    return results


def _near_bound(value: float, n: int, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Draws of a share that is none or all of n people: Beta(1, n) away from it.

    Resampling people who are all alike would never draw another share, however few they are. The
    quantiles of this Beta are the exact binomial bounds.
    """
    away = rng.beta(1.0, max(n, 1), size=resamples)
    if value == 0:
        return away
    return 1.0 - away


def num_counted(
    models: Sequence[ModelAdvice], model: int, grouping: Grouping, group: int, measure: Measure
) -> int:
    """The n of a measure."""
    advice = models[model]
    if measure.counted == "both":
        mask = advice.both(models[1 - model])
    else:
        mask = getattr(advice, measure.counted)
    return int(mask[grouping.codes == group].sum())


def estimate(value: float, draws: np.ndarray, level: float) -> dict[str, float]:
    """A value with the percentile interval of its draws; without a value, none."""
    if np.isnan(value):
        return {"value": np.nan, "low": np.nan, "high": np.nan}
    return holding(value, *percentile_interval(draws, level))


def holding(value: float, low: float, high: float) -> dict[str, float]:
    """The interval, which reaches at least to the value.

    Draws near a bound lie on one side of it: all denied in one group and nobody in another is a gap
    of 100 points, which no draw exceeds and none reaches.
    """
    return {
        "value": value,
        "low": float(np.minimum(low, value)),
        "high": float(np.maximum(high, value)),
    }


def opened(interval: dict[str, float], n: int, level: float) -> dict[str, float]:
    """The interval of a share; of none or all of n people, up to the exact binomial bound."""
    if n and interval["value"] in (0.0, 1.0):
        width = 1 - ((1 - level) / 2) ** (1 / n)
        if interval["value"] == 0:
            low = 0.0
            high = width
        else:
            low = 1 - width
            high = 1.0
        return {"value": interval["value"], "low": low, "high": high}
    return interval


def parted(interval: dict[str, float], n: int, level: float) -> dict[str, float]:
    """The interval of a difference of two shares of the same n people; open, where both models
    decide all n alike.

    No resample of them holds anybody whom the models part. Either may be the one that denies such
    people, so the exact binomial bound of none in n opens the interval to both sides.
    """
    if n and interval["high"] - interval["low"] < _NO_WIDTH:
        width = 1 - ((1 - level) / 2) ** (1 / n)
        value = interval["value"]
        return {
            "value": value,
            "low": max(-1.0, value - width),
            "high": min(1.0, value + width),
        }
    return interval


def is_clear(interval: Mapping[str, float]) -> bool:
    """Whether an interval excludes zero."""
    return bool(interval["low"] > 0 or interval["high"] < 0)


def gap(
    draws: Draws, model: int, measure: Measure, usable: Sequence[int], level: float
) -> dict[str, Any] | None:
    """The largest difference between two groups (Gupta et al.), with an interval, or ``None``.

    The pair is the one that differs most in the estimates; the interval is of this pair's
    difference, so it can include zero, and it is widened for having picked one of g(g−1)/2 pairs
    (Bonferroni).
    """
    measured = [group for group in usable if not np.isnan(draws[model, group, measure.id][0])]
    if len(measured) < 2 or not measure.compared:
        return None
    values = [draws[model, group, measure.id][0] for group in measured]
    if min(values) == max(values):
        return None
    high = measured[int(np.argmax(values))]
    low = measured[int(np.argmin(values))]
    tail = (1 - level) / (len(measured) * (len(measured) - 1) / 2)
    (top, above), (bottom, below) = (
        draws[model, high, measure.id],
        draws[model, low, measure.id],
    )
    interval = estimate(top - bottom, above - below, 1 - tail)
    return {"highest": high, "lowest": low, **interval, "clear": is_clear(interval)}
