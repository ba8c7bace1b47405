"""The engine alone, without the judge that sees every answer at the end: against looking at every
possibility.
"""

import copy
import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from counterfactual_training.generators import Status, line
from counterfactual_training.tables.advice import Question
from counterfactual_training.tables.advice.answer import advice_constraints
from counterfactual_training.tables.advice.beam import Beam
from counterfactual_training.tables.advice.candidates import COLUMN
from counterfactual_training.tables.advice.fine_pairs import find_fine_pairs
from counterfactual_training.tables.advice.options import find_options
from counterfactual_training.tables.advice.oracle import Oracle
from counterfactual_training.tables.advice.states import Reached, States
from counterfactual_training.tables.advice.triples import find_triples
from counterfactual_training.tables.columns.plan_judge import PlanJudge
from loan_book import Plausible

JOBS = ["clerk", "cook", "nurse", "pilot"]
TARGET = 1
ORDER = [int(Status.CONVERGED), int(Status.IMPLAUSIBLE), int(Status.EXHAUSTED)]


class Margin(torch.nn.Module):
    """Logits (0, margin)."""

    def __init__(self, margin):
        super().__init__()
        self.margin = margin

    def forward(self, x):
        found = self.margin(x)
        return torch.stack([torch.zeros_like(found), found], -1)


def bent(d, seed):
    """A random margin of d columns that is not linear in any."""
    rng = torch.Generator().manual_seed(seed)
    first, second = torch.randn(d, 6, generator=rng) / 2, torch.randn(6, generator=rng)
    return lambda x: (x @ first.to(x)).tanh() @ second.to(x) - 0.3


def ready(finder, **changes):
    """A finder that asks for the decision, with the constraints of advice."""
    return replace(
        finder, constraints=advice_constraints(finder.encoder, 0.0), decision=True, **changes
    )


def search(finder, people, most=None, num_options=1):
    """The beam, after its search for people whom the model denies."""
    factuals = finder.factuals(people)
    beam = Beam(finder, factuals, torch.full((len(people),), TARGET), 0.5, most)
    beam.run(num_options)
    return beam


def denied(finder, frame, most=40):
    decided = finder.logits(finder.factuals(frame).x).argmax(-1).numpy()
    return frame[decided != TARGET].head(most)


def answers(beam):
    """Everybody's answers in the pool, and the lowest price of each person."""
    person, points, price = beam.pool.joined(beam.x.shape[1], beam.x)
    best = np.full(len(beam.x), np.inf)
    np.minimum.at(best, person, price)
    return person, points, best


# ---- all of one or two columns -------------------------------------------------------------------


SMALL = {
    "loans": {"kind": "integer", "max_change": 4, "difficulty": 1.5},
    "late": {"kind": "integer", "special": [-9], "domain": (0, 4)},
    "job": {
        "categories": JOBS,
        "forbidden": [("clerk", "pilot"), ("cook", ["pilot", "nurse"])],
    },
    "owner": {"mutability": "increase"},
}
RELATIONS = {"alone": [], "related": ["late <= loans", "job = nurse requires owner = yes"]}


def draw_small(seed, n=300):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "loans": rng.integers(0, 9, n),
            "late": rng.choice([-9, 0, 1, 2, 3, 4, 5], n),
            "job": rng.choice(JOBS, n),
            "owner": rng.random(n) > 0.5,
        }
    )


def everything(finder, row, most):
    """Every row that differs from this one in at most so many columns, with values that training
    saw.
    """
    values = {
        column.feature.name: column.feature.categories or range(9)
        for column in finder.encoder.columns_
    }
    found = [
        {**row.iloc[0].to_dict(), **dict(zip(names, chosen, strict=True))}
        for size in range(1, most + 1)
        for names in itertools.combinations(values, size)
        for chosen in itertools.product(*(values[name] for name in names))
    ]
    return pd.DataFrame(found).astype(row.dtypes.to_dict())


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("relations", RELATIONS)
def test_the_cheapest_of_all_changes_of_one_or_two_columns_is_found(
    make_finder, relations, gated, most
):
    seed = 4 * most + 2 * gated + len(RELATIONS[relations])
    frame = draw_small(seed)
    finder = make_finder(frame, [0.0], schema=SMALL, relations=RELATIONS[relations])
    d = sum(column.width for column in finder.encoder.columns_)
    likely = bent(d, seed + 50)
    gate = Plausible(lambda x: likely(x).add(1.0).sigmoid()) if gated else None
    finder = ready(finder, model=Margin(bent(d, seed)), gate=gate)
    people = denied(finder, frame, 15)
    _, _, best = answers(search(finder, people, most))
    judge = PlanJudge(finder.encoder, finder.constraints, most)
    expected = np.full(len(people), np.inf)
    for i in range(len(people)):
        trials = everything(finder, people.iloc[[i]], most)
        before = people.iloc[[i] * len(trials)].reset_index(drop=True)
        broken = {violation.row for violation in judge(before, trials)}
        x, after = finder.factuals(before).x, finder.factuals(trials).x
        price = (finder.cost(after, x) + COLUMN * finder.num_changes(after, x)).numpy()
        reached = (
            finder.confidence(after, torch.full((len(trials),), TARGET)) >= 0.5 + 1e-6
        ).numpy()
        fine = (
            reached
            & ~np.isin(np.arange(len(trials)), [*broken])
            & (finder.differs(after, x).any(1)).numpy()
        )
        expected[i] = price[fine].min(initial=np.inf)
    assert np.isfinite(expected).sum() > 3  # or nothing was compared
    np.testing.assert_allclose(best, expected, atol=1e-5)


# ---- one number, on the grid that it is written on -----------------------------------------------

AMOUNTS = {
    "free": {},
    "domain": {"domain": (3.3, 31.7)},
    "beyond": {"domain": (0, 90)},
    "max_change": {"max_change": 7.3},
    "step": {"step": 0.75, "domain": (0.2, 38.3)},
    "codes": {"special": [17.0, 17.1]},
}


def draw_amounts(seed=0, n=400):
    """An amount that may change, and what decides beside it."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"amount": rng.gamma(3, 6, n).round(1), "fixed": rng.normal(0, 1, n)})


def linear(make_finder, frame, weights, bias, **rules):
    return ready(make_finder(frame, weights, bias, **rules))


@pytest.mark.parametrize("rule", AMOUNTS)
def test_the_nearest_number_that_suffices_is_found(make_finder, rule):
    """Also between the last value of a table and a bound; and none where only what lies beyond
    would do.
    """
    frame = draw_amounts()
    # Each code has an encoded column of its own.
    weights = [1.0, *[0.0] * len(AMOUNTS[rule].get("special", [])), 1.2]
    schema = {"amount": AMOUNTS[rule], "fixed": {"mutability": "none"}}
    finder = linear(make_finder, frame, weights, -1.0, schema=schema)
    people = denied(finder, frame, 120)
    people = people[~people["amount"].isin(AMOUNTS[rule].get("special", []))]
    beam = search(finder, people, 1)
    _, _, best = answers(beam)
    notation = beam.book.notations[0]
    column = finder.encoder.columns_[0]
    judge = PlanJudge(finder.encoder, finder.constraints, 1)
    scan = notation.write(np.arange(0, np.rint(100 / notation.grid)) * notation.grid)
    x = finder.factuals(people).x.double().numpy()
    ones = np.ones(len(scan))
    # The only weight of the other column, which is held.
    reached = -1.0 + ((scan - column.center) / column.scale)[None] + 1.2 * x[:, -1:] >= 5e-6
    expected = np.full(len(people), np.inf)
    for i, own in enumerate(people["amount"].tolist()):
        fine = reached[i] & judge.allows("amount", own * ones, scan) & (scan != own)
        low, high = judge.learned_ends("amount")
        fine &= (scan >= min(low, own)) & (scan <= max(high, own))
        cost = np.abs(scan - own) / column.scale + COLUMN
        expected[i] = cost[fine].min(initial=np.inf)
    assert np.isfinite(expected).any() and (rule == "beyond" or np.isinf(expected).any())
    np.testing.assert_allclose(best, expected, atol=1e-5)


@pytest.mark.parametrize("by", ["gate", "relation"])
def test_a_narrow_band_between_two_values_of_a_table_is_found(make_finder, by):
    """The model asks for a little more than the median; gate or relation allow hardly more than
    that.
    """
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"paid": rng.gamma(3, 4, 300).round(1), "total": rng.gamma(9, 4, 300).round(1)}
    )
    schema = {"total": {"mutability": "none"}}
    relations = ["paid <= total"] if by == "relation" else []
    finder = linear(make_finder, frame, [1.0, 0.0], 0.0, schema=schema, relations=relations)
    column = finder.encoder.columns_[0]
    bar = column.center + 0.001 * column.scale
    finder = linear(make_finder, frame, [1.0, 0.0], -0.001, schema=schema, relations=relations)
    ceiling = np.ceil(bar * 10 + 0.5) / 10
    people = frame[frame["paid"] < bar - 1].head(20).assign(total=ceiling)
    if by == "gate":
        finder = replace(
            finder,
            gate=Plausible(
                lambda x: x[..., 0] <= (ceiling + 0.001 - column.center) / column.scale
            ),
        )
    beam = Beam(finder, finder.factuals(people), torch.full((len(people),), TARGET), 0.5, 1)
    # Where another column has an answer, nothing else would look between the values.
    with beam.oracle.asking():
        beam.settle(beam.singles(1), 1)
    _, points, _ = answers(beam)
    notation = beam.book.notations[0]
    assert not ((notation.values > bar) & (notation.values <= ceiling)).any()
    paid = points[:, 0].numpy() * column.scale + column.center
    assert np.isfinite(beam.best).all()
    assert ((paid > bar) & (paid <= ceiling + 1e-4)).all()


def test_a_narrow_band_is_found_in_two_columns(make_finder):
    """The gate allows one value of the first column, which is not among the coarser ones; the model
    asks for a change of the second, too.
    """
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({name: rng.gamma(9, 4, 300).round(1) for name in ("paid", "total")})
    people = frame.iloc[:1].assign(paid=30.0, total=30.0)
    finder = linear(make_finder, frame, [1.0, 1.0], 0.0)
    plain = Beam(finder, finder.factuals(people), torch.full((1,), TARGET), 0.5, 2)
    with plain.oracle.asking():
        plain.singles(1)
    first = plain.moves.feature == 0
    fine = np.setdiff1d(plain.moves.number[0, first], plain.coarse.number[0])
    value = fine[fine > 40][0]
    column = finder.encoder.columns_[0]
    code = (value - column.center) / column.scale
    finder = replace(
        linear(make_finder, frame, [1.0, 1.0], -code - 0.5),
        gate=Plausible(lambda x: (x[..., 0] - code).abs() < 1e-3),
    )
    beam = Beam(finder, finder.factuals(people), torch.full((1,), TARGET), 0.5, 2)
    with beam.oracle.asking():
        for level in (beam.singles, beam.near_pairs, beam.far_pairs):
            beam.settle(level(1), 1)
        assert np.isinf(beam.best).all()
        beam.settle(find_fine_pairs(beam), 1)
    assert np.isfinite(beam.best).all()
    assert float(beam.answer[0, 0]) == pytest.approx(code, abs=1e-3)
    # The same stands among the levels.
    assert search(finder, people, 2).best[0] <= beam.best[0]


def test_pairs_of_all_values_make_answers_cheaper_and_never_dearer(make_finder):
    """With many columns, the coarser choice of each is small: without a value in the gate's band,
    a pair of dearer columns is advised.
    """
    rng = np.random.default_rng(4)
    names = [f"c{i}" for i in range(24)]
    frame = pd.DataFrame({name: rng.gamma(4, 4, 300).round(1) for name in names})
    frame["c0"] = rng.permutation(np.linspace(0, 40, 300)).round(1)
    weights = [1.0, 1.0, *[0.2] * 22]
    finder = linear(make_finder, frame, weights, 0.0)
    people = frame.iloc[:20].assign(**dict.fromkeys(names, 8.0))
    target = torch.full((len(people),), TARGET)
    plain = Beam(finder, finder.factuals(people), target, 0.5, 2)
    with plain.oracle.asking():
        plain.singles(1)
    fine = np.setdiff1d(plain.moves.number[0, plain.moves.feature == 0], plain.coarse.number[0])
    column = finder.encoder.columns_[0]
    code = (fine[fine > 16][0] - column.center) / column.scale

    # The band, and a little of the second column, is what is missing.
    own = finder.factuals(people).x[0].double()
    missing = float(own @ torch.tensor(weights).double()) + code - float(own[0]) + 0.3
    finder = replace(
        linear(make_finder, frame, weights, -missing),
        gate=Plausible(lambda x: ((x[..., 0] - code).abs() < 1e-3) | (x[..., 1] > code + 1)),
    )

    def best(levels) -> np.ndarray:
        beam = Beam(finder, finder.factuals(people), target, 0.5, 2)
        with beam.oracle.asking():
            for level in levels:
                beam.settle(level(beam), 1)
        return beam.best

    coarse = (lambda b: b.singles(1), lambda b: b.near_pairs(1), lambda b: b.far_pairs(1))
    before = best(coarse)
    after = best((*coarse, find_fine_pairs))
    assert (after <= before).all()
    assert (after < before).any()


# ---- easing and undoing --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_amounts(make_finder):
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {"paid": rng.gamma(3, 4, 300).round(1), "total": rng.gamma(9, 4, 300).round(1)}
    )

    def make(weights, bias, **rules):
        finder = linear(make_finder, frame, weights, bias, **rules)
        return finder, frame[frame["paid"] <= frame["total"]].head(30)

    return make


@pytest.mark.parametrize("relations", [[], ["paid <= total"]], ids=["alone", "related"])
def test_a_number_is_eased_to_the_nearest_that_still_arrives(two_amounts, relations):
    """Both columns were raised; the second goes back, as far as the bar and its relation to the
    first allow.
    """
    finder, people = two_amounts([1.0, 0.3], -2.0, relations=relations)
    beam = Beam(
        finder, finder.factuals(people), torch.ones(len(people), dtype=torch.long), 0.5, 2
    )
    book, oracle = beam.book, beam.oracle
    n = len(people)
    everybody = np.arange(n)
    first = np.zeros(n, dtype=int)
    second = np.ones(n, dtype=int)
    points = beam.x.clone()
    raised = book.notations[0].write(people["paid"].to_numpy() + 25.0)
    high = book.notations[1].write(people["total"].to_numpy() + 45.0)
    low = people["total"].to_numpy().astype(float)
    with oracle.asking():
        book.set_numbers(points, everybody, first, raised)
        book.set_numbers(points, everybody, second, high)
        arrived = np.flatnonzero(oracle.arrives(everybody, points))
        eased = beam.easing.ease(
            arrived, points, arrived, second[arrived], low[arrived], high[arrived]
        )
        assert len(arrived) > 20
        assert oracle.arrives(arrived, points[arrived]).all()
        for i, number in zip(arrived.tolist(), eased.tolist(), strict=True):
            grid = book.notations[1].grid
            scan = book.notations[1].write(np.arange(low[i] / grid + 1, high[i] / grid) * grid)
            scan = scan[(scan > low[i]) & (scan <= high[i])]
            trial = points[[i]].repeat(len(scan), 1)
            book.set_numbers(trial, np.arange(len(scan)), np.ones(len(scan), dtype=int), scan)
            fine = oracle.arrives(np.full(len(scan), i), trial)
            assert number == pytest.approx(scan[fine].min(), abs=1.5 * grid)
    below = raised[arrived] > low[arrived]
    assert below.any()
    if relations:
        assert (eased >= raised[arrived] - 1e-9).all()


def test_what_is_not_needed_is_undone_the_dearest_first(make_finder):
    frame = draw_small(11)
    finder = ready(make_finder(frame, [0.0], schema={name: {} for name in frame}))
    d = sum(column.width for column in finder.encoder.columns_)
    finder = replace(finder, model=Margin(bent(d, 8)))
    people = denied(finder, frame, 40)
    others = finder.factuals(frame.sample(40, random_state=1)).x[: len(people)]
    beam = Beam(
        finder, finder.factuals(people), torch.ones(len(people), dtype=torch.long), 0.5, None
    )
    with beam.oracle.asking():
        everybody = np.arange(len(people))
        others = others[:, beam.window.columns]
        arrived = np.flatnonzero(beam.oracle.arrives(everybody, others))
        short = beam.easing.undo(arrived, others[arrived].clone())
        owner = torch.as_tensor(beam.window.owner)
        gone = 0
        for k, i in enumerate(arrived.tolist()):
            point = others[i].clone()
            while True:
                cost = beam.window.distance(np.array([i]), point[None])[0]
                removed = [torch.where(owner == j, beam.x[i], point) for j in range(len(cost))]
                arrives = beam.oracle.arrives(np.full(len(cost), i), torch.stack(removed))
                saved = np.where(arrives & (cost > 0), cost, 0.0)
                if not saved.any():
                    break
                point = removed[saved.argmax()]
                gone += 1
            assert torch.equal(short[k], point)
    assert len(arrived) > 10 and gone > 10


@pytest.mark.parametrize("dear", ["paid", "total"])
def test_of_two_columns_the_dear_one_is_eased_first(two_amounts, dear):
    """Neither column suffices alone. The cheaper one goes as far as it may, and the dear one hardly
    moves.
    """
    schema = {name: {"difficulty": 40.0 if name == dear else 1.0} for name in ("paid", "total")}
    finder, people = two_amounts([1.0, 1.0], -4.5, schema=schema)
    beam = search(finder, people, 2)
    _, _, best = answers(beam)
    steps = [beam.book.notations[k].grid / finder.encoder.columns_[k].scale for k in range(2)]
    ends = finder.constraints.domain.upper.double().numpy()
    x = finder.factuals(people).x.double().numpy()
    j = ["paid", "total"].index(dear)
    needed = 4.5 - ends[1 - j]
    moved = (needed > x[:, j]) & (x[:, 1 - j] < ends[1 - j])
    weight = np.where(np.arange(2) == j, 40.0, 1.0)
    far = np.where(np.arange(2) == j, needed - x[:, [j]], ends[1 - j] - x[:, [1 - j]])
    least = (far * weight).sum(1) + 2 * COLUMN
    # The dear column ends on its grid, and the cheap one on its own.
    slack = 40.0 * (2 * steps[j] + steps[1 - j])
    assert moved.sum() > 10
    assert (best[moved] <= least[moved] + slack).all()


# ---- larger sets ---------------------------------------------------------------------------------


def test_extensions_are_all_sets_of_one_more_column_that_may_be_cheaper(make_finder):
    """Of few moves, all are promising enough; none that costs as much as the best answer is."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.random(60) > 0.5 for name in "abcdef"})
    schema = {name: {"difficulty": 1.0 + place} for place, name in enumerate("abcdef")}
    finder = ready(make_finder(frame, [0.5] * 6, -9.0, schema=schema))
    people = pd.DataFrame({name: [False] for name in "abcdef"})
    beam = Beam(finder, finder.factuals(people), torch.ones(1, dtype=torch.long), 0.5, None)
    moves = beam.moves
    mine = np.flatnonzero(moves.allowed[0])
    with beam.oracle.asking():
        me = np.zeros(len(mine), dtype=int)
        odds = beam.oracle.odds(me, beam.points(moves, me, mine[:, None]))
        before = beam.oracle.odds(me[:1], beam.x)[0]
    gate = np.full(len(mine), np.inf)
    state = States(moves, 0, mine, Reached(odds, gate), Reached(before, np.inf), before + 1e-6)
    pairs = {
        pair
        for pair in itertools.combinations(mine.tolist(), 2)
        if len(set(moves.feature[list(pair)])) == 2
    }
    assert set(map(tuple, state.move[state.extensions(np.inf)].tolist())) == pairs
    price = {pair: moves.cost[0, list(pair)].sum() + 2 * COLUMN for pair in pairs}
    best = float(np.median([*price.values()]))
    assert set(map(tuple, state.move[state.extensions(best)].tolist())) == {
        pair for pair in pairs if price[pair] < best
    }
    assert len(pairs) == 15


@pytest.mark.parametrize("columns", [[0, 1, 2, 3], [1, 3]], ids=str)
def test_at_the_bar_all_digits_count_whatever_may_change(make_finder, columns):
    frame = pd.DataFrame(np.random.default_rng(2).normal(size=(50, 4)), columns=list("abcd"))
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
    )
    finder = ready(make_finder(frame, [0.0]), model=network)
    factuals = finder.factuals(frame)
    y = torch.full((len(frame),), TARGET)
    for i in range(5):
        with torch.no_grad():
            # This row is as likely to have the target as not.
            network[-1].bias[1] += network(factuals.x[i]) @ torch.tensor([1.0, -1.0])
            exact = copy.deepcopy(network).double()(factuals.x[i].double())
            oracle = Oracle(finder, factuals, y, 0.5, np.array(columns))
            found = oracle.odds(np.array([i]), oracle.x[[i]])
        with torch.no_grad():
            hidden = network[:-1](factuals.x[i]).abs()
            terms = hidden @ network[-1].weight.abs().T + network[-1].bias.abs()
        margin = 4e-6 * max(exact.abs().max(), terms.max())
        np.testing.assert_allclose(
            found, float(exact[1] - exact[0] - margin), rtol=0, atol=1e-11
        )


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    "gate", [None, Plausible(lambda x: (6 - 3 * x.abs().sum(-1)).sigmoid())]
)
def test_triples_are_all_that_promise_enough_and_may_be_cheaper(make_finder, known, gate):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 5)), columns=list("abcde"))
    finder = ready(
        make_finder(frame, [0.0], schema={"b": {"max_change": 0.5}}),
        model=Margin(bent(5, 1)),
        gate=gate,
    )
    people = denied(finder, frame, 6)
    factuals = finder.factuals(people)
    beam = Beam(finder, factuals, torch.full((len(people),), TARGET), 0.5, None)
    with beam.oracle.asking():
        beam.singles(1)
        # Of one person all triples may be cheaper, of the next hardly any.
        beam.best[:] = np.where(known, np.linspace(2.0, 6.0, len(people)), np.inf)
        found = find_triples(beam, np.arange(len(people)))
    moves = beam.coarse
    sets = np.array(list(itertools.combinations(range(len(moves.feature)), 3)))
    sets = sets[(np.diff(moves.feature[sets], axis=1) > 0).all(1)]
    expected = set()
    unlikely = 0
    for i in range(len(people)):
        mine = sets[moves.usable[i][sets].all(1)]
        mine = mine[moves.least[i][mine].sum(1) + 3 * COLUMN < beam.best[i]]
        person = np.full(len(mine), i)
        alone = [beam.points(moves, person, mine[:, [at]]) for at in range(3)]
        odds = np.stack([beam.oracle.odds(person, points) for points in alone])
        gained = (odds - beam.odds_before[i]).sum(0)
        odds = beam.oracle.odds(person, beam.points(moves, person, mine))
        fine = (gained >= 0.7 * -beam.odds_before[i]) & (odds >= 0)
        if gate is not None:
            before = beam.oracle.gate_odds(person[:1], beam.x[[i]])
            likely = np.stack([beam.oracle.gate_odds(person, points) for points in alone])
            seen = before + (likely - before).sum(0) >= beam.oracle.enough_of_gate - 4.0
            unlikely += int((fine & ~seen).sum())
            fine &= seen
        expected |= {(i, *line) for line in mine[fine].tolist()}
    assert len(expected) > 100
    assert (unlikely > 100) == (gate is not None)
    assert {
        (i, *line) for i, line in zip(found.person.tolist(), found.sets.tolist(), strict=True)
    } == expected


@pytest.mark.parametrize("helped", [False, True])
def test_triples_that_fall_back_to_two_columns_do_not_count_beside_pairs(make_finder, helped):
    """They cost less than their bound, by which a freer question may pass them over."""
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 3)), columns=list("abc"))
    finder = ready(make_finder(frame, [0.0]), model=Margin(lambda x: x.sum(-1) - 1.0))
    people = denied(finder, frame, 1)
    beam = Beam(finder, finder.factuals(people), torch.full((1,), TARGET), 0.5, None)
    with beam.oracle.asking():
        beam.singles(1)
        # The last move of each column: two are more than enough.
        last = np.searchsorted(beam.coarse.feature, [0, 1, 2], side="right")[None] - 1
        person = np.zeros(1, dtype=np.int64)
        found = beam.passing(
            beam.coarse, person, last, *beam.ask_sets(beam.coarse, person, last)
        )
        beam._helped_by_two[:] = helped
        beam._ease_sets(found)
    _, points, _ = answers(beam)
    assert len(found.person) == 1
    if helped:
        assert len(points) == 0
    else:
        assert len(points) == 1
        assert beam.easing.changed(person, points).sum() <= 2


def test_sets_of_three_columns_are_found_where_two_do_not_help(make_finder):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.random(60) > 0.5 for name in "abcde"})
    finder = ready(make_finder(frame, [3.0, 2.0, 1.0, 2.0, 3.0], -7.5))
    people = pd.DataFrame({name: [False] for name in "abcde"})
    for most in (1, 2):
        assert np.isinf(answers(search(finder, people, most))[2]).all()
    assert answers(search(finder, people))[2] == pytest.approx(3 * (1 + COLUMN))


@pytest.mark.parametrize("most", [1, 2])
def test_real_rows_give_no_answer_that_changes_too_many_columns(make_finder, most):
    """Three columns are needed, and real rows have them."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.random(80) > 0.5 for name in "abc"})
    finder = ready(make_finder(frame, [3.0, 3.0, 3.0], -7.5))
    x = finder.factuals(frame).x
    real = SimpleNamespace(x=x, y=finder.logits(x).argmax(-1))
    people = pd.DataFrame({name: [False] for name in "abc"})
    beam = search(replace(finder, background=real), people, most)
    assert not beam.pool.person
    assert int((beam.effort != beam.x).sum()) <= most
    enough = search(replace(finder, background=real), people, 3)
    assert np.isfinite(answers(enough)[2]).all()


def test_the_best_effort_is_the_closest_of_all_that_were_tried(make_finder):
    """Raising ``a`` helps, but not enough; any change of ``b`` does harm, also in the sets that are
    tried later.
    """
    rng = np.random.default_rng(0)
    # With all its digits, so that every number that is written differs from one's own.
    frame = pd.DataFrame({"a": rng.normal(size=200).round(2), "b": rng.normal(size=200)})
    finder = ready(make_finder(frame, [0.0, 0.0]))
    people = frame[frame["a"] < 1].head(12)
    own = finder.factuals(people).x[:, 1]

    def margin(x):
        return x[:, 0].clamp_max(2.5) - 9 - 5 * (x[:, 1:] - own).abs().amin(1)

    finder = replace(finder, model=Margin(margin))
    beam = search(finder, people, 2)
    assert not beam.pool.person
    reached = margin(beam.effort)
    singles = beam.moves.allowed & (beam.moves.feature == 0)
    codes = np.where(singles, beam.moves.code.double().numpy(), -np.inf).max(1)
    expected = np.minimum(codes, 2.5) - 9
    assert (reached.numpy() >= expected - 1e-4).all()
    assert torch.equal(beam.effort[:, 1], beam.x[:, 1])


# ---- options -------------------------------------------------------------------------------------


def test_what_the_gate_doubts_comes_after_what_it_lets_pass_and_is_cheaper(make_finder):
    frame = draw_small(5)
    finder = make_finder(frame, [0.0], schema={name: {} for name in frame})
    d = sum(column.width for column in finder.encoder.columns_)
    likely = bent(d, 3)
    gate = Plausible(lambda x: likely(x).mul(3).add(1.0).sigmoid())
    finder = ready(finder, model=Margin(bent(d, 1)), gate=gate)
    people = denied(finder, frame, 60)
    factuals = finder.factuals(people)
    y = torch.full((len(people),), TARGET)
    options = find_options(finder, factuals, y, Question(line(decision_threshold=0.5)), 3)
    rows = options.row
    found = options.found
    price = finder.cost(found.x_cf, factuals.x[rows]) + COLUMN * finder.num_changes(
        found.x_cf, factuals.x[rows]
    )
    mixed = 0
    for i in range(len(people)):
        mine = (rows == i).nonzero().squeeze(-1)
        status = found.status[mine].tolist()
        assert len(mine) <= 3
        assert status == sorted(status, key=ORDER.index)
        if set(status) == set(ORDER[:2]):
            mixed += 1
            assert status.count(int(Status.IMPLAUSIBLE)) == 1
            assert price[mine[-1]] < price[mine[0]] + 1e-5
    assert mixed > 3


def test_who_has_no_plausible_answer_gets_as_many_options_as_without_a_gate(make_finder):
    frame = draw_small(5)
    finder = make_finder(frame, [0.0], schema={name: {} for name in frame})
    d = sum(column.width for column in finder.encoder.columns_)
    finder = ready(finder, model=Margin(bent(d, 1)))
    people = denied(finder, frame, 60)
    factuals = finder.factuals(people)
    y = torch.full((len(people),), TARGET)
    question = Question(line(decision_threshold=0.5))
    nobody = replace(finder, gate=Plausible(lambda x: torch.full_like(x[..., 0], 0.01)))
    found = [find_options(one, factuals, y, question, 3).row for one in (finder, nobody)]
    assert len(found[0]) > 1.4 * len(people)
    assert found[1].tolist() == found[0].tolist()
