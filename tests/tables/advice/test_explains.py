"""Frames of other libraries; infinity where missing values are imputed."""

import copy
import sys

import numpy as np
import pytest

from counterfactual_training.errors import InputError
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier


@pytest.fixture
def small(loans):
    frame, y = loans
    return CounterfactualClassifier(
        epochs=3, learning_rate=0.02, random_state=0, gate="none"
    ).fit(frame, y)


# ---- polars --------------------------------------------------------------------------------------


@pytest.fixture
def polars():
    pytest.importorskip("narwhals")
    return pytest.importorskip("polars")


@pytest.fixture
def table(loans, polars):
    frame, _ = loans
    rows = polars.DataFrame({name: frame[name].tolist() for name in frame})
    kinds = {"age": polars.Int16, "debt": polars.Float32, "branch": polars.Categorical}
    kinds["degree"] = polars.Enum(["none", "BSc", "MSc"])
    return rows.with_columns(
        **{name: polars.col(name).cast(kind) for name, kind in kinds.items()}
    )


@pytest.mark.check
def test_polars_frames_keep_their_names_and_types(loans, table, polars):
    _, y = loans
    classifier = CounterfactualClassifier(
        epochs=3, learning_rate=0.02, random_state=0, gate="none"
    )
    classifier.fit(table, polars.Series(y), sample_weight=polars.Series(np.ones(len(y))))
    assert list(classifier.feature_names_in_) == table.columns
    assert classifier.schema_["degree"].categories == ("none", "BSc", "MSc")
    assert classifier.schema_["branch"].categories == ("north", "south", "west")
    rejected = table.filter(polars.Series(classifier.predict(table) == "denied")).head(6)
    told = classifier.explain(rejected)
    assert isinstance(told.frame, polars.DataFrame) and told.frame.schema == rejected.schema
    assert told.original.equals(rejected) and told.option(1).equals(told.frame)
    differs = np.column_stack(
        [(told.frame[c] != rejected[c]).to_numpy() for c in rejected.columns]
    )
    np.testing.assert_array_equal(told.changed.to_numpy(), differs)
    assert told.summary["target"].to_list() == ["granted"] * 6
    assert set(told.differences()["column"]) <= set(table.columns)
    assert len(copy.deepcopy(told)) == 6 and told.changes() == told.pandas.changes()
    assert str(told) == str(told.pandas) and told._repr_html_() == told.pandas._repr_html_()
    several = classifier.explain(rejected, n_options=2).frame
    assert several.columns == ["row", "option", *table.columns]


@pytest.mark.check
def test_null_is_missing(loans, table, polars):
    _, y = loans
    rules = {"missing": "impute", "mutability": {"age": "none", "owner": "none"}}
    classifier = CounterfactualClassifier(epochs=2, random_state=0, gate="none", **rules).fit(
        table, y
    )
    holes = table.head(4).with_columns(
        age=polars.lit(None, polars.Int16), owner=polars.lit(None, polars.Boolean)
    )
    told = classifier.explain(holes)
    assert (
        told.frame.schema == holes.schema
        and told.frame["age"].null_count() == told.frame["owner"].null_count() == 4
    )


@pytest.mark.check
def test_polars_frames_that_do_not_fit(table, small, polars, monkeypatch):
    for rows, match in (
        (table.lazy(), r"LazyFrame holds no rows yet; call \.collect\(\)"),
        (table.drop("age"), "Missing columns: 'age'"),
        (table["age"], "got a polars Series"),
        (
            table.with_columns(age=polars.date(2020, 1, 5)),
            r"'age' is Date.*frame\.with_columns\(\(pl\.col",
        ),
    ):
        with pytest.raises(InputError, match=match):
            small.predict(rows)
    monkeypatch.setitem(sys.modules, "narwhals", None)
    with pytest.raises(InputError, match="polars DataFrame, install narwhals"):
        small.predict(table)


# ---- infinity ------------------------------------------------------------------------------------


def test_infinity_is_not_imputed_and_the_hint_works(loans):
    frame, y = loans
    bad = frame.copy()
    bad.loc[bad.index[:2], "debt"] = np.inf
    classifier = CounterfactualClassifier(epochs=1, gate="none", missing="impute")
    with pytest.raises(
        InputError,
        match=r"Infinity in 'debt' \(2\): 2 of 240.*make infinity missing: frame\.replace",
    ):
        classifier.fit(bad, y)
    classifier.fit(bad.replace([np.inf, -np.inf], np.nan), y)
    with pytest.raises(InputError, match=r"Infinity in 'debt' \(2\)"):
        classifier.predict(bad)
    with pytest.raises(InputError, match=r"and fit with missing='impute': frame\.replace"):
        classifier.set_params(missing="error").fit(bad, y)
    holes = bad.replace([np.inf], np.nan)
    with pytest.raises(
        InputError, match="have missing ones filled by missing='impute'"
    ) as refused:
        classifier.fit(holes, y)
    assert "replace" not in str(refused.value)


@pytest.mark.check
def test_differences_of_categories_and_numbers(loans, polars, make_quick):
    frame, y = loans
    rows = polars.DataFrame({name: frame[name].to_list() for name in frame})
    classifier = make_quick(gate="none", mutability={"debt": "none"}).fit(
        rows, polars.Series(y)
    )
    told = classifier.explain(rows.head(40), n_options=3).differences()
    assert (
        set(told["column"].to_list()) >= {"age", "branch"}
        and told["after"].dtype == polars.String
    )


# ---- time limits ---------------------------------------------------------------------------------


@pytest.mark.check
def test_a_time_limit_ends_the_search_for_further_ways_and_every_claim_still_holds(loans):
    frame, y = loans
    classifier = CounterfactualClassifier(epochs=5, learning_rate=0.02, random_state=0).fit(
        frame, y
    )
    people = frame[classifier.predict(frame) == "denied"].head(20)
    whole = classifier.explain(people, "granted", n_options=3)
    hurried = classifier.explain(people, "granted", n_options=3, time_limit=1e-9)
    assert whole.complete and not hurried.complete
    # What takes longest is left out, but everybody has an answer, if only a best effort.
    assert len(people) <= len(hurried) <= len(whole)
    reached = hurried.status == "converged"
    assert reached.any()
    np.testing.assert_array_equal(
        classifier.predict(hurried.frame[reached].droplevel(-1)), "granted"
    )
    assert classifier.explain(people, "granted", time_limit=600).complete


@pytest.mark.parametrize("limit", [0, -1, "soon", float("nan"), True])
def test_time_limits_that_make_no_sense_are_refused(small, loans, limit):
    with pytest.raises(InputError, match="time_limit must be a positive number"):
        small.explain(loans[0].head(2), time_limit=limit)
