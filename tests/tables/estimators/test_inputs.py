"""What users pass in: columns, schemas, targets; and bad input, named in their words."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

from counterfactual_training.errors import ConstraintError, InputError, ModelError
from counterfactual_training.models.classifiers import linear
from counterfactual_training.tables.columns.schema import Schema
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.regressor import CounterfactualRegressor


def test_columns_are_matched_by_name(loans, fitted):
    frame, _ = loans
    turned = frame[frame.columns[::-1]]
    np.testing.assert_array_equal(fitted.predict_proba(turned), fitted.predict_proba(frame))
    assert list(fitted.explain(turned.head(3)).frame.columns) == list(frame.columns)


def test_frames_without_names_and_arrays_are_matched_by_position(points, make_quick):
    x, y = points
    numbered = make_quick(epochs=2, mutability={0: "none"}).fit(pd.DataFrame(x), y)
    assert not hasattr(numbered, "feature_names_in_")
    assert numbered.schema_["0"].mutability == "none"
    np.testing.assert_array_equal(numbered.predict(x), numbered.predict(pd.DataFrame(x)))
    named = make_quick(epochs=2).fit(pd.DataFrame(x, columns=["a", "b"]), y)
    with pytest.warns(UserWarning, match="valid feature names"):
        named.predict(x)


def test_lists_of_mixed_rows(make_quick):
    rows = [[i % 7, "red" if i % 2 else "blue"] for i in range(40)]
    classifier = make_quick(epochs=2).fit(rows, [i % 2 for i in range(40)])
    assert [feature.kind for feature in classifier.schema_] == ["integer", "binary"]
    assert classifier.explain(rows[:2]).frame["x1"].isin(["red", "blue"]).all()


@pytest.mark.parametrize(
    "spec", [{"b": "increase"}, {"b": 1}, {1: "increase"}, [0, 1], ["both", "increase"]]
)
def test_every_spelling_of_a_direction(points, make_quick, spec):
    x, y = points
    classifier = make_quick(epochs=1, mutability=spec).fit(
        pd.DataFrame(x, columns=["a", "b"]), y
    )
    assert classifier.constraints_.directions == ("both", "increase")


def test_schema_as_object_dict_and_file(loans, make_quick, schema, tmp_path):
    frame, y = loans
    whole = Schema.infer(
        frame, {"degree": {"categories": schema["degree"]["categories"], "kind": "ordinal"}}
    )
    whole = whole.override(
        {"debt": {"unit": "thousand dollars"}}, mutability={"degree": "increase"}
    )
    whole.save(tmp_path / "loans.toml")
    for form in (whole, schema, tmp_path / "loans.toml", str(tmp_path / "loans.toml")):
        classifier = make_quick(epochs=1, schema=form, mutability={"age": "none"}).fit(frame, y)
        assert classifier.schema_["degree"].mutability == "increase"
        assert classifier.schema_["degree"].kind == "ordinal"
        assert classifier.schema_["age"].mutability == "none"
        assert classifier.schema_["debt"].unit == "thousand dollars"


def test_range_without_a_stated_domain(points, make_quick):
    x, y = points
    box = make_quick(epochs=1, scaling="standard").fit(x, y).constraints_.domain
    lower = torch.tensor(((x - x.mean(0)) / x.std(0, ddof=1)).min(0))
    torch.testing.assert_close(box.lower, lower, atol=1e-9, rtol=0)
    wide = (
        make_quick(epochs=1, num_std=None, method="ct_as_printed").fit(x, y).constraints_.domain
    )
    assert bool((wide.lower <= -3 + 1e-9).all()) and bool((wide.upper > box.upper).all())


def test_missing_values_are_imputed_if_asked(loans, make_quick):
    frame, y = loans
    holes = frame.copy()
    holes.loc[holes.index[:5], "debt"] = np.nan
    classifier = make_quick(epochs=3, missing="impute").fit(holes, y)
    explanation = classifier.explain(holes.head(6))
    assert set(classifier.predict(holes)) <= {"granted", "denied"}
    assert (
        explanation.frame["debt"].isna().sum() + (explanation.changed["debt"].head(5)).sum()
        == 5
    )
    assert (
        "missing" in str(explanation.changes())
        or explanation.frame["debt"].head(5).isna().all()
    )


@pytest.mark.check
def test_unseen_categories(loans, make_quick):
    frame, y = loans
    strange = frame.head(3).assign(branch="nort")
    classifier = make_quick(epochs=1).fit(frame, y)
    with pytest.warns(
        UserWarning, match=r"count as no category: 'branch'.*'nort'.*Did you mean 'north'"
    ):
        classifier.predict(strange)
    with pytest.raises(InputError, match=r"'branch'.*'nort'.*Did you mean 'north'"):
        make_quick(epochs=1, unseen="error").fit(frame, y).predict(strange)
    lenient = make_quick(epochs=1, unseen="unknown").fit(frame, y)
    assert len(lenient.predict(strange)) == 3
    assert (
        lenient.explain(strange).frame["branch"].isin(["nort", "north", "south", "west"])
    ).all()


def test_one_question_warns_of_an_unseen_category_once(loans, make_quick):
    frame, y = loans
    classifier = make_quick(epochs=1, gate="none").fit(frame, y)
    strange = frame.head(3).assign(branch="nort")
    with pytest.warns(UserWarning) as told:
        classifier.explain(strange, n_options=2)
    assert len(told) == 1 and "'nort' in 3 row(s)" in str(told[0].message)


def test_before_fit(loans):
    for method in ("predict", "predict_proba", "decision_function", "plausibility", "explain"):
        with pytest.raises(NotFittedError):
            getattr(CounterfactualClassifier(), method)(loans[0])


def test_missing_and_infinite_values_name_columns_and_count_rows(loans, make_quick, fitted):
    frame, y = loans
    holes = frame.copy()
    holes.loc[holes.index[[1, 4]], "debt"] = np.nan
    holes.loc[holes.index[[4, 7]], "branch"] = None
    for call in (
        lambda: make_quick().fit(holes, y),
        lambda: fitted.predict(holes),
        lambda: fitted.explain(holes),
    ):
        with pytest.raises(InputError, match=r"'debt' \(2\), 'branch' \(2\): 3 of 240 row"):
            call()
    infinite = holes.copy()
    infinite.loc[infinite.index[2], "debt"] = np.inf
    for call in (lambda: make_quick().fit(infinite, y), lambda: fitted.predict(infinite)):
        with pytest.raises(
            InputError, match=r"infinity .*'debt' \(3\), 'branch' \(2\): 4 of 240 row"
        ):
            call()


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        (
            {"mutability": {"dept": "none"}},
            ConstraintError,
            "Unknown column 'dept'. Did you mean 'debt'",
        ),
        (
            {"mutability": {"debt": "decreases"}},
            ConstraintError,
            "direction 'decreases'. Did you mean 'decrease'",
        ),
        ({"mutability": "none"}, ConstraintError, "dict by column"),
        ({"mutability": ["none"]}, ConstraintError, "5 entries, one per column"),
        ({"domain": {"debt": (50, 10)}}, ConstraintError, "'debt' is empty"),
        ({"domain": {"debd": (0, 1)}}, ConstraintError, "Did you mean 'debt'"),
        ({"domain": {"branch": (0, 1)}}, ConstraintError, "'branch'.*has no domain"),
        ({"schema": {"debt": {"knd": "numeric"}}}, InputError, "'knd'. Did you mean 'kind'"),
        ({"schema": {"debt": "numeric"}}, InputError, "must be a dict"),
        ({"schema": 3}, InputError, "schema must be"),
        ({"model": "mpl"}, InputError, "Unknown model 'mpl'. Did you mean 'mlp'"),
        ({"model": linear(3, 2)}, ModelError, "give a function"),
        ({"model": lambda d, k: "net"}, ModelError, "returned str"),
        ({"hidden": 32}, InputError, "widths of the layers"),
        ({"method": "pgdd"}, InputError, "Did you mean 'pgd'"),
        ({"method": "ct_published(generator=eco)"}, InputError, "Did you mean 'ecco'"),
        ({"method": "ct_published(lambda_cots=0.1)"}, InputError, "Did you mean 'lambda_cost'"),
        ({"method": "ctt"}, InputError, "Did you mean 'ct'"),
        ({"batch_size": "big"}, InputError, "'auto'"),
        ({"epochs": -1}, InputError, "epochs"),
        ({"method": "ct_published(decision_threshold=1.5)"}, InputError, "decision_threshold"),
        ({"device": "gpu0"}, InputError, "device='gpu0'"),
        ({"missing": "drop"}, InputError, "Unknown missing 'drop'"),
        ({"unseen": "drop"}, InputError, "'drop'"),
    ],
)
def test_bad_parameters(loans, make_quick, params, error, message):
    with pytest.raises(error, match=message):
        make_quick(epochs=1, **{k: v for k, v in params.items() if k != "epochs"}).set_params(
            **{k: v for k, v in params.items() if k == "epochs"}
        ).fit(*loans)


def test_numbers_are_numbers():
    """Where training saw 0 and 1, or whole numbers, prediction takes others; advice stays whole."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "rooms": rng.integers(1, 8, 150),
            "flag": rng.integers(0, 2, 150),
            "size": rng.normal(size=150),
        }
    )
    y = (frame["rooms"] + 3 * frame["flag"] > 5).astype(int)
    classifier = CounterfactualClassifier(epochs=20, random_state=0).fit(frame, y)
    odd = pd.DataFrame(
        {
            "rooms": [2.5, 37.5, 3.0, 4.0],
            "flag": [0.0, 1.0, 2.0, -1.0],
            "size": [0.0, 0.1, 0.2, 0.3],
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        probability = classifier.predict_proba(odd)
        explanation = classifier.explain(odd)
    assert np.isfinite(probability).all()
    assert probability[0, 1] != classifier.predict_proba(odd.assign(rooms=2))[0, 1]
    for name in ("rooms", "flag"):
        changed = explanation.changed[name].to_numpy()
        told = explanation.frame[name][changed].astype(float)
        assert (told == told.round()).all()
        assert (explanation.frame[name][~changed] == odd[name][~changed]).all()
    assert explanation.changed[["rooms", "flag"]].to_numpy().any()


def test_rare_values_give_no_fold_of_nan():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=90),
            "kind": ["a", "b"] * 44 + ["rare", "other"],
            "whole": [1, 2, 3] * 30,
        }
    )
    frame.loc[3, "whole"] = 40
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = cross_val_score(
            CounterfactualClassifier(epochs=2), frame, frame["size"] > 0, cv=5
        )
    assert np.isfinite(scores).all()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda d, k: torch.nn.Sequential(linear(d, k), torch.nn.Softmax(-1)), "probabilities"),
        (lambda d, k: linear(d, 1), "one column"),
        (lambda d, k: linear(d, k + 1), "3 columns but the data has 2 classes"),
    ],
)
def test_models_that_are_no_classifiers(points, make_quick, model, message):
    with pytest.raises(ModelError, match=message):
        make_quick(model=model).fit(*points)


def test_bad_rows_and_labels(loans, fitted, make_quick):
    frame, y = loans
    cases = [
        (frame, np.full(len(y), "granted"), "one class only, 'granted'"),
        (frame, y[:-1], "X has 240 rows but y has 239"),
        (frame, np.where(np.arange(len(y)) < 3, None, y), "missing labels in 3 row"),
        (frame.iloc[:0], y[:0], "0 sample|0 rows|minimum of 1"),
        (frame["debt"], y, r"got a Series.*iloc\[\[i\]\]"),
        (frame.rename(columns={"age": "debt"}), y, "Duplicate column names: 'debt'"),
    ]
    for x, labels, message in cases:
        with pytest.raises(ValueError, match=message):
            make_quick(epochs=1).fit(x, labels)
    with pytest.raises(InputError, match=r"Missing columns: 'debt' \(is it 'debts'\?\)"):
        fitted.predict(frame.rename(columns={"debt": "debts"}))
    with pytest.raises(InputError, match="The model was not trained on 'extra'; drop it"):
        fitted.predict(frame.assign(extra=1))
    with pytest.raises(InputError, match="0 rows"):
        fitted.predict(frame.iloc[:0])


@pytest.mark.check
def test_the_other_class_by_default(fitted, loans):
    frame = loans[0].head(40)
    explanation = fitted.explain(frame)
    assert (explanation.target != explanation.decision).all()
    assert (explanation.decision == fitted.predict(frame)).all()


def test_the_most_probable_other_class_by_default(make_blobs, make_quick):
    x, y = make_blobs(num_classes=4, n=120)
    classifier = make_quick().fit(x.numpy(), np.array(list("abcd"))[y])
    probability = classifier.predict_proba(x.numpy())
    expected = classifier.classes_[np.argsort(-probability, axis=1)[:, 1]]
    assert (classifier.explain(x.numpy()).target == expected).all()


def test_a_target_per_row(make_blobs, make_quick):
    x, y = make_blobs(num_classes=3, n=90)
    classifier = make_quick(epochs=40).fit(x.numpy(), np.array(["a", "b", "c"])[y])
    targets = ["a", "b", "c"] * 2
    for given_as in (targets, np.array(targets), pd.Series(targets)):
        explanation = classifier.explain(x.numpy()[:6], target=given_as)
        assert explanation.target.tolist() == targets
        assert (
            explanation.prediction[explanation.converged]
            == explanation.target[explanation.converged]
        ).all()
    with pytest.raises(InputError, match="2 targets for 6 rows"):
        classifier.explain(x.numpy()[:6], target=["a", "b"])


@pytest.mark.parametrize(
    "target", ["grant", 1, ["granted", "grant", "denied"], [["granted"]] * 3]
)
def test_unknown_classes(fitted, rejected, target):
    with pytest.raises(InputError, match=r"Unknown class .*'denied', 'granted'"):
        fitted.explain(rejected.head(3), target=target)


def test_rows_outside_a_stated_domain_stay_or_move_towards_it(loans, make_quick, schema):
    frame, y = loans
    classifier = make_quick(schema=schema, domain={"debt": (5, 40), "age": (30, 60)}).fit(
        frame, y
    )
    assert ((frame["debt"] > 40) | (frame["debt"] < 5)).any()
    explanation = classifier.explain(frame.head(120))
    for name, low, high in (("debt", 5, 40), ("age", 30, 60)):
        before, after = explanation.original[name], explanation.frame[name]
        assert (after >= np.minimum(before, low)).all() and (
            after <= np.maximum(before, high)
        ).all()
        assert (after[before > high] <= before[before > high]).all()
        assert (after[before < low] >= before[before < low]).all()
        assert (after != before).any()


def test_a_dict_is_no_row(fitted, loans):
    row = loans[0].iloc[0].to_dict()
    with pytest.raises(InputError, match=r"use pd\.DataFrame\(\[row\]\)"):
        fitted.explain(row)
    with pytest.raises(InputError, match=r"use pd\.DataFrame\(rows\)"):
        fitted.predict([row])


@pytest.mark.parametrize("estimator", [CounterfactualClassifier, CounterfactualRegressor])
def test_a_negative_seed_is_an_error_of_this_package(points, estimator):
    with pytest.raises(InputError, match="random_state must be a whole number of at least 0"):
        estimator(random_state=-1, epochs=1).fit(*points)
