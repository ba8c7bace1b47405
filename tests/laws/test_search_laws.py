"""What every counterfactual search keeps to, on every generator × model × constraint."""

import copy
import sys

import pytest
import torch
from cases import (
    BINARY,
    CONSTRAINTS,
    CONTINUOUS,
    DESCENDING,
    GENERATOR_NAMES,
    GROUP,
    INTEGER,
    MODELS,
    STEPPED,
    TRANSITIONS,
    case,
)
from torch.testing import assert_close

from counterfactual_training import Status
from counterfactual_training.search import working_set
from covering import each_value, on_product

everywhere = on_product(generator=GENERATOR_NAMES, model=MODELS, constraints=CONSTRAINTS)


@everywhere
def test_what_may_not_move_does_not(generator, model, constraints):
    case_ = case(generator, model, constraints)
    delta = case_.result.x_cf - case_.x
    for j, direction in enumerate(case_.rules.directions):
        if direction == "none":
            assert torch.equal(case_.result.x_cf[:, j], case_.x[:, j])
            assert torch.equal(case_.result.x_adv[:, j], case_.x[:, j])
        if direction == "increase":
            assert bool((delta[:, j] >= 0).all())
        if direction == "decrease":
            assert bool((delta[:, j] <= 0).all())


@everywhere
def test_counterfactuals_lie_in_the_domain(generator, model, constraints):
    case_ = case(generator, model, constraints)
    x_cf, moved = case_.result.x_cf, case_.result.x_cf != case_.x
    box, directions = case_.rules.domain, case_.rules.directions
    for j, direction in enumerate(directions):
        # A factual outside an inferred box comes back inside, unless it may not move that way.
        low = box.lower[j] if direction in ("both", "increase") else torch.minimum(box.lower[j], case_.x[:, j])
        high = box.upper[j] if direction in ("both", "decrease") else torch.maximum(box.upper[j], case_.x[:, j])
        inside = (x_cf[:, j] >= low - 1e-6) & (x_cf[:, j] <= high + 1e-6)
        assert bool((inside | ~moved[:, j]).all())
    assert not bool(case_.rules.violations(x_cf[case_.result.num_steps > 0], case_.x[case_.result.num_steps > 0]).any())


@on_product(
    generator=GENERATOR_NAMES,
    model=MODELS,
    constraints=["one_hot", "one_hot_step", "transitions", "discrete_only", "mixed"],
)
def test_categories_are_categories(generator, model, constraints):
    case_ = case(generator, model, constraints)
    group, binary = case_.result.x_cf[:, GROUP], case_.result.x_cf[:, BINARY]
    assert torch.equal(group.sort(-1).values, torch.tensor([0.0, 0.0, 1.0]).expand(len(group), 3))
    assert bool(((binary == 0) | (binary == 1)).all())
    if constraints in ("transitions", "mixed"):
        before, after = case_.x[:, GROUP].argmax(-1), group.argmax(-1)
        assert bool(TRANSITIONS[before, after].all())


@on_product(generator=GENERATOR_NAMES, model=MODELS, constraints=["lattices", "discrete_only", "mixed"])
def test_integers_are_integers(generator, model, constraints):
    x_cf = case(generator, model, constraints).result.x_cf
    assert_close(x_cf[:, INTEGER], x_cf[:, INTEGER].round(), atol=1e-4, rtol=0)
    assert_close(x_cf[:, STEPPED] * 2, (x_cf[:, STEPPED] * 2).round(), atol=1e-4, rtol=0)


@everywhere
def test_converged_rows_satisfy_the_threshold(generator, model, constraints):
    case_ = case(generator, model, constraints)
    result, tau = case_.result, case_.generator.decision_threshold
    with torch.no_grad():
        probability = copy.deepcopy(case_.model).eval()(result.x_cf).softmax(-1)
    confidence = probability.gather(1, case_.y_target[:, None])[:, 0]
    assert_close(result.confidence, confidence, atol=1e-5, rtol=0)
    assert bool((confidence[result.converged] >= tau - 1e-5).all())
    assert bool((confidence[~result.converged] < tau + 1e-5).all())
    assert bool(result.converged[result.status == int(Status.CONVERGED)].all())
    late = (result.status == int(Status.EXHAUSTED)) | (result.status == int(Status.INFEASIBLE))
    assert not bool(result.converged[late].any())


@everywhere
def test_steps_and_statuses_agree(generator, model, constraints):
    case_ = case(generator, model, constraints)
    result, limit = case_.result, case_.generator.max_steps
    assert bool(((result.num_steps >= 0) & (result.num_steps <= limit)).all())
    there = result.status == int(Status.ALREADY_THERE)
    with torch.no_grad():
        logits = copy.deepcopy(case_.model).eval()(case_.x)
    confident = logits.softmax(-1).gather(-1, case_.y_target[:, None])[:, 0] >= case_.generator.decision_threshold
    assert torch.equal(there, (logits.argmax(-1) == case_.y_target) | confident)
    assert torch.equal(result.x_cf[there], case_.x[there]) and torch.equal(result.x_adv[there], case_.x[there])
    assert bool((result.num_steps[there] == 0).all()) and bool((result.num_steps[~there] > 0).all())
    late = (result.status == int(Status.EXHAUSTED)) | (result.status == int(Status.INFEASIBLE))
    # A row of discrete features spends one iteration on being snapped; without any other it ends there.
    # A line search counts what it took, and stops where no step helps.
    if constraints != "discrete_only" and case_.generator.step_rule == "fixed":
        assert bool((result.num_steps[late] >= limit - case_.rules.has_discrete).all())
    assert result.binding.shape == case_.x.shape and not bool(result.binding[result.converged].any())


@pytest.mark.parametrize("threshold", [0.05, 0.9999])
@pytest.mark.parametrize("constraints", ["none", "one_hot_step", "mixed"])
@pytest.mark.parametrize("generator", GENERATOR_NAMES)
def test_a_row_is_already_there_by_its_class_or_by_the_threshold(generator, constraints, threshold):
    """Below one half a class may have τ while the model predicts another; a predicted class may lack τ."""
    case_ = case(generator, "deep", constraints, threshold=threshold)
    with torch.no_grad():
        logits = copy.deepcopy(case_.model).eval()(case_.x)
    predicted = logits.argmax(-1) == case_.y_target
    confident = logits.softmax(-1).gather(-1, case_.y_target[:, None])[:, 0] >= threshold
    decisive = confident & ~predicted if threshold < 0.5 else predicted & ~confident
    assert bool(decisive.any()), "the law needs a row that is there by one of the two only"
    there = case_.result.status == int(Status.ALREADY_THERE)
    assert torch.equal(there, predicted | confident)
    assert torch.equal(case_.result.x_cf[there], case_.x[there])


@on_product(
    generator=DESCENDING,
    model=MODELS,
    constraints=["none", "immutable", "one_hot", "one_hot_step", "lattices", "transitions"],
)
def test_steps_are_counted_exactly(generator, model, constraints):
    """An update moves the continuous features, a snap only the discrete ones: it counts as no step."""
    case_ = case(generator, model, constraints)
    path = case_.result.path[:, :, CONTINUOUS]
    updates = (path[1:] != path[:-1]).any(-1).sum(0)
    assert torch.equal(case_.result.num_steps, updates)


@everywhere
def test_the_path_leads_from_the_factual_to_the_counterfactual(generator, model, constraints):
    case_ = case(generator, model, constraints)
    result, path = case_.result, case_.result.path
    assert path.shape == (case_.generator.max_steps + 1, *case_.x.shape)
    assert torch.equal(path[0], case_.x) and torch.equal(path[-1], result.x_cf)
    moves = (path[1:] != path[:-1]).any(-1)
    # A line search projects categories once, when it has climbed, also where others do so at every step.
    snaps = case_.rules.has_discrete or (generator == "line" and case_.rules.category_projection == "step")
    for row, steps in enumerate(result.num_steps.tolist()):
        # After its last update, and the snap that may follow it, a row stands still.
        assert not bool(moves[steps + snaps :, row].any())
    if not snaps:
        rows = torch.arange(len(case_.x))
        assert torch.equal(path[result.num_steps, rows], result.x_cf)
        assert bool(moves[0, result.num_steps > 0].all()), "the first update is missing from the path"


@everywhere
def test_nascent_is_the_last_iterate_in_the_ball(generator, model, constraints):
    case_ = case(generator, model, constraints)
    result, epsilon = case_.result, case_.generator.epsilon
    assert bool(((result.x_adv - case_.x).abs().amax(-1) <= epsilon).all())
    for row in range(len(case_.x)):
        inside = (result.path[:, row] - case_.x[row]).abs().amax(-1) <= epsilon
        last = result.path[inside.nonzero()[-1, 0], row]
        if case_.rules.has_discrete and not torch.equal(last, result.x_adv[row]):
            # The iterate that the closing snap replaced in the path may still be the last one inside.
            continuous = [j for j in CONTINUOUS if not case_.rules.discrete[j]]
            assert torch.equal(result.x_adv[row, continuous], result.x_cf[row, continuous])
            assert int(result.num_steps[row]) == case_.generator.max_steps
            continue
        assert torch.equal(last, result.x_adv[row])


@everywhere
def test_the_model_is_left_untouched(generator, model, constraints):
    case_ = case(generator, model, constraints)
    assert case_.before["training "], "the law needs a model in train mode"
    assert any(value is not None for name, value in case_.before.items() if name.startswith("gradient"))
    assert case_.before.keys() == case_.after.keys()
    for name, value in case_.before.items():
        same = torch.equal(value, case_.after[name]) if isinstance(value, torch.Tensor) else value == case_.after[name]
        assert same, name


@everywhere
def test_same_seed_same_result(generator, model, constraints):
    case_ = case(generator, model, constraints)
    before = torch.get_rng_state()
    again = case_.again()
    assert torch.equal(torch.get_rng_state(), before)
    assert again.path is None  # where nobody asked for it
    for name in ("x_cf", "x_adv", "converged", "num_steps", "status", "confidence", "binding"):
        assert torch.equal(getattr(again, name), getattr(case_.result, name)), name


@everywhere
def test_a_batch_equals_its_rows(generator, model, constraints):
    """In double precision, so that rounding in the matrix products decides no threshold."""
    case_ = case(generator, model, constraints, double=True)
    order = torch.tensor([7, 2, 9, 0, 5, 1, 8, 3, 6, 4])
    expect_rows(case_.again(order), case_.result, order)
    for row in (0, 9):
        rows = torch.tensor([row])
        expect_rows(case_.again(rows), case_.result, rows)


def expect_rows(found, whole, rows):
    assert torch.equal(found.status, whole.status[rows]) and torch.equal(found.num_steps, whole.num_steps[rows])
    assert_close(found.x_cf, whole.x_cf[rows], atol=1e-9, rtol=1e-9)
    assert_close(found.x_adv, whole.x_adv[rows], atol=1e-9, rtol=1e-9)
    assert_close(found.confidence, whole.confidence[rows], atol=1e-9, rtol=1e-9)
    assert torch.equal(found.binding, whole.binding[rows])


@on_product(generator=GENERATOR_NAMES, constraints=CONSTRAINTS, share=[0.0, 1.0])
def test_rows_that_leave_change_nothing(generator, constraints, share, monkeypatch):
    """Whether they never leave the working set, or at once."""
    case_ = case(generator, "own_module", constraints, double=True)
    monkeypatch.setattr(working_set, "_SHRINK_AT", share)
    expect_rows(case_.again(), case_.result, slice(None))


@each_value(generator=GENERATOR_NAMES, constraints=list(CONSTRAINTS))
def test_blocks_change_nothing(generator, constraints, monkeypatch):
    case_ = case(generator, "deep", constraints, double=True)
    # The package's name ``search`` is the function, so the module is found by its path.
    module = sys.modules["counterfactual_training.search.search"]
    monkeypatch.setattr(module, "_BLOCK_VALUES", {"cpu": 3 * case_.x.shape[1]})
    blocks = case_.again(record=True)
    expect_rows(blocks, case_.result, slice(None))
    assert_close(blocks.path, case_.result.path, atol=1e-9, rtol=1e-9)
