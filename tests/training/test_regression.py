"""Regressions in the training loop: the loss is its formula, runs resume exactly, and what may not
change does not.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import counterfactual_training as ct
from counterfactual_training.core.energy import interval_energy
from counterfactual_training.core.losses import value_loss
from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.models.stack import StackedModel
from counterfactual_training.training import regression
from counterfactual_training.training.objective import Batch
from counterfactual_training.training.registry import VALUE_METHODS
from counterfactual_training.training.regression import IntervalBatch, search_epoch
from counterfactual_training.training.round import Round
from counterfactual_training.training.rows import DrawnRows, TrainingRows


def rows(num: int = 120) -> tuple[Tensor, Tensor]:
    x = torch.randn(num, 3, generator=torch.Generator().manual_seed(0))
    return x, (x @ torch.tensor([1.0, -0.5, 0.2])) / 1.2


def short(name: str = "ct_published", **settings) -> ct.Method:
    common = {"epochs": 4, "batch_size": 40, "burn_in": 0.25, "learning_rate": 0.01}
    rules = ct.Constraints.build(3, mutability={0: "none", 1: "increase"})
    spec = {"name": name, "constraints": rules, **common, **settings}
    return ct.make_method(spec, values=True)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return ct.mlp(3, 1, (8,))


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers).unsqueeze(-1)


def test_the_loss_is_its_formula():
    """f(x) = x, so everything can be computed on paper."""
    method = regression.ct_published(lambda_div=2.0, lambda_reg=3.0, lambda_adv=5.0)
    middle, spread, mature = (
        torch.tensor([2.0, 2.0]),
        torch.tensor([0.5, 0.5]),
        torch.tensor([1.0, 0.0]),
    )
    points = column(1.0, 9.0), column(2.5, 7.0), column(0.5, 0.5), torch.tensor([0.0, 2.0])
    batch = Batch(column(0.0, 2.0), torch.tensor([1.0, 1.0]))
    terms = method.loss(
        nn.Identity(),
        batch,
        IntervalBatch(*points, middle, spread, mature, torch.tensor([3.0, 1.0])),
    )
    low, high = (
        0.5**2 / (2 * 0.25),
        1.0 / (2 * 0.25),
    )  # E(x⁺), E(x′) of the mature row; the other does not count
    assert float(terms.class_loss) == pytest.approx(1.0)
    assert float(terms.divergence) == pytest.approx(2 * (low - high))
    assert float(terms.ridge) == pytest.approx(3 * (low**2 + high**2))
    assert float(terms.adversarial) == pytest.approx(
        5 * (3 * 0.25 + 2.25) / 4
    )  # by the weights of their rows
    assert float(terms.total) == pytest.approx(
        1 + 2 * (low - high) + 3 * (low**2 + high**2) + 3.75
    )


def test_core_formulas():
    assert_close(
        interval_energy(
            column(3.0, 1.0), torch.tensor([1.0, 1.0]), torch.tensor([2.0, 2.0])
        ).tolist(),
        [0.5, 0.0],
    )
    weighted = value_loss(column(1.0, 4.0), torch.tensor([0.0, 2.0]), torch.tensor([1.0, 3.0]))
    assert float(weighted) == pytest.approx((1 + 3 * 4) / 4)


def test_what_is_found_arrives_and_keeps_the_rules():
    (x, y), found, method = rows(), [], short()

    def spied(now: ct.Round) -> IntervalBatch:
        found.append(method.find(now))
        assert torch.equal(now.memory["epoch"], torch.tensor(now.epoch))
        return found[-1]

    watched = replace(method, find=spied)
    net = network()
    history = ct.train(net, x, y, watched, validation=(x[:20], y[:20])).history.to_frame()
    assert len(found) == 9  # three batches in each of three epochs after the burn-in
    first = set(x[:, 0].tolist())
    mature = 0
    for one in found:
        assert set(one.x_cf[:, 0].tolist()) | set(one.x_adv[:, 0].tolist()) <= first
        assert torch.equal(one.x_pos[:, 0], one.x_cf[:, 0])  # protected
        assert (
            one.x_pos[:, 1] >= one.x_cf[:, 1]
        ).all()  # x⁺ asks for no fall of what may only rise
        mature += int(one.mature.sum())
    assert mature > 20
    assert history["loss"].notna().all() and history["validation_loss"].notna().all()
    assert history["accuracy"].isna().all() and history["validation_accuracy"].isna().all()
    assert history["share_mature"].isna().tolist() == [True, False, False, False]


def test_a_search_ends_inside_the_interval_it_was_asked_for():
    """f(x) = 2 x₀: the counterfactual is known."""
    net = nn.Linear(2, 1, bias=False)
    net.weight.data = torch.tensor([[2.0, 0.0]])
    x = torch.linspace(-1, 1, 200).unsqueeze(-1).repeat(1, 2)
    y, seen = 2 * x[:, 0], []
    method = regression.ct_published(share=1.0, epochs=1, batch_size=200, learning_rate=1e-9)

    def spied(now: ct.Round) -> IntervalBatch:
        seen.append(method.find(now))
        return seen[-1]

    ct.train(net, x, y, replace(method, find=spied))
    (one,) = seen
    assert one.mature.all() and torch.equal(one.x_cf[:, 1], one.x_cf[:, 1].clamp(-1, 1))
    # It stops where it first may: half a standard deviation short of the interval's mean, on the
    # side it came from.
    gap = (2 * one.x_cf[:, 0] - one.middle).abs() / one.spread
    assert_close(gap, torch.full_like(gap, 0.5), atol=0.02, rtol=0)
    # One more step would have been nascent no longer; ε = 0.3 and steps of 0.1.
    assert ((one.x_adv - one.x_cf).abs().amax(-1) >= 0).all()


def test_a_resumed_run_equals_one_never_interrupted(tmp_path):
    class Stop(ct.Callback):
        def on_epoch_end(self, run: ct.Run) -> None:
            if run.epoch == 3:
                raise KeyboardInterrupt

    x, y = rows()
    file = tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        ct.train(network(), x, y, short(), checkpoint=file, callbacks=[Stop()])
    resumed = ct.train(network(), x, y, short(), checkpoint=file).model
    whole = ct.train(network(), x, y, short()).model
    for one, other in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", VALUE_METHODS)
def test_a_member_of_a_fleet_ends_as_alone(name, recwarn):
    x, y = rows()
    # A member is one network, whatever its method is of.
    methods = [short(name, seed=i, members=1) for i in range(2)]
    members = [ct.Member(network(i), method) for i, method in enumerate(methods)]
    together = ct.Fleet(members).train(x, y)
    for i, result in enumerate(together):
        alone = ct.train(network(i), x, y, methods[i])
        for one, other in zip(result.model.parameters(), alone.model.parameters(), strict=True):
            assert_close(one, other, atol=1e-4, rtol=1e-3)
    # They share a loss, so they train as one.
    assert not recwarn.list


def test_conventional_training_is_least_squares():
    x, y = rows()
    net = nn.Linear(3, 1)
    method = regression.conventional(epochs=200, batch_size=40, learning_rate=0.05)
    ct.train(net, x, y, method)
    assert_close(
        net.weight.data.flatten(), torch.tensor([1.0, -0.5, 0.2]) / 1.2, atol=1e-3, rtol=0
    )


@pytest.mark.parametrize(
    "values", [[0, 0, 0, 0, 0, 0, 0, 0, 1, 1], [1, 2] * 5, [5.0] * 9 + [1.0]]
)
def test_ties_in_y_leave_no_interval_empty(values):
    x, _ = rows(40)
    y = torch.tensor(values * 4, dtype=torch.float32)
    memory = regression.ct_published().remember(_data(x, y), torch.Size())
    assert (
        (memory["count"] > 0).all()
        and len(memory["count"]) >= 2
        and int(memory["count"].sum()) == 40
    )
    history = ct.train(network(), x, y, short(epochs=2, burn_in=0.0)).history
    assert history.last("loss") == history.last("loss")


@pytest.mark.parametrize("name", ["bag", "ct", "bag of ct_published"])
def test_members_of_a_bag_ask_for_intervals_of_the_rows_that_all_share(name):
    x, y = rows()
    method = short(name, members=2, seed=3)
    bag = ct.Ensemble([network(i) for i in range(2)])
    history = ct.train(bag, x, y, method).history
    assert np.isfinite(history.last("loss"))
    assert history.last("adversarial") >= 0
    first, second = (member[0].weight for member in bag.members)
    assert (first != second).any()
    assert bag(x).shape == (120, 1)


def test_positives_of_a_bag_lie_in_their_intervals():
    x, _ = rows()
    y = x[:, 0].round()  # x⁺ of an interval must have its first feature there
    places = torch.stack([torch.arange(120), torch.arange(120).flip(0)])
    data = DrawnRows(_data(x, y), places)
    method = regression.ct_published()
    memory = method.remember(data, torch.Size([2]))
    model = StackedModel([network(0), network(1)])
    now = Round(
        model,
        x[places],
        y[places],
        ct.Constraints.build(3),
        method.searcher,
        data,
        memory,
        0,
        [torch.Generator().manual_seed(i) for i in range(2)],
    )
    search_epoch(now)
    gap = (memory["x_pos"][..., 0].round() - memory["middle"]).abs()
    assert float((gap <= 2 * memory["spread"] + 1e-6).float().mean()) > 0.9


def _data(x: Tensor, y: Tensor):
    return TrainingRows(x, y, 0)


def test_bad_input_is_named():
    x, y = rows()
    with pytest.raises(ModelError, match="one output"):
        ct.train(ct.mlp(3, 2), x, y, regression.ct_published())
    with pytest.raises(InputError, match="y of floating point"):
        ct.train(network(), x, y.long(), regression.ct_published())
    with pytest.raises(InputError, match="NaN"):
        ct.train(network(), x, y * torch.nan, regression.ct_published())
    with pytest.raises(InputError, match="sample_weight"):
        ct.train(network(), x, y, regression.conventional(), class_weight="balanced")
    with pytest.raises(InputError, match="All y are equal"):
        ct.train(network(), x, torch.ones(120), regression.ct_published())
    with pytest.raises(InputError, match="bins must be a whole number of at least 2"):
        regression.ct_published(bins=1)
    with pytest.raises(InputError, match="Did you mean 'ct'"):
        ct.make_method("cd", values=True)
    with pytest.raises(InputError, match="not both"):
        other = ct.Method(training=short().training)
        ct.Fleet([ct.Member(network(), short()), ct.Member(network(), other)]).train(x, y)
