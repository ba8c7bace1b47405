"""Every generator in training: alone, in a fleet, behind a gate."""

import pytest
import torch
from torch.testing import assert_close

from counterfactual_training import (
    Fleet,
    Member,
    fit_gate,
    make_generator,
    methods,
    mlp,
    search,
    train,
)
from counterfactual_training.errors import InputError
from counterfactual_training.generators import GENERATORS
from covering import by_default

EXPLAINS = {
    "nearest_unlike": "training rows, which Eq. 2",
    "growing_spheres": "a thousand points per row",
}
TRAINS = [
    name for name in GENERATORS if name not in ("revise", "line", *EXPLAINS)
]  # two have tests of their own
METHOD = methods.ct_published(
    epochs=2, batch_size=20, num_counterfactuals=20, learning_rate=0.01
)


def rows():
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(80) % 2
    return torch.randn(80, 3, generator=rng) + 1.5 * y.unsqueeze(-1), y


def fresh(seed):
    torch.manual_seed(seed)
    return mlp(3, 2, hidden=(6,))


@pytest.mark.parametrize("name", TRAINS)
def test_it_trains_alone_and_in_a_fleet(name):
    x, y = rows()
    alone = train(fresh(0), x, y, METHOD.replace("generator", name), progress=False)
    assert alone.history.last("mean_steps") > 0
    generator = make_generator(name, x, y)
    members = [Member(fresh(seed), METHOD.replace("generator", generator)) for seed in (0, 1)]
    together = Fleet(members).train(x, y, progress=False)
    for one, other in zip(
        alone.model.parameters(), together[0].model.parameters(), strict=True
    ):
        assert_close(one, other, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    "name", by_default(GENERATORS, "ecco", "line", "dice", "nearest_unlike")
)
def test_it_searches_behind_a_gate(name):
    x, y = rows()
    model = train(
        fresh(0), x, y, methods.conventional(epochs=30, batch_size=20), progress=False
    ).model
    gated = fit_gate(model, x, y)
    generator = make_generator(name, x, y, decision_threshold=0.5, max_steps=60)
    found = search(gated, x, 1 - y, generator)
    assert float(found.converged.float().mean()) > 0.3
    probability = gated(found.x_cf).softmax(-1).gather(1, 1 - y[:, None])[:, 0]
    assert_close(found.confidence, probability, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", EXPLAINS)
def test_one_that_cannot_train_says_so_before_training_starts(name):
    x, y = rows()
    model = fresh(0)
    before = [value.clone() for value in model.parameters()]
    wanted = (
        rf"'{name}' cannot serve training: .*{EXPLAINS[name]}.* such as 'ecco', and use this one "
        r"to explain"
    )
    with pytest.raises(InputError, match=wanted):
        train(model, x, y, METHOD.replace("generator", name), progress=False)
    with pytest.raises(InputError, match=wanted):
        Fleet([Member(model, METHOD.replace("generator", name))] * 2).train(
            x, y, progress=False
        )
    assert all(
        torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)
    )
    # A conventional model has no counterfactuals.
    assert (
        train(
            model, x, y, METHOD.conventional().replace("generator", name), progress=False
        ).history.last("epoch")
        == 2
    )


def test_rows_that_a_recipe_needs_must_be_tensors():
    data = torch.utils.data.TensorDataset(*rows())
    with pytest.raises(InputError, match="'wachter' learns from training rows"):
        train(fresh(0), data, method=METHOD.replace("generator", "wachter"), progress=False)
