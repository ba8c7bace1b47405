"""Ways along real rows."""

import pytest
import torch
from test_gated import moat, slope

from counterfactual_training import Constraints, ecco, line
from counterfactual_training.constraints.stack_constraints import stack_constraints
from counterfactual_training.gates import (
    GateConfig,
    Gated,
    fit_gate,
    towards_real,
)
from counterfactual_training.generators import Status, search
from counterfactual_training.models.stack import StackedModel


def test_ends_just_past_the_threshold_near_a_real_row():
    x, y = moat()
    gated = fit_gate(slope(), x, y)
    start, target = x[:10], 1 - y[:10]
    found = towards_real(gated, start, target, Constraints.infer(x), 0.6)
    reached = gated(found).softmax(-1).gather(-1, target[:, None])
    assert float(reached.min()) >= 0.6
    assert float(reached.max()) < 0.7


def test_rules_hold():
    x, y = moat()
    rules = Constraints.build(2, mutability={1: "none", 0: "increase"})
    gated = fit_gate(slope(), x, y)
    found = towards_real(gated, x, 1 - y, rules, 0.5)
    assert not bool(rules.violations(found, x).any())
    assert bool((found[y == 1, 0] >= x[y == 1, 0]).all())


def test_the_most_plausible_point_within_reach():
    """The first feature may not pass 0, so that no row of class 1 is within reach; the best is at
    0.
    """
    x, y = moat()
    rules = Constraints.build(2, domain={0: (-9.0, 0.0)})
    gated = fit_gate(slope(), x, y)
    found = towards_real(gated, x[y == 0][:5], torch.ones(5, dtype=torch.long), rules, 0.5)
    torch.testing.assert_close(found[:, 0], torch.zeros(5))


@pytest.mark.parametrize("members", [None, 2])
def test_the_status_says_when_the_gate_binds_and_when_a_rule_does(members):
    """The first feature may pass the boundary, but not come to the rows of class 1; or not even the
    boundary.
    """
    x, y = moat()
    start, target = x[y == 0][:5], torch.ones(5, dtype=torch.long)
    past, short = (Constraints.build(2, domain={0: (-9.0, end)}) for end in (1.0, -0.5))
    model, gate = slope(), fit_gate(slope(), x, y).gate
    if members is not None:
        start, target, model = (
            start.expand(2, 5, 2),
            target.expand(2, 5),
            StackedModel([slope(), slope()]),
        )
        past, short = (stack_constraints([rules, rules]) for rules in (past, short))
    found = search(Gated(model, gate), start, target, line(), past)
    assert set(found.status_names) == {"implausible"} and not bool(found.converged.any())
    by_rule = search(Gated(model, gate), start, target, line(), short)
    assert not bool(by_rule.converged.any()) and "implausible" not in by_rule.status_names
    arrived = search(Gated(model, gate), start, target, line())
    assert set(arrived.status_names) == {"converged"} and not bool(arrived.binding.any())
    alone = search(Gated(model, gate), start, target, line(), past, real_rows=False)
    assert "implausible" not in alone.status_names


def test_a_model_in_training_mode_is_searched_in_eval_mode():
    x, y = moat()
    model = torch.nn.Sequential(torch.nn.Dropout(0.9), slope())
    gated = fit_gate(model, x, y)
    assert gated.train().training
    ten = ecco(decision_threshold=0.6, max_steps=10)  # too few to cross the moat: rows are led
    once, again = (search(gated, x[:40], 1 - y[:40], ten) for _ in range(2))
    assert gated.training and bool(once.converged.all()) and once.x_cf.equal(again.x_cf)


def test_a_gate_without_rows():
    x, y = moat(80)
    gated = fit_gate(
        slope(),
        x,
        y,
        "learned",
        config=GateConfig(epochs=2, num_counterfactuals=20, hidden=(8,)),
    )
    assert gated.gate.real_rows is None
    assert torch.equal(towards_real(gated, x, 1 - y, Constraints.infer(x), 0.5), x)


@pytest.mark.parametrize(
    "generator", [line(decision_threshold=0.6), ecco(decision_threshold=0.6, max_steps=10)]
)
def test_a_fleet_shares_a_density_and_each_member_is_searched_as_alone(generator):
    """Ten fixed steps do not cross the moat, so that rows are led; the members' rules differ."""
    x, y = moat(200)
    models = [slope() for _ in range(3)]
    for i, model in enumerate(models):
        model[0].bias += torch.tensor([0.5 * i, 0.0])
    rules = [Constraints.build(2, domain=(-5.0 - i, 5.0 + i)) for i in range(3)]
    gate = fit_gate(models[0], x, y, constraints=rules[0]).gate
    start, target = x[:30].expand(3, 30, 2), (1 - y[:30]).expand(3, 30)
    together = search(
        Gated(StackedModel(models), gate, 2.0),
        start,
        target,
        generator,
        stack_constraints(rules),
    )
    plain = search(
        Gated(StackedModel(models), gate, 2.0),
        start,
        target,
        generator,
        stack_constraints(rules),
        real_rows=False,
    )
    led = plain.status != together.status
    if generator.step_rule == "fixed":
        assert bool(led.any()) and bool((together.status[led] == int(Status.CONVERGED)).all())
    for i, model in enumerate(models):
        alone = search(Gated(model, gate, 2.0), start[i], target[i], generator, rules[i])
        assert torch.equal(together.status[i], alone.status)
        torch.testing.assert_close(together.x_cf[i], alone.x_cf, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(
            together.confidence[i], alone.confidence, rtol=1e-3, atol=1e-3
        )


def test_an_anchor_that_misses_is_taken_if_it_comes_nearer():
    """Two small steps lead nowhere; no real row is within reach, but the end of the domain is
    nearer to them.
    """
    x, y = moat()
    rules = Constraints.build(2, domain={0: (-9.0, 1.5)})
    gated = fit_gate(slope(), x, y)
    start = x[y == 0][:5]
    target = torch.ones(5, dtype=torch.long)
    short = search(gated, start, target, ecco(max_steps=2), rules, real_rows=False)
    led = search(gated, start, target, ecco(max_steps=2), rules)
    assert not bool(led.converged.any()) and bool((led.confidence > short.confidence).all())
    torch.testing.assert_close(led.x_cf[:, 0], torch.full((5,), 1.5))


def test_an_anchor_walks_back_in_numbers_and_keeps_its_category():
    x, y = moat()
    x = torch.cat([x, torch.nn.functional.one_hot(y, 2).to(x)], 1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 2, bias=False)).requires_grad_(False)
    model[0].weight.copy_(torch.tensor([[-1.0, 0, 0, 0], [1.0, 0, 0, 0]]))
    rules = Constraints.build(4, groups=[(2, 3)])
    gated = fit_gate(model, x, y, constraints=rules)
    start, target = x[:10], 1 - y[:10]
    found = towards_real(gated, start, target, rules, 0.6)
    assert torch.equal(found[:, 2:], torch.nn.functional.one_hot(target, 2).to(x))
    reached = gated(found).softmax(-1).gather(-1, target[:, None])
    assert float(reached.min()) >= 0.6 and float(reached.max()) < 0.7


def test_the_nearest_real_rows_are_the_anchors():
    """Half of the target's rows lie as far ahead, but also far aside."""
    x, y = moat()
    x[(torch.arange(len(x)) % 4) == 1, 1] += 30.0
    gated = fit_gate(slope(), x, y)
    found = towards_real(
        gated, x[y == 0][:5], torch.ones(5, dtype=torch.long), Constraints.build(2), 0.6
    )
    assert float(found[:, 0].min()) > 1 and float(found[:, 1].abs().max()) < 3


def test_a_search_led_by_real_rows_keeps_held_cells_and_ends_its_path_there():
    """Ten steps do not cross the moat; the second feature of every other row is held."""
    x, y = moat()
    gated = fit_gate(slope(), x, y)
    start, target = x[:40], 1 - y[:40]
    held = torch.zeros_like(start, dtype=torch.bool)
    held[::2, 1] = True
    ten = ecco(decision_threshold=0.6, max_steps=10)
    plain = search(gated, start, target, ten, held=held, record=True, real_rows=False)
    led = search(gated, start, target, ten, held=held, record=True)
    moved = (led.x_cf != plain.x_cf).any(-1)
    assert bool(moved[::2].any()) and bool(led.converged[moved].any())
    assert torch.equal(led.x_cf[held], start[held])
    assert torch.equal(led.path[-1], led.x_cf) and torch.equal(led.path[:-1], plain.path[:-1])
