"""Advice later: noise of size 0 and retraining the same change nothing, large noise does."""

import numpy as np
import pytest
import torch

from counterfactual_training.tables.audits import (
    AuditProtocol,
    num_draws,
    retrainer,
    with_weight_noise,
)
from counterfactual_training.tables.audits.people import Subject, Survey, ask_model
from counterfactual_training.tables.audits.robustness import robustness


@pytest.fixture(scope="module")
def advised(book):
    subject = Subject(book.gated, "gated", retrainer(book.gated, *book.trained))
    return ask_model(
        subject, Survey(book.people, book.labels, "granted", [], AuditProtocol(people=60))
    )


def test_the_number_of_draws_is_that_of_the_formula():
    assert num_draws() == 1379
    assert num_draws(0.95, 0.9) == 29


def test_no_noise_keeps_all_and_much_noise_does_not(advised):
    model = advised.subject.classifier.model_
    frame = advised.explanation.frame[advised.helped[advised.chosen]]
    x = advised.subject.classifier._encoded(frame)

    def kept(delta):
        return torch.cat(with_weight_noise(model, x, 1, delta, seed=0, draws=40)).float().mean()

    assert kept(0.0) == 1.0
    assert kept(0.02) > kept(0.5) > kept(20.0) - 0.2
    assert kept(20.0) < 0.9


def test_a_batch_of_models_decides_like_each_of_them(advised):
    model = advised.subject.classifier.model_
    x = advised.subject.classifier._encoded(advised.explanation.frame)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (block,) = with_weight_noise(model, x, 1, 0.3, seed=1, draws=3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    # The same draws, applied to a copy of the network one after the other.
    import copy

    rng = torch.Generator().manual_seed(1)
    drawn = {
        name: 2 * torch.rand(3, *value.shape, generator=rng) - 1
        for name, value in model.named_parameters()
    }
    for i in range(3):
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for name, value in twin.named_parameters():
                value += 0.3 * value.square().mean().sqrt() * drawn[name][i]
            assert torch.equal(twin(x).argmax(-1) == 1, block[i])


def test_a_network_that_cannot_be_batched_is_asked_one_by_one():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([[1.0, -1.0]]))

        def forward(self, x):
            size = float(
                self.weight.abs().sum()
            )  # a number that vmap cannot take out of a batch
            return x @ self.weight * (1.0 if size > 0 else 2.0)

    x = torch.tensor([[1.0], [-1.0]])
    (block,) = with_weight_noise(Own(), x, 0, 0.0, seed=0, draws=4)
    assert block.tolist() == [[True, False]] * 4


def test_the_same_seed_and_rows_keep_all(book, advised):
    twin = advised.subject.retrain(book.gated.random_state, 0.0)
    frame = advised.explanation.frame[advised.helped[advised.chosen]]
    assert (twin.predict(frame) == "granted").all()


def test_records_of_all_checks(advised):
    protocol = AuditProtocol(retrain=1, delta=0.1)
    records = {record["check"]: record for record in robustness(advised, "granted", protocol)}
    assert set(records) == {"retrained", "left_out", "weights", "weights_all", "inputs"}
    assert records["weights"]["draws"] == num_draws()
    assert all(0 <= r["low"] <= r["value"] <= r["high"] <= 1 for r in records.values())
    assert records["weights_all"]["value"] <= records["weights"]["value"]
    assert all(record["n"] == int(np.sum(advised.helped)) for record in records.values())


def test_nothing_to_check_without_advice(advised):
    from dataclasses import replace

    assert (
        robustness(replace(advised, explanation=None), "granted", AuditProtocol(delta=0.1))
        == []
    )
