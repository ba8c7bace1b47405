"""Searches of wide rows in the few columns that may move find what searches of whole rows find."""

import pytest
import torch
from torch.testing import assert_close

from counterfactual_training import Constraints, line, mlp, search
from counterfactual_training.advice.narrow import _narrowed, search_narrow
from counterfactual_training.constraints import Domain, OneHotGroup
from counterfactual_training.gates import Density, Gated

D = 60


def rows(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, D, generator=rng, dtype=torch.float64)
    x[:, 3:6] = torch.eye(3, dtype=x.dtype)[torch.arange(n) % 3]
    return x, (x[:, 0] + x[:, 1] + x[:, 7] > 0).long()


def network(squash: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    return mlp(D, 2, (16,), "swish", squash).double()


def density(given: tuple[int, ...]) -> Density:
    mask = torch.zeros(D, dtype=torch.bool)
    mask[list(given)] = True
    return Density.fit(*rows(200), 2, given=mask)


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("gate", [None, (), (2, 50)])
def test_a_narrow_network_is_the_whole_one(squash, gate):
    model, judge = network(squash), None if gate is None else density(gate)
    x, _ = rows(10, seed=1)
    columns = torch.tensor([0, 7, 51])
    order = torch.tensor([4, 4, 0, 9])  # as rows come after others have left
    points = x[order]
    points[:, columns] += torch.arange(12, dtype=x.dtype).view(4, 3) / 10
    narrow = _narrowed(model, judge, x, columns)
    short = torch.cat([points[:, columns], order.unsqueeze(-1)], -1)
    assert_close(narrow(short), (model if judge is None else Gated(model, judge))(points))


@pytest.mark.parametrize("gate", [None, ()])
def test_a_narrow_search_ends_where_the_whole_one_does(gate):
    model, judge = network(True), None if gate is None else density(gate)
    x, _ = rows(30, seed=1)
    y = 1 - model(x).argmax(-1)
    held = torch.ones_like(x, dtype=torch.bool)
    held[:, 3:6], held[::2, 7], held[1::2, 10:16] = False, False, False
    box = Domain(torch.full((D,), -3.0).double(), torch.full((D,), 3.0).double(), inferred=True)
    rules = Constraints.build(D, {10: "none", 11: "increase"}, box, [OneHotGroup((3, 4, 5))]).to(x)
    difficulty = torch.linspace(1, 2, D).double()
    found = search_narrow(model, judge, x, y, line(), rules, held, difficulty)
    searched = model if judge is None else Gated(model, judge)
    whole = search(searched, x, y, line(), rules, held=held, difficulty=difficulty, diagnose=False)
    there = found.converged
    assert torch.equal(there, whole.converged) and bool(there.any())
    assert_close(found.x_cf[there], whole.x_cf[there])
    # Around the best that a row can do, values differ by rounding errors, which decide where it stops.
    assert_close(found.confidence, whole.confidence, rtol=0, atol=1e-3)
    assert torch.equal(found.x_cf[held], x[held])


def test_what_it_cannot_do_is_left_to_the_whole_search():
    model, (x, y) = network(False), rows(5)
    held = torch.ones_like(x, dtype=torch.bool)
    held[:, 0] = False
    rest = line(), Constraints.build(D).to(x)
    assert search_narrow(model, None, x, y, *rest, held, None) is not None
    assert search_narrow(model, None, x, y, *rest, None, None) is None
    assert search_narrow(model, None, x, y, *rest, torch.zeros_like(held), None) is None
    assert (
        search_narrow(torch.nn.Sequential(torch.nn.BatchNorm1d(D).double(), *model), None, x, y, *rest, held, None)
        is None
    )
    assert search_narrow(model, density((0,)), x, y, *rest, held, None) is None
