"""The line search, step by step, on models whose answers are known."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from counterfactual_training import (
    Constraints,
    OneHotGroup,
    Status,
    ecco,
    generic,
    line,
    linear,
    mlp,
    search,
)
from counterfactual_training.constraints import Lattice
from counterfactual_training.generators import Binding, Generator
from counterfactual_training.generators.chain import differentiable
from counterfactual_training.generators.line_search import LineSearch
from counterfactual_training.generators.live_rows import LiveRows
from counterfactual_training.generators.search import descend
from counterfactual_training.models.stack import StackedModel


def plane(*weights: float, bias: float = 0.0) -> nn.Sequential:
    """Two classes; the log-odds of class 1 are ``weights · x + bias``."""
    model = linear(len(weights), 2)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.0] * len(weights), list(weights)]))
        model[0].bias.copy_(torch.tensor([0.0, bias]))
    return model


def to_one(model, x, constraints=None, generator=None, **options):
    x = torch.tensor(x)
    generator = generator if generator is not None else line()
    return search(
        model, x, torch.ones(len(x), dtype=torch.long), generator, constraints, **options
    )


def test_a_row_lands_on_the_nearest_point_of_a_plane():
    result = to_one(plane(3.0, 4.0), [[-3.0, -4.0], [-0.3, 0.1]])
    assert_close(result.x_cf, torch.tensor([[0.0, 0.0], [-0.24, 0.18]]), atol=1e-3, rtol=0)
    assert result.mature.all() and bool((result.confidence - 0.5 < 1e-3).all())


def test_the_cheapest_way_is_gone_where_a_feature_is_dearer():
    """On a plane, (δ₀)² + (2 δ₁)² is least where the first feature moves four times as far."""
    result = to_one(plane(1.0, 1.0), [[-1.0, -1.0]], difficulty=torch.tensor([1.0, 2.0]))
    assert_close(result.x_cf, torch.tensor([[0.6, -0.6]]), atol=1e-3, rtol=0)


def test_rows_land_past_the_rounding_of_large_logits():
    """Sums near 10⁴ have three decimals; what has arrived by them has arrived in double precision,
    too.
    """
    rng = torch.Generator().manual_seed(0)
    model = plane(*[1.0] * 32)
    with torch.no_grad():
        model[0].weight.add_(1e3 * torch.randn(32, generator=rng))
    x = torch.randn(200, 32, generator=rng) - 0.5
    result = to_one(model, x.tolist())
    exact = model.double()(result.x_cf.double()).detach()
    odds = (exact[:, 1] - exact[:, 0])[result.converged]
    assert len(odds) > 150
    assert float(odds.min()) >= 0 and float(odds.max()) < 0.2


def test_a_step_is_as_long_as_it_may_be():
    """0.05·max(1, √(d/8)), whatever the slope."""
    for num_features, slope in ((2, 1e-3), (2, 1e3), (32, 1.0)):
        path = to_one(
            plane(*[slope] * num_features),
            [[-9.0] * num_features],
            record=True,
            generator=line(),
        ).path
        assert_close(
            (path[1] - path[0]).norm(), torch.tensor(0.05 * max(1.0, (num_features / 8) ** 0.5))
        )


def test_what_may_not_move_takes_no_part_in_the_direction():
    rules = Constraints.build(3, {0: "none", 1: "decrease"})
    result = to_one(plane(9.0, 9.0, 1.0), [[0.0, 0.0, -1.0]], rules)
    assert_close(result.x_cf, torch.tensor([[0.0, 0.0, 0.0]]), atol=1e-3, rtol=0)
    assert int(result.num_steps) == 21  # of 0.05 each, the last halved onto τ


def test_a_feature_that_may_only_rise_may_fall_back():
    """Up a curve: the first feature helps early, and harms once the second is large."""

    class Curve(nn.Module):
        def forward(self, x):
            return torch.stack(
                [torch.zeros_like(x[:, 0]), x[:, 1] - (x[:, 0] - 1 + x[:, 1]).square()], -1
            )

    result = to_one(
        Curve(),
        [[0.0, 0.0]],
        Constraints.build(2, {0: "increase", 1: "increase"}),
        line(decision_threshold=0.7),
        record=True,
    )
    path = result.path[: int(result.num_steps) + 1, 0]
    assert result.mature.all() and float(path[:, 0].max()) > float(path[-1, 0]) >= 0
    assert bool((path >= 0).all())


def test_a_row_that_cannot_pass_goes_as_far_as_it_may():
    result = to_one(
        plane(1.0, 1.0), [[-1.0, -1.0]], Constraints.build(2, {1: "none"}, (-2.0, 0.5))
    )
    assert result.status.item() == Status.INFEASIBLE
    assert_close(result.x_cf, torch.tensor([[0.5, -1.0]]))
    assert result.binding[0].tolist() == [Binding.DOMAIN, Binding.MUTABILITY]


def test_a_row_out_of_tries_is_exhausted():
    result = to_one(plane(1.0, 1.0), [[-9.0, -9.0]], generator=line(max_steps=7))
    assert result.status.item() == Status.EXHAUSTED and result.num_steps.item() == 7


def test_where_nothing_may_move_nothing_does():
    result = to_one(plane(1.0, 1.0), [[-9.0, -9.0]], Constraints.build(2, ["none", "none"]))
    assert result.num_steps.item() == 0 and torch.equal(
        result.x_cf, torch.tensor([[-9.0, -9.0]])
    )


def test_a_factual_outside_its_box_comes_inside_even_uphill():
    rules = Constraints.infer(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), num_std=0.0)
    result = to_one(plane(1.0, 1.0, bias=-1.5), [[1.4, -0.5]], rules)
    assert (
        result.mature.all()
        and not rules.violations(result.x_cf, torch.tensor([[1.4, -0.5]])).any()
    )


def test_a_flat_model_has_a_direction_and_a_landing():
    result = to_one(plane(3e-4, 4e-4), [[-3.0, -4.0]])
    assert result.mature.all() and float(result.x_cf.abs().max()) < 0.01


def test_a_ridge_is_followed():
    """log-odds = x₁ − 20·|x₀| − 2: the gradient points across the ridge, and every long step beyond
    it.
    """

    class Ridge(nn.Module):
        def forward(self, x):
            return torch.stack(
                [torch.zeros_like(x[:, 0]), x[:, 1] - 20 * x[:, 0].abs() - 2], -1
            )

    result = to_one(Ridge(), [[0.313, 0.0], [-1.0, 0.5], [0.0117, 1.0]])
    assert result.mature.all()
    assert float(result.x_cf[:, 0].abs().max()) < 0.025 and float(result.x_cf[:, 1].max()) < 2.5
    assert int(result.num_steps.max()) < 70


# ---- discrete features ---------------------------------------------------------------------------

GROUP = [OneHotGroup((0, 1, 2))]


def test_a_snap_is_no_step():
    """As by the fixed rule: rounding what the search ended in counts as no update."""
    factual, model = [[-1.0, 0.0], [-3.0, 0.5]], plane(1.0, 0.0, bias=-0.5)
    free = to_one(model, factual, record=True)
    whole = to_one(model, factual, Constraints.build(2, lattices=[Lattice(0)]), record=True)
    assert whole.x_cf[:, 0].tolist() == [1.0, 1.0] and bool((free.x_cf[:, 0] < 0.51).all())
    assert torch.equal(whole.num_steps, free.num_steps)
    # The rounded point still has a place of its own on the path, behind the last update.
    last = whole.path[whole.num_steps, torch.arange(2)]
    assert_close(last, free.x_cf)
    assert torch.equal(whole.path[-1], whole.x_cf)


def test_an_exchange_costs_a_try():
    """Two categories would have to change, and one try allows one of them."""
    x = torch.zeros(1, 2)
    network = differentiable(plane(1.0, 1.0, bias=-1.5), x.shape[1:], 2)
    rules = Constraints.build(2, groups=[(0,), (1,)])
    everyone = torch.ones(1, dtype=torch.bool)
    generator = line(max_steps=1)
    rows = LiveRows(x, torch.ones(1, dtype=torch.long), generator, rules)
    climbing = LineSearch(network, rows, generator)
    with torch.no_grad():
        assert climbing.exchange(everyone).all()
        assert not climbing.exchange(everyone).any()
    assert climbing.result().x_cf.sum() == 1


def test_a_held_category_is_not_exchanged():
    rules = Constraints.build(4, {3: "none"}, groups=GROUP)
    held = torch.tensor([[True, True, True, False]])
    result = to_one(
        plane(-2.0, 0.3, 1.0, 0.0, bias=-0.5), [[1.0, 0.0, 0.0, 7.0]], rules, held=held
    )
    assert not result.converged.any() and torch.equal(
        result.x_cf, torch.tensor([[1.0, 0.0, 0.0, 7.0]])
    )


@pytest.mark.parametrize("mode", ["end", "step"])
def test_a_single_category_that_suffices_is_found(mode):
    """The relaxed point mixes categories; only the last one alone is enough."""
    rules = Constraints.build(4, {3: "none"}, groups=GROUP, category_projection=mode)
    result = to_one(plane(-2.0, 0.3, 1.0, 0.0, bias=-0.5), [[1.0, 0.0, 0.0, 7.0]], rules)
    assert result.mature.all()
    assert torch.equal(result.x_cf, torch.tensor([[0.0, 0.0, 1.0, 7.0]]))


def test_a_forbidden_category_is_not_taken():
    may = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 1]]).bool()
    rules = Constraints.build(4, {3: "none"}, groups=[OneHotGroup((0, 1, 2), may)])
    result = to_one(plane(-2.0, 0.3, 1.0, 0.0, bias=-0.5), [[1.0, 0.0, 0.0, 7.0]], rules)
    assert not result.converged.any() and torch.equal(
        result.x_cf, torch.tensor([[0.0, 1.0, 0.0, 7.0]])
    )


def test_never_leaves_categories_relaxed():
    rules = Constraints.build(4, {3: "none"}, groups=GROUP, category_projection="never")
    result = to_one(plane(-2.0, 0.3, 1.0, 0.0, bias=-0.5), [[1.0, 0.0, 0.0, 7.0]], rules)
    assert result.mature.all() and bool((result.x_cf[0, :3] % 1 != 0).all())


def test_relaxed_categories_stay_between_0_and_1():
    rules = Constraints.build(4, {3: "none"}, groups=GROUP)
    path = to_one(
        plane(-2.0, 0.3, 1.0, 0.0, bias=-9.0), [[1.0, 0.0, 0.0, 7.0]], rules, record=True
    ).path
    assert bool(((path[..., :3] >= 0) & (path[..., :3] <= 1)).all()) and bool(
        (path[..., :3] % 1 != 0).any()
    )


def test_what_a_category_made_superfluous_is_taken_back():
    """The category alone suffices: the number that moved along with it returns."""
    rules = Constraints.build(2, groups=[OneHotGroup((0,))])
    result = to_one(plane(4.0, 1.0, bias=-2.5), [[0.0, 0.0]], rules)
    assert torch.equal(result.x_cf, torch.tensor([[1.0, 0.0]]))
    # Where it does not, the number goes on to τ and no further.
    result = to_one(plane(4.0, 1.0, bias=-5.0), [[0.0, 0.0]], rules)
    assert_close(result.x_cf, torch.tensor([[1.0, 1.0]]), atol=1e-3, rtol=0)


def test_integers_are_climbed():
    rules = Constraints.build(2, domain={0: (0.0, 3.0)}, lattices=[Lattice(0), Lattice(1)])
    result = to_one(plane(1.0, 1.0, bias=-4.2), [[0.0, 0.0]], rules)
    assert (
        result.mature.all()
        and float(result.x_cf.sum()) >= 5
        and torch.equal(result.x_cf, result.x_cf.round())
    )
    assert float(result.x_cf[0, 0]) <= 3


def test_values_of_a_lattice_are_exchanged():
    """On the way up the first feature looks better; at its end only the other one helps."""
    rules = Constraints.build(
        2,
        domain={0: (0.0, 1.0)},
        lattices=[Lattice(0), Lattice(1, values=torch.tensor([0.0, 9.0]))],
    )
    result = to_one(plane(1.0, 0.5, bias=-5.0), [[0.0, 0.0]], rules)
    assert result.mature.all() and float(result.x_cf[0, 1]) == 9


# ---- any model, shape and precision --------------------------------------------------------------


class Wrapped(nn.Module):
    """A model that is walked by autograd."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


@pytest.fixture
def many():
    torch.manual_seed(0)
    model = mlp(9, 5, (16,)).double()
    x = 2 * torch.randn(30, 9, dtype=torch.float64)
    return model, x, (model(x).argmax(-1) + 1) % 5


RULES = Constraints.build(
    9, {0: "increase", 1: "none"}, (-9.0, 9.0), groups=[(2, 3, 4)], lattices=[Lattice(5)]
)


@pytest.mark.parametrize(
    "generator", [line(), ecco(step_rule="line", decision_threshold=0.5)], ids=["line", "ecco"]
)
def test_autograd_and_chains_agree(many, generator):
    model, x, y_target = many
    one, other = (search(m, x, y_target, generator, RULES) for m in (model, Wrapped(model)))
    assert torch.equal(one.status, other.status) and float(one.mature.double().mean()) > 0.2
    assert_close(one.x_cf, other.x_cf)


@pytest.mark.check
def test_a_fleet_of_chains_finds_what_its_members_find(many):
    _, x, y_target = many
    torch.manual_seed(1)
    members = [mlp(9, 5, (16,)).double() for _ in range(3)]
    together = search(
        StackedModel(members), x.expand(3, -1, -1), y_target.expand(3, -1), line(), RULES
    )
    for i, member in enumerate(members):
        alone = search(member, x, y_target, line(), RULES)
        assert torch.equal(together.status[i], alone.status)
        assert_close(together.x_cf[i], alone.x_cf)
        assert_close(together.x_adv[i], alone.x_adv)


def test_penalties_of_ones_own_take_part(many):
    model, x, y_target = many
    heavy = line(
        penalties=(lambda state: 1e3 * state.delta[..., 0].square(),), decision_threshold=0.7
    )
    free = line(decision_threshold=0.7)
    moved, kept = (
        search(model, x, y_target, g).x_cf[:, 0].sub(x[:, 0]).abs().mean()
        for g in (free, heavy)
    )
    assert float(kept) < 0.01 < float(moved)


def test_images_keep_their_shape():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    x = torch.rand(7, 1, 6, 6)
    result = search(
        model,
        x,
        (model(x).argmax(-1) + 1) % 3,
        line(),
        Constraints.build(36, domain=(0.0, 1.0)),
        record=True,
    )
    assert result.x_cf.shape == result.x_adv.shape == x.shape and result.path.shape == (
        301,
        *x.shape,
    )
    assert result.mature.any() and bool((result.confidence[result.mature] < 0.501).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_arrives_coarsely(dtype):
    torch.manual_seed(0)
    model = mlp(4, 2, (16,))
    x = 2 * torch.randn(50, 4)
    y_target = 1 - model(x).argmax(-1)
    exact = search(model, x, y_target, line())
    half = search(model.to(dtype), x.to(dtype), y_target, line())
    assert half.x_cf.dtype == dtype and half.confidence.dtype == torch.float32
    both = exact.mature & half.mature
    assert float(both.float().mean()) > 0.8
    cost, coarse = ((r.x_cf.float() - x).norm(dim=-1)[both].mean() for r in (exact, half))
    assert_close(coarse, cost, rtol=0.05, atol=0)


@pytest.mark.parametrize("lead", [(), (2,)])
def test_no_rows_are_no_trouble(lead):
    model = Wrapped(mlp(4, 2)) if not lead else StackedModel([mlp(4, 2), mlp(4, 2)])
    rules = Constraints.build(4, groups=[(0, 1)], lattices=[Lattice(2)])
    result = search(
        model,
        torch.empty(*lead, 0, 4),
        torch.empty(*lead, 0, dtype=torch.long),
        line(),
        rules,
        record=True,
    )
    assert result.x_cf.shape == (*lead, 0, 4) and result.path.shape == (301, *lead, 0, 4)


def test_the_input_is_left_alone(many):
    model, x, y_target = many
    before = x.clone()
    result = search(model, x, model(x).argmax(-1), line())
    result.x_cf.add_(1)
    search(model, x, y_target, line())
    assert torch.equal(x, before) and bool((result.status == int(Status.ALREADY_THERE)).all())


def test_the_fixed_rule_overshoots_where_this_one_does_not():
    steep = plane(50.0, 50.0)
    far, near = (
        to_one(steep, [[-1.0, -1.0]], generator=g)
        for g in (generic(decision_threshold=0.5), line())
    )
    assert float(far.x_cf.min()) > 2 and abs(float(near.x_cf.max())) < 1e-3


def test_a_row_that_waits_for_others_has_not_failed():
    """Every step helps both rows; the first one arrives after one step, the second after many."""
    x = torch.tensor([[-0.01, 0.0], [-1.0, 0.0]])
    y_target = torch.ones(2, dtype=torch.long)
    network = differentiable(plane(1.0, 0.0), x.shape[1:], 2)
    generator = line()
    rows = LiveRows(x, y_target, generator, Constraints.build(2))
    solver = LineSearch(network, rows, generator)
    rows.shrink_at = 0.0  # both stay until the end
    for climbing in solver.climb(y_target.bool()):
        descend(network, generator, climbing, solver)
    assert rows.tries.tolist() == [1, 21]
    assert not rows.turned.any()


class Watchful:
    """A penalty that looks whether it is told where the rows are."""

    def __init__(self):
        self.calls = 0

    def __call__(self, state):
        return 0.1 * state.delta.square().sum(-1)

    def add_gradient(self, state, grad):
        self.calls += 1
        assert torch.equal(state.delta, state.x_cf - state.x)
        grad.add_(state.delta, alpha=0.2)


@pytest.mark.parametrize("step_rule", ["line", "fixed", "adam"])
def test_penalties_see_the_change_at_every_step(step_rule):
    """After categories were rounded, too, when rows climb again."""
    penalty = Watchful()
    generator = Generator(
        "own", (penalty,), step_rule=step_rule, decision_threshold=0.9, max_steps=300
    )
    rules = Constraints.build(4, {3: "increase"}, groups=GROUP)
    x = torch.tensor([[1.0, 0.0, 0.0, -1.0], [0.0, 1.0, 0.0, -3.0]])
    to_one(plane(-2.0, 0.3, 1.0, 1.0, bias=-0.5), x.tolist(), rules, generator)
    assert penalty.calls > 10
