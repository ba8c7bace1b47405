"""What the search along gradients promises beside its last judge: bar, statuses, second attempts,
shortening.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from counterfactual_training import Constraints, OneHotGroup
from counterfactual_training.generators import Status, generic, line
from counterfactual_training.tables.advice import Finder
from counterfactual_training.tables.advice.answer import advice_constraints
from counterfactual_training.tables.advice.refine import Shortener, swap_categories
from loan_book import Plausible

ONE = torch.ones(1, dtype=torch.long)


@pytest.fixture(scope="module")
def people(make_finder):
    """A frame of two columns, and a finder whose margin is a function of both in standard
    deviations.
    """
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=200), "b": rng.normal(size=200)})

    def make(margin, plausibility=None, **settings):
        class Model(torch.nn.Module):
            def forward(self, x):
                found = margin(x)
                return torch.stack([torch.zeros_like(found), found], -1)

        finder = make_finder(frame, [0.0, 0.0])
        gate = None if plausibility is None else Plausible(plausibility)
        return replace(
            finder,
            model=Model(),
            gate=gate,
            constraints=advice_constraints(finder.encoder, 0.0),
            **settings,
        )

    return frame, make


def row_at(frame, finder, **values):
    """One row with these values in standard deviations."""
    columns = {column.feature.name: column for column in finder.encoder.columns_}
    held = {name: columns[name].center + columns[name].scale * z for name, z in values.items()}
    return finder.factuals(frame.head(1).assign(**held))


# ---- the bar -------------------------------------------------------------------------------------


def test_at_the_bar_of_the_decision_halves_are_not_multiplied(people):
    frame, make = people
    odds = float(torch.tensor(0.6).logit())
    finder = make(lambda x: x[..., 0] * 0 + odds, lambda x: 0.7)
    x = finder.factuals(frame.head(1)).x
    assert replace(finder, decision=True).confidence(x, ONE).item() == pytest.approx(
        0.6, abs=1e-6
    )
    assert finder.confidence(x, ONE).item() == pytest.approx(0.42, abs=1e-6)
    floor = torch.tensor([0.5])
    assert replace(finder, decision=True).reaches(x, ONE, floor).all()
    assert not finder.reaches(x, ONE, floor).any()


def test_the_decision_is_against_the_strongest_other_class(people):
    _, make = people
    logits = torch.tensor([[1.0, 1.2, 1.0, 0.9]])
    finder = make(lambda x: x[..., 0])
    assert replace(finder, decision=True).odds_of(logits, ONE).item() == pytest.approx(0.2)
    others = torch.tensor([1.0, 1.0, 0.9]).logsumexp(0).item()
    assert finder.odds_of(logits, ONE).item() == pytest.approx(1.2 - others)


# ---- statuses ------------------------------------------------------------------------------------


def test_who_has_the_decision_is_there_whatever_the_gate_says(people):
    frame, make = people
    finder = make(lambda x: 2 * x[..., 0], lambda x: 0.01)
    row = row_at(frame, finder, a=1.0)
    found = finder.find(row, ONE, line(decision_threshold=0.75), False, False)
    assert found.status.tolist() == [int(Status.ALREADY_THERE)]
    assert torch.equal(found.x_cf, row.x)


def test_a_decision_that_flips_is_preferred_to_a_plausible_point_that_changes_nothing(people):
    """The bar is out of reach; the gate keeps its own best effort where the decision stays."""
    frame, make = people
    finder = make(lambda x: x[..., 0].clamp(-2, 1), lambda x: (-6 * x[..., 0] - 1).sigmoid())
    row = row_at(frame, finder, a=-1.0)
    threshold = 0.95
    gated, _ = finder.together(row, ONE, line(decision_threshold=threshold), False, False)
    assert finder.logits(gated).argmax(-1).item() == 0
    found = finder.find(row, ONE, line(decision_threshold=threshold), False, False)
    assert finder.logits(found.x_cf).argmax(-1).item() == 1
    assert found.status.tolist() == [int(Status.EXHAUSTED)]


@pytest.mark.parametrize(
    ("end", "status"), [(1.0, Status.CONVERGED), (0.0, Status.IMPLAUSIBLE)]
)
def test_what_the_model_alone_finds_is_called_what_the_gate_says_of_it(people, end, status):
    """A wall of implausible points stands in the way of a gated search; beyond it, plausibility is
    ``end``.
    """
    frame, make = people

    def plausibility(x):
        wall = 1 - (-(((x[..., 0] + 0.4) / 0.3) ** 4)).exp()
        return wall * torch.where(x[..., 0] > 0, end, 1.0)

    finder = make(lambda x: 4 * (x[..., 0] - 0.6), plausibility, decision=True)
    row = row_at(frame, finder, a=-1.2)
    generator = line(decision_threshold=0.5)
    gated, _ = finder.together(row, ONE, generator, False, False)
    assert finder.confidence(gated, ONE).item() < 0.5  # or this tests nothing
    found = finder.find(row, ONE, generator, False, False)
    assert found.status.tolist() == [int(status)]
    assert finder.logits(found.x_cf).argmax(-1).item() == 1


# ---- the search ----------------------------------------------------------------------------------


def test_outliers_are_pulled_in_before_anything_else(people):
    frame, make = people
    finder = make(lambda x: x[..., 1])
    row = row_at(frame, finder, a=9.0, b=-1.0)
    found = finder.find(row, ONE, line(decision_threshold=0.6), False, False)
    assert found.status.tolist() == [int(Status.CONVERGED)]
    assert found.x_cf[0, 0] <= finder.constraints.domain.upper[0] + 1e-3
    short = finder.find(row, ONE, line(decision_threshold=0.6), False, True)
    assert short.x_cf[0, 0] == row.x[0, 0]  # the model does not ask for it


class Coarse(Finder):
    """Rounding lowers every point a little."""

    def as_printed(self, points, factuals):
        return super().as_printed(points, factuals) - 0.1


@pytest.mark.parametrize(
    "generator", [line(decision_threshold=0.6), generic(decision_threshold=0.6, max_steps=200)]
)
def test_what_rounding_took_below_the_bar_is_searched_with_a_higher_aim(people, generator):
    frame, make = people
    finder = make(lambda x: 2 * x[..., 0])
    coarse = Coarse(finder.model, finder.encoder, finder.constraints)
    row = row_at(frame, finder, a=-1.0)
    found = coarse.find(row, ONE, generator, False, False)
    assert found.status.tolist() == [int(Status.CONVERGED)]


def test_ways_along_real_rows_keep_what_is_held(fitted, rejected):
    """All searches by gradients are cut off, so that only real rows can help."""
    finder = replace(fitted._finder(), decision=True)
    row = finder.factuals(rejected)
    held = torch.zeros_like(row.x, dtype=torch.bool)
    held[:, finder.encoder.slices_["debt"]] = True
    y = torch.ones(len(rejected), dtype=torch.long)
    asked = []
    counted = replace(finder, model=Watched(finder.model, asked, held, row.x))
    counted.descend(row.holding(held), y, line(decision_threshold=0.5, max_steps=1), True)
    assert not any(asked)


class Watched(torch.nn.Module):
    """A model that notes whether it was asked about points with cells that are nobody's own."""

    def __init__(self, model, noted, held, x):
        super().__init__()
        self.model = model
        self.noted = noted
        self.own = x[:, held[0]].unique(dim=0)
        self.held = held[0]

    def forward(self, x):
        here = x[..., self.held].detach().reshape(-1, self.own.shape[1])
        known = (here.unsqueeze(1) == self.own).all(-1).any(-1)
        self.noted.append(bool((~known).any()))
        return self.model(x)


# ---- shortening ----------------------------------------------------------------------------------


def make_shortener(reaches, difficulty):
    size = len(difficulty)
    none = torch.zeros(size, dtype=torch.bool)
    rules = Constraints.build(size)
    return Shortener(
        reaches,
        lambda points, rows: points,
        torch.arange(size),
        none,
        rules,
        torch.tensor(difficulty),
    )


@pytest.mark.parametrize("difficulty", [[4.0, 1.0], [1.0, 4.0]])
def test_of_equal_changes_the_more_difficult_goes(difficulty):
    shortener = make_shortener(lambda x, y, floor: x.sum(-1) >= floor, difficulty)
    short = shortener.undo(
        torch.ones(1, 2), torch.zeros(1, 2), ONE, torch.ones(1), torch.arange(1)
    )
    assert short[0, difficulty.index(4.0)] == 0 and short[0, difficulty.index(1.0)] == 1


def test_after_a_column_is_gone_numbers_are_eased_again():
    """The first change can only go once the second is small; without the first, the second may be
    smaller still.
    """

    def reaches(x, y, floor):
        a, b = x.unbind(-1)
        return torch.where(a > 0, b >= 1, (b >= 0.25) & (b <= 1.5))

    shortener = make_shortener(reaches, [1.0, 1.0])
    short = shortener(torch.full((1, 2), 2.0), torch.zeros(1, 2), ONE, torch.ones(1))
    assert short.tolist() == [[0.0, 0.25]]


# ---- categories ----------------------------------------------------------------------------------


@pytest.fixture
def category():
    """Three categories, of which row 0 has the first and row 1 the second."""
    rules = Constraints.build(3, groups=[OneHotGroup((0, 1, 2))])
    return rules, torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])


def test_categories_are_swapped_only_for_better_ones(category):
    """The third category helps row 0; to row 1, all are alike."""
    rules, x = category

    def confidence(points, y):
        return torch.where((y == 0) & (points[:, 2] == 1), 0.4, 0.2)

    swapped, reached = swap_categories(x, x, torch.tensor([0, 1]), rules, confidence, 0.5)
    assert swapped.argmax(-1).tolist() == [2, 1]
    assert reached.tolist() == pytest.approx([0.4, 0.2])


def test_held_categories_are_not_swapped(category):
    rules, x = category
    held = torch.tensor([[True] * 3, [False] * 3])
    better = torch.tensor([0.1, 0.1, 0.9])
    swapped, _ = swap_categories(
        x, x, torch.tensor([0, 0]), rules, lambda points, y: points @ better, 0.5, held
    )
    assert swapped.argmax(-1).tolist() == [0, 2]
