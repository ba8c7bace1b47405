"""Ways along real rows."""

import torch
from test_gated import moat, slope

from counterfactual_training import Constraints
from counterfactual_training.gates import fit_gate, real_rows, towards_real


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
    x, y = moat(60)
    gated = fit_gate(slope(), x, y, "learned", config=None)
    assert real_rows(gated.gate) is None
    assert torch.equal(towards_real(gated, x, 1 - y, Constraints.infer(x), 0.5), x)
