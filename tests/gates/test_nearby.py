"""A density at points that differ from known rows in some columns: what the density itself says of
them.
"""

import pytest
import torch

from counterfactual_training.gates import Density, Nearby


def make(num_immutable, columns, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(600, 7, generator=rng)
    y = (x[:, 0] > 0).long()
    immutable = torch.zeros(7, dtype=torch.bool)
    immutable[:num_immutable] = True
    gate = Density.fit(x, y, 2, immutable=immutable, size=100)
    rows = x[:20] * 2
    row = torch.randint(20, (300,), generator=rng)
    points = rows[row][:, columns] + torch.randn(300, len(columns), generator=rng)
    whole = rows[row]
    whole[:, columns] = points
    return gate, rows, row, points, whole


@pytest.mark.parametrize("num_immutable", [0, 2])
@pytest.mark.parametrize("columns", [[2, 3, 4, 5, 6], [4], [6, 3]])
@pytest.mark.parametrize("label", [0, 1])
def test_it_says_what_the_density_says(num_immutable, columns, label):
    columns = torch.tensor(columns)
    gate, rows, row, points, whole = make(num_immutable, columns)
    nearby = Nearby.of(gate, rows, columns, len(columns))
    expected = gate(whole)[:, label]
    torch.testing.assert_close(
        nearby.of_class(row, points, label), expected, rtol=1e-4, atol=1e-4
    )
    assert expected.std() > 0.1  # or all points were alike


def test_other_gates_and_given_columns_need_whole_rows():
    columns = torch.tensor([1, 3])
    gate, rows, *_ = make(2, columns)
    assert Nearby.of(gate, rows, columns, len(columns)) is None
    assert Nearby.of(None, rows, columns, len(columns)) is None


def test_an_unjudged_class_lets_everything_pass():
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(300, dtype=torch.long)
    y[0] = 1
    gate = Density.fit(x, y, 2, size=50)
    nearby = Nearby.of(gate, x[:4], torch.tensor([0]), 1)
    assert (nearby.of_class(torch.tensor([0, 1]), torch.tensor([[90.0], [0.0]]), 1) == 0).all()


@pytest.mark.parametrize("label", [0, 1])
def test_many_codes_of_categories_are_looked_up(label):
    rng = torch.Generator().manual_seed(0)
    codes = torch.eye(40)
    level = torch.randint(40, (600,), generator=rng)
    x = torch.cat([codes[level], torch.randn(600, 3, generator=rng)], -1)
    gate = Density.fit(x, (x[:, -1] > 0).long(), 2, size=100)
    columns = torch.cat([torch.tensor([41, 40]), torch.arange(40)])
    row = torch.randint(20, (300,), generator=rng)
    whole = x[row]
    # Some change the category, some a number, some both, some nothing.
    new = torch.where(torch.rand(300, generator=rng) < 0.5, level[row], level[row.flip(0)])
    whole[:, :40] = codes[new]
    whole[:, 40] += torch.rand(300, generator=rng).round()
    nearby = Nearby.of(gate, x[:20], columns, 2)
    expected = gate(whole)[:, label]
    torch.testing.assert_close(
        nearby.of_class(row, whole[:, columns], label), expected, rtol=1e-4, atol=1e-4
    )
    assert expected.std() > 0.1


@pytest.mark.parametrize("num_immutable", [0, 2])
@pytest.mark.parametrize("label", [0, 1])
def test_bounds_lie_on_the_side_of_the_bar_where_the_density_is(num_immutable, label):
    columns = torch.tensor([2, 3, 4, 5, 6])
    gate, rows, row, points, _ = make(num_immutable, columns)
    nearby = Nearby.of(gate, rows, columns, len(columns))
    exact = nearby.odds(row, points, label)
    bar = float(exact.median())
    found = nearby.odds(row, points, label, bar)
    assert torch.equal(found >= bar, exact >= bar)
    # Somewhere a bound is enough, and somewhere it is not.
    same = found == exact
    assert same.any()
    assert not same.all() or num_immutable
    below = exact < bar
    assert (found[below] >= exact[below]).all()
    assert (found[~below] <= exact[~below] + 1e-5).all()
