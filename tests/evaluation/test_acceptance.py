"""Juries of other families, and costs at equal acceptance."""

import numpy as np
import pytest

import counterfactual_training as ct
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.acceptance import (
    FAMILIES,
    Frontier,
    Jury,
    cost_at_equal_acceptance,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 3))
Y = np.where(X[:, 0] > 0, "yes", "no")


class Always:
    """A classifier of one opinion."""

    def __init__(self, label):
        self.label = label

    def fit(self, x, y):
        return self

    def predict(self, x):
        return np.full(len(x), self.label)


def test_every_family_learns_what_is_easy_to_learn():
    jury = Jury.fit(X, Y)
    assert list(jury.models) == list(FAMILIES) and len(FAMILIES) == 4
    clear = np.array([[2.0, 0, 0], [-2.0, 0, 0]])
    assert jury.accepts(clear, np.array(["yes", "no"])).all()
    assert not jury.accepts(clear, np.array(["no", "yes"])).any()
    assert (jury.accuracy > 0.9).all()


def test_verdicts_are_by_family():
    jury = Jury.fit(X, Y, {"yes": lambda seed: Always("yes"), "no": lambda seed: Always("no")})
    verdicts = jury.accepts(X[:2], np.array(["yes", "no"]))
    np.testing.assert_array_equal(verdicts, [[True, False], [False, True]])


@pytest.mark.parametrize(
    ("x", "y", "families", "message"),
    [
        (X[:, 0], Y, None, r"rows \(n, d\) and classes \(n,\), got \(400,\)"),
        (X, Y[:3], None, r"got \(400, 3\), \(3,\)"),
        (X, np.zeros(400), None, "at least two classes"),
        (X, Y, {}, "at least one family, got none"),
        (X[:14], Y[:14], None, "at least 15 rows, got 14"),
    ],
)
def test_what_a_jury_needs(x, y, families, message):
    with pytest.raises(InputError, match=message):
        Jury.fit(x, y, families)


def frontier(cost, accepted, answered=None):
    cost = np.repeat(np.asarray(cost, dtype=float)[:, None], 10, 1)
    accepted = np.repeat(np.asarray(accepted, dtype=float)[:, None], 10, 1)
    if answered is None:
        answered = np.ones_like(cost, dtype=bool)
    return Frontier(cost, accepted, answered)


def test_what_is_believed_sooner_is_cheaper_at_equal_acceptance():
    # Both are on lines: acceptance a costs 10 a, or 10 a − 2.
    dear = frontier([2, 4, 6], [0.2, 0.4, 0.6])
    cheap = frontier([2, 4, 6], [0.4, 0.6, 0.8])
    levels = np.linspace(0.4, 0.6, 9)
    expected = np.mean((10 * levels - 2) / (10 * levels))
    assert cost_at_equal_acceptance(cheap, dear) == pytest.approx(expected)
    assert cost_at_equal_acceptance(dear, dear) == pytest.approx(1)


def test_costs_are_not_compared_where_nothing_can_be():
    low = frontier([1, 2], [0.1, 0.2])
    high = frontier([1, 2], [0.5, 0.6])
    assert np.isnan(cost_at_equal_acceptance(low, high))
    few = np.zeros((2, 10), dtype=bool)
    few[:, :7] = True
    assert np.isnan(cost_at_equal_acceptance(low, frontier([1, 2], [0.1, 0.2], few)))


def test_only_people_count_whom_both_answer_at_every_bar():
    answered = np.ones((2, 10), dtype=bool)
    answered[1, 9] = False
    one = frontier([1, 2], [0.2, 0.4], answered)
    one.cost[:, 9] = 1000
    assert cost_at_equal_acceptance(one, frontier([1, 2], [0.2, 0.4])) == pytest.approx(1)


def test_people_may_ask_for_more_and_get_less():
    less = frontier([1, 9, 3], [0.3, 0.2, 0.5])
    accepted, cost = less.curve(np.ones(10, dtype=bool))
    np.testing.assert_allclose(accepted, [0.3, 0.5])
    np.testing.assert_allclose(cost, [1, 3])
    assert cost_at_equal_acceptance(less, frontier([1, 3], [0.3, 0.5])) == pytest.approx(1)


def test_a_jury_is_part_of_the_package():
    assert ct.Jury is Jury
