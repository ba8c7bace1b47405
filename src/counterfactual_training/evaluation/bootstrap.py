"""Uncertainty: bootstrap intervals over training seeds and individuals, tests, correction for many
tests.

Arrays hold one value per (training seed, individual), ``(S, N)``; NaN marks a value that does not
exist, such as the cost of an invalid counterfactual. Two models are compared on the same seeds and
individuals, cell by cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtr, stdtrit

from counterfactual_training.errors import InputError, check_name

Array = NDArray[np.float64]
Statistic = Literal["difference", "reduction"]

# Weights (resamples × individuals) that are in memory at once.
_BLOCK_VALUES = 2**21
# Statistics of the means of one or two models, and their gradients; the log ratio only for
# p-values.
_STATISTICS: dict[str, tuple[Callable[..., Any], Callable[..., tuple[Any, ...]]]] = {
    "mean": (lambda a: a, lambda a: (1.0,)),
    "difference": (lambda a, b: a - b, lambda a, b: (1.0, -1.0)),
    "reduction": (
        lambda a, b: 100 * (1 - np.divide(a, b)),
        lambda a, b: (np.divide(-100, b), np.divide(100 * a, b**2)),
    ),
    "log ratio": (lambda a, b: np.log(np.divide(a, b)), lambda a, b: (1 / a, -1 / b)),
}


class ConfidenceInterval(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """A number with its uncertainty, the confidence interval ``low … high``."""

    value: float
    low: float
    high: float
    p_value: (
        float  # two-sided, of the hypothesis that two models are equal; NaN for a single model
    )
    num_seeds: int  # S
    num_individuals: int  # N


class PublishedReduction(NamedTuple):
    """Reduction in % as the paper prints it: mean of ratios over rounds, their SD, and the
    asterisk.
    """

    reduction: float
    standard_deviation: float
    difference: ConfidenceInterval
    significant: bool


def percentile_interval(draws: ArrayLike, level: float = 0.95) -> ConfidenceInterval:
    """The central share ``level`` of the draws; NaN draws do not count, and without any draw both
    ends are NaN.
    """
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, got {level}.")
    values = np.asarray(draws, dtype=np.float64).ravel()
    values = values[~np.isnan(values)]
    if not len(values):
        return ConfidenceInterval(np.nan, np.nan)
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return ConfidenceInterval(float(low), float(high))


def bootstrap_mean(
    values: ArrayLike, rng: np.random.Generator, level: float = 0.95, num_resamples: int = 2000
) -> Estimate:
    """Mean over seeds and individuals ``(S, N)``, with an interval by :func:`compare`'s
    bootstrap.
    """
    return _estimate((_table(values),), "mean", rng, level, num_resamples)


def compare(
    values: ArrayLike,
    reference: ArrayLike,
    rng: np.random.Generator,
    statistic: Statistic = "reduction",
    level: float = 0.95,
    num_resamples: int = 2000,
) -> Estimate:
    """Two models, paired: ``difference`` = m − m_reference, or ``reduction`` = 100 (1 − m /
    m_reference) in %.

    m is the mean over all values of a model. The hierarchical bootstrap draws training seeds and
    individuals, each with replacement and the same for both models. With few seeds plain percentile
    intervals are too narrow: resampling shrinks the variance by (S − 1)/S, and Student's t has
    wider tails than the normal. Deviations are widened for both, with degrees of freedom after
    Satterthwaite.

    Individuals are assumed to be the same for all seeds; otherwise intervals are a little too wide.
    The p-value tests the difference, or for a reduction log(m / m_reference), by its bootstrap
    standard error and Student's t.

    Args:
        values, reference: ``(S, N)`` or, for one seed, ``(N,)``; NaN where a value does not exist.
        rng: randomness of the resamples.
    """
    check_name("statistic", statistic, get_args(Statistic))
    a = _table(values)
    b = _table(reference)
    if a.shape != b.shape:
        raise InputError(
            f"Paired models need the same seeds and individuals, got {a.shape} and {b.shape}."
        )
    return _estimate((a, b), statistic, rng, level, num_resamples)


def holm(p_values: Sequence[float] | Array) -> Array:
    """p-values adjusted for testing them all (Holm 1979); NaN stays NaN and is not counted as a
    test.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or bool(((p < 0) | (p > 1)).any()):
        raise InputError("Expected a list of p-values in [0, 1].")
    out = np.full_like(p, np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    # The smallest p times m, the next times m − 1, and so on; never below the one before.
    order = tested[np.argsort(p[tested], kind="stable")]
    steps = p[order] * np.arange(len(order), 0, -1)
    out[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return out


def published_reduction(
    rounds: ArrayLike, reference_rounds: ArrayLike, level: float = 0.99
) -> PublishedReduction:
    """The paper's inference over evaluation rounds j of one trained pair of models:

    ``100 (1 − mean_j m_j / b_j) ± 100 SD_j(m_j / b_j)``, with an asterisk if the interval of
    ``|m_j| − |b_j|`` over rounds excludes zero. It knows nothing of training variance. Rounds where
    either value is NaN are left out.
    """
    m = np.asarray(rounds, dtype=np.float64)
    b = np.asarray(reference_rounds, dtype=np.float64)
    if m.ndim != 1 or m.shape != b.shape:
        raise InputError(
            f"Expected one value per round for both models, got {m.shape} and {b.shape}."
        )
    measured = ~(np.isnan(m) | np.isnan(b))
    m = m[measured]
    b = b[measured]
    # A round whose reference is 0 gives an infinite ratio, not a warning.
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = m / b
    interval = percentile_interval(np.abs(m) - np.abs(b), level)
    if len(m):
        reduction = 100 * (1 - float(ratio.mean()))
    else:
        reduction = np.nan
    if len(m) > 1:
        spread = 100 * float(ratio.std(ddof=1))
    else:
        spread = np.nan
    return PublishedReduction(
        reduction, spread, interval, interval.low > 0 or interval.high < 0
    )


@np.errstate(divide="ignore", invalid="ignore")
def _estimate(
    tables: tuple[Array, ...],
    statistic: str,
    rng: np.random.Generator,
    level: float,
    num_resamples: int,
) -> Estimate:
    if num_resamples < 1:
        raise InputError(f"num_resamples must be positive, got {num_resamples}.")
    num_seeds, num_individuals = tables[0].shape
    # Nothing to average: no counterfactual of a model is valid.
    if any(np.isnan(table).all() for table in tables):
        return Estimate(np.nan, np.nan, np.nan, np.nan, num_seeds, num_individuals)
    means = [float(np.nanmean(table)) for table in tables]
    draws = _resampled_means(tables, rng, num_resamples)
    apply, _ = _STATISTICS[statistic]
    value = float(apply(*means))
    # Deviations around the estimate, not the draws themselves: they are widened below, the estimate
    # is not moved.
    deviations = apply(*draws) - value
    narrow, freedom = _correction(tables, means, statistic)
    tail = (1 - level) / 2
    # By how much wider Student's tails are than the normal's at this level.
    student = stdtrit(freedom, 1 - tail) / ndtri(1 - tail)
    low, high = percentile_interval(value + deviations * narrow * student, level)
    if len(tables) == 1:
        p_value = np.nan
    else:
        p_value = _p_value(tables, means, draws, statistic)
    return Estimate(value, low, high, p_value, num_seeds, num_individuals)


def _resampled_means(
    tables: tuple[Array, ...], rng: np.random.Generator, num_resamples: int
) -> list[Array]:
    """Means ``(num_resamples,)`` of each table under resampled seeds and individuals, the same for
    all tables.
    """
    num_seeds, num_individuals = tables[0].shape
    exists = [~np.isnan(table) for table in tables]
    block = max(1, _BLOCK_VALUES // num_individuals)
    parts: list[list[Array]] = [[] for _ in tables]
    for first in range(0, num_resamples, block):
        size = min(block, num_resamples - first)
        # A resampled mean is a mean weighted by counts: products of matrices instead of copies of
        # the table.
        seeds = _times_drawn(rng, size, num_seeds)
        individuals = _times_drawn(rng, size, num_individuals)
        for part, table, measured in zip(parts, tables, exists, strict=True):
            total = ((seeds @ np.where(measured, table, 0.0)) * individuals).sum(1)
            # Missing values count neither in the sum nor in the number, so that both are resampled
            # together.
            part.append(total / ((seeds @ measured.astype(np.float64)) * individuals).sum(1))
    return [np.concatenate(part) for part in parts]


def _times_drawn(rng: np.random.Generator, num_resamples: int, num_items: int) -> Array:
    """How often each of the items is drawn in each resample: ``(num_resamples, num_items)``."""
    drawn = rng.integers(num_items, size=(num_resamples, num_items))
    drawn += np.arange(num_resamples)[:, None] * num_items  # one bincount for all resamples
    counts = np.bincount(drawn.ravel(), minlength=num_resamples * num_items)
    return counts.reshape(num_resamples, num_items).astype(np.float64)


def _correction(
    tables: tuple[Array, ...], means: Sequence[float], statistic: str
) -> tuple[float, float]:
    """By how much resampled deviations are too narrow, and the degrees of freedom of the standard
    error.

    Both from the statistic's influence values ψ ``(S, N)``: its variance is var_s(mean_i ψ)/S +
    var_i(mean_s ψ)/N, of which resampling sees the shares (S − 1)/S and (N − 1)/N.
    """
    _, gradient = _STATISTICS[statistic]
    influence = np.zeros_like(tables[0])
    for table, mean, slope in zip(tables, means, gradient(*means), strict=True):
        measured = ~np.isnan(table)
        # The influence of a value on a mean over known values only, hence the division by their
        # share.
        influence += slope * np.where(measured, table - mean, 0.0) / measured.mean()
    variance = seen = uncertainty = 0.0
    for size, marginal in zip(
        influence.shape, (influence.mean(1), influence.mean(0)), strict=True
    ):
        if size > 1:
            part = float(marginal.var(ddof=1)) / size
            variance = variance + part
            seen = seen + part * (size - 1) / size
            # Satterthwaite: each part's own uncertainty, by the degrees of freedom it was estimated
            # with.
            uncertainty += part**2 / (size - 1)
    # All values are alike, or there is one: nothing to widen.
    if not variance > 0:
        return 1.0, np.inf
    return float(np.sqrt(variance / seen)), variance**2 / uncertainty


def _p_value(
    tables: tuple[Array, ...], means: Sequence[float], draws: Sequence[Array], statistic: str
) -> float:
    """Two-sided p-value of equal means; NaN where there is nothing to estimate a variance from."""
    if tables[0].size < 2:
        return np.nan
    # The log ratio treats both models alike: swapping them keeps p. It needs positive means in
    # every resample.
    positive = min(means) > 0 and all(float(np.nanmin(draw)) > 0 for draw in draws)
    if statistic == "reduction" and positive:
        tested = "log ratio"
    else:
        tested = "difference"
    # The spread of the draws is too small by the same factor as the interval.
    narrow, freedom = _correction(tables, means, tested)
    apply, _ = _STATISTICS[tested]
    value = float(apply(*means))
    error = float(np.nanstd(apply(*draws))) * narrow
    # Without any spread, equal means are surely equal and others surely not.
    if error == 0:
        if value == 0:
            return 1.0
        return 0.0
    return float(2 * stdtr(freedom, -abs(value) / error))


def _table(values: ArrayLike) -> Array:
    table = np.asarray(values, dtype=np.float64)
    if table.ndim == 1:
        table = table[None]
    if table.ndim != 2 or table.size == 0:
        raise InputError(
            f"Expected values (seeds, individuals), got an array of shape {table.shape}."
        )
    if bool(np.isinf(table).any()):
        raise InputError(f"{int(np.isinf(table).sum())} of {table.size} values are infinite.")
    return table
