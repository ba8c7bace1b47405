"""Numbers of groups: by hand, against fairlearn's MetricFrame, weighted samples, and intervals that
cover.
"""

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.evaluation.bootstrap import percentile_interval
from counterfactual_training.tables.audits import MEASURES
from counterfactual_training.tables.audits.groups import Grouping, everybody
from counterfactual_training.tables.audits.intervals import (
    draw_measures,
    estimate,
    gap,
    holding,
    is_clear,
    parted,
)
from counterfactual_training.tables.audits.people import draw, strata

BY_ID = {measure.id: measure for measure in MEASURES}
# Two groups of four; in the second somebody has no recourse.
GROUPS = Grouping("g", "categories", np.array([0, 0, 0, 0, 1, 1, 1, 1]), ("a", "b"), ("g",))
DENIED = [1, 1, 1, 0, 1, 1, 0, 0]
DESERVING = [1, 0, 1, 1, 1, 1, 1, 0]
COST = [2.0, 4.0, 6.0, 0, 3.0, 99.0, 0, 0]
STUCK = [0, 0, 0, 0, 0, 1, 0, 0]


def values(people, grouping=GROUPS):
    """Estimates by measure and group."""
    found = draw_measures([people], grouping, MEASURES, 20, np.random.default_rng(0))
    return {(name, grouping.names[g]): value for (_, g, name), (value, _) in found.items()}


def test_formulas_by_hand(told):
    found = values(told(DENIED, DESERVING, COST, STUCK, columns=4))
    assert found["denied", "a"] == 3 / 4 and found["denied", "b"] == 2 / 4
    assert found["burden", "a"] == 4.0 and found["burden", "b"] == 3.0
    assert found["no_recourse", "a"] == 0 and found["no_recourse", "b"] == 1 / 2
    assert found["false_negatives", "a"] == pytest.approx(2 / 3) and found[
        "false_negatives", "b"
    ] == pytest.approx(2 / 3)
    # Σ cost · 1[denied, deserving]; who has no recourse has no cost.
    assert found["social_burden", "a"] == pytest.approx(8.0) and found[
        "social_burden", "b"
    ] == pytest.approx(3.0)
    assert found["social_burden_per_person", "a"] == pytest.approx(2.0)
    # False-negative ratio times the mean cost of false negatives per column.
    assert found["nawb", "a"] == pytest.approx(2 / 3 * 4.0 / 4)
    assert found["nawb", "b"] == pytest.approx(2 / 3 * 3.0 / 4)


def test_nobody_wrongly_denied_is_no_burden(told):
    found = values(told([1, 0], [0, 1], [1.0, 0.0]), everybody(2))
    assert found["nawb", "everybody"] == 0 and found["social_burden", "everybody"] == 0


def test_burden_of_the_same_people_leaves_out_whom_one_model_helps_alone(told):
    one, other = (
        told([1, 1, 0], [0, 0, 0], [2.0, 8.0, 0]),
        told([1, 0, 1], [0, 0, 0], [5.0, 0, 1.0]),
    )
    found = draw_measures(
        [one, other], everybody(3), [BY_ID["burden_same"]], 5, np.random.default_rng(0)
    )
    assert found[0, 0, "burden_same"][0] == 2.0 and found[1, 0, "burden_same"][0] == 5.0


@pytest.mark.check
def test_groups_equal_those_of_fairlearn(told):
    metrics = pytest.importorskip("fairlearn.metrics")
    rng = np.random.default_rng(3)
    n = 500
    codes, denied, deserving = rng.integers(0, 3, n), rng.random(n) < 0.6, rng.random(n) < 0.5
    cost, stuck = rng.gamma(2, 1, n), rng.random(n) < 0.2
    grouping = Grouping("g", "categories", codes, ("a", "b", "c"), ("g",))
    found = values(told(denied, deserving, cost, stuck & denied), grouping)
    names = np.array(grouping.names)[codes]

    def by_group(metric, mask=slice(None), said=~denied):
        frame = metrics.MetricFrame(
            metrics=metric,
            y_true=deserving[mask],
            y_pred=said[mask],
            sensitive_features=names[mask],
        )
        return frame.by_group.to_dict()

    assert_same(found, "denied", by_group(lambda y, said: 1 - metrics.selection_rate(y, said)))
    assert_same(found, "false_negatives", by_group(metrics.false_negative_rate))
    helped = denied & ~stuck
    assert_same(found, "burden", by_group(metrics.mean_prediction, helped, cost))
    assert_same(
        found, "no_recourse", by_group(metrics.mean_prediction, denied, stuck.astype(float))
    )
    gaps = draw_measures(
        [told(denied, deserving, cost, stuck & denied)], grouping, [BY_ID["burden"]], 5, rng
    )
    frame = metrics.MetricFrame(
        metrics=metrics.mean_prediction,
        y_true=deserving[helped],
        y_pred=cost[helped],
        sensitive_features=names[helped],
    )
    assert gap(gaps, 0, BY_ID["burden"], [0, 1, 2], 0.95)["value"] == pytest.approx(
        frame.difference("between_groups")
    )


def assert_same(found, measure, expected):
    assert {group: found[measure, group] for group in expected} == pytest.approx(expected)


# ---- who is explained ----------------------------------------------------------------------------


def test_a_sample_keeps_small_groups_and_weighs_everybody():
    denied = np.ones(5000, dtype=bool)
    codes = np.r_[np.zeros(4980, dtype=int), np.ones(20, dtype=int)]
    chosen, weight = draw(denied, strata([codes]), 100, seed=0)
    assert len(chosen) <= 100
    assert (codes[chosen] == 1).sum() == 20
    assert weight.sum() == pytest.approx(5000)
    assert weight[codes == 1].sum() == pytest.approx(20)


def test_everybody_is_explained_below_the_cap():
    denied = np.array([1, 0, 1, 1], dtype=bool)
    chosen, weight = draw(denied, np.zeros(4, dtype=int), 10, seed=0)
    assert chosen.tolist() == [0, 2, 3] and weight.tolist() == [1, 0, 1, 1]


def test_two_models_explain_the_same_people_where_they_can():
    rng = np.random.default_rng(0)
    first = rng.random(2000) < 0.8
    second = first ^ (rng.random(2000) < 0.05)
    stratum = np.zeros(2000, dtype=int)
    (one, _), (other, _) = draw(first, stratum, 300, 0), draw(second, stratum, 300, 0)
    assert len(np.intersect1d(one, other)) > 260


def test_a_weighted_sample_estimates_what_all_would_give(told):
    rng = np.random.default_rng(0)
    n = 3000
    codes = (rng.random(n) < 0.05).astype(int)
    cost = rng.gamma(2, 1, n) + 3 * codes
    errors = []
    for seed in range(20):
        _, weight = draw(np.ones(n, dtype=bool), strata([codes]), 200, seed)
        sample = told(np.ones(n), np.zeros(n), cost, weight=weight)
        errors.append(values(sample, everybody(n))["burden", "everybody"] - cost.mean())
    # Half of the sample is from a twentieth of the people; unweighted, it would be too dear by
    # about 1.3.
    assert abs(np.mean(errors)) < 0.1


# ---- intervals -----------------------------------------------------------------------------------


def test_intervals_cover(told):
    rng = np.random.default_rng(0)
    hits = {"burden": 0, "denied": 0}
    for _ in range(120):
        denied = rng.random(150) < 0.4
        people = told(denied, np.zeros(150), rng.gamma(2.0, 1.5, 150))
        found = draw_measures(
            [people], everybody(150), [BY_ID[name] for name in hits], 400, rng
        )
        for name, truth in (("burden", 3.0), ("denied", 0.4)):
            interval = estimate(*found[0, 0, name], 0.95)
            hits[name] += interval["low"] <= truth <= interval["high"]
    assert all(105 <= count <= 120 for count in hits.values())  # 114 expected


@pytest.mark.check
def test_gaps_of_equal_groups_are_rarely_clear(told):
    rng = np.random.default_rng(0)
    grouping = Grouping("g", "categories", np.arange(400) % 5, tuple("abcde"), ("g",))
    clear = 0
    for _ in range(60):
        people = told(np.ones(400), np.zeros(400), rng.gamma(2.0, 1.0, 400))
        found = draw_measures([people], grouping, [BY_ID["burden"]], 400, rng)
        clear += gap(found, 0, BY_ID["burden"], range(5), 0.95)["clear"]
    # Without the correction for having picked one of ten pairs, about 15 of 60 would be.
    assert clear <= 6


def test_a_planted_gap_is_found(told):
    cost = np.r_[
        np.random.default_rng(0).gamma(4, 0.5, 100),
        np.random.default_rng(1).gamma(4, 0.5, 100) + 1,
    ]
    grouping = Grouping("g", "categories", np.arange(200) // 100, ("a", "b"), ("g",))
    found = draw_measures(
        [told(np.ones(200), np.zeros(200), cost)],
        grouping,
        [BY_ID["burden"]],
        400,
        np.random.default_rng(0),
    )
    wide = gap(found, 0, BY_ID["burden"], [0, 1], 0.95)
    assert (wide["highest"], wide["lowest"], wide["clear"]) == (1, 0, True)
    assert wide["low"] < 1 < wide["high"]


def test_nobody_of_few_people_is_not_a_sure_zero(told):
    grouping = Grouping(
        "g",
        "categories",
        np.r_[np.zeros(12, dtype=int), np.ones(12, dtype=int)],
        ("a", "b"),
        ("g",),
    )
    stuck = np.r_[np.zeros(12), [1], np.zeros(11)]
    people = told(np.ones(24), np.zeros(24), np.ones(24), stuck)
    found = draw_measures(
        [people], grouping, [BY_ID["no_recourse"]], 2000, np.random.default_rng(0)
    )
    assert estimate(*found[0, 0, "no_recourse"], 0.95)["high"] == pytest.approx(
        1 - 0.025 ** (1 / 12), abs=0.05
    )
    assert not is_clear(gap(found, 0, BY_ID["no_recourse"], [0, 1], 0.95))


def test_all_against_nobody_is_a_gap_that_its_interval_holds(told):
    grouping = Grouping("g", "categories", np.arange(60) // 30, ("a", "b"), ("g",))
    people = told(np.arange(60) < 30, np.zeros(60), np.ones(60))
    found = draw_measures([people], grouping, [BY_ID["denied"]], 2000, np.random.default_rng(0))
    wide = gap(found, 0, BY_ID["denied"], [0, 1], 0.95)
    assert wide["value"] == wide["high"] == 1 and 0.75 < wide["low"] < 0.9
    mine, other = (found[0, group, "denied"] for group in (1, 0))
    less = estimate(mine[0] - other[0], mine[1] - other[1], 0.95)
    assert less["value"] == less["low"] == -1 and -0.9 < less["high"] < -0.75


def test_two_models_that_decide_few_people_alike_may_still_differ():
    alike = parted({"value": 0.0, "low": 0.0, "high": 0.0}, 12, 0.95)
    bound = 1 - 0.025 ** (1 / 12)
    assert alike == {"value": 0.0, "low": pytest.approx(-bound), "high": pytest.approx(bound)}
    # If such a share were decided otherwise, nobody of 12 would be so rarely.
    assert (1 - bound) ** 12 == pytest.approx(0.025)
    assert not is_clear(alike)


def test_ordinary_intervals_are_the_percentiles_bit_for_bit():
    draws = np.random.default_rng(0).normal(0.3, 0.1, 2000)
    low, high = percentile_interval(draws, 0.95)
    found = estimate(0.3, draws, 0.95)
    assert found == {"value": 0.3, "low": low, "high": high} == parted(found, 12, 0.95)
    assert holding(0.9, low, high) == {"value": 0.9, "low": low, "high": 0.9}
    assert np.isnan(holding(0.9, np.nan, np.nan)["low"])


def test_sums_are_not_compared_between_groups(told):
    found = draw_measures(
        [told(DENIED, DESERVING, COST, STUCK)], GROUPS, MEASURES, 20, np.random.default_rng(0)
    )
    assert gap(found, 0, BY_ID["social_burden"], [0, 1], 0.95) is None


def test_people_of_one_kind_are_drawn_together_like_one_by_one():
    from counterfactual_training.tables.audits.intervals import resample

    terms = np.c_[np.ones(60), np.repeat([0.0, 1.0, 5.0], 20)]
    drawn = resample(terms, 4000, np.random.default_rng(0))
    by_hand = pd.Series(np.random.default_rng(1).choice(terms[:, 1], (4000, 60)).sum(1))
    assert (drawn[:, 0] == 60).all()
    assert drawn[:, 1].mean() == pytest.approx(by_hand.mean(), rel=0.02)
    assert drawn[:, 1].std() == pytest.approx(by_hand.std(), rel=0.06)


def test_a_sample_prices_all_who_are_wrongly_denied(told):
    """Three of four denied are wrongly so; of the two explained, who stand for two each, one is."""
    sample = told([1, 1, 1, 1], [1, 1, 1, 0], [5.0, 0, 0, 9.0], weight=[2, 0, 0, 2])
    found = values(sample, everybody(4))
    assert found["social_burden", "everybody"] == pytest.approx(3 * 5.0)
    assert found["social_burden_per_person", "everybody"] == pytest.approx(3 / 4 * 5.0)
