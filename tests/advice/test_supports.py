"""Answers that change fewer columns."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from counterfactual_training.advice import find
from counterfactual_training.advice.supports import top


def test_the_highest_scores_of_each_row():
    score = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [0.0, 0.0, 0.0]])
    mask = top(score, torch.tensor([1, 2, 5]))
    assert mask.tolist() == [[True, False, False], [True, False, True], [True, True, True]]


@pytest.mark.check
def test_fewer_columns_at_hardly_more_cost(make_quick, monkeypatch):
    data = load_breast_cancer(as_frame=True)
    classifier = make_quick(gate="none").fit(data.data, data.target)
    people = data.data.head(60)
    after = classifier.explain(people)
    monkeypatch.setattr(find, "in_fewer_columns", lambda *_: None)
    before = classifier.explain(people)
    columns = [(told.distance > 0).sum(1) for told in (before, after)]
    assert (columns[1] <= columns[0]).all() and columns[1].sum() < 0.8 * columns[0].sum()
    # A tenth more in each of at most four rounds, but rarely.
    assert (after.cost <= 1.1**4 * before.cost + 1e-5).all() and after.cost.sum() <= before.cost.sum()
    assert (after.prediction == after.target).all() and np.array_equal(after.target, before.target)
