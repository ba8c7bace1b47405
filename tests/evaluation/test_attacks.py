"""FGSM and PGD: their laws, and against the Adversarial Robustness Toolbox."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.evaluation.attacks import robust_accuracy
from counterfactual_training.evaluation.performance import accuracy
from counterfactual_training.generators.perturbations import (
    fgsm,
    input_gradient,
    pgd,
    random_perturbation,
)

ATTACKS = {
    "fgsm": fgsm,
    "pgd": partial(pgd, steps=8, step_size=0.05, rng=torch.Generator().manual_seed(3)),
    "pgd from x": partial(pgd, steps=8, step_size=0.05, random_start=False),
    "random": partial(random_perturbation, rng=torch.Generator().manual_seed(3)),
}


def network(d=4, k=3, seed=0, dtype=torch.float32):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(d, 16), nn.Tanh(), nn.Linear(16, k)).to(dtype)


def data(n=40, d=4, k=3, seed=0, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=rng, dtype=dtype), torch.randint(
        0, k, (n,), generator=rng
    )


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attacks_stay_in_the_ball(name, dtype):
    x, y = data(dtype=dtype)
    epsilon = torch.tensor([0.0, 0.1, 0.3, 1.0], dtype=dtype)  # one budget per feature
    x_adv = ATTACKS[name](network(dtype=dtype), x, y, epsilon)
    assert x_adv.dtype == dtype
    delta = (x_adv - x).abs().amax(0)
    assert bool((delta <= epsilon + 1e-6).all())
    assert bool((delta[1:] > 0.05).all())


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("clamp", [True, False])
def test_attacks_obey_the_constraints(name, clamp):
    x, y = data()
    constraints = Constraints.build(
        4, ["none", "increase", "decrease", "both"], domain=(-1.5, 1.5)
    )
    delta = ATTACKS[name](network(), x, y, 0.5, constraints=constraints, clamp=clamp) - x
    assert bool((delta[:, 0] == 0).all())
    assert bool((delta[:, 1] >= 0).all())
    assert bool((delta[:, 2] <= 0).all())
    assert bool((delta.abs() <= 0.5 + 1e-6).all())
    x_adv = x + delta
    inside = (x.abs() <= 1.5).all(-1)
    left = bool((x_adv[inside].abs() > 1.5 + 1e-6).any())
    assert left is not clamp  # the authors' attacks leave the domain
    if clamp:
        outside = x.abs() > 1.5
        assert bool(
            (x_adv[outside].abs() <= x[outside].abs()).all()
        )  # strays come no further out


@settings(deadline=None)  # the machine may be busy
@given(seed=st.integers(0, 100), epsilon=st.floats(0.001, 2), bounded=st.booleans())
def test_one_step_pgd_from_x_is_fgsm(seed, epsilon, bounded):
    x, y = data(n=8, seed=seed)
    constraints = (
        Constraints.build(4, {0: "none", 1: "decrease"}, domain=(-1.0, 1.0))
        if bounded
        else None
    )
    one = pgd(
        network(),
        x,
        y,
        epsilon,
        steps=1,
        step_size=epsilon,
        random_start=False,
        constraints=constraints,
    )
    assert torch.equal(one, fgsm(network(), x, y, epsilon, constraints=constraints))


def test_attacks_raise_the_loss_and_pgd_more_than_fgsm():
    x, y = data(n=300)
    model = network()

    def loss(inputs):
        return float(nn.functional.cross_entropy(model(inputs), y).detach())

    rng = torch.Generator().manual_seed(0)
    noisy, fast = loss(random_perturbation(model, x, y, 0.5, rng)), loss(fgsm(model, x, y, 0.5))
    slow = loss(pgd(model, x, y, 0.5, step_size=0.05, rng=rng))
    assert loss(x) < noisy + 0.05 < fast <= slow


def test_the_direction_is_that_of_the_cross_entropy():
    x, y = data()
    model = network()
    leaf = x.clone().requires_grad_()
    (plain,) = torch.autograd.grad(
        nn.functional.cross_entropy(model(leaf), y, reduction="sum"), leaf
    )
    doubt = 1 - model(x).softmax(-1).gather(-1, y[:, None]).detach()
    torch.testing.assert_close(input_gradient(model, x, y) * doubt, plain, atol=1e-5, rtol=1e-4)


def test_a_saturated_model_is_still_attacked():
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[500.0, 0.0], [-500.0, 1.0]]))
        model.bias.zero_()
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    assert (
        float(nn.functional.cross_entropy(model(x), y).detach()) == 0
    )  # its own gradient is zero
    torch.testing.assert_close(fgsm(model, x, y, 0.1), torch.tensor([[0.9, 0.1]]))


def test_an_input_outside_the_domain_is_not_pulled_in():
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    x, y = (
        torch.tensor([[-3.0], [-3.0], [3.0]]),
        torch.tensor([0, 1, 0]),
    )  # the loss rises down, up, down
    x_adv = fgsm(model, x, y, 0.5, Constraints.build(1, domain=(-1.0, 1.0)))
    assert x_adv.flatten().tolist() == [-3.0, -2.5, 2.5]


def test_the_model_is_left_untouched():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    model[2].eval()
    x, y = data()
    nn.functional.cross_entropy(model(x), y).backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    grads = [p.grad.clone() for p in model.parameters()]
    first = pgd(model, x, y, 0.3, steps=3, random_start=False)
    assert [m.training for m in model] == [True, True, False, True]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(torch.equal(g, p.grad) for g, p in zip(grads, model.parameters(), strict=True))
    assert torch.equal(first, pgd(model, x, y, 0.3, steps=3, random_start=False))
    assert not first.requires_grad


def test_images_and_fleets():
    rng = torch.Generator().manual_seed(0)
    images, y = torch.randn(6, 1, 4, 4, generator=rng), torch.randint(0, 3, (6,), generator=rng)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    constraints = Constraints.build(16, dict.fromkeys(range(8), "none"), domain=(-1.0, 1.0))
    delta = fgsm(model, images, y, 0.1, constraints) - images
    assert delta.shape == images.shape
    assert bool((delta[:, :, :2] == 0).all())
    assert bool((delta[:, :, 2:] != 0).any())
    per_pixel = torch.full((1, 4, 4), 0.1)
    torch.testing.assert_close(fgsm(model, images, y, per_pixel), fgsm(model, images, y, 0.1))

    fleet = network()
    x, labels = data(n=10)
    stacked = fgsm(fleet, torch.stack([x, x + 1]), torch.stack([labels, labels]), 0.2)
    torch.testing.assert_close(stacked[1], fgsm(fleet, x + 1, labels, 0.2))


def test_same_seed_same_attack():
    x, y = data()
    one, two, other = (
        pgd(network(), x, y, 0.3, steps=2, rng=torch.Generator().manual_seed(s))
        for s in (1, 1, 2)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, y: fgsm(network(), x, y, -0.1), InputError, "epsilon"),
        (
            lambda x, y: fgsm(network(), x, y, torch.ones(3)),
            InputError,
            "epsilon .* does not broadcast",
        ),
        (lambda x, y: fgsm(network(), x, y[:-1], 0.1), InputError, "per row"),
        (lambda x, y: fgsm(network(), x, y + 1, 0.1), InputError, "Classes must lie"),
        (lambda x, y: fgsm(network(), x.double(), y, 0.1), InputError, "float64"),
        (lambda x, y: fgsm(network(), x.where(x > 0, torch.nan), y, 0.1), InputError, "NaN"),
        (
            lambda x, y: fgsm(network(), x, y, 0.1, Constraints.build(5)),
            InputError,
            "5 features",
        ),
        (
            lambda x, y: fgsm(nn.Sequential(network(), nn.Softmax(-1)), x, y, 0.1),
            ModelError,
            "probabilities",
        ),
        (lambda x, y: pgd(network(), x, y, 0.1, steps=0), InputError, "steps"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(*data())


# ---- against the Adversarial Robustness Toolbox --------------------------------------------------


def art_classifier(model, lower, upper):
    classifiers = pytest.importorskip(
        "art.estimators.classification", reason="adversarial-robustness-toolbox absent"
    )
    return classifiers.PyTorchClassifier(
        model,
        nn.CrossEntropyLoss(),
        input_shape=(4,),
        nb_classes=3,
        clip_values=(lower, upper),
        device_type="cpu",
    )


@pytest.fixture(params=["one budget", "budget per feature", "masked"])
def case(request):
    rng = torch.Generator().manual_seed(7)
    x = torch.randn(200, 4, generator=rng)
    lower, upper = x.amin(0), x.amax(0)
    y = torch.randint(0, 3, (200,), generator=rng)
    epsilon = (
        torch.tensor([0.1, 0.2, 0.3, 0.6])
        if request.param == "budget per feature"
        else torch.full((4,), 0.4)
    )
    mutability = ["both", "none", "both", "both"] if request.param == "masked" else None
    box = {j: (float(lower[j]), float(upper[j])) for j in range(4)}
    return (
        x,
        y,
        epsilon,
        Constraints.build(4, mutability, domain=box),
        (lower.numpy(), upper.numpy()),
    )


@pytest.mark.check
def test_fgsm_agrees_with_art(case):
    x, y, epsilon, constraints, box = case
    evasion = pytest.importorskip(
        "art.attacks.evasion", reason="adversarial-robustness-toolbox absent"
    )
    attack = evasion.FastGradientMethod(
        art_classifier(network(), *box),
        norm=np.inf,
        eps=epsilon.numpy(),
        eps_step=epsilon.numpy(),
    )
    mask = (~constraints.immutable).float().numpy()
    expected = attack.generate(x.numpy(), y.numpy(), mask=mask)
    np.testing.assert_allclose(
        fgsm(network(), x, y, epsilon, constraints).numpy(), expected, atol=1e-6
    )


@pytest.mark.check
def test_pgd_agrees_with_art(case):
    x, y, epsilon, constraints, box = case
    evasion = pytest.importorskip(
        "art.attacks.evasion", reason="adversarial-robustness-toolbox absent"
    )
    step = epsilon / 4
    attack = evasion.ProjectedGradientDescentNumpy(
        art_classifier(network(), *box),
        norm=np.inf,
        eps=epsilon.numpy(),
        eps_step=step.numpy(),
        max_iter=10,
        num_random_init=0,
        verbose=False,
    )
    mask = (~constraints.immutable).float().numpy()
    expected = attack.generate(x.numpy(), y.numpy(), mask=mask)
    ours = pgd(network(), x, y, epsilon, 10, step, random_start=False, constraints=constraints)
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-5)


def linear_model():
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
        model.bias.zero_()
    return model


def test_a_linear_model_fails_exactly_where_its_margin_ends():
    # w = (1, 2): an attack of size ε moves wx by at most 3ε, so rows with |wx| > 3ε survive.
    margin = torch.tensor([0.1, 0.2, 0.4, 0.8])
    x, y = torch.stack([margin, torch.zeros(4)], -1), torch.ones(4, dtype=torch.long)
    epsilons = [0.0, 0.05, 0.1, 0.15, 0.3]
    expected = torch.tensor([1.0, 0.75, 0.5, 0.25, 0.0])
    curves = [
        robust_accuracy(linear_model(), x, y, epsilons, attack)
        for attack in (fgsm, partial(pgd, step_size=0.05, rng=torch.Generator().manual_seed(0)))
    ]
    for curve in curves:
        torch.testing.assert_close(curve, expected)
    noisy = robust_accuracy(
        linear_model(), x, y, epsilons, partial(random_perturbation, rng=torch.Generator())
    )
    assert bool((noisy >= curves[0]).all())


def test_batches_do_not_matter_for_robust_accuracy():
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 2, generator=rng), torch.randint(0, 2, (50,), generator=rng)
    whole = robust_accuracy(linear_model(), x, y, [0.1, 0.2])
    torch.testing.assert_close(
        robust_accuracy(linear_model(), x, y, [0.1, 0.2], batch_size=7), whole
    )
    per_feature = robust_accuracy(
        linear_model(), x, y, [torch.tensor([0.1, 0.1]), torch.tensor([0.0, 0.0])]
    )
    assert per_feature[0] == whole[0]
    assert per_feature[1] == accuracy(linear_model()(x).detach(), y)


def test_a_fleet_gets_one_curve_per_member():
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 20, 2, generator=rng), torch.randint(0, 2, (3, 20), generator=rng)
    curves = robust_accuracy(linear_model(), x, y, [0.0, 0.1], batch_size=6)
    assert curves.shape == (2, 3)
    torch.testing.assert_close(
        curves[:, 1], robust_accuracy(linear_model(), x[1], y[1], [0.0, 0.1])
    )


def test_robust_accuracy_needs_rows():
    with pytest.raises(InputError, match="no rows"):
        robust_accuracy(
            linear_model(), torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), [0.1]
        )
    with pytest.raises(InputError, match="batch_size"):
        robust_accuracy(
            linear_model(),
            torch.zeros(1, 2),
            torch.zeros(1, dtype=torch.long),
            [0.1],
            batch_size=0,
        )
