"""Rules of one question: they hold on top of those of ``fit``, for all rows or row by row."""

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.errors import ConstraintError, InputError
from counterfactual_training.tables.advice.rules import Rules, ask


@pytest.fixture(scope="module")
def people(rejected):
    return rejected.head(40)


@pytest.fixture(scope="module")
def free(fitted, people):
    """Advice without further rules."""
    return fitted.explain(people, target="granted")


def moved(explanation, name):
    return explanation.changed[name].to_numpy()


def test_locked_columns_stay_and_others_take_over(fitted, people, free):
    held = fitted.explain(people, target="granted", lock=["debt", "owner"], max_steps=30)
    assert (
        moved(free, "debt").any()
        and not moved(held, "debt").any()
        and not moved(held, "owner").any()
    )
    assert moved(held, "degree").any() or moved(held, "branch").any()


def test_only_columns_listed_in_vary_change(fitted, people):
    explanation = fitted.explain(people, target="granted", vary=["debt", "age"])
    assert not explanation.changed[["degree", "branch", "owner"]].to_numpy().any()
    assert not moved(explanation, "age").any()  # fit was told that it may not change
    assert moved(explanation, "debt").any()


def test_a_domain_of_the_question_is_where_advice_ends(fitted, people):
    explanation = fitted.explain(
        people, target="granted", domain={"debt": (12, 30), "branch": ["south"]}
    )
    changed = moved(explanation, "debt")
    before, after = explanation.original["debt"], explanation.frame["debt"]
    assert changed.any() and ((after >= 12) | ~changed).all()
    assert (after[before < 12] == before[before < 12]).all()
    assert set(explanation.frame["branch"][moved(explanation, "branch")]) <= {"south"}


@pytest.mark.check
def test_steps_and_largest_changes_are_kept_after_rounding(fitted, people):
    stepped = fitted.explain(people, target="granted", step={"debt": 2.5}, vary=["debt"])
    values = stepped.frame["debt"][moved(stepped, "debt")]
    assert len(values) and np.allclose(values % 2.5, 0)
    short = fitted.explain(
        people, target="granted", max_change={"debt": 3.0, "degree": 1}, max_steps=30
    )
    assert ((short.original["debt"] - short.frame["debt"]).abs() <= 3.0 + 1e-9).all()
    ranks = {name: i for i, name in enumerate(["none", "BSc", "MSc"])}
    assert (short.frame["degree"].map(ranks) - short.original["degree"].map(ranks)).max() == 1


@pytest.mark.check
def test_no_more_columns_change_than_allowed(fitted, people):
    people = people.head(12)
    asked = {
        "target": "granted",
        "confidence": 0.9,
        "max_change": {"debt": 8.0},
        "max_steps": 30,
    }
    loose = fitted.explain(people, **asked)
    assert loose.summary["num_changed"].max() > 2
    for most in (1, 2):
        tight = fitted.explain(people, **asked, max_changes=most)
        assert tight.summary["num_changed"].max() <= most
        assert tight.answered.any()
        missed = next(
            line for line, done in zip(tight.changes(), tight.answered, strict=True) if not done
        )
        assert f"no change of at most {most} column{'s' * (most > 1)} was found" in missed


def test_what_is_difficult_changes_less_often_and_costs_more(fitted, people, free):
    hard = fitted.explain(people, target="granted", difficulty={"debt": 20}, max_steps=30)
    assert moved(hard, "debt").sum() < moved(free, "debt").sum()
    debt = [feature.name for feature in fitted.schema_].index("debt")
    weights = np.where(np.arange(5) == debt, 20, 1)
    np.testing.assert_allclose(hard.cost, (hard.distance * weights).sum(1), rtol=1e-5)


@pytest.mark.check
def test_rules_of_a_row_hold_for_that_row(fitted, people):
    people = people.head(4)
    locks = [["debt"], None, ["debt"], ["owner", "branch"]]
    explanation = fitted.explain(
        people, target="granted", lock=locks, max_changes=[1, 2, None, 3]
    )
    assert not moved(explanation, "debt")[[0, 2]].any()
    assert not explanation.changed[["owner", "branch"]].to_numpy()[3].any()
    assert (
        explanation.summary["num_changed"].iloc[0] <= 1
        and explanation.summary["num_changed"].iloc[1] <= 2
    )
    assert explanation.frame.index.equals(people.index)
    alone = fitted.explain(
        people.iloc[[3]], target="granted", lock=["owner", "branch"], max_changes=3
    )
    pd.testing.assert_frame_equal(alone.frame, explanation.frame.iloc[[3]])


def test_what_fit_was_told_still_holds(fitted, people):
    explanation = fitted.explain(
        people, target="granted", domain={"debt": (-50, 500), "age": (0, 99)}
    )
    assert (explanation.frame["debt"] >= 0).all() and (
        explanation.frame["debt"] <= explanation.original["debt"]
    ).all()
    assert not moved(explanation, "age").any()


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"lock": ["dept"]}, "Unknown column in lock: 'dept'. Did you mean 'debt'"),
        ({"lock": "debt"}, r"lock must be a list of columns, such as \['age'\], got 'debt'"),
        ({"vary": ["debt"], "lock": ["debt"]}, "'debt': both in vary and in lock"),
        ({"vary": []}, "it lists no column"),
        ({"vary": ["age"]}, "fit was told that 'age' may not change"),
        ({"max_changes": 0}, "max_changes must be a whole number of at least 1, got 0"),
        ({"domain": {"debt": (-9, -3)}}, r"domain of 'debt': \(-9, -3\) contradicts fit"),
        ({"domain": {"branch": ["mars"]}}, "mars"),
        ({"step": {"owner": 2}}, "only numeric and integer columns have a step"),
        ({"max_change": {"branch": 2}}, "a change has no size"),
        (
            {"step": {"debt": 100}, "max_change": {"debt": 50}},
            "max_change 50 of 'debt' is smaller than its step 100, so no step fits: state a "
            "smaller step",
        ),
        ({"difficulty": {"debt": 0}}, "must be a positive number, got 0"),
        ({"step": 5}, "step must be a dict by column"),
        ({"lock": [["debt"], ["age"]]}, "lock has 2 entries for 3 rows"),
        ({"confidence": 2}, "confidence must be a number above 0 and up to 1, got 2"),
        ({"confidence": "0.9"}, "confidence must be a number above 0 and up to 1, got '0.9'"),
        ({"max_steps": 0}, "max_steps must be a whole number of at least 1, got 0"),
        ({"n_options": 0}, "n_options must be a whole number from 1 to 100"),
    ],
)
def test_rules_that_make_no_sense(fitted, people, rules, words):
    with pytest.raises((ConstraintError, InputError), match=words):
        fitted.explain(people.head(3), target="granted", **rules)


def test_a_contradiction_names_its_row(fitted, people):
    people = people.head(3)
    with pytest.raises(
        ConstraintError, match=f"Row {people.index[1]}: .*'debt': both in vary and in lock"
    ):
        fitted.explain(people, vary=["debt"], lock=[[], ["debt"], []])
    with pytest.raises(
        InputError, match=f"Row {people.index[1]}: max_changes must be .* got 0"
    ):
        fitted.explain(people, max_changes=[1, 0, 1])
    with pytest.raises(
        ConstraintError,
        match=f"Row {people.index[2]}: The max_change 2 of 'debt' is smaller than its",
    ):
        fitted.explain(people, step={"debt": 5}, max_change=[None, {"debt": 5}, {"debt": 2}])


def test_rows_with_equal_rules_are_asked_together():
    groups = ask(pd.RangeIndex(4), lock=[["a"], ["b"], ["a"], ["b"]], max_changes=2)
    assert [rows.tolist() for rows, _ in groups] == [[0, 2], [1, 3]]
    assert groups[0][1] == Rules(lock=["a"], max_changes=2)
    assert len(ask(pd.RangeIndex(4), lock=["a", "b"])) == 1


def test_rows_that_have_their_target_are_left_alone(fitted, people):
    told = fitted.explain(people, confidence=0.95, target=fitted.predict(people).tolist())
    assert (told.status == "already_there").all() and not told.changed.to_numpy().any()


def test_hardly_any_difficulty_makes_no_answer_dearer(fitted, people):
    plain = fitted.explain(people, target="granted")
    hard = fitted.explain(people, target="granted", difficulty={"debt": 1.001})
    assert (hard.cost <= 1.002 * plain.cost + 1e-4).all()


def test_columns_may_be_called_by_numbers(make_quick, points):
    x, y = points
    classifier = make_quick(gate="none").fit(pd.DataFrame(x), y)
    told = classifier.explain(pd.DataFrame(x).head(5), lock=[1], max_change={0: 3.0})
    assert not told.changed.iloc[:, 1].any() and told.answered.any()
