"""Moves and how numbers are written, against the rules as a user states them, one value at a
time.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from counterfactual_training.tables.advice.answer import advice_constraints
from counterfactual_training.tables.advice.moves import MoveBook, Notation
from counterfactual_training.tables.advice.rules import Rules
from counterfactual_training.tables.advice.window import Window

RANKS = ["none", "BSc", "MSc", "PhD"]
JOBS = ["clerk", "cook", "nurse", "pilot"]
SCHEMA = {
    "income": {"domain": (0, 7000), "step": 50},
    "debt": {"mutability": "decrease", "max_change": 900.0},
    "loans": {"kind": "integer", "domain": (2, None)},
    "late": {"kind": "integer", "special": [-9], "max_change": 3},
    "rate": {"allowed": [1.5, 2.5, 4.0]},
    "share": {},
    "degree": {
        "kind": "ordinal",
        "categories": RANKS,
        "domain": ("none", "MSc"),
        "max_change": 2,
    },
    "rank": {"kind": "ordinal", "categories": RANKS, "mutability": "increase"},
    "job": {
        "categories": JOBS,
        "forbidden": [("nurse", "clerk"), ("pilot", ["clerk", "cook"])],
    },
    "home": {"allowed": ["owned", "rented"]},
    "age": {"kind": "integer", "mutability": "none"},
}


def draw(n=300, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "income": rng.gamma(3, 1000, n).round(-1),
            "debt": rng.gamma(2, 800, n).round(2),
            "loans": rng.integers(0, 9, n),
            "late": rng.choice([-9, *range(12)], n),
            "rate": rng.choice([1.5, 2.5, 4.0, 5.0], n),
            "share": rng.beta(2, 3, n),
            "degree": rng.choice(RANKS, n),
            "rank": rng.choice(RANKS, n),
            "job": rng.choice(JOBS, n),
            "home": rng.choice(["owned", "rented", "shared"], n),
            "age": rng.integers(20, 70, n),
        }
    )


def book_of(finder, factuals):
    """The moves of people in all columns."""
    features = np.arange(len(finder.encoder.columns_))
    return MoveBook(finder, factuals, Window(finder, factuals.x, features, torch.device("cpu")))


@pytest.fixture(scope="module")
def asked(make_finder):
    """The moves of thirty people, a tenth of whom are outliers."""
    frame = draw()
    finder = make_finder(frame, [0.0], schema=SCHEMA)
    finder = replace(finder, constraints=advice_constraints(finder.encoder, 0.0))
    people = frame.head(30).copy()
    people.loc[:2, "share"] = [1.7, -0.4, 0.999]
    people.loc[:2, "income"] = [9000.0, 12_340.0, 0.0]
    book = book_of(finder, finder.factuals(people))
    return people, book, book.all_moves()


def wrong(name, column, old, new):
    """Why the rules forbid a change of one cell, read from what the user wrote; empty if they do
    not.
    """
    rule = SCHEMA[name]
    levels = column.feature.categories
    order = levels.index if levels is not None else float
    before, after = order(old), order(new)
    way = rule.get("mutability", "both")
    found = []
    if way not in ("both", "increase" if after > before else "decrease"):
        found.append("direction")
    low, high = rule.get("domain", (None, None))
    low = -math.inf if low is None else order(low)
    high = math.inf if high is None else order(high)
    if levels is None and "allowed" not in rule:
        # Where nothing is stated, advice stays in the bulk of the training rows.
        low = low if math.isfinite(low) else column.bulk[0]
        high = high if math.isfinite(high) else column.bulk[1]
    if after < min(low, before) or after > max(high, before):
        found.append("domain")
    if abs(after - before) > rule.get("max_change", math.inf) + 1e-9:
        found.append("max_change")
    if "step" in rule and not math.isclose(
        after / rule["step"], round(after / rule["step"]), abs_tol=1e-9
    ):
        found.append("step")
    if new not in rule.get("allowed", [new]):
        found.append("allowed")
    forbidden = [
        (a, c)
        for a, b in rule.get("forbidden", [])
        for c in (b if isinstance(b, list) else [b])
    ]
    if (old, new) in forbidden:
        found.append("forbidden")
    if old in rule.get("special", []) or new in rule.get("special", []):
        found.append("special")
    if rule.get("kind") == "integer" and after != int(after):
        found.append("whole")
    return found


def test_what_may_not_change_has_no_moves(asked):
    _, book, moves = asked
    names = {book.columns[j].feature.name for j in moves.feature.tolist()}
    assert names == set(SCHEMA) - {"age"}


@pytest.mark.parametrize("name", [name for name in SCHEMA if name != "age"])
def test_allowed_moves_are_those_that_no_rule_forbids(asked, name):
    people, book, moves = asked
    j = list(people.columns).index(name)
    column = book.columns[j]
    here = np.flatnonzero(moves.feature == j)
    levels = column.feature.categories
    counts = {True: 0, False: 0}
    for i, old in enumerate(people[name].tolist()):
        for k in here.tolist():
            number = moves.number[i, k]
            new = number if levels is None else levels[int(number)]
            ends = column.bulk if levels is None and column.bulk is not None else ()
            # An end that was learned is known to the precision of a search.
            if new == old or any(abs(new - end) < 1e-4 * column.scale for end in ends):
                continue
            reasons = wrong(name, column, old, new)
            assert bool(moves.allowed[i, k]) == (not reasons), (old, new, reasons)
            counts[not reasons] += 1
    assert counts[True] > 0
    # Of these, only values that may be advised are tried in the first place.
    assert counts[False] > 0 or name in ("rate", "share")


def test_no_move_leaves_a_cell_as_it_is(asked):
    _, book, moves = asked
    own = book.base[:, moves.feature]
    assert not (moves.allowed & (moves.number == own)).any()


def test_held_cells_have_no_moves(make_finder):
    frame = draw()
    finder = make_finder(frame, [0.0], schema=SCHEMA)
    factuals = finder.factuals(frame.head(6))
    mask = torch.zeros_like(factuals.x, dtype=torch.bool)
    mask[::2, finder.encoder.slices_["job"]] = True
    book = book_of(finder, factuals.holding(mask))
    moves = book.all_moves()
    job = moves.feature == list(frame.columns).index("job")
    assert not moves.usable[::2][:, job].any() and moves.usable[1::2][:, job].any()
    assert moves.allowed[::2][:, ~job].any()


# ---- costs ---------------------------------------------------------------------------------------


def test_costs_are_those_of_the_encoded_rows(make_finder):
    """L1 between the codes of a row and of the row with one cell changed, times the difficulty of
    the column.
    """
    frame = draw()
    schema = {**SCHEMA, "debt": {"difficulty": 3.0}, "job": {"difficulty": 0.5}}
    finder = make_finder(frame, [0.0], schema=schema)
    people = frame.head(4)
    book = book_of(finder, finder.factuals(people))
    moves = book.all_moves()
    for i, k in list(zip(*moves.allowed.nonzero(), strict=True))[::23]:
        feature = book.columns[moves.feature[k]].feature
        value = moves.number[i, k]
        row = people.iloc[[i]].copy()
        row[feature.name] = [
            value if feature.categories is None else feature.categories[int(value)]
        ]
        far = np.abs(
            finder.encoder.transform(row) - finder.encoder.transform(people.iloc[[i]])
        ).sum()
        assert moves.cost[i, k] == pytest.approx(
            far * schema[feature.name].get("difficulty", 1.0), abs=1e-6
        )


# ---- how numbers are written ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["income", "debt", "loans", "late", "rate", "share"])
def test_numbers_are_written_as_the_nearest_that_may_be(asked, name):
    people, book, _ = asked
    notation = book.notations[list(people.columns).index(name)]
    numbers = np.random.default_rng(1).uniform(notation.values[0], notation.values[-1], 200)
    written = notation.write(numbers)
    if notation.grid:
        places = np.arange(
            math.floor(numbers.min() / notation.grid) - 1,
            math.ceil(numbers.max() / notation.grid) + 2,
        )
        possible = places * notation.grid
    else:
        possible = np.array(SCHEMA[name].get("allowed") or notation.values)
    nearest = np.abs(numbers[:, None] - possible).min(1)
    np.testing.assert_allclose(np.abs(numbers - written), nearest, atol=1e-9 * notation.span)
    np.testing.assert_array_equal(notation.write(written), written)
    # Three digits or so: nobody reads 0.30000000000000004.
    assert all(
        len(f"{value:.12g}".lstrip("-").replace(".", "").lstrip("0")) <= 7 for value in written
    )


@pytest.mark.parametrize("name", ["income", "debt", "share", "loans", "rate"])
def test_values_to_try_are_ascending_written_and_those_of_everybody(asked, name):
    people, book, _ = asked
    j = list(people.columns).index(name)
    notation = book.notations[j]
    own = book.base[:, j]
    values = notation.around(own)
    assert (np.diff(values, axis=1) >= 0).all()
    np.testing.assert_array_equal(notation.write(values), values)
    for line in values:
        assert set(notation.values) <= set(line)


def test_there_are_values_next_to_ones_own(asked):
    """Unless few values are all there are, the next one on either side is among those to try."""
    people, book, _ = asked
    j = list(people.columns).index("debt")
    notation = book.notations[j]
    own = notation.write(book.base[:, j])
    inside = (own > notation.values[0] + notation.grid) & (
        own < notation.values[-1] - notation.grid
    )
    values = notation.around(own)
    for way in (-1, 1):
        beside = notation.write(own + way * notation.grid)
        assert all(beside[i] in values[i] for i in np.flatnonzero(inside).tolist())


@pytest.mark.parametrize(
    "bounds",
    [
        {"domain": {"term": (0, 50), "amount": (0, 8850)}},
        {"domain": {"term": (40, 50), "amount": (1010, 1090)}},
        {"max_change": {"term": 13, "amount": 99}},
    ],
)
def test_bounds_of_a_question_leave_values_out_but_add_none(make_finder, bounds):
    """Terms are 12, 24 and 48 and amounts hundreds, whatever a question allows of them."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"term": rng.choice([12, 24, 48], 300), "amount": 100 * rng.integers(5, 90, 300)}
    )
    free = make_finder(frame, [0.0, 0.0])
    encoder = free.encoder.with_schema(Rules(**bounds).narrow(free.encoder.schema_))
    narrow = replace(free, encoder=encoder, constraints=advice_constraints(encoder, 0.0))
    tried = []
    for finder in (narrow, free):
        moves = book_of(finder, finder.factuals(frame.head(20))).all_moves()
        person, move = moves.allowed.nonzero()
        number = moves.number[person, move].tolist()
        tried.append(
            set(zip(person.tolist(), moves.feature[move].tolist(), number, strict=True))
        )
    assert tried[0] < tried[1]
    assert all(number in (12, 24, 48) or number % 100 == 0 for _, _, number in tried[0])


def test_how_far_a_domain_reaches_does_not_change_the_values_within_the_range(asked):
    book = asked[1]
    at = next(j for j, column in enumerate(book.columns) if column.feature.name == "share")
    column = book.columns[at]
    first, last = column.bulk
    span = last - first
    own = np.array([first, (first + last) / 2, last, last + span])
    kept = []
    for reach in (0.0, 0.2, 1.0, 5.0):
        notation = Notation.of(column, first - reach * span, last + reach * span, 0)
        values = notation.around(own)
        kept.append(values[:, notation.thinned(values.shape[1], 12)])
    for tight, free in itertools.pairwise(kept):
        assert free.shape[1] > tight.shape[1]
        for narrow, wide in zip(tight, free, strict=True):
            assert set(narrow) <= set(wide)
    assert kept[0].shape[1] <= 12
