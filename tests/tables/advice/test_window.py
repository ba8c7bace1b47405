"""Points in some of the columns: what model and gate say of the whole rows."""

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import counterfactual_training as ct
from counterfactual_training.tables.advice.beam import Beam
from counterfactual_training.tables.advice.oracle import Oracle
from counterfactual_training.tables.advice.window import Window

JOBS = ["clerk", "cook", "nurse"]


def draw(n=300, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "job": rng.choice(JOBS, n),
            "income": rng.normal(3000, 500, n).round(),
            "town": rng.choice(["Ulm", "Bonn"], n),
            "debt": rng.normal(0, 4, n).round(2),
            "age": rng.integers(18, 90, n),
        }
    )


@pytest.fixture(scope="module")
def fitted():
    frame = draw()
    y = (
        frame["income"] + 100 * frame["debt"] + 300 * (frame["job"] == "nurse") > 3000
    ).to_numpy()
    classifier = ct.CounterfactualClassifier(
        epochs=3, random_state=0, mutability={"age": "none"}
    ).fit(frame, y)
    return classifier, frame


class Odd(torch.nn.Module):
    """No chain of layers."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * 2


@pytest.mark.parametrize("features", [[0, 1, 2, 3], [1], [0, 3], []])
@pytest.mark.parametrize("chain", [True, False])
def test_model_and_gate_say_what_they_say_of_whole_rows(fitted, make_finder, features, chain):
    classifier, frame = fitted
    model = classifier.model_ if chain else Odd(classifier.model_)
    finder = make_finder(frame, [0.0])
    finder = type(finder)(model, classifier.encoder_, finder.constraints, classifier.gate_)
    x = finder.factuals(frame.head(10)).x
    window = Window(finder, x, np.array(features, dtype=np.int64), torch.device("cpu"))
    person = np.random.default_rng(0).integers(10, size=80)
    other = finder.factuals(frame.tail(80)).x
    points = other[:, window.columns]
    whole = window.rows(person, points)
    with torch.no_grad():
        torch.testing.assert_close(
            window.logits(person, points), model(whole), rtol=1e-4, atol=1e-4
        )
        expected = classifier.gate_(whole)[:, 1]
        torch.testing.assert_close(
            torch.nn.functional.logsigmoid(window.gate_odds(person, points, 1)).float(),
            expected,
            rtol=1e-3,
            atol=1e-3,
        )
    untouched = [j for j in range(x.shape[1]) if j not in window.columns.tolist()]
    assert torch.equal(whole[:, untouched], x[person][:, untouched])
    assert torch.equal(whole[:, window.columns], points)


def test_sets_of_moves_are_looked_up(fitted, make_finder):
    """Logits by look-up are those of the points that the moves lead to."""
    classifier, frame = fitted
    finder = make_finder(frame, [0.0])
    finder = type(finder)(classifier.model_, classifier.encoder_, finder.constraints)
    factuals = finder.factuals(frame.head(10))
    beam = Beam(finder, factuals, torch.ones(10, dtype=torch.long), 0.5, None)
    rng = np.random.default_rng(1)
    person = rng.integers(10, size=200)
    sets = rng.integers(len(beam.moves.feature), size=(200, 2))
    apart = beam.moves.feature[sets[:, 0]] != beam.moves.feature[sets[:, 1]]
    person, sets = person[apart], sets[apart]
    with torch.no_grad():
        found = beam.window.logits_of_sets(beam.moves, person, sets)
        expected = finder.model(beam.window.rows(person, beam.points(beam.moves, person, sets)))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert len(person) > 100


@pytest.mark.parametrize("features", [[0, 1, 2, 3], [1], [0, 3]], ids=str)
def test_at_its_bar_all_digits_of_a_gate_count_whatever_may_change(
    fitted, make_finder, features
):
    classifier, frame = fitted
    gate = copy.deepcopy(classifier.gate_)
    finder = replace(
        make_finder(frame, [0.0]), model=classifier.model_, gate=gate, decision=True
    )
    factuals = finder.factuals(frame.head(60))
    label = 1
    passed = []
    expected = []
    for i in range(60):
        with torch.no_grad():
            log_p = copy.deepcopy(gate).double()(factuals.x[[i]].double())[0, label]
            # The bar is a few millionths above this row.
            gate.origin[label] += (log_p - torch.log(-torch.expm1(log_p))) / gate.slope[label]
            gate.origin[label] -= 4e-6 / gate.slope[label]
            log_p = copy.deepcopy(gate).double()(factuals.x[[i]].double())[0, label]
            y = torch.full((60,), label)
            oracle = Oracle(finder, factuals, y, 0.5, np.array(features))
            row = np.array([i])
            found = oracle.passing(row, oracle.x[[i]], np.ones(1), np.zeros(1, dtype=np.int64))
        passed.append(len(found) == 1)
        expected.append(bool(log_p - torch.log(-torch.expm1(log_p)) >= oracle.enough_of_gate))
    assert passed == expected
    assert {True, False} == set(passed)
