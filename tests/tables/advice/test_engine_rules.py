"""A question adds to the rules of the model and never loosens them: told by the narrowed schema
itself.
"""

import pytest

from counterfactual_training.errors import ConstraintError
from counterfactual_training.tables.advice.rules import Rules
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.columns.schema import Schema

JOBS = ("clerk", "nurse", "pilot", "spy")
RANKS = ("none", "BSc", "MSc", "PhD")


@pytest.fixture(scope="module")
def schema():
    return Schema(
        (
            Feature("debt", "numeric", domain=(0, 50), step=2, max_change=10, difficulty=3),
            Feature("age", "integer"),
            Feature("job", "categorical", categories=JOBS, allowed=("clerk", "nurse")),
            Feature("degree", "ordinal", categories=RANKS, domain=("BSc", "MSc")),
        )
    )


@pytest.mark.parametrize(("asked", "kept"), [(4, 4), (10, 10), (25, 10)])
def test_the_tighter_largest_change_holds(schema, asked, kept):
    assert Rules(max_change={"debt": asked}).narrow(schema)["debt"].max_change == kept


def test_a_largest_change_may_be_new(schema):
    assert Rules(max_change={"age": 7}).narrow(schema)["age"].max_change == 7


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ((10, 20), (10, 20)),
        ((-5, 20), (0, 20)),
        ((10, 90), (10, 50)),
        ((None, None), (0, 50)),
        ((-5, 90), (0, 50)),
    ],
)
def test_a_domain_is_where_both_lead(schema, asked, kept):
    assert Rules(domain={"debt": asked}).narrow(schema)["debt"].limits == kept


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (("none", "BSc"), ("BSc", "BSc")),
        (("MSc", "PhD"), ("MSc", "MSc")),
        ((None, None), RANKS[1:3]),
    ],
)
def test_a_domain_of_ranks_is_where_both_lead(schema, asked, kept):
    assert Rules(domain={"degree": asked}).narrow(schema)["degree"].domain == tuple(kept)


@pytest.mark.parametrize(
    ("asked", "kept"), [(["nurse", "pilot"], ("nurse",)), (list(JOBS), ("clerk", "nurse"))]
)
def test_categories_are_those_that_both_allow(schema, asked, kept):
    assert Rules(domain={"job": asked}).narrow(schema)["job"].allowed == kept


def test_categories_that_the_model_rules_out_are_refused(schema):
    with pytest.raises(ConstraintError, match="contradicts fit"):
        Rules(domain={"job": ["spy"]}).narrow(schema)


def test_a_step_is_a_multiple_of_the_models(schema):
    assert Rules(step={"debt": 6}).narrow(schema)["debt"].step == 6
    for step in (1, 3, 5):
        with pytest.raises(ConstraintError, match="not a multiple"):
            Rules(step={"debt": step}).narrow(schema)


def test_what_is_locked_or_does_not_vary_is_held(schema):
    held = Rules(lock=["debt"]).narrow(schema)
    assert [feature.mutability for feature in held] == ["none", "both", "both", "both"]
    varied = Rules(vary=["debt"]).narrow(schema)
    assert [feature.mutability for feature in varied] == ["both", "none", "none", "none"]


def test_difficulty_is_what_the_question_says(schema):
    assert Rules(difficulty={"debt": 0.5}).narrow(schema)["debt"].difficulty == 0.5
    assert Rules(lock=["age"]).narrow(schema)["debt"].difficulty == 3
