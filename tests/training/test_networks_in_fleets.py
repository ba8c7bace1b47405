"""Every kind of network trains in a fleet as alone, and goes on from a checkpoint."""

import copy

import pytest
import torch
from torch.testing import assert_close

import counterfactual_training as ct
from counterfactual_training.training.fleet import memory_per_member

X = torch.randn(90, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
Y = (X[:, 0].square() + X[:, 1] > 0.8).long()
MAKERS = {
    "neurotree": lambda: ct.neurotree(4, 2, num_trees=5, depth=2),
    "mlp-plr": lambda: ct.mlp_plr(4, 2, (6,), num_frequencies=3, size=2),
    "mlp-ple": lambda: ct.mlp_ple(4, 2, (6,), "swish", num_bins=5, x=X),
    "tabm": lambda: ct.tabm(4, 2, (6,), num_members=3),
    "ensemble": lambda: ct.Ensemble([ct.mlp(4, 2, (3,)), ct.mlp(4, 2, (3,))]),
}


def method(seed, epochs=3):
    return ct.methods.ct_published(
        epochs=epochs,
        batch_size=30,
        num_counterfactuals=20,
        learning_rate=0.02,
        seed=seed,
        max_steps=5,
        constraints=ct.Constraints.infer(X, mutability={1: "none"}),
    )


class StoppedError(Exception):
    pass


class Interrupt(ct.Callback):
    def on_epoch_end(self, run):
        if run.epoch == 2:
            raise StoppedError


def test_the_memory_of_a_member_counts_the_units_of_all_trees():
    training = ct.TrainConfig()
    few, many = (
        memory_per_member(ct.neurotree(4, 2, trees, 4), 4, 90, training) for trees in (8, 64)
    )
    weights = sum(p.numel() for p in ct.neurotree(4, 2, 56, 4).parameters())
    assert many - few > 4 * (6 * weights + 8 * training.batch_size * 56 * 16)


@pytest.mark.parametrize("name", MAKERS)
def test_in_a_fleet_as_alone_and_after_an_interruption(name, tmp_path, recwarn):
    models = [MAKERS[name]().double() for _ in range(2)]
    again = copy.deepcopy(models)
    alone = [
        ct.train(copy.deepcopy(m), X, Y, method(i), progress=False)
        for i, m in enumerate(models)
    ]
    ct.Fleet([ct.Member(m, method(i)) for i, m in enumerate(models)]).train(
        X, Y, progress=False
    )
    for model, result in zip(models, alone, strict=True):
        assert_close(model(X), result.model(X))
    path = {"checkpoint": tmp_path / "c", "progress": False}
    with pytest.raises(StoppedError):
        ct.Fleet([ct.Member(m, method(i)) for i, m in enumerate(copy.deepcopy(again))]).train(
            X, Y, callbacks=[Interrupt()], **path
        )
    ct.Fleet([ct.Member(m, method(i)) for i, m in enumerate(again)]).train(X, Y, **path)
    for model, other in zip(models, again, strict=True):
        assert_close(model(X), other(X), rtol=1e-12, atol=1e-12)
    assert not [str(said.message) for said in recwarn if "one by one" in str(said.message)]
