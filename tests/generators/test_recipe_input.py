"""Recipes refuse what makes no sense when they are made, or before the first step."""

import re

import pytest
import torch

import counterfactual_training as ct
from counterfactual_training.errors import InputError, unknown

NAN = float("nan")
X = torch.arange(40.0).reshape(10, 4).sin()
HOLE = torch.where(X[3, 1] == X, torch.nan, X)


@pytest.mark.parametrize("weight", [NAN, -1.0, float("inf"), "a", True, None], ids=str)
@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        (ct.generic, "lambda_cost"),
        (ct.ecco, "lambda_energy"),
        (ct.claproar, "lambda_loss"),
        (ct.probe, "lambda_invalidation"),
        (ct.dice, "lambda_cost"),
        (ct.dice, "lambda_diversity"),
    ],
)
def test_weights_are_finite_and_not_negative(recipe, name, weight):
    with pytest.raises(
        InputError, match=f"{name} must be a finite number of at least 0, got {weight!r}"
    ):
        recipe(**{name: weight})
    assert recipe(**{name: 0}).numbers()[name] == 0


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: ct.probe(sigma=0),
            "sigma, the deviation of the noise, must be positive and finite, got 0",
        ),
        (lambda: ct.probe(sigma=NAN), "sigma"),
        (lambda: ct.probe(rate=2.0), "rate is a probability in [0, 1], got 2.0"),
        (lambda: ct.generic(learning_rate="a"), "learning_rate must be positive, got 'a'"),
        (
            lambda: ct.dice(x_train=HOLE),
            "x_train of the generator 'dice': NaN or infinity in column(s) 1, 1 row(s) of 10",
        ),
        (lambda: ct.wachter(x_train=HOLE), "x_train of the generator 'wachter': NaN"),
        (
            lambda: ct.nearest_unlike(x_train=HOLE),
            "x_train of the generator 'nearest_unlike': NaN",
        ),
        (lambda: ct.dice(x_train=X.numpy()), "x_train must be a torch tensor, got ndarray"),
        (
            lambda: ct.dice(scale=torch.tensor([1.0, 0.0])),
            "positive and finite in every feature, got [1.0, 0.0]",
        ),
        (lambda: ct.wachter(scale=torch.tensor([NAN])), "positive and finite in every feature"),
        (
            lambda: ct.dice(lambda_diversty=3),
            "'dice': 'lambda_diversty'. Did you mean 'lambda_diversity'?",
        ),
        (
            lambda: ct.generic(max_step=3),
            "Unknown setting of 'generic': 'max_step'. Did you mean 'max_steps'?",
        ),
        (lambda: ct.make_generator("ecco", lambda_enrgy=3), "Did you mean 'lambda_energy'?"),
        (lambda: ct.make_generator(ct.ecco(), max_step=3), "Did you mean 'max_steps'?"),
        (lambda: ct.make_generator("ECCo"), "Did you mean 'ecco'?"),
        (lambda: ct.make_method("PGD"), "Did you mean 'pgd'?"),
        (lambda: ct.make_method(3), "Unknown method 3."),
    ],
)
def test_what_makes_no_sense_is_refused(make, told):
    with pytest.raises(InputError, match=re.escape(told)):
        make()


@pytest.mark.parametrize(
    "name", ["dice", "wachter", "gravitational", "nearest_unlike", "eccco"]
)
def test_rows_of_another_width_are_refused_before_the_search(name):
    generator = ct.make_generator(name, X.repeat(4, 1)[:, :3], torch.arange(40) % 2)
    told = f"{name!r} was made from rows with 3 features .*; these have 4"
    with pytest.raises(InputError, match=told):
        ct.search(ct.mlp(4, 2), X, torch.arange(10) % 2, generator)
    if name != "nearest_unlike":  # which cannot train anyway
        with pytest.raises(InputError, match=told):
            ct.train(
                ct.mlp(4, 2),
                X,
                torch.arange(10) % 2,
                ct.methods.ct_published(epochs=1, burn_in=1.0, generator=generator),
            )


@pytest.mark.parametrize("given", ["AGE", "Age", "agee"])
def test_the_nearest_name_is_suggested_whatever_its_case(given):
    assert "Did you mean 'age'?" in unknown("column", given, ["age", "Income"])
