"""No answer leaves that breaks a rule."""

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.generators import generic
from counterfactual_training.tables.advice import answer
from counterfactual_training.tables.advice.options import find_options
from counterfactual_training.tables.advice.rules import Rules, ask
from counterfactual_training.tables.columns.plan_judge import PlanJudge


def test_an_answer_that_breaks_a_rule_is_withheld(by_hand, sentence, monkeypatch):
    """A search gone wrong makes the first of two people younger."""
    frame, finder = by_hand([0.0, 4.0, 0.0, 0.0, 0.0, 0.0], mutability={"age": "none"})

    def astray(finder, factuals, *args):
        options = find_options(finder, factuals, *args)
        options.found.x_cf[0] = finder.factuals(
            factuals.frame.assign(age=factuals.frame["age"] - 3)
        ).x[0]
        return options

    monkeypatch.setattr(answer, "find_options", astray)
    told = sentence(finder, frame[3:5])
    assert told.status.tolist() == ["exhausted", "converged"]
    pd.testing.assert_frame_equal(told.frame[:1], frame[3:4])
    assert not told.changed[:1].to_numpy().any() and told.cost[0] == 0
    assert not told.answered[0] and told.answered[1]
    note = (
        "One answer for row 3 is withheld: it breaks a rule: age is 20, expected 23: it may not "
        "change."
    )
    assert told.notes == (note,)


def explain(finder, rows, groups):
    question = answer.Question(generic(max_steps=30))
    return answer.explain_rows(finder, rows, np.array([0, 1]), 1, question, groups)


def judged(told, finder, **rules):
    encoder = finder.encoder.with_schema(Rules(**rules).narrow(finder.encoder.schema_))
    return PlanJudge(encoder, answer.advice_constraints(encoder, 0.0))(
        told.original, told.frame
    )


def test_who_is_far_outside_does_not_change_by_more_than_may_be(make_finder, sentence):
    frame = pd.DataFrame({"a": np.linspace(0, 1, 41), "b": np.linspace(-3, 3, 41) ** 3})
    finder = make_finder(
        frame, [-1.0, 1.0], -1.0, schema={"a": {"domain": (0, 0.3), "max_change": 0.1}}
    )
    told = sentence(finder, frame[15:25], generator=generic(max_steps=30))
    assert told.changed["a"].any() and not told.notes
    assert ((told.frame["a"] - told.original["a"]).abs() <= 0.1 + 1e-15).all()


def test_numbers_of_many_digits_keep_the_ends_of_a_question(make_finder):
    """Whatever a question states is kept to the last digit, also where float32 has fewer."""
    frame = pd.DataFrame({"a": np.linspace(0, 1, 41) ** 2, "b": np.linspace(-3, 3, 41) ** 3})
    finder = make_finder(frame, [2.0, 1.0], -1.5)
    rules = {
        "domain": {"a": (None, 1 / 3), "b": (None, np.pi)},
        "max_change": {"a": 0.1 + 1e-9, "b": 1 / 7},
    }
    rows = frame[10:30:3]
    told = explain(finder, rows, ask(rows.index, **rules))
    assert not told.notes and told.changed["a"].any() and told.changed["b"].any()
    assert judged(told, finder, **rules) == []


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_cells_that_do_not_change_keep_their_digits(make_finder, sentence, dtype):
    """Rows may come in more digits than the rows of the training."""
    frame = pd.DataFrame(
        {"a": np.linspace(0, 1, 41).astype(dtype), "b": np.linspace(-3, 3, 41)}
    )
    finder = make_finder(frame, [0.5, 1.0], -1.0, mutability={"a": "none"})
    rows = frame[:2].astype("float64").assign(a=0.1)
    told = sentence(finder, rows, generator=generic(max_steps=30))
    assert not told.notes and (told.frame["a"].astype("float64") == 0.1).all()


def test_rows_with_rules_of_their_own_keep_their_types(make_finder):
    frame = pd.DataFrame({"a": np.arange(40), "b": pd.Categorical(["x", "y"] * 20)})
    finder = make_finder(frame, [1.0, 0.5], -1.0, unseen="unknown")
    rows = frame[:4].assign(b=pd.Categorical(["x", "z", "y", "w"]))
    groups = ask(rows.index, lock=[["b"], ["b"], [], ["b"]])
    told = explain(finder, rows, groups)
    assert told.frame.dtypes["a"] == frame.dtypes["a"] and isinstance(
        told.frame["b"].dtype, pd.CategoricalDtype
    )
    assert told.frame["b"].tolist()[1] == "z" and told.frame["b"].tolist()[3] == "w"
    assert told.frame.index.tolist() == rows.index.tolist()
