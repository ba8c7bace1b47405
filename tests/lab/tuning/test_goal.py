"""What counts, what may be lost, and which trial is taken."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfactual_lab.tuning import Goal, Tuning, TuningTrial
from counterfactual_lab.tuning.goal import VALIDITY_LOSS, excess, front
from counterfactual_training.errors import InputError

CONVENTIONAL = {
    "implausibility": 2.0,
    "cost": 1.0,
    "validity": 1.0,
    "accuracy": 0.95,
    "robust_accuracy": 0.5,
}
PUBLISHED = {
    "implausibility": 1.5,
    "cost": 1.2,
    "validity": 0.9,
    "accuracy": 0.90,
    "robust_accuracy": 0.6,
}


def trial(number, goal, published=False, **changes):
    metrics = {**PUBLISHED, **changes}
    violations = goal.limits(CONVENTIONAL, PUBLISHED).violations(metrics)
    return TuningTrial(
        number,
        "COMPLETE",
        {"lambda_reg": 0.1 * number},
        tuple(goal.values(metrics)),
        metrics,
        violations,
        published,
    )


def tuning(goal, *others):
    limits = goal.limits(CONVENTIONAL, PUBLISHED)
    start = {"lambda_reg": 0.0, "lambda_div": 0.5}
    return Tuning(goal, limits, CONVENTIONAL, start, [trial(0, goal, published=True), *others])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objectives": ("ipp",)}, "Did you mean 'ip'"),
        ({"objectives": ()}, "one or more"),
        ({"objectives": ("ip", "ip")}, "different"),
        ({"at_most_lost": -1.0}, "from 0 to 100"),
        ({"at_most_lost": math.nan}, "from 0 to 100"),
        ({"against": "best"}, "Unknown reference"),
    ],
)
def test_bad_goals_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Goal(**options)


def test_all_objectives_are_minimised():
    goal = Goal(("ip", "cost", "accuracy", "robustness"))
    assert goal.values(PUBLISHED) == [1.5, 1.2, -0.90, -0.6]
    assert goal.values({**PUBLISHED, "implausibility": math.nan})[0] == math.inf


@pytest.mark.parametrize(("against", "floor"), [("conventional", 0.94), ("published", 0.89)])
def test_accuracy_is_lost_against_the_reference(against, floor):
    limits = Goal(("ip",), 1.0, against).limits(CONVENTIONAL, PUBLISHED)
    assert limits.accuracy == pytest.approx(floor)
    assert excess(limits.violations({**PUBLISHED, "accuracy": floor})) == 0
    assert excess(limits.violations({**PUBLISHED, "accuracy": floor - 0.01})) == pytest.approx(
        0.01
    )


def test_a_mean_over_few_valid_counterfactuals_is_no_improvement():
    goal = Goal(("ip",))
    few = PUBLISHED["validity"] - VALIDITY_LOSS / 100 - 0.01
    found = tuning(goal, trial(1, goal, implausibility=0.1, validity=few))
    assert found.best.number == 0


def test_of_one_objective_the_best_that_is_allowed_is_taken():
    goal = Goal(("ip",), 1.0)
    found = tuning(
        goal,
        trial(1, goal, implausibility=1.0, accuracy=0.80),
        trial(2, goal, implausibility=1.4, accuracy=0.945),
        trial(3, goal, implausibility=1.3, accuracy=0.945),
    )
    assert found.best.number == 3
    assert found.settings(found.best) == {"lambda_reg": pytest.approx(0.3), "lambda_div": 0.5}


def test_where_nothing_is_allowed_the_nearest_is_taken():
    goal = Goal(("ip",), 1.0)
    found = tuning(
        goal, trial(1, goal, implausibility=3.0, accuracy=0.93), trial(2, goal, accuracy=0.5)
    )
    assert found.best.number == 1
    assert found.front == []


def test_of_several_objectives_no_choice_is_worse_than_the_start_in_any():
    goal = Goal(("ip", "accuracy"))
    found = tuning(
        goal,
        trial(1, goal, implausibility=0.5, accuracy=0.85),  # a large gain, but accuracy is lost
        trial(2, goal, implausibility=1.4, accuracy=0.91),
        trial(3, goal, implausibility=1.2, accuracy=0.90),
    )
    assert found.best.number == 3
    assert [t.number for t in found.front] == [1, 3, 2]
    table = found.table().set_index("trial")
    assert table["front"].to_dict() == {0: False, 1: True, 2: True, 3: True}
    assert table.index[table["best"]].tolist() == [3]


def test_the_start_is_kept_where_nothing_beats_it():
    goal = Goal(("ip", "accuracy"))
    assert tuning(goal, trial(1, goal, implausibility=9.0, accuracy=0.1)).best.published


points = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12
)


@given(points)
def test_the_front_dominates_the_rest_and_nothing_in_it(values):
    def dominates(a, b):
        return all(p <= q for p, q in zip(a, b, strict=True)) and a != b

    chosen = front(values)
    assert chosen
    for i, value in enumerate(values):
        assert (i in chosen) == (not any(dominates(other, value) for other in values))
