"""Answers that hold for other models: the worst case against brute force, guarantees against the
models themselves.
"""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.nn.functional import cross_entropy, softplus
from torch.testing import assert_close

import counterfactual_training as ct
from counterfactual_training import Constraints, Status, guaranteed_share, linear, mlp, search
from counterfactual_training.core.losses import log_odds
from counterfactual_training.errors import InputError
from counterfactual_training.generators.penalties import SearchState
from counterfactual_training.generators.robust import Guarantee, WorstCase
from counterfactual_training.generators.stack_generators import stack_generators

BALLS = {"l1": 1, "l2": 2, "linf": np.inf}
D = 4


def normal(*shape, seed=0):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def fitted(seed, hidden=(), n=120):
    """A network that was trained a little, on rows of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = mlp(D, 2, hidden=hidden) if hidden else linear(D, 2)
    y = torch.arange(n) % 2
    x = normal(n, D, seed=100 + seed).float() + 1.2 * y.unsqueeze(-1) - 0.6
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def model():
    return fitted(0, hidden=(8,))


@pytest.fixture(scope="module")
def others():
    return tuple(fitted(seed) for seed in range(1, 9))


@pytest.fixture(scope="module")
def rows(model):
    x = normal(40, D, seed=5).float() * 1.2
    return x, 1 - model(x).argmax(-1)


def state_at(x_cf, logits, y, threshold=0.5):
    return SearchState(x_cf * 0, x_cf, x_cf, logits, y, 1, 30, threshold=threshold)


# ---- the worst case ------------------------------------------------------------------------------


@pytest.mark.parametrize("ball", BALLS)
def test_the_worst_case_is_the_maximum_over_the_ball(ball):
    """Of the loss of the linear model with δ added to weights and intercept, by SLSQP from many
    starts and by points drawn in the ball.
    """
    w = normal(D, seed=1)
    intercept = 0.4
    x_cf = normal(5, D, seed=2) * 1.5
    odds = x_cf @ w + intercept
    logits = torch.stack([torch.zeros_like(odds), odds], -1)
    worst = WorstCase(0.3, ball)
    value = worst(state_at(x_cf, logits, torch.ones(5).long())) + softplus(-odds)
    rng = np.random.default_rng(0)
    radius = BALLS[ball]
    for i in range(5):
        point = np.append(x_cf[i].numpy(), 1.0)

        def loss(delta, point=point, odds=float(odds[i])):
            return np.logaddexp(0, -(odds + delta @ point))

        drawn = rng.normal(size=(4000, D + 1))
        drawn *= 0.3 / np.linalg.norm(drawn, ord=radius, axis=1, keepdims=True)
        assert max(map(loss, drawn)) <= float(value[i]) + 1e-12  # none is worse
        # Corners and axes are where linear functions have their maximum on two of the balls.
        signs = 0.3 * np.sign(point)
        axis = np.zeros(D + 1)
        axis[np.abs(point).argmax()] = 0.3 * np.sign(point[np.abs(point).argmax()])
        starts = {"linf": -signs, "l1": -axis, "l2": -0.3 * point / np.linalg.norm(point)}
        assert loss(starts[ball]) == pytest.approx(float(value[i]), abs=1e-9)
        inside = {
            "type": "ineq",
            "fun": lambda delta: 0.3 - np.linalg.norm(delta, ord=radius),
        }
        if ball == "l2":  # smooth, so that a solver can find it
            found = minimize(lambda d: -loss(d), drawn[0] / 2, constraints=inside)
            assert -found.fun == pytest.approx(float(value[i]), abs=1e-5)


@pytest.mark.parametrize("weight", [0.2, torch.tensor(0.2, dtype=torch.float64)])
@pytest.mark.parametrize("ball", BALLS)
def test_its_gradient_is_that_of_autograd(ball, weight):
    torch.manual_seed(0)
    model = mlp(D, 3, hidden=(8,), activation="tanh").double()
    x_cf = (2 * normal(9, D, seed=3)).requires_grad_()
    y = torch.arange(9) % 3
    state = state_at(x_cf, model(x_cf), y)
    worst = WorstCase(weight, ball)
    (expected,) = torch.autograd.grad(worst(state).sum(), x_cf, retain_graph=True)
    still = state._replace(x_cf=x_cf.detach(), logits=state.logits.detach())
    by_logits = torch.zeros_like(still.logits)
    worst.add_logit_gradient(still, by_logits)
    (found,) = torch.autograd.grad(state.logits, x_cf, by_logits)
    worst.add_gradient(still, found)
    assert_close(found, expected)


def test_without_a_ball_roar_is_its_base_objective(model, rows):
    x, y = rows
    settings = {"lambda_cost": 0.02, "max_steps": 60}
    plain = search(model, x, y, ct.generic(**settings))
    robust = search(model, x, y, ct.roar(delta_max=0.0, **settings))
    assert torch.equal(plain.x_cf, robust.x_cf)
    assert torch.equal(plain.num_steps, robust.num_steps)


@pytest.mark.parametrize("ball", BALLS)
def test_where_roar_has_enough_the_worst_model_accepts(ball):
    """Of a linear model, whose every perturbation in the ball can be asked."""
    model = fitted(0)
    x = normal(40, D, seed=5).float()
    y = 1 - model(x).argmax(-1)
    generator = ct.roar(0.01, 0.1, ball, decision_threshold=0.6, max_steps=300)
    found = search(model, x, y, generator)
    early = (found.status == int(Status.CONVERGED)) & (found.num_steps < 300)
    assert float(early.float().mean()) > 0.8
    drawn = normal(500, D + 1, seed=9)
    drawn = (0.1 * drawn / drawn.norm(p=BALLS[ball], dim=1, keepdim=True)).float()
    points = torch.cat([found.x_cf, torch.ones(40, 1)], 1)[early]
    odds = log_odds(model(found.x_cf), y)[early]
    least = (odds.unsqueeze(1) + points @ drawn.T).sigmoid().amin(1)
    assert bool((least >= 0.6 - 1e-5).all())
    # It is asked for no more than that: the rows one step before were not enough.
    plain = search(model, x, y, ct.generic(0.01, decision_threshold=0.6, max_steps=300))
    assert bool((found.num_steps >= plain.num_steps).all())
    assert float(found.confidence[early].mean()) > float(plain.confidence[early].mean()) + 0.02


def test_a_larger_ball_costs_more_and_convinces_more_models(model, others, rows):
    x, y = rows
    costs = []
    accepted = []
    for most in (0.0, 0.1, 0.2):
        generator = ct.roar(0.01, most, decision_threshold=0.5, max_steps=300)
        found = search(model, x, y, generator)
        costs.append(float((found.x_cf - x).abs().sum(-1).mean()))
        accepted.append(
            float(Guarantee(others, 0.3).accepting(found.x_cf, y).double().mean()) / len(others)
        )
    assert costs == sorted(costs) and accepted == sorted(accepted)
    assert accepted[-1] > accepted[0] + 0.05


def test_members_of_a_fleet_may_differ_in_their_ball():
    both = stack_generators([ct.roar(delta_max=0.0), ct.roar(delta_max=0.2)], torch.zeros(1))
    assert_close(both.numbers()["delta_max"], torch.tensor([0.0, 0.2]))
    assert ct.roar().with_numbers({"delta_max": 0.4}).penalties[1].weight == 0.4


def test_what_makes_no_sense_for_roar_is_refused():
    with pytest.raises(InputError, match="ball"):
        ct.roar(ball="l3")
    with pytest.raises(InputError, match="delta_max must be a finite number of at least 0"):
        ct.roar(delta_max=-0.1)
    with pytest.raises(InputError, match="A line search ends on τ, but the generator 'roar'"):
        ct.roar(step_rule="line")


def test_a_penalty_of_ones_own_may_keep_rows_in_the_search(model, rows):
    class Far:
        """Rows have enough one unit away from where they were."""

        def __call__(self, state):
            return 0 * state.logits.sum(-1)

        def suffices(self, state):
            return state.delta.norm(dim=-1) >= 1

    x, y = rows
    settings = {"decision_threshold": 0.5, "max_steps": 300}
    found = search(model, x, y, ct.Generator("far", penalties=(Far(),), **settings))
    plain = search(model, x, y, ct.Generator("near", **settings))
    near = (plain.x_cf - x).norm(dim=-1) < 1
    away = (found.x_cf - x).norm(dim=-1)
    assert 0 < int(near.sum()) < len(x)
    done = found.num_steps < 300
    assert float(done.float().mean()) > 0.8
    assert bool((away[done] >= 1).all())
    assert float(away[done & near].max()) < 1.2  # one step further at most
    assert torch.equal(found.x_cf[~near & plain.mature], plain.x_cf[~near & plain.mature])


# ---- guarantees ----------------------------------------------------------------------------------


def test_a_guarantee_asks_all_models_and_no_more_than_needed(others):
    guarantee = Guarantee(others, 0.5, 0.9)
    points = normal(200, D, seed=8).float()
    y = torch.arange(200) % 2
    verdicts = torch.stack([other(points).argmax(-1) == y for other in others])
    assert torch.equal(guarantee.accepting(points, y), verdicts.sum(0))
    bounds = guaranteed_share(verdicts.sum(0).numpy(), len(others), 0.9)
    assert guarantee.holds(points, y).tolist() == (bounds >= 0.5).tolist()
    assert 0 < int(guarantee.holds(points, y).sum()) < 200


@pytest.mark.parametrize("rule", [None, "normalised", "adam"])
def test_answers_have_the_guarantee_and_the_decision(rule, model, others, rows):
    x, y = rows
    settings = {} if rule is None else {"step_rule": rule}
    generator = ct.betarce(others, 0.6, decision_threshold=0.5, **settings)
    found = search(model, x, y, generator)
    ended = (found.status == int(Status.CONVERGED)) & (found.num_steps < generator.max_steps)
    assert float(ended.float().mean()) > 0.8
    assert torch.equal(model(found.x_cf).argmax(-1)[ended], y[ended])
    accepting = Guarantee(others, 0.6).accepting(found.x_cf, y)[ended]
    assert float(guaranteed_share(accepting.numpy(), len(others)).min()) >= 0.6
    base = ct.generic(decision_threshold=0.5, max_steps=generator.max_steps, **settings)
    plain = search(model, x, y, base)
    before = Guarantee(others, 0.6).holds(plain.x_cf, y)
    assert 0 < int(before.sum()) < len(x)
    # What has the guarantee already is left as it is.
    assert_close(found.x_cf[before], plain.x_cf[before])


def test_points_grow_away_from_the_base(model, others, rows):
    """Shell by shell, and the base is the answer of plain descent."""
    x, y = rows
    plain = search(model, x, y, ct.generic(decision_threshold=0.5))
    generator = ct.betarce(others, 0.6, width=0.2, decision_threshold=0.5)
    found = search(model, x, y, generator)
    moved = ~Guarantee(others, 0.6).holds(plain.x_cf, y)
    moved &= (found.num_steps < generator.max_steps) & plain.mature
    shells = (found.num_steps - plain.num_steps)[moved]
    away = (found.x_cf - plain.x_cf)[moved].norm(dim=-1)
    assert len(shells) > 5 and int(shells.max()) > 1
    assert bool((away <= 0.2 * shells + 1e-5).all())
    assert bool((away >= 0.2 * (shells - 1) - 1e-5).all())


def test_rules_hold_and_rows_without_the_guarantee_end_at_the_base(model, others, rows):
    x, y = rows
    rules = Constraints.build(D, {0: "none", 1: "increase", 2: "decrease"})
    found = search(model, x, y, ct.betarce(others, 0.6, decision_threshold=0.5), rules)
    assert torch.equal(found.x_cf[:, 0], x[:, 0])
    assert bool((found.x_cf[:, 1] >= x[:, 1]).all() and (found.x_cf[:, 2] <= x[:, 2]).all())
    # Models that always say the same cannot be convinced.
    never = linear(D, 2)
    with torch.no_grad():
        never[0].weight.zero_()
        never[0].bias.copy_(torch.tensor([9.0, 0.0]))
    one = y == 1
    generator = ct.betarce((never,) * 6, 0.6, decision_threshold=0.5)
    found = search(model, x[one], y[one], generator)
    plain = search(model, x[one], y[one], ct.generic(decision_threshold=0.5))
    assert_close(found.x_cf, plain.x_cf)
    assert torch.equal(found.converged, plain.converged)


def test_models_are_left_as_they_were(model, rows):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = fitted(3)
            self.drop = nn.Dropout(0.9)

        def forward(self, x):
            return self.inner(self.drop(x))

    models = tuple(Noisy().double().train() for _ in range(5))
    x, y = rows
    generator = ct.betarce(models, 0.5, decision_threshold=0.5)
    first, second = (search(model, x, y, generator).x_cf for _ in range(2))
    assert torch.equal(first, second)  # so nothing was dropped
    assert all(one.training for one in models)


def test_what_makes_no_sense_for_betarce_is_refused(others, model, rows):
    with pytest.raises(InputError, match="A guarantee asks other models, got none"):
        ct.betarce(())
    with pytest.raises(InputError, match=r"torch modules .* got str"):
        ct.betarce(["model"])
    with pytest.raises(InputError, match=r"8 models that all accept guarantee .* at least \d+"):
        ct.betarce(others, 0.99)
    with pytest.raises(InputError, match="width, of a shell"):
        ct.betarce(others, 0.5, width=0)
    with pytest.raises(InputError, match="cannot serve training"):
        ct.train(
            mlp(D, 2),
            *rows,
            ct.methods.ct_published(generator=ct.betarce(others, 0.5), epochs=1),
        )
