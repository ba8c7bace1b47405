"""What the line search promises beyond the other laws: neither step size nor scale decides where a
row ends.
"""

import copy
from functools import cache

import pytest
import torch
from cases import FAMILIES, MEMBERS, draw_data, model_of, rules_of
from torch import nn

from counterfactual_training import ecco, generic, line, search
from counterfactual_training.constraints.stack_constraints import stack_constraints
from counterfactual_training.models.stack import StackedModel
from covering import each_value

ROWS = 40
CONTINUOUS = ["boxes", "inferred_box"]
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
def found(name, family, factor=1.0, **settings):
    """One model under the rules of each member of a family: what every test looks at and none
    changes.
    """
    model, x, y_target = problem(name)
    stack = StackedModel([scaled(model, factor) for _ in range(MEMBERS)])
    rules = stack_constraints([rules_of(family, i, x) for i in range(MEMBERS)])
    return search(
        stack, x.expand(MEMBERS, -1, -1), y_target.expand(MEMBERS, -1), line(**settings), rules
    )


@each_value(family=list(FAMILIES), factor=[0.1, 10.0], model=["linear", "mlp"])
def test_the_scale_of_the_logits_decides_nothing(model, family, factor):
    plain = found(model, family)
    other = found(model, family, factor)
    assert torch.equal(plain.status, other.status)
    assert float(plain.mature[0].float().mean()) > 0.7
    apart = (plain.x_cf - other.x_cf).abs().amax(-1)
    assert float(apart[plain.mature].max()) < SCALE_TOLERANCE
    assert (
        float(apart.max()) < STEP_TOLERANCE
    )  # a best effort ends where steps hardly help any more


def test_with_fixed_steps_it_does():
    model, x, y_target = problem("mlp")
    generator = generic(decision_threshold=0.5)
    costs = [
        (search(scaled(model, c), x, y_target, generator).x_cf - x).abs().sum(-1).mean()
        for c in (1.0, 10.0)
    ]
    assert float(costs[1] / costs[0]) > 1.5


@pytest.mark.parametrize("family", CONTINUOUS)
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_shorter_steps_change_little(model, family):
    plain = found(model, family)
    shorter = found(model, family, learning_rate=0.025, max_steps=600)
    assert torch.equal(plain.status, shorter.status)
    apart = (plain.x_cf - shorter.x_cf).abs().amax(-1)
    assert float(apart.max()) < STEP_TOLERANCE and float(apart.median()) < STEP_TOLERANCE / 10


@each_value(
    family=[name for name in FAMILIES if name not in CONTINUOUS], model=["linear", "mlp"]
)
def test_shorter_steps_snap_few_rows_elsewhere(model, family):
    """Another way up may cross from one category's half to another's."""
    plain = found(model, family)
    shorter = found(model, family, learning_rate=0.025, max_steps=600)
    apart = (plain.x_cf - shorter.x_cf).abs().amax(-1)
    assert int((plain.status != shorter.status).sum()) <= MEMBERS * ROWS // 100
    assert int((apart > STEP_TOLERANCE).sum()) <= MEMBERS * ROWS // 20
    past = plain.confidence[plain.mature] - 0.5
    assert float(past.min()) >= 0


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.95])
@each_value(family=CONTINUOUS, model=["linear", "mlp"])
def test_rows_end_just_past_the_threshold(model, family, threshold):
    result = found(model, family, decision_threshold=threshold)
    past = result.confidence[result.mature] - threshold
    assert (
        len(past) > MEMBERS * ROWS / 5 and float(past.min()) >= 0 and float(past.max()) < 1e-3
    )


@pytest.mark.parametrize(
    "generator", [ecco(step_rule="line", max_steps=60), generic(0.2, step_rule="line")]
)
def test_no_step_raises_the_objective(generator):
    """With penalties too, whose weights do not decay on the way."""
    model, x, y_target = problem("mlp")
    result = search(model, x, y_target, generator.replace(decision_threshold=1.0), record=True)
    weight = generator.penalties[0].weight
    with torch.no_grad():
        logits = model(result.path)
    value = (
        -logits.log_softmax(-1)
        .gather(-1, y_target.expand(len(logits), -1).unsqueeze(-1))
        .squeeze(-1)
    )
    value = value + weight * (result.path - x).abs().sum(-1)
    if len(generator.penalties) > 1:
        e, b = (
            -logits.gather(-1, y_target.expand(len(logits), -1).unsqueeze(-1)).squeeze(-1),
            round(60 / 25),
        )
        value = value + 5.0 * b / 10 * (b + 1) ** -0.9 * (e + 1e-3 * e.square())
    assert int(result.num_steps.min()) > 2
    assert float(value.diff(dim=0).max()) < 1e-4
