"""Ways along real rows."""

import pytest
import torch
from test_gated import moat, slope

from counterfactual_training import Constraints, ecco, line
from counterfactual_training.constraints.stacking import stack_constraints
from counterfactual_training.gates import Gated, fit_gate, remembered_rows, search_gated, towards_real
from counterfactual_training.models import StackedModel
from counterfactual_training.search import Status, search


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
    """The first feature may not pass 0, so that no row of class 1 is within reach; the best is at 0."""
    x, y = moat()
    rules = Constraints.build(2, domain={0: (-9.0, 0.0)})
    gated = fit_gate(slope(), x, y)
    found = towards_real(gated, x[y == 0][:5], torch.ones(5, dtype=torch.long), rules, 0.5)
    torch.testing.assert_close(found[:, 0], torch.zeros(5))


def test_a_gate_without_rows():
    x, y = moat(80)
    gated = fit_gate(slope(), x, y, "learned")
    assert remembered_rows(gated.gate) is None
    assert torch.equal(towards_real(gated, x, 1 - y, Constraints.infer(x), 0.5), x)


@pytest.mark.parametrize("generator", [line(decision_threshold=0.6), ecco(decision_threshold=0.6, max_steps=10)])
def test_a_fleet_shares_a_density_and_each_member_is_searched_as_alone(generator):
    """Ten fixed steps do not cross the moat, so that rows are led; the members' rules differ."""
    x, y = moat(200)
    models = [slope() for _ in range(3)]
    for i, model in enumerate(models):
        model[0].bias += torch.tensor([0.5 * i, 0.0])
    rules = [Constraints.build(2, domain=(-5.0 - i, 5.0 + i)) for i in range(3)]
    gate = fit_gate(models[0], x, y, constraints=rules[0]).gate
    start, target = x[:30].expand(3, 30, 2), (1 - y[:30]).expand(3, 30)
    together = search_gated(Gated(StackedModel(models), gate, 2.0), start, target, generator, stack_constraints(rules))
    plain = search(Gated(StackedModel(models), gate, 2.0), start, target, generator, stack_constraints(rules))
    led = plain.status != together.status
    if generator.step_rule == "fixed":
        assert bool(led.any()) and bool((together.status[led] == int(Status.CONVERGED)).all())
    for i, model in enumerate(models):
        alone = search_gated(Gated(model, gate, 2.0), start[i], target[i], generator, rules[i])
        assert torch.equal(together.status[i], alone.status)
        torch.testing.assert_close(together.x_cf[i], alone.x_cf, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(together.confidence[i], alone.confidence, rtol=1e-3, atol=1e-3)
