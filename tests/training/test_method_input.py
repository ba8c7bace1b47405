"""What a method cannot train with is refused before training, with what to do instead."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import counterfactual_training as ct
from counterfactual_training.errors import InputError
from counterfactual_training.training import methods

NAN = float("nan")


@pytest.fixture
def rows(make_blobs):
    return make_blobs(n=40, d=3)


def untouched(*args, **kwargs):
    raise AssertionError("training has started")


@pytest.mark.parametrize("name", ["cat", "misob", "ct_published"])
@pytest.mark.parametrize("generator", ["growing_spheres", "nearest_unlike"])
def test_a_generator_that_cannot_serve_training_is_refused(name, generator, rows, monkeypatch):
    monkeypatch.setattr("counterfactual_training.training.learner.Learner.__init__", untouched)
    with pytest.raises(InputError, match=f"{generator!r} cannot serve training"):
        ct.train(ct.mlp(3, 2), *rows, {"name": name, "generator": generator, "epochs": 1})


def test_methods_that_do_not_search_take_any_generator(rows):
    method = methods.pgd(steps=1, epochs=1, generator="growing_spheres")
    ct.train(ct.mlp(3, 2, hidden=(4,)), *rows, method)


@pytest.mark.parametrize("generator", ["growing_spheres", "nearest_unlike"])
def test_the_classifier_refuses_it_too(generator):
    loan = ct.loan(120)
    made = ct.CounterfactualClassifier(
        method=methods.cat(generator=generator, epochs=1), gate="none", mutability={}
    )
    with pytest.raises(InputError, match="cannot serve training"):
        made.fit(loan.frame, loan.labels)


@pytest.mark.parametrize(
    ("name", "numbers", "told"),
    [
        ("pgd", {"epsilon": "a"}, "epsilon must be positive and finite, got 'a'"),
        ("pgd", {"epsilon": NAN}, "epsilon must be positive and finite, got nan"),
        ("pgd", {"epsilon": True}, "epsilon must be positive and finite, got True"),
        ("pgd", {"epsilon": None}, "epsilon must be positive and finite, got None"),
        ("pgd", {"epsilon": [0.1]}, "epsilon must be positive"),
        ("pgd", {"steps": 1.5}, "steps must be a whole number of at least 1, got 1.5"),
        ("pgd", {"steps": True}, "steps must be a whole number"),
        ("pgd", {"step_size": 0}, "step_size must be positive"),
        (
            "pgd",
            {"epsilno": 0.1},
            "Unknown setting of the method 'pgd': 'epsilno'. Did you mean 'epsilon'?",
        ),
        ("jem", {"ridge": -1.0}, "ridge must be a finite number of at least 0"),
        ("jem", {"noise": NAN}, "noise must be a finite number of at least 0"),
        ("jem", {"restart": 1.5}, "restart must lie in [0, 1], got 1.5"),
        ("dat", {"auc": -0.1}, "auc must lie in [0, 1]"),
        ("cat", {"share": 2}, "share is a share of the rows in (0, 1], got 2"),
        ("cat", {"share": 0.0}, "share is a share of the rows in (0, 1]"),
        ("misob", {"target": -1}, "target is the index of the class wanted"),
        ("misob", {"warm_up": 0.5}, "warm_up must be a whole number of at least 0"),
        (
            "ross",
            {"target": "no"},
            "target is the index of the class wanted, a whole number of at least 0, got 'no'",
        ),
        ("counternet", {"cost": NAN}, "cost must be a finite number of at least 0"),
    ],
)
def test_numbers_are_checked_when_made(name, numbers, told):
    with pytest.raises(InputError, match=re.escape(told)):
        ct.make_method({"name": name, **numbers})
    with pytest.raises(InputError, match=re.escape(told)):
        getattr(methods, name)(**numbers)


def test_numbers_at_the_edge_and_of_other_kinds_are_taken():
    assert methods.cat(share=1).numbers["share"] == 1
    made = methods.pgd(np.float32(0.5), np.int64(3))
    assert made.loss is methods.pgd(steps=3.0, epsilon=0.5).loss
    assert [type(number) for number in made.numbers.values()] == [float, int, type(None)]


@pytest.mark.parametrize("method", [methods.ross(target=2), methods.misob(target=2)], ids=str)
def test_a_target_that_is_no_class_is_refused_before_training(method, rows, monkeypatch):
    monkeypatch.setattr("counterfactual_training.training.learner.Learner.__init__", untouched)
    with pytest.raises(InputError, match=r"classes 0\.\.1, got 2"):
        ct.train(ct.mlp(3, 2), *rows, method)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: ct.Method("bad", loss="pgd"),
            "loss of the method 'bad' must be a function, got str; published methods are made by "
            "name: ct.methods.pgd()",
        ),
        (
            lambda: ct.Method("bad", loss=cross_entropy, find="find"),
            "find of the method 'bad' must be a function, got str",
        ),
        (
            lambda: ct.Method("bad", find=lambda now: now.x),
            "'bad' has a find and no loss to use what it finds: state loss(model, batch, found)",
        ),
        (
            lambda: ct.Method("bad", objective="full"),
            "objective of the method 'bad' is of the class Objective, got 'full'",
        ),
        (
            lambda: ct.Method("bad", training={"epochs": 3}),
            "training of the method 'bad' is of the class TrainConfig, got {'epochs': 3}",
        ),
        (
            lambda: ct.Method("bad", generator=3),
            "generator of the method 'bad' is a Generator or the name of one, got int",
        ),
        (
            lambda: ct.Method("bad", generator="ecoo"),
            "Unknown generator 'ecoo'. Did you mean 'ecco'?",
        ),
        (lambda: ct.Method("bad", members=0), "members must be"),
        (lambda: ct.Method("bad", budget=2), "between 0 and 1, got 2"),
        (
            lambda: ct.Method("bad", loss=cross_entropy, budget=0.01),
            "A budget weakens the terms of Eq. 2, and 'bad' has a loss of its own",
        ),
        (lambda: methods.pgd(budget=0.01), "'pgd' has a loss of its own"),
        (
            lambda: methods.pgd(lambda_reg=0.1),
            "lambda_reg has no effect: the method 'pgd' has a loss of its own",
        ),
    ],
)
def test_what_is_no_method_is_refused_when_made(make, told):
    with pytest.raises(InputError, match=re.escape(told)):
        make()


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (cross_entropy, "must return LossTerms, got Tensor: return ct.LossTerms.sum(logits"),
        (lambda f, y: None, "must return LossTerms, got NoneType"),
        (
            lambda f, y: ct.LossTerms.sum(f, class_loss=cross_entropy(f, y, reduction="none")),
            "must have one value per member, shape (), got total of shape (30,): take the mean "
            "over the rows",
        ),
        (
            lambda f, y: ct.LossTerms.sum(f, class_loss=1.0),
            "terms that are tensors, such as class_loss=…; got class_loss=float",
        ),
        (lambda f, y: ct.LossTerms.sum(f), "got no terms"),
    ],
)
def test_a_loss_of_ones_own_is_told_what_to_return(loss, told, rows):
    own = ct.Method("own", loss=lambda model, batch, found: loss(model(batch.x), batch.y))
    with pytest.raises(InputError, match=re.escape(told)):
        ct.train(ct.mlp(3, 2), *rows, own)


def test_so_is_an_objective_of_ones_own(rows):
    class Mine(ct.Objective):
        def __call__(self, model, x, y, explanations=None, weight=None):
            return cross_entropy(model(x), y)

    with pytest.raises(
        InputError, match="The objective Mine must return LossTerms, got Tensor"
    ):
        ct.train(ct.mlp(3, 2), *rows, methods.ct_published(objective=Mine()))


def failing(model, batch, found):
    logits = model(batch.x)
    return ct.LossTerms.sum(logits, class_loss=logits.sum() * torch.nan)


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        (
            {"ridge": 0.1, "clip": 0.1},
            "A larger ridge, a smaller clip or a smaller learning rate usually helps",
        ),
        ({"lambda_reg": 0.1}, "A larger lambda_reg or a smaller learning rate usually helps"),
        ({}, "Try a smaller learning rate"),
    ],
)
def test_advice_after_divergence_names_what_the_method_has(numbers, told, rows):
    training = ct.TrainConfig(epochs=3, max_bad_updates=1)
    own = ct.Method("own", loss=failing, numbers=numbers, training=training)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        ct.train(ct.mlp(3, 2), *rows, own)
    (text,) = [str(one.message) for one in heard if "last sound epoch" in str(one.message)]
    assert told in text and ("lambda_reg" in text) == ("lambda_reg" in numbers)
