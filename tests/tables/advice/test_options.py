"""Several answers for one person, which differ in the columns that change."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import counterfactual_training as ct
from counterfactual_training.cli.flags import in_flags
from counterfactual_training.generators import Status, generic
from counterfactual_training.tables.advice.candidates import COLUMN
from counterfactual_training.tables.advice.options import _Answer, _with_doubtful
from counterfactual_training.tables.advice.oracle import Oracle
from loan_book import Plausible


@pytest.fixture(scope="module")
def told(fitted, rejected):
    return fitted.explain(rejected.head(25), target="granted", n_options=3)


def supports(explanation, mask):
    """For each row, the sets of columns of its options under the mask."""
    found = {}
    for label, line in zip(
        explanation.frame.index[mask], explanation.changed.to_numpy()[mask], strict=True
    ):
        found.setdefault(label[0], []).append(frozenset(np.flatnonzero(line)))
    return found


@pytest.mark.check
def test_options_change_different_columns_and_none_is_another_one_and_more(told):
    by_row = supports(told, told.status == "converged")
    assert max(map(len, by_row.values())) == 3
    for sets in by_row.values():
        assert all(not a <= b for i, a in enumerate(sets) for j, b in enumerate(sets) if i != j)


def test_every_option_answers_and_keeps_the_rules(fitted, told):
    assert (fitted.predict(told.frame.droplevel("option")) == "granted").all()
    assert (told.frame["age"] == told.original["age"]).all()
    assert (told.frame["debt"] <= told.original["debt"]).all()


def test_options_are_counted_and_ranked_by_cost(told, rejected):
    assert told.frame.index.names[-1] == "option"
    costs = told.summary["cost"]
    for label in rejected.head(25).index:
        own = costs.loc[label]
        assert own.index.tolist() == list(range(1, len(own) + 1))
        # Each column counts a little beside its cost; what the model alone asks for comes last,
        # though it is cheaper.
        plausible = told.summary.loc[label][lambda lines: lines["status"] == "converged"]
        assert (plausible["cost"] + COLUMN * plausible["num_changed"]).is_monotonic_increasing


def test_no_two_options_say_the_same(told):
    sentences = [text.split(": ", 1)[1] for text in told.changes()]
    rows = [label[0] for label in told.frame.index]
    assert len(set(zip(rows, sentences, strict=True))) == len(rows)
    assert told.changes()[0].startswith(f"Row {rows[0]}, option 1: with ")


def test_one_option_is_what_was_always_told(fitted, rejected):
    one = fitted.explain(rejected.head(5), n_options=1)
    assert one.frame.index.equals(rejected.head(5).index)
    assert one.changes()[0].startswith(f"Row {rejected.index[0]}: ")


def test_tables_and_records_hold_rows_and_options(told):
    text = str(told)
    assert text.splitlines()[0].startswith(f"Explanation of 25 row(s), {len(told)} option(s): ")
    assert "option" in text.splitlines()[1]
    records = json.loads(json.dumps(told.records()))
    assert [(r["row"], r["option"]) for r in records] == [
        tuple(label) for label in told.frame.index.tolist()
    ]
    assert set(told.differences().columns) >= {"row", "option", "column"}
    assert told._repr_html_().count("<tr>") == 21
    first = told.option(1)
    assert len(first) == 25 and "option" not in (first.index.names or [])


def test_who_has_fewer_options_is_told_why(fitted, rejected):
    explanation = fitted.explain(rejected.head(3), target="granted", n_options=3, vary=["debt"])
    assert len(explanation) < 9
    counts = explanation.frame.groupby(level=0).size()
    assert explanation.notes[0].startswith(
        f"Row {rejected.index[0]} has {counts[rejected.index[0]]} of 3 options: no "
    )
    assert explanation.notes[0] in str(explanation)


@pytest.mark.check
def test_the_answer_of_the_model_alone_is_offered_beside_the_plausible_one(make_quick):
    """Where it changes other columns: less of the same ones is no option of its own."""
    rng = np.random.default_rng(0)
    u = rng.normal(0, 1.5, 400)
    v = rng.normal(0, 1.5, 400)
    # Who changes one of a pair has to change the other, or looks like nobody.
    noise = rng.normal(0, 0.1, (2, 400))
    frame = pd.DataFrame({"a": u, "b": u + noise[0], "c": v, "d": v + noise[1]})
    y = (u + v > 0).astype(int)
    classifier = make_quick(epochs=30).fit(frame, y)
    denied = frame[(u + v < -2) & (classifier.predict(frame) == 0)].head(10)
    explanation = classifier.explain(denied, target=1, n_options=3)
    best = explanation.summary.groupby(level=0)["plausibility"].max()
    assert (best > 0.5).all()
    cheap = explanation.status == "implausible"
    assert cheap.any()
    assert (explanation.plausibility[cheap] < 0.5).all()
    changed = explanation.distance > 0
    rows = explanation.frame.index.get_level_values(0)
    for row in rows.unique():
        own = changed[rows == row]
        contains = (own[:, None] >= own[None]).all(-1)
        assert contains.sum() == len(own)


@pytest.mark.parametrize(("likely", "status"), [(0.8, "converged"), (0.2, "implausible")])
def test_what_was_found_without_the_gate_has_the_status_that_the_gate_gives_it(
    make_finder, sentence, monkeypatch, likely, status
):
    """A gated search may miss answers that pass; here it misses all of them."""
    whole = Oracle.reached
    monkeypatch.setattr(
        Oracle, "reached", lambda self, *odds: whole(self, *odds) & (not self.gated)
    )
    frame = pd.DataFrame({"a": np.linspace(0, 10, 41), "b": np.linspace(0, 5, 41)})
    finder = make_finder(frame, [1.0, 0.5], bias=-0.3)
    finder = replace(finder, decision=True, gate=Plausible(lambda x: torch.tensor(likely)))
    told = sentence(finder, frame.iloc[:2], generator=generic(decision_threshold=0.5))
    assert set(told.status) == {status} and told.answered.all()
    assert np.allclose(told.plausibility, likely)
    assert ("few real cases" in told.changes()[0]) == (status == "implausible")


@pytest.mark.parametrize("number", [0, 101, 10**6, 2.5])
def test_more_options_than_anybody_reads_are_refused(fitted, rejected, number):
    with pytest.raises(
        ct.InputError, match=r"n_options must be a whole number from 1 to 100"
    ) as e:
        fitted.explain(rejected.head(1), n_options=number)
    assert in_flags(e.value).startswith("--options must be a whole number from 1 to 100")


@pytest.mark.check
def test_people_of_one_name_are_several_people(fitted, rejected):
    people = rejected.head(3).set_axis([7, 7, 7]).rename_axis("option")
    explanation = fitted.explain(people, target="granted", n_options=2)
    assert repr(explanation).startswith("Explanation of 3 row(s), ")
    assert len(explanation.changes()) == len(explanation)


@pytest.mark.parametrize("num_options", [1, 2, 3])
def test_a_cheaper_answer_of_the_model_alone_never_replaces_the_only_plausible_one(num_options):
    """Somebody else in the batch may have none, so that the model alone is asked for everybody."""
    plausible = _Answer(torch.zeros(1), int(Status.CONVERGED), 0, 2.0, frozenset({0}))
    doubtful = _Answer(torch.zeros(1), int(Status.IMPLAUSIBLE), 0, 1.0, frozenset({1}))
    found = _with_doubtful([plausible], [doubtful], num_options)
    assert found == ([plausible] if num_options == 1 else [plausible, doubtful])
    # What changes the same columns by less is no option of its own.
    nested = _Answer(torch.zeros(1), int(Status.IMPLAUSIBLE), 0, 0.5, plausible.columns)
    assert _with_doubtful([plausible], [nested, doubtful], num_options) == found
    assert _with_doubtful([plausible], [nested], num_options) == [plausible]
