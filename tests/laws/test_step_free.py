"""What the line search promises beyond the other laws: neither step size nor scale decides where a row ends."""

import copy
from functools import cache

import pytest
import torch
from cases import CONSTRAINTS, draw_data, model_of
from torch import nn
from torch.testing import assert_close

from counterfactual_training import ecco, generic, line, search
from covering import on_product

ROWS = 40
CONTINUOUS = ["none", "immutable", "directions", "stated_box", "inferred_box"]
# Of the features, whose standard deviations are about 1.
SCALE_TOLERANCE, STEP_TOLERANCE = 1e-3, 0.1


@cache
def problem(name):
    model = model_of(name).eval()
    x, _ = draw_data(2, ROWS, seed=11)
    with torch.no_grad():
        return model, x, 1 - model(x).argmax(-1)


def scaled(model, factor):
    model = copy.deepcopy(model)
    last = [layer for layer in model if isinstance(layer, nn.Linear)][-1]
    with torch.no_grad():
        last.weight.mul_(factor)
        last.bias.mul_(factor)
    return model


@cache
def found(name, constraints, factor=1.0, **settings):
    """What every test looks at and none changes."""
    model, x, y_target = problem(name)
    return search(scaled(model, factor), x, y_target, line(**settings), CONSTRAINTS[constraints](x))


@on_product(model=["linear", "mlp"], constraints=CONSTRAINTS, factor=[0.1, 10.0])
def test_the_scale_of_the_logits_decides_nothing(model, constraints, factor):
    plain, other = found(model, constraints), found(model, constraints, factor)
    assert torch.equal(plain.status, other.status)
    assert float(plain.mature.float().mean()) > 0.7
    assert_close(plain.x_cf, other.x_cf, atol=SCALE_TOLERANCE, rtol=0)


def test_with_fixed_steps_it_does():
    model, x, y_target = problem("mlp")
    generator = generic(decision_threshold=0.5)
    costs = [(search(scaled(model, c), x, y_target, generator).x_cf - x).abs().sum(-1).mean() for c in (1.0, 10.0)]
    assert float(costs[1] / costs[0]) > 1.5


@pytest.mark.parametrize("constraints", CONTINUOUS)
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_shorter_steps_change_little(model, constraints):
    plain = found(model, constraints)
    shorter = found(model, constraints, learning_rate=0.025, max_steps=600)
    assert torch.equal(plain.status, shorter.status)
    apart = (plain.x_cf - shorter.x_cf).abs().amax(-1)
    assert float(apart.max()) < STEP_TOLERANCE and float(apart.median()) < STEP_TOLERANCE / 10


@pytest.mark.parametrize("constraints", [name for name in CONSTRAINTS if name not in CONTINUOUS])
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_shorter_steps_snap_few_rows_elsewhere(model, constraints):
    """Another way up may cross from one category's half to another's."""
    plain = found(model, constraints)
    shorter = found(model, constraints, learning_rate=0.025, max_steps=600)
    apart = (plain.x_cf - shorter.x_cf).abs().amax(-1)
    assert torch.equal(plain.status, shorter.status)
    assert int((apart > STEP_TOLERANCE).sum()) <= ROWS // 20
    past = plain.confidence[plain.mature] - 0.5
    assert float(past.min()) >= 0


@on_product(model=["linear", "mlp"], constraints=CONTINUOUS, threshold=[0.3, 0.5, 0.95])
def test_rows_end_just_past_the_threshold(model, constraints, threshold):
    result = found(model, constraints, decision_threshold=threshold)
    past = result.confidence[result.mature] - threshold
    assert len(past) > ROWS / 5 and float(past.min()) >= 0 and float(past.max()) < 1e-3


@pytest.mark.parametrize("generator", [ecco(step_rule="line", max_steps=60), generic(0.2, step_rule="line")])
def test_no_step_raises_the_objective(generator):
    """With penalties too, whose weights do not decay on the way."""
    model, x, y_target = problem("mlp")
    result = search(model, x, y_target, generator.replace(decision_threshold=1.0), record=True)
    weight = generator.penalties[0].weight
    with torch.no_grad():
        logits = model(result.path)
    value = -logits.log_softmax(-1).gather(-1, y_target.expand(len(logits), -1).unsqueeze(-1)).squeeze(-1)
    value = value + weight * (result.path - x).abs().sum(-1)
    if len(generator.penalties) > 1:
        e, b = -logits.gather(-1, y_target.expand(len(logits), -1).unsqueeze(-1)).squeeze(-1), round(60 / 25)
        value = value + 5.0 * b / 10 * (b + 1) ** -0.9 * (e + 1e-3 * e.square())
    assert int(result.num_steps.min()) > 2
    assert float(value.diff(dim=0).max()) < 1e-4
