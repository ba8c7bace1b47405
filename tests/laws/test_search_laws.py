"""What every counterfactual search keeps to, on every generator × model × family of constraints.

Each test looks at four members at once, which differ in weights, rows, directions and boxes.
"""

import sys

import pytest
import torch
from cases import (
    BINARY,
    CONTINUOUS,
    DESCENDING,
    FAMILIES,
    GENERATOR_NAMES,
    GROUP,
    INTEGER,
    MEMBERS,
    MODELS,
    ROWS,
    STEPPED,
    TRANSITIONS,
    WITH_GROUPS,
    WITH_LATTICES,
    case,
)
from torch import Tensor
from torch.testing import assert_close

from counterfactual_training import Status
from counterfactual_training.generators import line_search, live_rows
from covering import each_pair, each_value, on_product

# What searches again takes longer: every generator once, with the models and families in turn;
# `make check`: all pairs.
in_turn = each_pair(generator=GENERATOR_NAMES, family=list(FAMILIES), model=list(MODELS))


def confidence_of(logits: Tensor, y_target: Tensor) -> Tensor:
    """The probability of the target, ``(M, n)``."""
    return logits.softmax(-1).gather(-1, y_target.unsqueeze(-1)).squeeze(-1)


def late(result) -> Tensor:
    return (result.status == int(Status.EXHAUSTED)) | (result.status == int(Status.INFEASIBLE))


# ---- what one search shows -----------------------------------------------------------------------


@on_product(generator=GENERATOR_NAMES, model=MODELS, family=FAMILIES)
def test_one_search(generator, model, family):
    run = case(generator, model, family)
    constraints_hold(run)
    confidence_steps_and_status_agree(run)
    the_path_leads_from_the_factual_to_the_counterfactual(run)
    nascent_is_the_last_iterate_in_the_ball(run)
    the_model_is_left_untouched(run)


def constraints_hold(run):
    """Directions exactly, also of nascent counterfactuals; boxes, categories and lattices."""
    up = run.constraints.may_increase.unsqueeze(-2)
    down = run.constraints.may_decrease.unsqueeze(-2)
    for points in (run.result.x_cf, run.result.x_adv):
        assert not bool(((points > run.x) & ~up).any())
        assert not bool(((points < run.x) & ~down).any())
    expect_inside(run, up, down)
    if run.family in WITH_GROUPS:
        expect_categories(run)
    if run.family in WITH_LATTICES:
        x_cf = run.result.x_cf
        assert_close(x_cf[..., INTEGER], x_cf[..., INTEGER].round(), atol=1e-4, rtol=0)
        assert_close(
            x_cf[..., STEPPED] * 2, (x_cf[..., STEPPED] * 2).round(), atol=1e-4, rtol=0
        )
    for i, rules in enumerate(run.rules):
        updated = run.result.num_steps[i] > 0
        assert not bool(rules.violations(run.result.x_cf[i, updated], run.x[i, updated]).any())


def expect_inside(run, up, down):
    """A factual outside an inferred box comes back inside, unless it may not move that way."""
    x_cf = run.result.x_cf
    lower = run.constraints.domain.lower.unsqueeze(-2)
    upper = run.constraints.domain.upper.unsqueeze(-2)
    low = torch.where(up, lower, torch.minimum(lower, run.x))
    high = torch.where(down, upper, torch.maximum(upper, run.x))
    inside = (x_cf >= low - 1e-6) & (x_cf <= high + 1e-6)
    assert bool((inside | (x_cf == run.x)).all())


def expect_categories(run):
    group = run.result.x_cf[..., GROUP]
    binary = run.result.x_cf[..., BINARY]
    assert torch.equal(group.sort(-1).values, torch.tensor([0.0, 0.0, 1.0]).expand_as(group))
    assert bool(((binary == 0) | (binary == 1)).all())
    if run.family in ("transitions", "mixed"):
        before = run.x[..., GROUP].argmax(-1)
        assert bool(TRANSITIONS[before, group.argmax(-1)].all())


def confidence_steps_and_status_agree(run):
    result = run.result
    tau = run.generator.decision_threshold
    limit = run.generator.max_steps
    confidence = confidence_of(run.logits_at(result.x_cf), run.y_target)
    assert_close(result.confidence, confidence, atol=1e-5, rtol=0)
    assert bool((confidence[result.converged] >= tau - 1e-5).all())
    assert bool((confidence[~result.converged] < tau + 1e-5).all())
    assert bool(result.converged[result.status == int(Status.CONVERGED)].all())
    assert not bool(result.converged[late(result)].any())
    assert bool(((result.num_steps >= 0) & (result.num_steps <= limit)).all())
    expect_already_there(run, tau)
    there = result.status == int(Status.ALREADY_THERE)
    assert bool((result.num_steps[there] == 0).all()) and bool(
        (result.num_steps[~there] > 0).all()
    )
    # A row of discrete features spends one iteration on being snapped; without any other it ends
    # there. A line search counts what it took, and stops where no step helps.
    if run.family != "discrete_only" and run.generator.step_rule == "fixed":
        assert bool(
            (result.num_steps[late(result)] >= limit - run.constraints.has_discrete).all()
        )
    assert result.binding.shape == run.x.shape
    assert not bool(result.binding[result.converged].any())


def expect_already_there(run, threshold):
    """By its class or by τ; then nothing moves."""
    logits = run.logits
    predicted = logits.argmax(-1) == run.y_target
    confident = confidence_of(logits, run.y_target) >= threshold
    there = run.result.status == int(Status.ALREADY_THERE)
    assert torch.equal(there, predicted | confident)
    assert torch.equal(run.result.x_cf[there], run.x[there])
    assert torch.equal(run.result.x_adv[there], run.x[there])
    return predicted, confident


@on_product(generator=GENERATOR_NAMES, family=["boxes", "one_hot_step", "mixed"])
def test_a_row_is_already_there_by_its_class_or_by_the_threshold(generator, family):
    """Below one half a class may have τ while the model predicts another; a predicted class may
    lack τ.
    """
    thresholds = (0.05, 0.9999, 0.05, 0.9999)
    run = case(generator, "deep", family, thresholds=thresholds)
    tau = torch.tensor(thresholds).unsqueeze(-1)
    predicted, confident = expect_already_there(run, tau)
    decisive = torch.where(tau < 0.5, confident & ~predicted, predicted & ~confident)
    for members in (decisive[::2], decisive[1::2]):
        assert bool(members.any()), "the law needs rows that are there by one of the two only"


def the_path_leads_from_the_factual_to_the_counterfactual(run):
    result = run.result
    path = result.path
    limit = run.generator.max_steps
    assert path.shape == (limit + 1, *run.x.shape)
    assert torch.equal(path[0], run.x) and torch.equal(path[-1], result.x_cf)
    moves = (path[1:] != path[:-1]).any(-1)
    # A line search projects categories once, when it has climbed, also where others do so at every
    # step.
    projected = (
        run.generator.step_rule == "line" and run.constraints.category_projection == "step"
    )
    snaps = run.constraints.has_discrete or projected
    # After its last update, and the snap that may follow it, a row stands still.
    step = torch.arange(limit).reshape(-1, 1, 1)
    assert not bool((moves & (step >= result.num_steps + snaps)).any())
    if not snaps:
        last = result.num_steps.unsqueeze(-1).expand_as(run.x).unsqueeze(0)
        assert torch.equal(path.gather(0, last)[0], result.x_cf)
        assert bool(moves[0, result.num_steps > 0].all()), (
            "the first update is missing from the path"
        )


@on_product(
    generator=DESCENDING,
    model=MODELS,
    family=["boxes", "one_hot", "one_hot_step", "lattices", "transitions"],
)
def test_steps_are_counted_exactly(generator, model, family):
    """An update moves the continuous features, a snap only the discrete ones: it counts as no step.

    The first two members only: the others may be held by their directions and boxes in all
        continuous features.
    """
    run = case(generator, model, family)
    path = run.result.path[:, :2, :, CONTINUOUS]
    updates = (path[1:] != path[:-1]).any(-1).sum(0)
    assert torch.equal(run.result.num_steps[:2], updates)


def nascent_is_the_last_iterate_in_the_ball(run):
    result = run.result
    path = result.path
    epsilon = run.generator.epsilon
    assert bool(((result.x_adv - run.x).abs().amax(-1) <= epsilon).all())
    inside = (path - run.x).abs().amax(-1) <= epsilon
    place = torch.arange(len(path)).reshape(-1, 1, 1)
    last = torch.where(inside, place, -1).amax(0)
    nascent = path.gather(0, last.unsqueeze(-1).expand_as(run.x).unsqueeze(0))[0]
    other = (nascent != result.x_adv).any(-1)
    if run.constraints.has_discrete:
        # The iterate that the closing snap replaced in the path may still be the last one inside.
        continuous = [j for j in CONTINUOUS if not run.constraints.discrete[j]]
        assert torch.equal(
            result.x_adv[other][:, continuous], result.x_cf[other][:, continuous]
        )
        assert bool((result.num_steps[other] == run.generator.max_steps).all())
    else:
        assert not bool(other.any())


def the_model_is_left_untouched(run):
    assert run.before["training "], "the law needs a model in train mode"
    gradients = [value for name, value in run.before.items() if name.startswith("gradient")]
    assert any(value is not None for value in gradients)
    assert run.before.keys() == run.after.keys()
    for name, value in run.before.items():
        if isinstance(value, Tensor):
            assert torch.equal(value, run.after[name]), name
        else:
            assert value == run.after[name], name


# ---- what a second search shows ------------------------------------------------------------------


@in_turn
def test_same_seed_same_result(generator, model, family):
    run = case(generator, model, family)
    before = torch.get_rng_state()
    again = run.again()
    assert torch.equal(torch.get_rng_state(), before)
    assert again.path is None  # where it is not recorded
    for name in ("x_cf", "x_adv", "converged", "num_steps", "status", "confidence", "binding"):
        assert torch.equal(getattr(again, name), getattr(run.result, name)), name


@in_turn
def test_a_batch_equals_its_rows(generator, model, family):
    """In double precision, so that rounding in the matrix products decides no threshold."""
    run = case(generator, model, family, double=True)
    order = torch.tensor([7, 2, 9, 0, 5, 1, 8, 3, 6, 4])
    assert sorted(order.tolist()) == list(range(ROWS))
    expect_rows(run.again(order), run.result, order)
    for row in (0, 9):
        rows = torch.tensor([row])
        expect_rows(run.again(rows), run.result, rows)


@in_turn
def test_a_member_equals_it_alone(generator, model, family):
    run = case(generator, model, family, double=True)
    # Whether a line search takes one more step that hardly helps is a matter of rounding.
    slack = int(run.generator.step_rule == "line")
    for member in range(MEMBERS):
        expect_member(run.result, run.alone(member), member, slack)


@each_value(generator=GENERATOR_NAMES, family=list(FAMILIES), share=[0.0, 1.0])
def test_rows_that_leave_change_nothing(generator, family, share, monkeypatch):
    """Whether they never leave the live rows, or at once."""
    run = case(generator, "own_module", family, double=True)
    monkeypatch.setattr(live_rows, "_SHRINK_AT", share)
    monkeypatch.setattr(line_search, "_SHRINK_AT", share)
    expect_rows(run.again(), run.result, slice(None))


@each_value(generator=GENERATOR_NAMES, family=list(FAMILIES))
def test_blocks_change_nothing(generator, family, monkeypatch):
    run = case(generator, "deep", family, double=True)
    # The package's name ``search`` is the function, so the module is found by its path.
    module = sys.modules["counterfactual_training.generators.search"]
    monkeypatch.setattr(module, "_BLOCK_VALUES", {"cpu": 3 * MEMBERS * run.x.shape[-1]})
    blocks = run.again(record=True)
    # A line search drops finished rows, so products round by the size of what is left, and a step
    # that just fails elsewhere just succeeds: it ends at the same point one step later.
    slack = int(generator == "line")
    expect_rows(blocks, run.result, slice(None), slack)
    if not slack:
        assert_close(blocks.path, run.result.path, atol=1e-9, rtol=1e-9)


def expect_rows(part, whole, rows, slack=0):
    """The search of some rows of all members equals these rows of the whole search."""
    for name in ("status", "binding"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[:, rows]), name
    assert int((part.num_steps - whole.num_steps[:, rows]).abs().max()) <= slack
    for name in ("x_cf", "x_adv", "confidence"):
        assert_close(getattr(part, name), getattr(whole, name)[:, rows], atol=1e-9, rtol=1e-9)


def expect_member(result, alone, member, slack):
    for name in ("converged", "status", "binding"):
        assert torch.equal(getattr(result, name)[member], getattr(alone, name)), name
    assert int((result.num_steps[member] - alone.num_steps).abs().max()) <= slack
    for name in ("x_cf", "x_adv", "confidence"):
        assert_close(getattr(result, name)[member], getattr(alone, name), atol=1e-9, rtol=1e-9)
    if not slack:
        assert_close(result.path[:, member], alone.path, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", GENERATOR_NAMES)
def test_every_generator_moves_something(name):
    """Otherwise the laws would hold for want of anything that could break them."""
    run = case(name, "mlp", "boxes")
    moved = (run.result.x_cf != run.x).any(-1)
    assert bool(moved.any(-1).all())
    assert bool(run.result.converged.any())
