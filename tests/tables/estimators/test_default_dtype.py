"""``torch.set_default_dtype(torch.float64)`` changes no classifier and no training of float32
models.
"""

import copy
from contextlib import contextmanager

import pytest
import torch
from pandas.testing import assert_frame_equal
from torch.testing import assert_close

import counterfactual_training as ct
from counterfactual_training.tables.estimators.networks import MODELS, seeded_model


@contextmanager
def double_by_default():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.fixture
def both():
    """The result of a function as torch starts, and with another default."""

    def call(function):
        usual = function()
        with double_by_default():
            return usual, function()

    return call


def same(values, expected):
    assert_close(values, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_networks_begin_with_the_same_weights(name, both):
    params = ct.CounterfactualClassifier(model=name).get_params()
    x = torch.randn(40, 3)
    usual, other = both(lambda: seeded_model(params, 3, 2, x, 0).state_dict())
    same(other, usual)


def test_fit_gate_and_advice(both, loans, rejected, make_quick):
    def fitted():
        model = make_quick(model="linear", epochs=2, mutability={}).fit(*loans)
        return (
            model.model_.state_dict(),
            model.gate_.state_dict(),
            model.explain(rejected[:2]).frame,
        )

    usual, other = both(fitted)
    same(other[:2], usual[:2])
    assert_frame_equal(other[2], usual[2])


@pytest.mark.check
def test_a_learned_gate_and_a_fleet(both, points, make_quick, quick_gates):
    def fitted():
        model = make_quick("ensemble(members=2)", model="linear", epochs=2, gate="learned").fit(
            *points
        )
        return model.model_.state_dict(), model.gate_.state_dict()

    usual, other = both(fitted)
    same(other, usual)


@pytest.mark.parametrize("name", ["ct_published", "jem", "trades"])
def test_training_draws_the_same_numbers(name, both, blobs):
    start = ct.linear(2, 2)
    method = f"{name}(epochs=1, batch_size=30, num_counterfactuals=10)"

    def trained():
        return ct.train(copy.deepcopy(start), *blobs, method).model.state_dict()

    usual, other = both(trained)
    same(other, usual)


def test_a_file(fitted, rejected, tmp_path):
    fitted.save(tmp_path / "model.safetensors")
    with double_by_default():
        loaded = ct.CounterfactualClassifier.load(tmp_path / "model.safetensors")
        answer = loaded.explain(rejected[:2])
    same(loaded.model_.state_dict(), fitted.model_.state_dict())
    assert_frame_equal(answer.frame, fitted.explain(rejected[:2]).frame)


def test_a_network_of_ones_own_follows_the_default(points, make_quick):
    with double_by_default():
        model = make_quick(model=torch.nn.Linear, epochs=1, gate="none").fit(*points)
        assert model.explain(points[0][:1]).frame.shape == (1, 2)
        assert ct.mlp(2, 2)[0].weight.dtype == torch.float64  # as torch's own modules do
    assert model.model_.weight.dtype == torch.float64
