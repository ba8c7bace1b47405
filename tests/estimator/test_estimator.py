"""The scikit-learn face: fit, predict, composition, constraints by column name, bad input."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import ConstraintError, InputError, ModelError
from counterfactual_training.estimator import CounterfactualClassifier
from counterfactual_training.estimator.parameters import make_setting, make_training_generator
from counterfactual_training.models import linear
from counterfactual_training.search import generic
from counterfactual_training.tabular.schema import Schema
from counterfactual_training.training import Objective


@pytest.fixture
def points():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2))
    return x, (x[:, 0] + x[:, 1] > 0).astype(int)


# ---- learning -------------------------------------------------------------------------------------------------------


def test_learns_a_frame_of_mixed_columns(loans, fitted):
    frame, y = loans
    assert fitted.score(frame, y) > 0.85
    assert fitted.classes_.tolist() == ["denied", "granted"]
    assert fitted.n_features_in_ == 5
    assert fitted.feature_names_in_.tolist() == list(frame.columns)
    assert len(fitted.history_.records) == 15
    assert {"granted", "denied"} == set(fitted.predict(frame))


@pytest.mark.parametrize("labels", [("no", "yes"), (3, 7), (False, True), (-1.0, 1.0), (np.str_("a"), np.str_("b"))])
def test_classes_keep_their_labels(points, make_quick, labels):
    x, y = points
    given = np.array(labels)[y]
    classifier = make_quick(epochs=5).fit(x, given)
    predicted = classifier.predict(x)
    assert classifier.classes_.tolist() == sorted(labels)
    assert predicted.dtype == given.dtype
    assert set(predicted.tolist()) <= set(labels)
    assert set(classifier.explain(x[:3], target=labels[1]).target.tolist()) == {labels[1]}


def test_series_of_strings_and_categories_as_labels(loans, make_quick):
    frame, y = loans
    for series in (pd.Series(y, index=frame.index), pd.Series(y).astype("category"), pd.Series(y, dtype="string")):
        assert make_quick(epochs=1).fit(frame, series).classes_.tolist() == ["denied", "granted"]


def test_more_than_two_classes(make_blobs, make_quick):
    x, y = make_blobs(num_classes=4, n=160)
    names = np.array(["a", "b", "c", "d"])[y]
    classifier = make_quick(epochs=40).fit(x.numpy(), names)
    probability, logits = classifier.predict_proba(x.numpy()), classifier.decision_function(x.numpy())
    assert probability.shape == logits.shape == (160, 4)
    np.testing.assert_allclose(probability.sum(1), 1, atol=1e-5)
    assert (classifier.classes_[probability.argmax(1)] == classifier.predict(x.numpy())).all()
    assert classifier.score(x.numpy(), names) > 0.8


def test_decision_function_of_two_classes_is_a_margin(points, make_quick):
    x, y = points
    classifier = make_quick().fit(x, y)
    margin, probability = classifier.decision_function(x), classifier.predict_proba(x)
    assert margin.shape == (120,)
    np.testing.assert_allclose(probability[:, 1], 1 / (1 + np.exp(-margin)), atol=1e-5)


def test_rows_sorted_by_class_are_learned_too(points, make_quick):
    x, y = points
    order = np.argsort(y)
    assert make_quick(epochs=30).fit(x[order], y[order]).score(x, y) > 0.9


def test_same_random_state_same_weights_and_the_hosts_randomness_untouched(points, make_quick):
    x, y = points
    torch.manual_seed(5)
    before = torch.get_rng_state()
    a, b = make_quick(epochs=3).fit(x, y), make_quick(epochs=3).fit(x, y)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(a.predict_proba(x), b.predict_proba(x))
    other = make_quick(epochs=3, random_state=1).fit(x, y)
    assert not np.array_equal(other.predict_proba(x), a.predict_proba(x))


def test_objective_and_weights_reach_the_training(points, make_quick):
    x, y = points
    vanilla = make_quick(epochs=2, objective="vanilla", lambda_div=9.0).fit(x, y)
    assert np.isnan(vanilla.history_.last("share_mature"))  # nothing is searched
    assert np.isfinite(make_quick(epochs=2, lambda_adv=0.1).fit(x, y).history_.last("share_mature"))
    own = make_quick(epochs=2, objective=Objective(lambda_div=0.0, lambda_reg=0.0)).fit(x, y)
    assert own.history_.last("divergence") == 0.0


def test_sizes_that_follow_the_number_of_rows():
    params = CounterfactualClassifier().get_params()

    def config(num_rows, **changes):
        x = torch.zeros(num_rows, 1)
        return make_setting({**params, **changes}, x, Constraints.infer(x), 0).config

    sizes = [(c.batch_size, c.num_counterfactuals) for c in (config(50), config(3600), config(200_000))]
    assert sizes == [(30, 100), (36, 900), (1000, 5000)]
    stated = config(50, batch_size=7, num_counterfactuals=11)
    assert (stated.batch_size, stated.num_counterfactuals, stated.shuffle) == (7, 11, True)


def test_presets_and_overrides_of_the_generator():
    printed = make_training_generator(CounterfactualClassifier(preset="as_printed").get_params())
    assert (printed.learning_rate, printed.strict_epsilon, printed.penalties[1].decay) == (0.25, True, "none")
    run = make_training_generator(
        CounterfactualClassifier(generator="generic", lambda_cost=0.5, lambda_energy=3.0, max_steps=7).get_params()
    )
    assert (run.name, run.learning_rate, run.max_steps, run.penalties[0].weight) == ("generic", 0.1, 7, 0.5)
    kept = make_training_generator(CounterfactualClassifier(generator=generic(max_steps=9), epsilon=0.1).get_params())
    assert (kept.max_steps, kept.epsilon) == (9, 0.1)


def test_a_model_of_ones_own(points, make_quick):
    x, y = points
    assert make_quick(model=linear, epochs=20).fit(x, y).score(x, y) > 0.9
    assert make_quick(model="linear", epochs=20).fit(x, y).score(x, y) > 0.9
    double = make_quick(model=lambda d, k: linear(d, k).double(), epochs=2).fit(x, y)
    assert double.predict_proba(x).dtype == np.float64
    assert double.explain(x[:4]).frame.shape == (4, 2)


def test_latent_search_of_revise(points, make_quick):
    x, y = points
    classifier = make_quick(generator="revise", epochs=3).fit(x, y)
    assert classifier.generator_.name == "revise"
    assert classifier.explain(x[:5]).converged.any()


# ---- among scikit-learn's tools -------------------------------------------------------------------------------------


def test_in_pipeline_search_and_cross_validation(points, make_quick):
    x, y = points
    pipeline = make_pipeline(StandardScaler(), make_quick(epochs=8))
    assert cross_val_score(pipeline, x, y, cv=3).mean() > 0.8
    search = GridSearchCV(make_quick(epochs=4), {"lambda_div": [0.1, 0.5], "hidden": [(4,), (8, 4)]}, cv=2).fit(x, y)
    assert search.best_estimator_.explain(x[:2]).frame.shape == (2, 2)


def test_frames_in_cross_validation(loans, make_quick, schema):
    frame, y = loans
    assert cross_val_score(make_quick(schema=schema), frame, y, cv=3).mean() > 0.75


def test_clones_copies_and_pickles(loans, fitted):
    frame, _ = loans
    fresh = clone(fitted)
    assert not hasattr(fresh, "model_")
    assert fresh.get_params()["mutability"] == {"age": "none", "debt": "decrease"}
    for twin in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):  # noqa: S301 - our own bytes
        np.testing.assert_array_equal(twin.predict_proba(frame), fitted.predict_proba(frame))
        assert twin.explain(frame.head(5)).frame.equals(fitted.explain(frame.head(5)).frame)


# ---- columns --------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("spec", [{"b": "increase"}, {"b": 1}, {1: "increase"}, [0, 1], ["both", "increase"]])
def test_every_spelling_of_a_direction(points, make_quick, spec):
    x, y = points
    classifier = make_quick(epochs=1, mutability=spec).fit(pd.DataFrame(x, columns=["a", "b"]), y)
    assert classifier.constraints_.directions == ("both", "increase")


def test_schema_as_object_dict_and_file(loans, make_quick, schema, tmp_path):
    frame, y = loans
    whole = Schema.infer(frame, categories={"degree": schema["degree"]["categories"]}, kinds={"degree": "ordinal"})
    whole = whole.override(mutability={"degree": "increase"}, units={"debt": "thousand dollars"})
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
    wide = make_quick(epochs=1, num_std=None, preset="as_printed").fit(x, y).constraints_.domain
    assert bool((wide.lower <= -3 + 1e-9).all()) and bool((wide.upper > box.upper).all())


def test_missing_values_are_imputed_if_asked(loans, make_quick):
    frame, y = loans
    holes = frame.copy()
    holes.loc[holes.index[:5], "debt"] = np.nan
    classifier = make_quick(epochs=3, missing="impute").fit(holes, y)
    explanation = classifier.explain(holes.head(6))
    assert set(classifier.predict(holes)) <= {"granted", "denied"}
    assert explanation.frame["debt"].isna().sum() + (explanation.changed["debt"].head(5)).sum() == 5
    assert "missing" in str(explanation.changes()) or explanation.frame["debt"].head(5).isna().all()


def test_unseen_categories(loans, make_quick):
    frame, y = loans
    strange = frame.head(3).assign(branch="nort")
    classifier = make_quick(epochs=1).fit(frame, y)
    with pytest.raises(InputError, match=r"'branch'.*'nort'.*Did you mean 'north'"):
        classifier.predict(strange)
    lenient = make_quick(epochs=1, unseen="unknown").fit(frame, y)
    assert len(lenient.predict(strange)) == 3
    assert (lenient.explain(strange).frame["branch"].isin(["nort", "north", "south", "west"])).all()


# ---- bad input ------------------------------------------------------------------------------------------------------


def test_before_fit(loans):
    for method in ("predict", "predict_proba", "decision_function", "plausibility", "explain"):
        with pytest.raises(NotFittedError):
            getattr(CounterfactualClassifier(), method)(loans[0])


def test_missing_and_infinite_values_name_columns_and_count_rows(loans, make_quick, fitted):
    frame, y = loans
    holes = frame.copy()
    holes.loc[holes.index[[1, 4]], "debt"] = np.nan
    holes.loc[holes.index[[4, 7]], "branch"] = None
    for call in (lambda: make_quick().fit(holes, y), lambda: fitted.predict(holes), lambda: fitted.explain(holes)):
        with pytest.raises(InputError, match=r"'debt' \(2\), 'branch' \(2\): 3 of 240 row"):
            call()
    infinite = holes.copy()
    infinite.loc[infinite.index[2], "debt"] = np.inf
    for call in (lambda: make_quick().fit(infinite, y), lambda: fitted.predict(infinite)):
        with pytest.raises(InputError, match=r"infinity .*'debt' \(3\), 'branch' \(2\): 4 of 240 row"):
            call()


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"mutability": {"dept": "none"}}, ConstraintError, "Unknown column 'dept'. Did you mean 'debt'"),
        ({"mutability": {"debt": "decreases"}}, ConstraintError, "direction 'decreases'. Did you mean 'decrease'"),
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
        ({"objective": "ful"}, InputError, "Did you mean 'full'"),
        ({"generator": "eco"}, InputError, "Did you mean 'ecco'"),
        ({"generator": generic(), "lambda_cost": 0.1}, InputError, "lambda_cost"),
        ({"preset": "as_runn"}, InputError, "Did you mean 'as_run'"),
        ({"batch_size": "big"}, InputError, "'auto'"),
        ({"epochs": -1}, InputError, "epochs"),
        ({"decision_threshold": 1.5}, InputError, "decision_threshold"),
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


def test_a_domain_that_excludes_training_rows_is_refused(loans, make_quick):
    frame, y = loans
    outside = int((frame["age"] > 60).sum())
    with pytest.raises(InputError, match=rf"'age': {outside} row\(s\) outside the stated domain \[18, 60\]"):
        make_quick(domain={"age": (18, 60)}).fit(frame, y)


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
    with pytest.raises(InputError, match=r"missing from the frame: 'debt' \(is it 'debts'\?\)"):
        fitted.predict(frame.rename(columns={"debt": "debts"}))
    with pytest.raises(InputError, match="does not know: 'extra'"):
        fitted.predict(frame.assign(extra=1))
    with pytest.raises(InputError, match="0 rows"):
        fitted.explain(frame.iloc[:0])
