"""A question about no rows has an empty answer."""

import pickle

import pytest
from pandas.testing import assert_frame_equal, assert_series_equal
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import counterfactual_training as ct
from counterfactual_training.errors import InputError


def check_like(answer, usual):
    """An empty explanation, otherwise as one of a row; whatever shows it works."""
    assert len(answer) == 0
    assert answer.changes() == answer.records() == answer.obstacles == answer.max_changes == []
    for name in ("original", "frame", "changed"):
        assert_series_equal(getattr(answer, name).dtypes, getattr(usual, name).dtypes)
        assert getattr(answer, name).index.names == getattr(usual, name).index.names
    assert list(answer.summary.columns) == list(usual.summary.columns)
    assert list(answer.differences().columns) == list(usual.differences().columns)
    assert answer.distance.shape == (0, usual.distance.shape[1])
    assert (answer.asked, answer.several) == (usual.asked, usual.several)
    assert answer.converged.tolist() == [] and answer.option(1).shape == (
        0,
        usual.frame.shape[1],
    )
    assert repr(answer) == "Explanation of 0 rows"
    assert "0 rows" in str(answer) and "<table" in answer._repr_html_()
    assert len(answer.measured_by(usual.encoder)) == 0
    assert_frame_equal(pickle.loads(pickle.dumps(answer)).frame, answer.frame)  # noqa: S301 - our own


@pytest.mark.parametrize(
    "question",
    [{}, {"n_options": 2, "confidence": 0.8}, {"target": "granted", "lock": ["branch"]}],
)
def test_a_classifier(question, fitted, rejected):
    check_like(
        fitted.explain(rejected[:0], **question), fitted.explain(rejected[:1], **question)
    )


def test_lists_per_row(fitted, rejected):
    assert len(fitted.explain(rejected[:0], target=[], max_changes=[])) == 0


@pytest.mark.check
def test_polars(fitted, rejected):
    pl = pytest.importorskip("polars")
    answer = fitted.explain(pl.DataFrame(rejected[:2].to_dict("list"))[:0])
    assert isinstance(answer.frame, pl.DataFrame) and answer.frame.shape == (0, 5)


def test_rows_of_an_array(points, make_quick):
    model = make_quick(model="linear", epochs=1).fit(*points)
    check_like(model.explain(points[0][:0]), model.explain(points[0][:1]))


def test_an_explainer_and_a_pipeline(points, make_quick):
    x, y = points
    explainer = ct.Explainer(LogisticRegression().fit(x, y), x)
    check_like(explainer.explain(x[:0]), explainer.explain(x[:1]))
    pipeline = make_pipeline(StandardScaler(), make_quick(model="linear", epochs=1)).fit(x, y)
    check_like(ct.explain(pipeline, x[:0]), ct.explain(pipeline, x[:1]))


def test_a_regressor(points):
    x, _ = points
    model = ct.CounterfactualRegressor(model="linear", epochs=1, random_state=0)
    model.fit(x, x[:, 0] + 1)
    check_like(model.explain(x[:0], (1.5, None)), model.explain(x[:1], (1.5, None)))


def test_the_question_is_still_checked(fitted, rejected):
    with pytest.raises(InputError, match="Unknown class 'perhaps'"):
        fitted.explain(rejected[:0], target="perhaps")
    with pytest.raises(InputError, match="'debts'"):
        fitted.explain(rejected[:0], lock=["debts"])
    with pytest.raises(InputError, match="Missing columns"):
        fitted.explain(rejected[:0].drop(columns="debt"))


def test_predictions_need_rows_as_everywhere_in_scikit_learn(fitted, rejected, points):
    x, y = points
    explainer = ct.Explainer(LogisticRegression().fit(x, y), x)
    cases = (
        (fitted.predict, rejected[:0]),
        (fitted.plausibility, rejected[:0]),
        (explainer.predict, x[:0]),
    )
    for predict, rows in cases:
        with pytest.raises(InputError, match="0 rows"):
            predict(rows)
