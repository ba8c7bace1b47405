"""Intervals that cover, tests that keep their level, and Holm by hand."""

import numpy as np
import pytest
from scipy.special import stdtrit

from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.bootstrap import (
    bootstrap_mean,
    compare,
    holm,
    percentile_interval,
    published_reduction,
)


def simulated(rng, num_seeds=5, num_individuals=40, mean=5.0, missing=0.1):
    """Values with a seed effect, an individual effect and noise, some of them absent."""
    values = mean + rng.normal(size=(num_seeds, 1)) + rng.normal(size=(1, num_individuals))
    values = values + rng.normal(size=(num_seeds, num_individuals))
    values[rng.random(values.shape) < missing] = np.nan
    return values


def test_percentile_interval():
    assert percentile_interval(np.arange(101), 0.9) == pytest.approx((5.0, 95.0))
    assert percentile_interval([1.0, np.nan, 1.0]) == (1.0, 1.0)
    assert all(np.isnan(percentile_interval([np.nan])))


def test_intervals_cover_and_plain_percentiles_of_five_seeds_do_not():
    rng = np.random.default_rng(0)
    rounds, covered, plain = 600, 0, 0
    for _ in range(rounds):
        values = simulated(rng)
        estimate = bootstrap_mean(values, rng, num_resamples=300)
        covered += estimate.low <= 5 <= estimate.high
        seed_means = np.nanmean(values, 1)
        draws = seed_means[rng.integers(5, size=(300, 5))].mean(1)
        low, high = percentile_interval(draws)
        plain += low <= 5 <= high
    assert 0.91 <= covered / rounds <= 0.98
    assert plain / rounds < covered / rounds - 0.08


@pytest.mark.parametrize("statistic", ["difference", "reduction"])
def test_equal_models_are_rarely_called_different(statistic):
    rng = np.random.default_rng(1)
    rounds, rejected, excluded = 300, 0, 0
    for _ in range(rounds):
        shared = simulated(rng, missing=0.0)
        a, b = (
            shared + rng.normal(size=(5, 1)) + rng.normal(size=shared.shape) for _ in range(2)
        )
        estimate = compare(a, b, rng, statistic, num_resamples=300)
        rejected += estimate.p_value < 0.05
        excluded += not estimate.low <= 0 <= estimate.high
    assert 0.015 <= rejected / rounds <= 0.085
    assert 0.015 <= excluded / rounds <= 0.095


def test_a_real_effect_is_found_because_models_are_paired():
    rng = np.random.default_rng(2)
    baseline = 10 + 5 * rng.normal(size=(1, 200)) + 0.1 * rng.normal(size=(5, 200))
    better = 0.9 * baseline
    estimate = compare(better, baseline, rng)
    assert estimate.value == pytest.approx(10.0)
    assert estimate.p_value < 0.001
    assert 9 < estimate.low <= 10 <= estimate.high < 11
    shuffled = compare(rng.permuted(better, axis=1), baseline, rng, "difference")
    assert shuffled.high - shuffled.low > 1.5 * (lambda e: e.high - e.low)(
        compare(better, baseline, rng, "difference")
    )


def test_difference_and_reduction_by_hand():
    rng = np.random.default_rng(0)
    a, b = np.array([[1.0, 2.0], [3.0, np.nan]]), np.array([[4.0, 4.0], [4.0, 4.0]])
    assert compare(a, b, rng, "difference").value == pytest.approx(-2.0)
    estimate = compare(a, b, rng, "reduction")
    assert estimate.value == pytest.approx(50.0)
    assert (estimate.num_seeds, estimate.num_individuals) == (2, 2)


def test_few_seeds_widen_the_interval():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(8, 1)) + 0.01 * rng.normal(size=(8, 50))
    for s in (
        3,
        8,
    ):  # seeds dominate, so the interval is near Student's with s − 1 degrees of freedom
        estimate, means = (
            bootstrap_mean(values[:s], np.random.default_rng(0)),
            values[:s].mean(1),
        )
        student = stdtrit(s - 1, 0.975) * means.std(ddof=1) / np.sqrt(s)
        assert (estimate.high - estimate.low) / 2 == pytest.approx(student, rel=0.1)


def test_one_seed_still_has_an_interval_over_individuals():
    estimate = bootstrap_mean(np.arange(30.0), np.random.default_rng(0))
    assert estimate.num_seeds == 1
    assert estimate.low < estimate.value == 14.5 < estimate.high
    assert np.isnan(estimate.p_value)


def test_same_seed_same_interval():
    values = simulated(np.random.default_rng(0))
    first, again = (bootstrap_mean(values, np.random.default_rng(1)) for _ in range(2))
    assert (first.low, first.high) == (again.low, again.high)


def test_nothing_valid_gives_nan():
    rng = np.random.default_rng(0)
    estimate = compare(np.full((2, 3), np.nan), np.ones((2, 3)), rng)
    assert np.isnan(estimate.value)
    assert np.isnan(estimate.low)
    assert np.isnan(estimate.p_value)


def test_without_variance():
    rng = np.random.default_rng(0)
    assert compare(np.ones((3, 4)), np.ones((3, 4)), rng, "difference").p_value == 1
    estimate = compare(np.ones((3, 4)), np.full((3, 4), 2.0), rng)
    assert (estimate.low, estimate.high, estimate.p_value) == (50, 50, 0)
    assert np.isnan(compare([[1.0]], [[2.0]], rng).p_value)


def test_holm_by_hand():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.01, np.nan, 0.6, 0.7]), [0.03, np.nan, 1.0, 1.0])
    assert len(holm([])) == 0


def test_published_reduction_by_hand():
    result = published_reduction([1.0, 3.0, np.nan, 3.0], [2.0, 2.0, 2.0, 4.0])
    assert result.reduction == pytest.approx(100 * (1 - np.mean([0.5, 1.5, 0.75])))
    assert result.standard_deviation == pytest.approx(100 * np.std([0.5, 1.5, 0.75], ddof=1))
    assert not result.significant
    assert published_reduction([1.0, 1.1], [2.0, 2.0]).significant
    assert np.isnan(published_reduction([], []).reduction)


def test_bad_input():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="same seeds and individuals"):
        compare(np.ones((2, 3)), np.ones((2, 4)), rng)
    with pytest.raises(InputError, match="Did you mean 'reduction'"):
        compare(np.ones((2, 3)), np.ones((2, 3)), rng, "reductions")
    with pytest.raises(InputError, match="infinite"):
        bootstrap_mean([1.0, np.inf], rng)
    with pytest.raises(InputError, match="seeds, individuals"):
        bootstrap_mean(np.ones((2, 2, 2)), rng)
    with pytest.raises(InputError, match="level"):
        bootstrap_mean([1.0, 2.0], rng, level=95)
    with pytest.raises(InputError, match="num_resamples"):
        bootstrap_mean([1.0, 2.0], rng, num_resamples=0)
    with pytest.raises(InputError, match="p-values"):
        holm([0.5, 1.5])
    with pytest.raises(InputError, match="per round"):
        published_reduction([1.0], [1.0, 2.0])


def test_the_p_value_of_two_seeds_is_not_made_too_small_by_resampling():
    """Two seeds: resampling sees half the variance between seeds. By hand: t = 3 / 1 with one
    degree of freedom.
    """
    effect = np.array([[2.0], [4.0]]) + np.zeros((1, 50))
    estimate = compare(
        effect, np.zeros((2, 50)), np.random.default_rng(0), "difference", num_resamples=20_000
    )
    assert estimate.p_value == pytest.approx(2 * (0.5 - np.arctan(3.0) / np.pi), rel=0.02)


def test_a_reduction_is_tested_as_a_ratio():
    """Every seed halves; on the scale of differences the seeds disagree because their baselines lie
    far apart.
    """
    rng = np.random.default_rng(3)
    baseline = np.array([1.0, 2.0, 4.0, 8.0, 16.0])[:, None] * np.exp(
        0.01 * rng.normal(size=(5, 100))
    )
    half = 0.5 * baseline * np.exp(0.01 * rng.normal(size=(5, 1)))
    ratio, swapped = (
        compare(half, baseline, np.random.default_rng(0)),
        compare(baseline, half, np.random.default_rng(0)),
    )
    assert (
        ratio.p_value
        < 1e-4
        < 0.01
        < compare(half, baseline, np.random.default_rng(0), "difference").p_value
    )
    assert ratio.p_value == pytest.approx(swapped.p_value, rel=1e-6)
