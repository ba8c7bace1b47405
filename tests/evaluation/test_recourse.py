"""What counterfactuals ask of people, by hand."""

import torch

from counterfactual_training.constraints import Constraints
from counterfactual_training.evaluation.recourse import (
    cost,
    redundancy,
    sparsity,
    validity,
    validity_strict,
)

X = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 1.0, 2.0]])
X_CF = torch.tensor([[0.5, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 2.0 + 1e-6], [0.0, 0.0, 1.0, 2.0]])


def test_distances_and_counts():
    torch.testing.assert_close(cost(X_CF, X), torch.tensor([1.5, 2.0, 0.0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(redundancy(X_CF, X), torch.tensor([0.5, 0.5, 1.0]))
    assert sparsity(X_CF, X).tolist() == [2, 2, 0]
    grouped = Constraints.build(4, groups=[(1, 2)])
    assert sparsity(X_CF, X, grouped).tolist() == [
        2,
        1,
        0,
    ]  # a changed category is one changed feature
    assert cost(X_CF.expand(2, 3, 4), X.expand(2, 3, 4)).shape == (2, 3)


def test_validity_is_arg_max_and_strict_validity_is_tau():
    probability = torch.tensor([[0.4, 0.6], [0.04, 0.96], [0.7, 0.3]], dtype=torch.float64)
    y = torch.tensor([1, 1, 1])
    assert validity(probability.log(), y).tolist() == [True, True, False]
    assert validity_strict(probability.log(), y, 0.95).tolist() == [False, True, False]
    assert validity_strict(probability.log(), y, 0.25).all()
