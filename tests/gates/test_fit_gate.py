"""What a gate refuses to be fitted to, and what it warns of."""

import warnings

import pytest
import torch
from test_gated import moat, slope

from counterfactual_training import Constraints, OneHotGroup, load_dataset, mlp
from counterfactual_training.errors import InputError
from counterfactual_training.gates import GateConfig, fit_gate
from counterfactual_training.gates.fit import odd_scales

QUICK = GateConfig(epochs=1, num_counterfactuals=5, hidden=(4,))


def with_nan(x):
    return x.index_put((torch.tensor([7]), torch.tensor([1])), torch.tensor(torch.nan))


REFUSED = {
    "classes": (lambda x, y: (x, y + 1), r"Classes must lie in 0\.\.1, got 1\.\.2"),
    "negative": (lambda x, y: (x, y - 1), r"0\.\.1, got -1\.\.0"),
    "lengths": (lambda x, y: (x, y[:-1]), r"x has shape \(100, 2\) and y \(99,\)"),
    "arrays": (
        lambda x, y: (x.numpy(), y.numpy()),
        r"got ndarray and ndarray; convert them with torch\.as_tensor",
    ),
    "missing": (
        lambda x, y: (with_nan(x), y),
        r"NaN or infinity in column\(s\) 1, 1 row\(s\) of 100, first in row 7",
    ),
    "nothing": (lambda x, y: (x[:0], y[:0]), "needs rows"),
    "floats": (lambda x, y: (x, y.float()), "y.long()"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_do_not_fit_are_refused(name):
    change, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        fit_gate(slope(), *change(*moat(100)))


def test_classes_beyond_the_first_rows_are_looked_at():
    x, y = moat(100)
    y[99] = 5
    with pytest.raises(InputError, match=r"Classes must lie in 0\.\.1, got 0\.\.5"):
        fit_gate(slope(), x, y)


@pytest.mark.parametrize(
    ("kind", "rows", "said"),
    [
        ("density", 5, r"the gate is open for class 1 \(5 rows\): at least 20 rows"),
        ("learned", 25, r"the gate is open for class 1 \(25 rows\): at least 40 rows"),
        ("both", 5, r"the gate is open for class 1 \(5 rows\): at least 20 rows"),
        (
            "both",
            25,
            r"the learned part of the gate is open for class 1 \(25 rows\): at least 40 rows",
        ),
    ],
)
def test_a_class_with_too_few_rows_is_named(kind, rows, said):
    x, y = moat(200)
    keep = (y == 0) | (torch.arange(200) < 2 * rows)
    with pytest.warns(UserWarning, match=said) as caught:
        gated = fit_gate(slope(), x[keep], y[keep], kind, config=QUICK)
    assert [one.filename for one in caught] == [__file__]
    assert gated.gate.judged.tolist() == [True, kind == "both" and rows == 25]


@pytest.mark.parametrize("kind", ["density", "learned", "both"])
def test_nothing_is_said_of_enough_rows_on_one_scale(kind):
    x, y = moat(80)  # forty of each class
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fit_gate(slope(), x, y, kind, config=QUICK)


# ---- scales --------------------------------------------------------------------------------------


def people(n: int = 500) -> torch.Tensor:
    """Year, age and salary."""
    rng = torch.Generator().manual_seed(0)
    middle, spread = torch.tensor([2005.0, 40.0, 50_000.0]), torch.tensor([8.0, 10.0, 15_000.0])
    return torch.randn(n, 3, generator=rng) * spread + middle


def test_raw_units_are_told_with_what_to_do():
    x = people()
    with pytest.warns(
        UserWarning, match=r"differ in scale: column 2 \(median 5.*e\+04.*Standardise x"
    ) as caught:
        fit_gate(mlp(3, 2), x, (x[:, 1] > 40).long())
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda z: z * 1e4, "far from standard scale: column 0 .* column 1 .* column 2 "),
        (lambda z: z * 1e-3, "far from standard scale"),
        (
            lambda z: z + torch.tensor([0.0, 500.0, 0.0]),
            r"far from zero: column 1 \(median 500",
        ),
    ],
)
def test_scales_far_from_standard(change, said):
    z = (people() - people().mean(0)) / people().std(0)
    assert odd_scales(z, Constraints.infer(z)) is None
    told = odd_scales(change(z), Constraints.infer(change(z)))
    assert told is not None
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(told)


def test_categories_binary_columns_tails_and_zeros_are_fine():
    rng = torch.Generator().manual_seed(0)
    normal = torch.randn(2000, generator=rng)
    rare = (torch.rand(2000, generator=rng) < 0.01).float()
    tail = torch.exp(3 * normal)
    zeros = torch.where(rare > 0, normal, 0.0)
    group = (
        torch.nn.functional.one_hot(torch.randint(3, (2000,), generator=rng), 3).float() * 1e-3
    )
    numbers = torch.stack(
        [(column - column.mean()) / column.std() for column in (normal, tail, zeros)], -1
    )
    x = torch.cat([numbers, 1e-4 * rare[:, None], torch.full((2000, 1), 7.0), group], 1)
    rules = Constraints.build(8, groups=[OneHotGroup((5, 6, 7))])
    assert odd_scales(x, rules) is None
    robust = torch.cat(
        [x[:, :1], x[:, 1:2] / (x[:, 1:2].quantile(0.99) - x[:, 1:2].quantile(0.01))], 1
    )
    assert odd_scales(robust, Constraints.infer(robust)) is None
    assert odd_scales(1e4 * x.reshape(2000, 2, 2, 2), rules) is None  # an image has one unit


@pytest.mark.parametrize("name", ["LS", "OL", "Circ", "Moon"])
def test_nothing_is_said_of_the_papers_synthetic_data(name):
    data = load_dataset(name)
    assert odd_scales(data.x_train, data.constraints) is None
