"""One round of counterfactuals: what training makes of what the search found."""

import pytest
import torch

from counterfactual_training import Constraints, ecco, methods, mlp, search
from counterfactual_training.training.algorithm import counterfactuals
from counterfactual_training.training.rows import TrainingRows
from counterfactual_training.training.run import Run

# Some rows arrive within these few steps, some do not.
GENERATOR = ecco(learning_rate=0.3, max_steps=4, decision_threshold=0.8)


@pytest.fixture
def case(make_blobs):
    torch.manual_seed(0)
    x, y = make_blobs(num_classes=3, n=60, d=3)
    model = mlp(3, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, TrainingRows(x, y, 3)


def one_round(case, constraints=None, num=40, seed=1, generator=GENERATOR, **settings):
    """Counterfactuals, and the share that is mature and the mean number of steps."""
    model, data = case
    rules = constraints if constraints is not None else Constraints.infer(data.x)
    rng = torch.Generator().manual_seed(seed)
    method = methods.ct_published(generator=generator, constraints=rules, **settings)
    run = Run([model], [method], data)
    return counterfactuals(run, num, rng)


def explain(case, *args, **kwargs):
    return one_round(case, *args, **kwargs)[0]


def rows_of(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """For each row of values the index of the row of x it equals, −1 where there is none."""
    same = (values.unsqueeze(1) == x).all(-1)
    return torch.where(same.any(1), same.float().argmax(1), -1)


def mature(found, model) -> torch.Tensor:
    """Whether the target has probability τ at x_cf."""
    with torch.no_grad():
        probability = model(found.x_cf).softmax(-1)
    return probability.gather(1, found.y_target[:, None])[:, 0] >= 0.8


def test_positives_are_real_rows_of_the_target_class(case):
    found = explain(case)
    index = rows_of(found.x_pos, case[1].x)
    assert bool((index >= 0).all()) and torch.equal(case[1].y[index], found.y_target)


def test_of_several_positives_the_nearest_is_taken(case):
    one, four = (explain(case, positives=num, immature="keep") for num in (1, 4))
    assert torch.equal(one.x_cf, four.x_cf) and torch.equal(one.y_target, four.y_target)
    distance = [(own.x_pos - own.x_cf).abs().sum(-1) for own in (one, four)]
    assert bool((distance[1] <= distance[0]).all()) and bool((distance[1] < distance[0]).any())
    index = rows_of(four.x_pos, case[1].x)
    assert bool((index >= 0).all()) and torch.equal(case[1].y[index], four.y_target)
    # With so many draws it is the nearest of all.
    every = explain(case, positives=400, immature="keep")
    gaps = torch.cdist(every.x_cf, case[1].x, p=1)
    gaps = gaps.masked_fill(every.y_target[:, None] != case[1].y, torch.inf)
    assert torch.allclose((every.x_pos - every.x_cf).abs().sum(-1), gaps.amin(-1), atol=1e-5)


def test_targets_are_not_what_is_predicted(case):
    """x_adv starts at the factual; with no room to move it is the factual."""
    still = explain(case, generator=GENERATOR.replace(epsilon=0.0))
    assert bool((rows_of(still.x_adv, case[1].x) >= 0).all())
    with torch.no_grad():
        assert not bool((case[0](still.x_adv).argmax(-1) == still.y_target).any())


def test_keep_leaves_what_the_search_found(case):
    kept, (share_mature, _) = one_round(case, immature="keep")
    done = mature(kept, case[0])
    assert 0.1 < share_mature < 0.9, "the test needs both kinds"
    assert float(done.float().mean()) == pytest.approx(float(share_mature))
    assert torch.equal(explain(case, immature="drop").weight == 1, done)
    assert bool((kept.weight[~done] == 1).all()), "what would be dropped counts"


def test_factuals_of_the_target_class_are_no_counterfactuals(case):
    """They have reached nothing, so they count neither if the immature are kept nor if these are
    dropped.
    """
    model, data = case
    generator = GENERATOR.replace(epsilon=0.0)
    still = explain(case, generator=generator, immature="keep", target_rule="uniform")
    with torch.no_grad():
        logits = model(data.x[rows_of(still.x_adv, data.x)])
    there = (logits.argmax(-1) == still.y_target) & (
        logits.softmax(-1).gather(1, still.y_target[:, None])[:, 0] >= 0.8
    )
    assert 0 < int(there.sum()) < len(there)
    assert torch.equal(still.weight == 0, there)
    dropped = explain(case, immature="drop", target_rule="uniform")
    assert not bool(dropped.weight[there].any()) and bool(dropped.weight.any())


def test_replace_puts_the_positive_in_the_place_of_the_immature(case):
    (kept, told), (replaced, same) = (
        one_round(case, immature=rule) for rule in ("keep", "replace")
    )
    done = mature(kept, case[0])
    assert torch.equal(replaced.x_cf[done], kept.x_cf[done])
    assert torch.equal(replaced.x_cf[~done], replaced.x_pos[~done])
    assert torch.equal(replaced.x_adv, kept.x_adv), "nascent ones count either way"
    assert torch.equal(told, same)


def test_drop_takes_the_immature_out_of_the_means(case):
    kept, dropped = explain(case, immature="keep"), explain(case, immature="drop")
    assert torch.equal(dropped.weight.bool(), mature(kept, case[0]))
    assert torch.equal(dropped.x_cf, kept.x_cf)


def test_labels_of_the_nascent(case):
    model, data = case
    data = TrainingRows(data.x, (data.y + 1) % 3, 3)  # so that truth and prediction differ
    generator = GENERATOR.replace(epsilon=0.0)
    true = explain((model, data), generator=generator, adversarial_label="true")
    predicted = explain((model, data), generator=generator, adversarial_label="predicted")
    factuals = rows_of(true.x_adv, data.x)
    assert torch.equal(true.y_adv, data.y[factuals])
    with torch.no_grad():
        assert torch.equal(predicted.y_adv, model(data.x[factuals]).argmax(-1))
    assert not torch.equal(true.y_adv, predicted.y_adv)


@pytest.mark.parametrize("immature", ["replace", "drop", "keep"])
def test_protection_reaches_the_positives(case, immature):
    rules = Constraints.infer(case[1].x, {0: "none", 1: "increase", 2: "decrease"})
    found = explain(case, rules, immature=immature)
    assert torch.equal(found.x_pos[:, 0], found.x_cf[:, 0])
    assert bool((found.x_pos[:, 1] >= found.x_cf[:, 1]).all())
    assert bool((found.x_pos[:, 2] <= found.x_cf[:, 2]).all())


def test_an_unprotected_round_differs(case):
    found = explain(case, immature="keep")
    assert not bool((found.x_pos[:, 0] == found.x_cf[:, 0]).any())


def test_the_round_is_the_search(case):
    """Factuals, targets and result agree with a search of one's own."""
    model, data = case
    still, (_, mean_steps) = one_round(
        case, generator=GENERATOR.replace(epsilon=0.0), immature="keep"
    )
    x = data.x[rows_of(still.x_adv, data.x)]
    expected = search(model, x, still.y_target, GENERATOR, Constraints.infer(data.x))
    assert torch.equal(expected.x_cf, still.x_cf)
    assert float(mean_steps) == pytest.approx(float(expected.num_steps.float().mean()))


@pytest.mark.parametrize("rule", ["not_predicted", "not_true", "uniform", "prior"])
def test_every_target_rule_runs(case, rule):
    found = explain(case, target_rule=rule, num=50)
    assert set(found.y_target.tolist()) <= {0, 1, 2} and len(found.y_target) == 50


def test_images_are_protected_pixel_by_pixel(case):
    model, data = case
    images = TrainingRows(data.x.reshape(-1, 1, 3), data.y, 3)
    shaped = torch.nn.Sequential(torch.nn.Flatten(), model)
    rules = Constraints.infer(data.x, {0: "none"})
    found = explain((shaped, images), rules)
    assert found.x_pos.shape == found.x_cf.shape == (40, 1, 3)
    assert torch.equal(found.x_pos[:, 0, 0], found.x_cf[:, 0, 0])


def test_same_rng_same_round(case):
    first, second, other = explain(case), explain(case), explain(case, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(first[:5], second[:5], strict=True))
    assert not torch.equal(first.x_cf, other.x_cf)


def test_the_models_mode_survives(case):
    model, _ = case
    model.train()
    explain(case)
    assert model.training
