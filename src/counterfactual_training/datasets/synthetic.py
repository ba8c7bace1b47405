"""The paper's four two-dimensional data sets and its loan example; stratified splits.

Every sampler returns ``x (n, 2)`` float32 and ``y (n,)`` int64; classes are balanced and in random
order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from counterfactual_training.errors import InputError

DATA_SEED = 42

# The authors drew both centres uniformly from [−10, 10]² with Julia's Xoshiro(42), which cannot be
# repeated here.
CENTRES = ((2.586902462852178, -0.4518571313436439), (-0.9932211880761272, 4.062596980064029))
LOAN_CLASSES = ("loan withheld", "loan granted")
LOAN_ORIGIN = (42.0, 20.0)
LOAN_SCALE = (7.0, 6.0)

Sample = tuple[Tensor, Tensor]
Sampler = Callable[[int, torch.Generator | None], Sample]


class LoanSample(NamedTuple):
    """Applicants of the loan example: ``frame`` holds the same numbers as ``x (n, 2)``, with
    names.
    """

    x: Tensor
    y: Tensor
    frame: pd.DataFrame

    @property
    def labels(self) -> pd.Series:
        """The decision on each applicant, in words."""
        return pd.Series(
            [LOAN_CLASSES[label] for label in self.y.tolist()],
            index=self.frame.index,
            name="decision",
        )


def linearly_separable(n: int, rng: torch.Generator | None = None) -> Sample:
    """Two isotropic Gaussians, 11.5 standard deviations apart."""
    return _blobs(n, rng, CENTRES, std=0.5)


def overlapping(n: int, rng: torch.Generator | None = None) -> Sample:
    """The centres of :func:`linearly_separable`, but too wide to separate: Bayes accuracy 0.925."""
    return _blobs(n, rng, CENTRES, std=2.0)


def circles(n: int, rng: torch.Generator | None = None) -> Sample:
    """Class 0 a blob around the origin (radius 0.01), class 1 the unit circle around it; noise σ =
    0.15.
    """
    rng = _seeded(rng)
    y = _labels(n, rng)
    angle = 2 * math.pi * torch.rand(n, generator=rng, dtype=torch.float64)
    radius = torch.where(y == 0, 0.01, 1.0).double()
    x = torch.stack([radius * angle.cos(), radius * angle.sin()], -1)
    return _noisy(x, 0.15, rng), y


def moons(n: int, rng: torch.Generator | None = None) -> Sample:
    """Two half circles: class 0 ``(cos θ, sin θ)``, class 1 ``(1 + cos θ, 0.3 − sin θ)``, θ ∈ [0,
    π]; noise σ = 0.1.

    MLJ's geometry; scikit-learn's second moon runs the other way and sits 0.2 higher.
    """
    rng = _seeded(rng)
    y = _labels(n, rng)
    theta = math.pi * torch.rand(n, generator=rng, dtype=torch.float64)
    upper = torch.stack([theta.cos(), theta.sin()], -1)
    lower = torch.stack([1 + theta.cos(), 0.3 - theta.sin()], -1)
    return _noisy(torch.where((y == 0).unsqueeze(-1), upper, lower), 0.1, rng), y


def loan(n: int, rng: torch.Generator | None = None) -> LoanSample:
    """Figure 1: *age* (whole years) and *debt* (thousand dollars, one decimal) of people who apply
    for a loan.

    The blobs of :func:`linearly_separable` in the user's units. Class 0, "loan withheld", is
    younger and owes more than class 1, "loan granted", as Prop. 3.1 assumes.

    Args:
        n: how many people.
        rng: draws them; by default always the same.

    Returns:
        Features ``x (n, 2)``, classes ``y (n,)``, the same features as a ``frame``, and classes in
        words as ``labels``.

    Examples:
        >>> import counterfactual_training as ct
        >>> people = ct.loan(1000)
        >>> people.frame.shape, list(people.frame)
        ((1000, 2), ['age', 'debt'])
        >>> people.labels.value_counts().to_dict()
        {'loan withheld': 500, 'loan granted': 500}
        >>> people.x.shape, people.y.shape
        (torch.Size([1000, 2]), torch.Size([1000]))
    """
    # The second centre is the one lower in the first feature and higher in the second.
    z, y = _blobs(n, rng, CENTRES[::-1], std=0.5)
    age = (LOAN_ORIGIN[0] + LOAN_SCALE[0] * z[:, 0].double()).round()
    debt = (LOAN_ORIGIN[1] + LOAN_SCALE[1] * z[:, 1].double()).round(decimals=1)
    frame = pd.DataFrame({"age": age.long().numpy(), "debt": debt.numpy()})
    return LoanSample(torch.stack([age, debt], -1).float(), y, frame)


def stratified_split(
    y: Tensor, num_validation: int, rng: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Row numbers ``(train, validation)``, each ascending; exactly ``num_validation`` rows are held
    out.

    scikit-learn's ``StratifiedShuffleSplit`` draws other rows. Published results depend on the rows
    drawn here.
    """
    n = len(y)
    if not 0 <= num_validation < n:
        raise InputError(
            f"num_validation={num_validation} rows cannot be held out of {n}; give 0 to {n - 1}."
        )
    rng = _seeded(rng)
    classes, counts = y.unique(return_counts=True)
    quota = counts.double() * num_validation / n
    take = quota.floor().long()
    # Largest remainders first, so that the counts add up.
    take[
        (quota - take).argsort(descending=True, stable=True)[: num_validation - int(take.sum())]
    ] += 1
    held_out = torch.zeros(n, dtype=torch.bool)
    for label, k in zip(classes, take.tolist(), strict=True):
        rows = (y == label).nonzero().flatten()
        held_out[rows[torch.randperm(len(rows), generator=rng)[:k]]] = True
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()


def _seeded(rng: torch.Generator | None) -> torch.Generator:
    if rng is None:
        return torch.Generator().manual_seed(DATA_SEED)
    return rng


def _labels(n: int, rng: torch.Generator) -> Tensor:
    if n < 2:
        raise InputError(f"Two classes need at least 2 rows, got n={n}.")
    return (torch.arange(n) % 2)[torch.randperm(n, generator=rng)]


def _noisy(x: Tensor, std: float, rng: torch.Generator) -> Tensor:
    return (x + std * torch.randn(x.shape, generator=rng, dtype=torch.float64)).float()


def _blobs(
    n: int, rng: torch.Generator | None, centres: tuple[tuple[float, float], ...], std: float
) -> Sample:
    rng = _seeded(rng)
    y = _labels(n, rng)
    return _noisy(torch.tensor(centres, dtype=torch.float64)[y], std, rng), y
