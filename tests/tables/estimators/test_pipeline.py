"""Pipelines explained in the columns that go in at the front."""

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, PowerTransformer, StandardScaler

import counterfactual_training as ct
from counterfactual_training.errors import InputError
from counterfactual_training.tables.estimators.pipeline import _stored_like


@pytest.fixture(scope="module")
def numbers(loans):
    frame, labels = loans
    income = np.random.default_rng(1).gamma(3.0, 10.0, len(frame)).round(2)
    return frame[["age", "debt"]].assign(income=income), labels


def rejected(pipeline, frame, most=6):
    return frame[pipeline.predict(frame) == "denied"].head(most)


def test_a_scaled_table_is_explained_in_its_own_units(numbers, make_quick):
    rules = {"mutability": {0: "none", 1: "decrease"}, "domain": {1: (-0.9, None)}}
    pipeline = make_pipeline(StandardScaler(), make_quick(**rules)).fit(*numbers)
    rows = rejected(pipeline, numbers[0])
    told = ct.explain(pipeline, rows, target="granted")
    assert (
        pipeline.predict(told.frame) == told.prediction
    ).all() and told.answered.mean() > 0.6
    assert list(told.frame.columns) == ["age", "debt", "income"] and told.frame.dtypes.equals(
        rows.dtypes
    )
    # What the classifier was told about the scaled columns holds for the columns themselves.
    assert (told.frame["age"] == rows["age"]).all() and (
        told.frame["debt"] <= rows["debt"]
    ).all()
    scale = pipeline[0]
    least = scale.mean_[1] - 0.9 * scale.scale_[1]
    assert (told.frame["debt"][told.changed["debt"]] >= least - 1e-6).all() and told.changed[
        "debt"
    ].any()
    assert (told.frame["debt"].round(1) == told.frame["debt"]).all()
    assert "debt" in told.changes()[0] or "income" in told.changes()[0]


def test_rules_of_the_question_speak_of_the_original_columns(numbers, make_quick):
    pipeline = make_pipeline(StandardScaler(), make_quick()).fit(*numbers)
    rows = rejected(pipeline, numbers[0])
    told = ct.explain(pipeline, rows, target="granted", vary=["debt"], step={"debt": 2})
    assert set(told.differences()["column"]) == {"debt"}
    after = told.frame["debt"][told.changed["debt"]]
    assert len(after) and (after % 2 == 0).all()


@pytest.mark.check
def test_a_column_transformer_that_keeps_columns(loans, make_quick):
    frame, labels = loans
    scaled = ColumnTransformer(
        [("num", StandardScaler(), ["debt", "age"])], remainder="passthrough"
    )
    degrees = {
        "kind": "ordinal",
        "categories": ["none", "BSc", "MSc"],
        "mutability": "increase",
    }
    classifier = make_quick(
        mutability={"num__age": "none"}, schema={"remainder__degree": degrees}
    )
    pipeline = Pipeline(
        [("scale", scaled.set_output(transform="pandas")), ("model", classifier)]
    ).fit(frame, labels)
    rows = rejected(pipeline, frame, 10)
    told = ct.explain(pipeline, rows, target="granted", n_options=2)
    plain = told.frame.droplevel("option")
    assert (
        pipeline.predict(plain)[told.answered] == "granted"
    ).all() and told.answered.mean() > 0.6
    assert list(plain.columns) == list(frame.columns)
    original = told.original.droplevel("option")
    rank = {"none": 0, "BSc": 1, "MSc": 2}
    assert (plain["age"] == original["age"]).all()
    assert (plain["degree"].map(rank) >= original["degree"].map(rank)).all()


def test_categories_before_a_one_hot_encoder(loans, make_quick):
    frame, labels = loans[0][["degree", "branch"]], loans[1]
    labels = np.where(
        (frame["degree"] == "MSc") | (frame["branch"] == "west"), "granted", "denied"
    )
    pipeline = make_pipeline(OneHotEncoder(sparse_output=False), make_quick()).fit(
        frame, labels
    )
    told = ct.explain(pipeline, rejected(pipeline, frame), target="granted")
    assert told.answered.all() and (pipeline.predict(told.frame) == "granted").all()
    assert (
        set(told.differences()["after"]) <= {"MSc", "west"}
        and (told.changed.sum(axis=1) == 1).all()
    )


@pytest.mark.check
def test_classifiers_and_explainers_are_asked_directly(fitted, rejected):
    rows = rejected.head(3)
    told = ct.explain(fitted, rows, target="granted", lock=["debt"])
    pd.testing.assert_frame_equal(
        told.frame, fitted.explain(rows, target="granted", lock=["debt"]).frame
    )


def test_what_cannot_be_inverted_is_told(numbers, make_quick):
    frame, labels = numbers
    advice = r"ct\.Explainer\(pipeline, frame\)"
    filled = make_pipeline(SimpleImputer(), make_quick()).fit(frame, labels)
    with pytest.raises(
        InputError, match=f"The step 'simpleimputer' cannot be inverted.*{advice}"
    ):
        ct.explain(filled, frame.head(2))
    dropped = make_pipeline(
        ColumnTransformer([("a", StandardScaler(), ["debt", "income"])]), make_quick()
    )
    with pytest.raises(InputError, match=f"drops age.*{advice}"):
        ct.explain(dropped.fit(frame, labels), frame.head(2))
    projected = make_pipeline(StandardScaler(), PCA(2), make_quick()).fit(frame, labels)
    with pytest.raises(
        InputError,
        match=f"'standardscaler and pca' cannot be inverted.* back as it was.*{advice}",
    ):
        ct.explain(projected, frame.head(20))
    told = ct.Explainer(filled, frame).explain(rejected(filled, frame), target="granted")
    assert (
        filled.predict(told.frame)[told.answered] == "granted"
    ).all() and told.answered.any()


@pytest.mark.check
def test_rules_that_have_no_meaning_before_the_steps(numbers, make_quick):
    frame, labels = numbers
    mixed = make_pipeline(PCA(2), make_quick(mutability={0: "none"})).fit(frame, labels)
    with pytest.raises(
        InputError, match="told rules about 'x0', which is not one of the original columns"
    ):
        ct.explain(mixed, frame.head(2))
    bent = make_pipeline(PowerTransformer(), make_quick(domain={1: (None, 1)})).fit(
        frame, labels
    )
    with pytest.raises(InputError, match="'x1', which a step before bends"):
        ct.explain(bent, frame.head(2))
    held = make_pipeline(PowerTransformer(), make_quick(mutability={1: "none"})).fit(
        frame, labels
    )
    rows = rejected(held, frame)
    assert (ct.explain(held, rows, target="granted").frame["debt"] == rows["debt"]).all()


def test_models_that_keep_no_rows(numbers, make_quick):
    frame, labels = numbers
    with pytest.raises(
        InputError, match=r"LogisticRegression keeps no rows.*ct\.Explainer\(pipeline, frame\)"
    ):
        ct.explain(
            make_pipeline(StandardScaler(), LogisticRegression()).fit(frame, labels),
            frame.head(2),
        )
    ungated = make_pipeline(StandardScaler(), make_quick(gate="none")).fit(frame, labels)
    with pytest.raises(InputError, match="gate='density'"):
        ct.explain(ungated, frame.head(2))


def test_steps_of_scaled_columns(numbers, make_quick):
    """A multiple of the step there is one here only if the offset is one, too."""
    pipeline = make_pipeline(StandardScaler(), make_quick(schema={"x1": {"step": 0.5}})).fit(
        *numbers
    )
    with pytest.raises(
        InputError, match="'x1', which a step before bends, shifts or turns round"
    ):
        ct.explain(pipeline, rejected(pipeline, numbers[0]), target="granted")


def test_whole_numbers_come_back_rounded():
    rows = pd.DataFrame({"a": [1, 2]})
    assert _stored_like(pd.DataFrame({"a": [0.9996, 2.9996]}), rows)["a"].tolist() == [1, 3]
