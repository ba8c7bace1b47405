"""A learned gate takes what nobody can change as given."""

from functools import cache
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus
from torch.testing import assert_close

from counterfactual_training import Constraints, mlp
from counterfactual_training.gates import GateConfig, Gated, Learned
from counterfactual_training.gates.learned import _loss
from counterfactual_training.gates.negatives import Negatives, Typicality

CONFIG = GateConfig(epochs=15, num_counterfactuals=60, hidden=(32,), batch_size=50)
LATTER = Constraints.build(2, mutability={1: "none"})


def corners(n: int = 600) -> tuple[Tensor, Tensor]:
    """Two classes at (−3, −3) and (3, 3)."""
    y = torch.arange(n) % 2
    return 0.4 * torch.randn(n, 2, generator=torch.Generator().manual_seed(0)) + (6.0 * y - 3)[
        :, None
    ], y


@cache
def learned(constraints: Constraints) -> Learned:
    x, y = corners()
    torch.manual_seed(0)
    return Learned.fit(
        mlp(2, 2, ()).requires_grad_(False), x, y, constraints=constraints, config=CONFIG
    )


@pytest.mark.check
def test_people_unlike_a_class_pass_if_what_they_can_change_is_like_it():
    of_first = torch.tensor(
        [[3.0, -3.0], [0.0, -3.0], [-3.0, -3.0]]
    )  # as the second class, in between, as they were
    conditional, joint = (
        learned(rules)(of_first)[:, 1].exp() for rules in (LATTER, Constraints.build(2))
    )
    assert float(conditional[0]) > 0.9 > 0.1 > float(joint[0])
    assert float(conditional[1:].max()) < 0.1


def test_most_real_rows_pass_given_what_they_cannot_change():
    x, y = corners()
    passed = learned(LATTER)(x).gather(-1, y[:, None]).exp() > 0.5
    assert 0.82 < float(passed.float().mean()) < 0.97  # calibrated to 0.9


def test_where_nothing_can_change_there_is_nothing_to_judge():
    x, _ = corners()
    gate = learned(Constraints.build(2, mutability={0: "none", 1: "none"}))
    assert_close(gate(100 * x), torch.zeros(len(x), 2))
    assert bool(gate.judged.all())  # it is not for want of rows


def test_noise_has_the_given_columns_of_the_class_it_counts_against():
    x, y = corners()
    group = torch.nn.functional.one_hot(y, 2).to(x)  # given too, a category
    rows = torch.cat([x, group], 1)
    rules = Constraints.build(4, mutability={1: "none", 2: "none", 3: "none"}, groups=[(2, 3)])
    gate = Learned.empty([4, 8, 2])
    rng = torch.Generator().manual_seed(0)
    negatives = Negatives(Gated(mlp(4, 2), gate), rows, y, rules, rows.shape[1:], CONFIG, rng)
    points, among = negatives.noise(900)
    known = {tuple(row) for row in rows[:, 1:].tolist()}
    assert all(tuple(row) in known for row in points[:, 1:].tolist())
    own = points[:, 2:].argmax(-1) == among
    assert (
        0.8 < float(own.float().mean()) < 0.95
    )  # one in four has those of anybody, who is of the class half the time
    assert (
        len(set(points[:, 0].tolist()) - set(rows[:, 0].tolist())) > 500
    )  # what is free is anywhere
    assert_close(negatives.lend(rows)[:, :1], rows[:, :1], rtol=0, atol=0)


def test_the_loss_counts_counterfactuals_by_their_weight():
    x, y = corners(20)
    torch.manual_seed(0)
    network = mlp(2, 2, (4,))
    x_cf, target, weight = torch.randn(10, 2), torch.arange(10) % 2, torch.linspace(0, 1, 10)

    def negatives(rows: int) -> SimpleNamespace:
        noise = (torch.zeros(20, 2), y)
        stored = (x_cf[:rows], target[:rows], weight[:rows])
        return SimpleNamespace(
            conditional=False, lend=lambda x: x, noise=lambda n: noise, recall=lambda n: stored
        )

    with_some, with_none = (_loss(network, x, y, negatives(rows)) for rows in (10, 0))
    against = network(x_cf).gather(-1, target[:, None]).squeeze(-1)
    assert_close(with_some - with_none, (weight * softplus(against)).mean())


def test_the_latest_counterfactuals_are_remembered():
    x, y = corners()
    model = mlp(2, 2, ())
    model[0].weight.data = torch.tensor([[-1.0, -1.0], [1.0, 1.0]])
    model[0].bias.data.zero_()
    gate = Learned.empty([2, 4, 2])
    gate.origin = torch.full_like(gate.origin, -1e6)  # lets everything pass
    config = GateConfig(num_counterfactuals=40, replay=10, max_steps=200)
    rng = torch.Generator().manual_seed(0)
    gated = Gated(model.requires_grad_(False), gate)
    negatives = Negatives(gated, x, y, Constraints.build(2), x.shape[1:], config, rng)
    negatives.x_cf, negatives.target = x[:10] + 100.0, y[:10]
    negatives.weight = torch.ones(10)
    negatives.search()
    assert len(negatives.x_cf) == len(negatives.weight) == len(negatives.target) == 10
    assert float(negatives.x_cf.max()) < 50


def test_p_values_fall_with_the_distance_to_real_rows():
    x, y = corners()
    typical = Typicality(x, y)
    points = torch.tensor([[3.0, 3.0], [4.0, 3.0], [20.0, 20.0]])
    middle, rim, far = typical.p_value(points, torch.ones(3, dtype=torch.long)).tolist()
    assert middle > 0.7 and 0 < rim < 0.3 and far == 0
