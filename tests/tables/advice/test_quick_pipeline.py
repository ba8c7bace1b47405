"""Pipelines that start column by column: asked sooner, with the same answers."""

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)

import counterfactual_training as ct
from counterfactual_training.tables.advice.quick_pipeline import QuickPipeline


@pytest.fixture(scope="module")
def rows() -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "income": rng.normal(40.0, 10.0, 300).round(1),
            "job": rng.choice(["none", "clerk", "nurse", "judge"], 300),
            "years": rng.integers(0, 30, 300),
            "city": pd.Categorical(rng.choice(["A", "B", "C"], 300)),
        }
    )
    y = (
        (frame["income"] + 8 * (frame["job"] == "judge") + frame["years"] > 60)
        .to_numpy()
        .astype(int)
    )
    return frame, y


def _encoded(**options: object) -> tuple[OrdinalEncoder, list[str]]:
    return OrdinalEncoder(**options), ["job", "city"]


def _boosting(
    rows: tuple[pd.DataFrame, np.ndarray], categories: list[int] | None = None
) -> Pipeline:
    first = make_column_transformer(_encoded(), remainder="passthrough")
    boosting = HistGradientBoostingClassifier(
        categorical_features=categories, max_iter=20, random_state=0
    )
    return make_pipeline(first, boosting).fit(*rows)


def _numbers(quick: QuickPipeline, frame: pd.DataFrame) -> np.ndarray:
    return np.stack([quick.numbers(name, frame[name]) for name in quick.columns], 1)


def test_a_quick_pipeline_answers_as_the_slow_one(rows):
    for model in (
        _boosting(rows),
        # The last of the columns is a number that counts as a category: it moves to the front.
        _boosting(rows, [1, 3]),
        make_pipeline(
            ColumnTransformer(
                [
                    ("c", *_encoded()),
                    ("n", StandardScaler(), ["years"]),
                    ("d", "drop", ["income"]),
                ]
            ),
            StandardScaler(),
            LogisticRegression(),
        ).fit(*rows),
    ):
        quick = QuickPipeline.of(model, rows[0][:10])
        assert quick is not None
        np.testing.assert_array_equal(
            quick.predict_proba(_numbers(quick, rows[0])), model.predict_proba(rows[0])
        )


@pytest.mark.parametrize(
    "first",
    [
        make_column_transformer((OneHotEncoder(), ["job", "city"]), remainder="passthrough"),
        make_column_transformer(_encoded(), (PCA(1), ["income", "years"])),
        make_column_transformer(_encoded(), (FunctionTransformer(np.cumsum), ["years"])),
        make_column_transformer(_encoded(), remainder="passthrough").set_output(
            transform="pandas"
        ),
    ],
)
def test_other_pipelines_are_asked_as_a_whole(rows, first):
    assert (
        QuickPipeline.of(make_pipeline(first, LogisticRegression()).fit(*rows), rows[0]) is None
    )


def test_a_derived_pipeline_is_asked_as_a_whole(rows):
    class Stricter(Pipeline):
        pass

    assert QuickPipeline.of(Stricter(_boosting(rows).steps), rows[0]) is None
    assert QuickPipeline.of(LogisticRegression(), rows[0]) is None


def test_boosting_does_not_encode_categories_again(rows, monkeypatch):
    model = _boosting(rows, [0, 1])
    quick = QuickPipeline.of(model, rows[0])
    assert quick is not None
    numbers = _numbers(quick, rows[0])
    expected = model.predict_proba(rows[0])

    def encode(*_):
        raise AssertionError("It encodes.")

    monkeypatch.setattr(ColumnTransformer, "transform", encode)
    np.testing.assert_array_equal(quick.predict_proba(numbers), expected)
    with pytest.raises(AssertionError, match="It encodes"):
        model.predict_proba(rows[0])


@pytest.mark.parametrize("categories", [None, [0, 1]], ids=str)
def test_advice_is_the_same_as_without(rows, categories):
    class Slow:
        def __init__(self, model):
            self.model, self.classes_ = model, model.classes_

        def predict_proba(self, frame):
            return self.model.predict_proba(frame)

    model = _boosting(rows, categories)
    told = [
        ct.Explainer(asked, *rows, mutability={}).explain(rows[0][:20], target=1, n_options=3)
        for asked in (model, Slow(model))
    ]
    pd.testing.assert_frame_equal(told[0].frame, told[1].frame)
    pd.testing.assert_frame_equal(told[0].summary, told[1].summary)


@pytest.mark.parametrize("twice", ["a column", "a mask"])
def test_pipelines_that_take_columns_in_other_ways_are_asked_as_a_whole(twice):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(rng.normal(size=(200, 2)).round(2), columns=["a", "b"])
    y = (frame["a"] + frame["b"] > 0).to_numpy().astype(int)
    if twice == "a column":
        parts = [("one", StandardScaler(), ["a"]), ("two", "passthrough", ["a", "b"])]
    else:
        parts = [("one", StandardScaler(), [True, True])]
    model = make_pipeline(ColumnTransformer(parts), LogisticRegression()).fit(frame, y)
    assert QuickPipeline.of(model, frame) is None
    denied = frame[model.predict(frame) == 0].head(20)
    told = ct.Explainer(model, frame, y).explain(denied)
    assert (model.predict(told.frame) == 1).all()


def test_what_the_first_step_raises_is_named(rows):
    frame, y = rows
    model = _boosting(rows)
    explainer = ct.Explainer(model, frame, y, missing="impute")
    strange = frame.head(1).assign(job=None)
    with pytest.raises(ct.ModelError, match="predict_proba of"):
        explainer.explain(strange)


def test_missing_cells_are_not_remembered_again_and_again(rows):
    frame, y = rows
    frame = frame.assign(job=frame["job"].where(frame["job"] != "none", np.nan))
    quick = QuickPipeline.of(_boosting((frame, y)), frame)
    for _ in range(3):
        quick.numbers("job", frame["job"])
    assert set(quick._number_of_category["job"]) == {"clerk", "nurse", "judge"}
