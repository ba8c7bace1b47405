"""Penalties that know units, rows and calibrated scores: against their formulas, computed by NumPy,
and autograd.
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from counterfactual_training import (
    claproar,
    eccco,
    gravitational,
    linear,
    make_generator,
    mlp,
    probe,
    search,
    wachter,
)
from counterfactual_training.errors import InputError
from counterfactual_training.generators.data_penalties import (
    Gravity,
    Invalidation,
    ScaledDistance,
    SetSize,
    TargetLoss,
    conformal_quantile,
    learned,
    median_deviation,
)
from counterfactual_training.generators.penalties import SearchState
from counterfactual_training.generators.stack_generators import (
    compatible,
    generator_structure,
    stack_generators,
)
from counterfactual_training.models.stack import StackedModel


def normal(*shape, seed=0):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


@pytest.fixture
def model():
    torch.manual_seed(0)
    return mlp(3, 4, hidden=(8,), activation="tanh").double()


def state_at(model, x, x_cf, y):
    return SearchState(x, x_cf, x_cf - x, model(x_cf), y, 4, 30)


@pytest.fixture
def state(model):
    """Seven rows on their way, of which one feature has not moved; their x′ is a leaf."""
    x, x_cf = normal(7, 3), normal(7, 3) + normal(7, 3, seed=1)
    x_cf[2, 1] = x[2, 1]
    # Of likely and unlikely classes, so that both sides of ½ occur.
    y = model(x_cf).argmax(-1)
    y[:3] = (y[:3] + 1) % 4
    with torch.no_grad():
        model[-1].weight.mul_(6)
    return state_at(model, x, x_cf.requires_grad_(), y)


ROWS, LABELS = normal(40, 3, seed=2), torch.arange(40) % 4
TENSOR = torch.tensor(0.7, dtype=torch.float64)
PENALTIES = {
    "scaled distance": ScaledDistance(0.3, torch.tensor([0.5, 2.0, 1.0])),
    "scaled distance, a weight as a tensor": ScaledDistance(
        TENSOR, torch.tensor([0.5, 2.0, 1.0])
    ),
    "target loss": TargetLoss(0.5),
    "target loss, a weight as a tensor": TargetLoss(TENSOR),
    "gravity": Gravity(0.5, ROWS, LABELS, nearest=4),
    "gravity of all rows, a weight as a tensor": Gravity(TENSOR, ROWS, LABELS, nearest=400),
    "set size": SetSize(0.4, ROWS, LABELS, quantile=torch.tensor(0.9).double()),
    "set size, sharp": SetSize(
        TENSOR, ROWS, LABELS, temperature=0.02, quantile=torch.tensor(0.97).double()
    ),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_closed_form_gradients_equal_autograd(name, state):
    penalty = PENALTIES[name]
    value = penalty(state)
    assert value.shape == (7,) and bool(value.any())
    (expected,) = torch.autograd.grad(value.sum(), state.x_cf, retain_graph=True)
    still = state._replace(
        x_cf=state.x_cf.detach(), delta=state.delta.detach(), logits=state.logits.detach()
    )
    if hasattr(penalty, "add_logit_gradient"):
        grad_logits = torch.zeros_like(state.logits)
        penalty.add_logit_gradient(still, grad_logits)
        (found,) = torch.autograd.grad(state.logits, state.x_cf, grad_logits)
    else:
        found = torch.zeros_like(still.x_cf)
        penalty.add_gradient(still, found)
    assert_close(found, expected)


# ---- Wachter -------------------------------------------------------------------------------------


def test_the_median_absolute_deviation_is_numpys():
    for n in (9, 10):
        x = normal(n, 3)
        x[:, 2] = 4.0  # constant: nothing to divide by
        x[:, 1] = torch.arange(n) == 0  # more than half agree: the mean deviation
        a = x.numpy()
        expected = np.median(np.abs(a - np.median(a, 0)), 0)
        assert_close(median_deviation(x).numpy(), np.array([expected[0], 1 / n, 1.0]))


def test_wachter_measures_in_deviations_of_the_training_rows(state):
    x_train = normal(50, 3) * torch.tensor([1.0, 10.0, 0.1]).double()
    generator = make_generator("wachter", x_train, lambda_cost=0.2)
    (penalty,) = generator.penalties
    assert (
        generator.numbers()["lambda_cost"] == 0.2
        and penalty.scale.tolist() == median_deviation(x_train).tolist()
    )
    a = x_train.numpy()
    mad = np.median(np.abs(a - np.median(a, 0)), 0)
    assert_close(
        penalty(state).detach().numpy(), 0.2 * np.abs(state.delta.detach().numpy() / mad).sum(1)
    )
    images = make_generator("wachter", x_train.reshape(50, 3, 1))
    assert torch.equal(images.penalties[0].scale, penalty.scale)
    with pytest.raises(
        InputError,
        match=r"'wachter' learns from training rows.*make_generator\('wachter', x_train",
    ):
        wachter()


# ---- ClaPROAR and Gravitational ------------------------------------------------------------------


def test_claproar_adds_the_training_loss(state):
    distance, loss = claproar(0.3, 2.0).penalties
    expected = 2 * torch.nn.functional.cross_entropy(
        state.logits, state.y_target, reduction="none"
    )
    assert_close(loss(state), expected)
    assert distance.weight == 0.3


def test_gravity_is_the_mean_distance_to_the_nearest_rows_of_the_target(state):
    penalty = gravitational(
        lambda_gravity=2.0, nearest=3, x_train=ROWS, y_train=LABELS
    ).penalties[1]
    x_cf, rows = state.x_cf.detach().numpy(), ROWS.numpy()
    gaps = np.linalg.norm(x_cf[:, None] - rows, axis=-1)
    gaps[state.y_target.numpy()[:, None] != LABELS.numpy()] = np.inf
    assert_close(penalty(state).detach().numpy(), 2 * np.sort(gaps, 1)[:, :3].mean(1))


def test_gravity_on_a_row_itself_has_no_slope(model):
    x = ROWS[:1].clone()
    grad = torch.zeros_like(x)
    Gravity(1.0, ROWS, LABELS, nearest=1).add_gradient(state_at(model, x, x, LABELS[:1]), grad)
    assert torch.equal(grad, torch.zeros_like(x))


def test_gravitational_ends_nearer_to_the_target():
    y = torch.arange(200) % 2
    x = normal(200, 4).float() + 3 * y.unsqueeze(-1)
    model = linear(4, 2)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-1.0, 0, 0, 0], [1.0, 0, 0, 0]]))
        model[0].bias.copy_(torch.tensor([1.5, -1.5]))

    def away(generator):
        found = search(model, x[y == 0], torch.ones(100, dtype=torch.long), generator).x_cf
        return float((found - 3).norm(dim=-1).mean())

    settings = {"max_steps": 50, "decision_threshold": 0.97}
    plain, pulled = (
        make_generator(name, x, y, **settings) for name in ("generic", "gravitational")
    )
    assert away(pulled) < 0.8 * away(plain)


def test_rows_and_classes_must_be_given():
    with pytest.raises(
        InputError, match=r"needs y_train, one class for each of 40 rows; got none"
    ):
        gravitational(x_train=ROWS)
    with pytest.raises(InputError, match=r"got shape \(3,\)"):
        eccco(x_train=ROWS, y_train=LABELS[:3])
    with pytest.raises(InputError, match="'gravitational' learns from training rows"):
        gravitational()
    with pytest.raises(InputError, match="nearest must be a whole number"):
        gravitational(x_train=ROWS, y_train=LABELS, nearest=0)
    alone = gravitational(x_train=ROWS[:10], y_train=torch.zeros(10, dtype=torch.long))
    model = linear(3, 2).double()
    with pytest.raises(
        InputError, match=r"No row of class 1 pulls towards it; y_train holds \[0\]"
    ):
        search(model, ROWS, 1 - model(ROWS).argmax(-1).clamp_max(0), alone)


def test_a_thousand_rows_of_each_class_are_kept():
    x, y = normal(3000, 2), (torch.arange(3000) < 500).long()
    made, again = (gravitational(x_train=x, y_train=y).penalties[1] for _ in range(2))
    assert made.labels.bincount().tolist() == [1000, 500] and torch.equal(made.rows, again.rows)


# ---- ECCCo ---------------------------------------------------------------------------------------


def conformal(model, x, y, coverage):
    """Quantile and scores, by NumPy: the ⌈(m + 1)·coverage⌉-th smallest of 1 − p[y]."""
    logits = model(x).detach().numpy()
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    scores = np.sort(1 - p[np.arange(len(y)), y.numpy()])
    return scores[int(np.ceil((len(y) + 1) * coverage)) - 1], p


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.95])
def test_the_set_size_is_that_of_calibrated_sets(coverage, model, state):
    generator = eccco(
        lambda_conformal=0.4, coverage=coverage, x_calibration=ROWS, y_calibration=LABELS
    )
    penalty = generator.prepared(torch.no_grad()(model)).penalties[2]
    q, _ = conformal(model, ROWS, LABELS, coverage)
    assert_close(float(penalty.quantile), float(q))
    p = state.logits.detach().softmax(-1).numpy()
    inside = 1 / (1 + np.exp(-(q - (1 - p)) / 0.1))
    counts = p[np.arange(7), state.y_target.numpy()] >= 0.5
    assert counts.any() and not counts.all()
    assert_close(
        penalty(state).detach().numpy(), 0.4 * np.maximum(inside.sum(1) - 1, 0) * counts
    )


def test_sets_cover_the_true_class_as_often_as_promised():
    """The sharp sets that Ω counts, on fresh rows of the same kind."""
    y = torch.arange(4000) % 3
    x = normal(4000, 2) + 1.2 * torch.nn.functional.one_hot(y, 3)[:, :2]
    model = linear(2, 3).double()
    penalty = SetSize(1.0, x[:500], y[:500], coverage=0.9, temperature=1e-6).prepare(model)
    p = model(x[500:]).softmax(-1)
    covered = p.gather(1, y[500:, None])[:, 0] >= 1 - penalty.quantile
    assert float(covered.double().mean()) == pytest.approx(0.9, abs=0.03)
    assert_close(
        penalty._inside(p).sum(-1).round(), (p >= 1 - penalty.quantile).sum(-1).double()
    )


@pytest.mark.parametrize(
    ("coverage", "quantile", "classes"),
    [(0.55, 0.5, [1, 0, 0]), (0.65, 0.6, [1, 1, 0]), (0.88, 0.95, [2, 3, 3])],
)
def test_quantile_and_sets_are_those_of_split_conformal_prediction(coverage, quantile, classes):
    """By hand: the ⌈10·coverage⌉-th of 9 scores, one above the ⌈9·coverage⌉-th; MAPIE's LAC sets
    are these too.
    """
    scores = [0.7, 0.1, 0.4, 0.05, 0.95, 0.6, 0.2, 0.3, 0.5]
    own = 1 - torch.tensor(scores, dtype=torch.float64)
    p = torch.stack([own, 1 - own], 1)  # all of class 0
    zeros = torch.zeros(9, dtype=torch.long)
    penalty = SetSize(1.0, p.log(), zeros, coverage, temperature=1e-6).prepare(
        lambda logits: logits
    )
    assert float(penalty.quantile) == pytest.approx(quantile)
    asked = torch.tensor(
        [[0.9, 0.07, 0.03], [0.45, 0.35, 0.2], [0.34, 0.33, 0.33]], dtype=torch.float64
    )
    assert_close(
        penalty._inside(asked).round().sum(-1), torch.tensor(classes, dtype=torch.float64)
    )


@pytest.mark.parametrize(
    ("coverage", "rows"), [(0.95, 19), (0.9, 9), (0.5, 1), (0.99, 99), (2 / 3, 2)]
)
def test_too_few_rows_to_calibrate_are_refused(coverage, rows):
    assert conformal_quantile(torch.arange(float(rows)), coverage) == rows - 1
    x, y = normal(rows - 1, 3), torch.zeros(rows - 1, dtype=torch.long)
    with pytest.raises(
        InputError, match=rf"{rows - 1} calibration rows are too few .* needs at least {rows}\."
    ):
        eccco(coverage=coverage, x_calibration=x, y_calibration=y)


def test_other_mistakes_of_a_calibration_are_told(model, state):
    for coverage in (0.0, 1.0):
        with pytest.raises(InputError, match="coverage is a probability between 0 and 1"):
            eccco(coverage=coverage, x_train=ROWS, y_train=LABELS)
    with pytest.raises(InputError, match="temperature must be positive"):
        eccco(temperature=0.0, x_train=ROWS, y_train=LABELS)
    with pytest.raises(
        InputError, match=r"Calibration rows are of classes \[0, 1, 2, 3\]; the model has 0..1"
    ):
        search(linear(3, 2).double(), ROWS, 0 * LABELS, eccco(x_train=ROWS, y_train=LABELS))
    with pytest.raises(InputError, match="pass the generator to search, which calibrates"):
        eccco(x_train=ROWS, y_train=LABELS).penalties[2](state)


def test_every_search_calibrates_for_its_model_and_each_member_for_itself(model):
    torch.manual_seed(1)
    other = mlp(3, 4, hidden=(8,), activation="tanh").double()
    generator = eccco(
        x_train=ROWS,
        y_train=LABELS,
        lambda_conformal=2.0,
        lambda_energy=0.0,
        decision_threshold=0.9,
    )
    x, y = normal(6, 3, seed=5), torch.arange(6) % 4
    lone = [search(own, x, y, generator).x_cf for own in (model, other)]
    stacked = StackedModel([model, other])
    both = search(stacked, x.expand(2, 6, 3), y.expand(2, 6), generator)
    assert_close(both.x_cf, torch.stack(lone))
    assert generator.penalties[2].quantile is None
    plain = make_generator("ecco", lambda_energy=0.0, decision_threshold=0.9)
    assert not torch.equal(search(model, x, y, plain).x_cf, lone[0])


# ---- PROBE ---------------------------------------------------------------------------------------


def test_invalidation_is_the_chance_that_noise_undoes_a_linear_decision():
    """Of a linear model the formula is exact, so counting draws must agree."""
    model = linear(3, 2).double()
    x = normal(5, 3)
    y = model(x).argmax(-1)
    leaf = x.clone().requires_grad_()
    value = Invalidation(1.0, sigma=0.7, rate=0.0)(state_at(model, x, leaf, y)).detach()
    noisy = x + 0.7 * normal(20000, 1, 3)
    counted = (model(noisy).argmax(-1) != y).double().mean(0)
    assert_close(value, counted, atol=0.012, rtol=0)
    above = Invalidation(3.0, sigma=0.7, rate=0.2)(state_at(model, x, leaf, y)).detach()
    assert_close(above, 3 * (value - 0.2).clamp_min(0))


def test_the_slope_of_the_invalidation_is_that_of_differences(model):
    x, y = normal(4, 3), torch.tensor([0, 1, 2, 3])
    penalty = Invalidation(3.0, sigma=0.5, rate=0.1)
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(penalty(state_at(model, x, leaf, y)).sum(), leaf)
    for d in range(3):
        ends = [(x + sign * 1e-6 * torch.eye(3)[d]).requires_grad_() for sign in (1, -1)]
        up, down = (penalty(state_at(model, x, end, y)).detach() for end in ends)
        assert_close(slope[:, d], (up - down) / 2e-6, atol=1e-6, rtol=1e-4)


def test_probe_goes_on_where_noise_could_undo_it():
    torch.manual_seed(0)
    model, x = linear(3, 2).double(), normal(40, 3)
    y = 1 - model(x).argmax(-1)

    def undone(generator):
        x_cf = search(model, x, y, generator).x_cf
        return float((model(x_cf + 0.5 * normal(500, 1, 3)).argmax(-1) != y).double().mean())

    settings = {"decision_threshold": 1.0, "max_steps": 40, "learning_rate": 0.05}
    assert undone(probe(sigma=0.5, rate=0.05, **settings)) < undone(
        make_generator("generic", **settings)
    )
    with pytest.raises(
        InputError, match="PROBE differentiates the model twice, which a line search cannot"
    ):
        search(model, x, y, probe(step_rule="line"))


# ---- all of them ---------------------------------------------------------------------------------


def test_what_came_from_data_makes_the_recipe_again():
    for name in ("wachter", "gravitational", "eccco", "claproar", "probe", "generic"):
        made = make_generator(name, ROWS, LABELS)
        again = make_generator(name, **learned(made.penalties))
        for old, new in zip(made.penalties, again.penalties, strict=True):
            assert vars(old).keys() == vars(new).keys() and all(
                vars(old)[k] is vars(new)[k] for k in learned([old])
            )


def test_generators_of_the_same_rows_are_stacked():
    like = torch.zeros(1, dtype=torch.float64)
    for name in ("lambda_cost", "lambda_gravity"):
        members = [gravitational(x_train=ROWS, y_train=LABELS)] * 2
        members = [members[0].with_numbers({name: 0.2}), members[1]]
        weights = dict(stack_generators(members, like).numbers())
        assert weights[name].tolist() == [0.2, members[1].numbers()[name]]
    one, same, other = (
        generator_structure(gravitational(x_train=x, y_train=LABELS))
        for x in (ROWS, ROWS, -ROWS)
    )
    assert compatible(one, same) and not compatible(one, other)
