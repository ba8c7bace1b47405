"""The box: stated or inferred by Eq. 12."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from counterfactual_training import Constraints, Domain
from counterfactual_training.errors import ConstraintError


def test_eq_12_by_hand():
    # μ = 2, sample σ = 2: μ ± 1σ = [0, 4], the data reach from 0 to 5.
    x = torch.tensor([[0.0], [1.0], [1.0], [3.0], [5.0]])
    box = Domain.infer(x, num_std=1.0)
    assert_close(box.lower, torch.tensor([0.0]))
    assert_close(box.upper, torch.tensor([5.0]))
    wide = Domain.infer(x, num_std=3.0)
    assert_close(wide.lower, torch.tensor([-4.0]))
    assert_close(wide.upper, torch.tensor([8.0]))


def test_eq_12_agrees_with_numpy(make_blobs):
    x, _ = make_blobs(n=50, d=4)
    values = x.double().numpy()
    mean, std = values.mean(0), values.std(0, ddof=1)
    box = Domain.infer(x.double(), num_std=2.0)
    np.testing.assert_allclose(box.lower, np.minimum(mean - 2 * std, values.min(0)))
    np.testing.assert_allclose(box.upper, np.maximum(mean + 2 * std, values.max(0)))
    assert box.inferred


def test_one_row_infers_a_point():
    box = Domain.infer(torch.tensor([[1.0, 2.0]]))
    assert torch.equal(box.lower, box.upper)


def test_an_empty_domain_is_named():
    with pytest.raises(ConstraintError, match=r"feature 1 is empty: lower 3 > upper 2"):
        Domain(torch.tensor([0.0, 3.0]), torch.tensor([1.0, 2.0]))
    with pytest.raises(ConstraintError, match=r"'age' is empty: lower 90 > upper 18"):
        Constraints.build(2, domain={"age": (90, 18)}, names=["age", "debt"])


@pytest.mark.parametrize(
    ("lower", "upper", "message"),
    [([0.0], [1.0, 2.0], "shape"), ([float("nan")], [1.0], "NaN")],
)
def test_boxes_that_do_not_fit(lower, upper, message):
    with pytest.raises(ConstraintError, match=message):
        Domain(torch.tensor(lower), torch.tensor(upper))


def test_open_sides_and_one_interval_for_all():
    rules = Constraints.build(3, domain={0: (None, 4), -1: (1, None)})
    assert rules.domain.lower.tolist() == [-torch.inf, -torch.inf, 1]
    assert rules.domain.upper.tolist() == [4, torch.inf, torch.inf]
    assert Constraints.build(2, domain=(-1, 1)).domain.upper.tolist() == [1, 1]


@pytest.mark.parametrize("spec", [{"age": 3}, {"age": (1, 2, 3)}, (1, 2, 3)])
def test_an_interval_has_two_ends(spec):
    with pytest.raises(ConstraintError, match=r"must be \(lower, upper\)"):
        Constraints.build(1, domain=spec, names=["age"])


def test_a_domain_of_other_width_is_refused():
    with pytest.raises(ConstraintError, match="2 features, expected 3"):
        Constraints.build(3, domain=Domain(torch.zeros(2), torch.ones(2)))


def test_unknown_column_in_a_domain():
    with pytest.raises(ConstraintError, match="Did you mean 'age'"):
        Constraints.build(1, domain={"aeg": (0, 1)}, names=["age"])


def test_a_box_may_be_part_stated_part_inferred():
    box = Domain(torch.zeros(2), torch.ones(2), inferred=torch.tensor([True, False]))
    rules = Constraints.build(2, domain=box)
    rules.check_factuals(torch.tensor([[5.0, 0.5]]))
    with pytest.raises(ConstraintError, match="'feature 1'"):
        rules.check_factuals(torch.tensor([[0.5, 5.0]]))


def test_a_stated_side_beyond_the_data_leaves_room():
    """The data reach from 3 to 5, the user allows at most 1: the inferred side gives way."""
    stated = Domain(torch.tensor([-torch.inf, 9.0]), torch.tensor([1.0, torch.inf]))
    box = stated.filled(
        Domain(torch.tensor([3.0, 3.0]), torch.tensor([5.0, 5.0]), inferred=True)
    )
    assert box.lower.tolist() == [1.0, 9.0] and box.upper.tolist() == [1.0, 9.0]
