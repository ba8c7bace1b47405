"""DiCE: several answers to one row, found together."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from counterfactual_training import Constraints, Generator, dice, linear, mlp, search
from counterfactual_training.errors import InputError
from counterfactual_training.generators import SearchState, Status
from counterfactual_training.generators.data_penalties import ScaledDistance, median_deviation
from counterfactual_training.generators.diversity import HINGE, Diversity, Hinge, similarity
from counterfactual_training.models.stack import StackedModel

NUM = 3


def rows(n=40, seed=0):
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    return torch.randn(n, 3, generator=rng) + 1.5 * y.unsqueeze(-1), y


def trained():
    torch.manual_seed(0)
    model, (x, y) = mlp(3, 2, hidden=(8,)), rows(200, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def hard_rows(model):
    """Rows of class 0, which are to become 1."""
    x, _ = rows()
    x = x[model(x).argmax(-1) == 0]
    return x, torch.ones(len(x), dtype=torch.long)


def state(threshold=0.8, dtype=torch.float64):
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(2, 2 * NUM, 4, generator=rng, dtype=dtype)
    x_cf = (x + torch.randn(x.shape, generator=rng, dtype=dtype)).requires_grad_()
    logits = (6 * torch.randn(2, 2 * NUM, 3, generator=rng, dtype=dtype)).requires_grad_()
    target = torch.arange(4 * NUM).reshape(2, -1) % 3
    return SearchState(x, x_cf, x_cf - x, logits, target, 0, 10, None, threshold, NUM)


def by_the_book(answers, scale):
    """det K of answers (k, d), entry by entry."""
    k = len(answers)
    kernel = torch.zeros(k, k, dtype=answers.dtype)
    for i in range(k):
        for j in range(k):
            distance = sum(
                abs(answers[i, d] - answers[j, d]) / scale[d] for d in range(answers.shape[1])
            )
            kernel[i, j] = 1 / (1 + distance) + (1e-4 if i == j else 0)
    return torch.det(kernel)


def test_the_penalty_is_the_determinant_of_the_formula():
    here, scale = state(), torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
    values = Diversity(0.7, scale)(here)
    for member in range(2):
        for group in range(2):
            answers = here.x_cf[member, group * NUM : (group + 1) * NUM]
            expected = -0.7 * by_the_book(answers, scale)
            assert_close(values[member, group * NUM : (group + 1) * NUM], expected.expand(NUM))


@pytest.mark.parametrize(
    "weight", [0.7, torch.tensor([0.7, 2.0], dtype=torch.float64)], ids=["one", "per member"]
)
def test_its_slope_is_the_one_that_autograd_finds(weight):
    here = state()
    penalty = Diversity(weight, torch.tensor([1.0, 2.0, 0.5, 3.0]))
    (expected,) = torch.autograd.grad(penalty(here).sum(), here.x_cf)
    found = torch.zeros_like(expected)
    penalty.add_gradient(here, found)
    assert_close(found, expected)


@pytest.mark.parametrize(
    "threshold",
    [0.5, torch.tensor([0.6, 0.95], dtype=torch.float64)],
    ids=["one", "per member"],
)
def test_the_hinge_takes_the_place_of_the_cross_entropy(threshold):
    here = state(threshold)
    log_p = here.logits.log_softmax(-1).gather(-1, here.y_target.unsqueeze(-1)).squeeze(-1)
    odds = log_p - (-log_p.exp()).log1p()
    bar = torch.as_tensor(threshold, dtype=torch.float64).logit().reshape(-1, 1)
    hinge = (1 + bar - odds).clamp_min(0)
    assert bool((hinge == 0).any()) and bool((hinge > 0).any())
    assert_close(Hinge()(here) - log_p, hinge)
    (expected,) = torch.autograd.grad(hinge.sum(), here.logits)
    target = nn.functional.one_hot(here.y_target, 3)
    found = here.logits.detach().softmax(-1) - target  # what the search starts from
    Hinge().add_logit_gradient(here, found)
    assert_close(found, expected, atol=1e-12, rtol=1e-6)


def test_answers_differ_more_the_more_that_counts():
    model = trained()
    x, y = hard_rows(model)
    spread = []
    for weight in (0.0, 0.3, 1.0):
        found = search(
            model, x, y, dice(NUM, lambda_diversity=weight, x_train=rows()[0], max_steps=60)
        )
        assert float(found.answers.converged.float().mean()) > 0.9
        spread.append(
            float(
                torch.linalg.det(similarity(found.answers.x_cf, median_deviation(x) * 3)).mean()
            )
        )
    assert spread[0] + 0.05 < spread[1] and spread[1] + 0.1 < spread[2]


def test_all_answers_are_there_and_the_nearest_stands_for_them():
    model, constraints = trained(), Constraints.build(3, {0: "increase", 2: "none"}, (-6, 6))
    x, y = hard_rows(model)
    found = search(model, x, y, dice(NUM, x_train=rows()[0]), constraints, record=True)
    every = found.answers
    assert every.x_cf.shape == (len(x), NUM, 3) and every.status.shape == (len(x), NUM)
    assert every.path.shape == (101, len(x), NUM, 3) and every.binding.shape == (len(x), NUM, 3)
    assert_close(model(every.x_cf).softmax(-1)[..., 1], every.confidence)
    delta = every.x_cf - x.unsqueeze(1)
    assert bool((delta[..., 0] >= 0).all()) and not bool(delta[..., 2].any())
    assert bool((every.converged.sum(-1) > 1).any())
    for i in range(len(x)):
        there = every.converged[i].nonzero().squeeze(-1).tolist()
        best = (
            min(there, key=lambda j: float(delta[i, j].abs().sum()))
            if there
            else int(every.confidence[i].argmax())
        )
        assert torch.equal(found.x_cf[i], every.x_cf[i, best])
        assert torch.equal(found.path[:, i], every.path[:, i, best])
        assert (
            found.status[i] == every.status[i, best]
            and found.num_steps[i] == every.num_steps[i, best]
        )
    # Nobody waits who is there already; the others end together, with half of their steps made.
    for steps, states in zip(every.num_steps.tolist(), every.status.tolist(), strict=True):
        done = {n for n, s in zip(steps, states, strict=True) if s == Status.CONVERGED}
        assert not done or (len(done) == 1 and min(done) >= 50)


def test_without_a_second_answer_it_is_plain():
    model = trained()
    x, y = hard_rows(model)
    one = search(model, x, y, dice(1, x_train=x, max_steps=60))
    scale = median_deviation(x) * 3
    plain = Generator(
        "plain",
        (HINGE, ScaledDistance(0.5, scale)),
        learning_rate=0.05,
        max_steps=60,
        step_rule="adam",
    )
    expected = search(model, x, y, plain)
    assert one.answers is None and torch.equal(one.x_cf, expected.x_cf)
    assert torch.equal(one.num_steps, expected.num_steps)


def test_a_row_that_is_there_stays_and_held_cells_do_too():
    model = trained()
    x, _ = rows()
    y = torch.ones(len(x), dtype=torch.long)
    held = torch.zeros_like(x, dtype=torch.bool)
    held[::2, 1] = True
    found = search(model, x, y, dice(NUM, x_train=x, max_steps=20), held=held, diagnose=False)
    there = found.status == int(Status.ALREADY_THERE)
    assert bool(there.any()) and torch.equal(
        found.answers.x_cf[there], x[there].unsqueeze(1).expand(-1, NUM, -1)
    )
    assert torch.equal(found.answers.x_cf[::2, :, 1], x[::2, 1:2].expand(-1, NUM))
    assert found.binding.shape == (len(x), 0)


def test_images_keep_their_shape_and_fleets_their_members():
    torch.manual_seed(0)
    x = torch.randn(5, 1, 2, 3)
    model = nn.Sequential(nn.Flatten(), linear(6, 2))
    found = search(
        model, x, torch.ones(5).long(), dice(NUM, x_train=x, max_steps=3), record=True
    )
    assert found.answers.x_cf.shape == (5, NUM, 1, 2, 3) and found.path.shape == (4, 5, 1, 2, 3)
    models, flat = [mlp(6, 2, hidden=(4,)) for _ in range(2)], x.flatten(1)
    generator, y = dice(NUM, x_train=x, max_steps=30), torch.ones(2, 5, dtype=torch.long)
    together = search(StackedModel(models), flat.expand(2, 5, 6), y, generator)
    for member, model in enumerate(models):
        alone = search(model, flat, y[member], generator)
        assert_close(together.answers.x_cf[member], alone.answers.x_cf, atol=1e-4, rtol=1e-4)


def test_what_makes_no_sense_is_refused():
    x, _ = rows()
    with pytest.raises(InputError, match="num_answers"):
        dice(0, x_train=x)
    with pytest.raises(InputError, match="line search finds one answer per row"):
        dice(2, x_train=x, step_rule="line")


def test_without_rows_distances_are_unscaled():
    x, model = rows()[0], mlp(3, 2)
    y_target = 1 - model(x).argmax(-1)
    plain = search(model, x, y_target, dice(3)).answers.x_cf
    assert_close(
        plain, search(model, x, y_target, dice(3, scale=torch.full((3,), 3.0))).answers.x_cf
    )
    assert plain.shape == (len(x), 3, 3) and search(model, x, y_target, dice(1)).answers is None


def test_the_first_answer_sets_out_the_plain_way():
    model = trained()
    x, y = hard_rows(model)
    one, several = (
        search(model, x, y, dice(num, x_train=x, max_steps=2), record=True) for num in (1, NUM)
    )
    assert_close(several.answers.path[1, :, 0], one.path[1])
    assert not torch.allclose(several.answers.path[1, :, 1], one.path[1])
