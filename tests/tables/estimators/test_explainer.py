"""Models trained elsewhere, explained by the same questions, rules and words as our own."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_iris
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import counterfactual_training as ct
from counterfactual_training.errors import ConstraintError, InputError, ModelError
from counterfactual_training.generators.diagnosis import Obstacle
from counterfactual_training.tables.columns.encode import Encoder

RULES = {"mutability": {"age": "none", "debt": "decrease"}, "domain": {"debt": (0, None)}}


def coded(model):
    """A pipeline that takes the loan book as it is."""
    text = make_column_selector(dtype_include=["object", "string", "category"])
    return make_pipeline(
        make_column_transformer((OneHotEncoder(), text), remainder="passthrough"), model
    )


MODELS = {
    "logistic": lambda: coded(LogisticRegression(max_iter=2000)),
    "forest": lambda: coded(RandomForestClassifier(10, max_depth=4, random_state=0)),
    "boosting": lambda: coded(HistGradientBoostingClassifier(max_iter=25, random_state=0)),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request, loans):
    return MODELS[request.param]().fit(*loans)


@pytest.fixture(scope="module")
def forest(loans):
    return MODELS["forest"]().fit(*loans)


@pytest.fixture(scope="module")
def logistic(loans):
    return MODELS["logistic"]().fit(*loans)


@pytest.fixture(scope="module")
def denied(loans):
    """Rows to explain for any of the models; some may have their target already."""
    frame, labels = loans
    return frame[labels == "denied"].head(15)


@pytest.fixture(scope="module")
def explained(model, loans, schema, denied):
    """An explainer without a gate, and its explanation."""
    explainer = ct.Explainer(model, loans[0], schema=schema, gate="none", **RULES)
    return explainer, explainer.explain(denied, target="granted")


# ---- claims --------------------------------------------------------------------------------------


def test_claims_hold_for_the_models_own_predictions(model, explained):
    _, told = explained
    assert (model.predict(told.frame) == told.prediction).all()
    assert ((model.predict(told.frame) == "granted") == told.answered).all()
    assert told.answered.mean() > 0.8
    wanted = model.predict_proba(told.frame)[:, list(model.classes_).index("granted")]
    np.testing.assert_allclose(told.confidence, wanted, atol=1e-7)
    assert (model.predict(told.original) == told.decision).all()


def test_rules_and_dtypes_hold(explained, denied):
    _, told = explained
    assert (told.frame["age"] == denied["age"]).all()
    assert (told.frame["debt"] <= denied["debt"]).all() and (told.frame["debt"] >= 0).all()
    rank = {"none": 0, "BSc": 1, "MSc": 2}
    assert (told.frame["degree"].map(rank) >= denied["degree"].map(rank)).all()
    assert told.frame.dtypes.equals(denied.dtypes) and told.frame.index.equals(denied.index)
    assert (told.frame["debt"].round(1) == told.frame["debt"]).all()


def test_no_single_change_can_be_undone(model, explained):
    _, told = explained
    for i in np.flatnonzero(told.status == "converged"):
        for name in told.frame.columns[told.changed.to_numpy()[i]]:
            without = told.frame.iloc[[i]].copy()
            without[name] = told.original[name].iloc[[i]]
            assert model.predict(without)[0] == "denied", (name, told.changes()[i])


def test_sentences_are_those_of_the_classifier(explained):
    _, told = explained
    row = int(np.flatnonzero(told.changed["debt"].to_numpy())[0])
    assert "thousand dollars lower (from " in told.changes()[row]
    assert "the decision would be 'granted'" in told.changes()[row]


@pytest.mark.check
def test_a_batch_is_its_rows_one_by_one(forest, loans, schema, denied):
    explainer = ct.Explainer(forest, loans[0], schema=schema, gate="none", **RULES)
    together = explainer.explain(denied, target="granted").frame
    alone = [
        explainer.explain(denied.iloc[[i]], target="granted").frame
        for i in range(0, len(denied), 4)
    ]
    pd.testing.assert_frame_equal(together.iloc[::4], pd.concat(alone))


@pytest.mark.check
def test_the_gate_keeps_advice_among_real_rows(forest, loans, denied):
    gated = ct.Explainer(forest, *loans, **RULES).explain(denied, target="granted")
    reached = gated.status == "converged"
    assert reached.mean() > 0.6 and (gated.plausibility[reached] >= 0.5).all()
    assert (forest.predict(gated.frame)[gated.answered] == "granted").all()
    free = ct.Explainer(forest, *loans, gate="none", **RULES).explain(denied, target="granted")
    assert np.isnan(free.plausibility).all() and free.cost.sum() < gated.cost.sum()


def test_rows_are_as_plausible_as_their_explanation_says(forest, loans, denied):
    explainer = ct.Explainer(forest, *loans, **RULES)
    told = explainer.explain(denied, target="granted")
    places = np.arange(len(denied)), explainer.classes_.tolist().index("granted")
    given = explainer.plausibility(told.frame, given_fixed=True)
    np.testing.assert_allclose(given[places], told.plausibility, atol=1e-6)
    whole = explainer.plausibility(denied)
    assert whole.shape == (len(denied), 2) and ((whole >= 0) & (whole <= 1)).all()
    assert (explainer.plausibility(denied.assign(debt=1e4)).max(1) < 0.01).all()
    with pytest.raises(
        InputError,
        match="This Explainer has no gate to judge plausibility: state gate='density'",
    ):
        ct.Explainer(forest, *loans, gate="none", **RULES).plausibility(denied)


def test_a_torch_module_has_the_plausibility_of_our_classifier(fitted, loans):
    frame, _ = loans
    rows = frame.head(20)
    explainer = ct.Explainer(
        fitted.model_, frame, fitted.predict(frame), encoder=fitted.encoder_
    )
    assert explainer.plausibility(rows).shape == fitted.plausibility(rows).shape


def test_ties_go_to_the_first_class_as_in_predict():
    class Tie:
        classes_ = np.array(["no", "yes"])

        def predict_proba(self, frame):
            high = 0.5 + 0.3 * (frame["a"].to_numpy() > 8)
            return np.stack([1 - high, high], 1)

    frame = pd.DataFrame({"a": np.arange(11.0), "b": np.arange(11.0)[::-1]})
    told = ct.Explainer(Tie(), frame, gate="none").explain(
        frame.head(2), target="yes", lock=["a"]
    )
    assert (told.decision == "no").all() and (told.prediction == "no").all()
    assert not told.answered.any() and not told.converged.any()
    assert ct.Explainer(Tie(), frame, gate="none").explain(frame.head(1)).answered.all()


# ---- questions -----------------------------------------------------------------------------------


@pytest.mark.check
def test_every_rule_of_a_question_holds(logistic, loans, schema, denied):
    explainer = ct.Explainer(logistic, loans[0], schema=schema, gate="none", **RULES)

    def told(**question):
        found = explainer.explain(denied, target="granted", **question)
        assert ((logistic.predict(found.frame) == "granted") == found.answered).all()
        assert found.answered.any()
        return found

    assert set(told(vary=["debt"]).differences()["column"]) == {"debt"}
    assert "debt" not in set(told(lock=["debt"]).differences()["column"])
    low = told(domain={"debt": (10, None)})
    assert (low.frame["debt"][low.changed["debt"]] >= 10).all()
    steps = told(step={"debt": 5}).frame["debt"]
    changed = steps != denied["debt"]
    assert changed.any() and (steps[changed] % 5 == 0).all()
    assert ((denied["debt"] - told(max_change={"debt": 8}).frame["debt"]) <= 8 + 1e-9).all()
    assert (told(max_changes=1).changed.sum(axis=1) <= 1).all()
    dear = told(difficulty={"debt": 50})
    assert dear.changed["debt"].sum() < told().changed["debt"].sum()


def test_a_higher_confidence_is_reached_or_told(forest, loans, denied):
    explainer = ct.Explainer(forest, loans[0], gate="none", **RULES)
    told = explainer.explain(denied, target="granted", confidence=0.8)
    sure = told.status == "converged"
    assert sure.any() and (forest.predict_proba(told.frame)[sure, 1] >= 0.8 - 1e-9).all()


@pytest.mark.check
def test_options_change_different_columns(logistic, loans, schema, denied):
    explainer = ct.Explainer(logistic, loans[0], schema=schema, gate="none", **RULES)
    told = explainer.explain(denied.head(6), target="granted", n_options=3)
    assert len(told) > 6
    assert (logistic.predict(told.frame.droplevel("option"))[told.answered] == "granted").all()
    for label in denied.index[:6]:
        sets = [frozenset(np.flatnonzero(line)) for line in told.changed.loc[label].to_numpy()]
        assert all(not a <= b for i, a in enumerate(sets) for j, b in enumerate(sets) if i != j)


def test_what_forbids_a_change_is_told(forest, loans, denied):
    told = ct.Explainer(forest, loans[0], gate="none").explain(
        denied.head(3), target="granted", vary=["branch"]
    )
    missed = np.flatnonzero(~told.answered)
    assert len(missed)
    fixed = [
        hurdle.feature
        for i in missed
        for hurdle in told.obstacles[i]
        if hurdle.kind == Obstacle.FIXED
    ]
    assert list(denied.columns).index("debt") in fixed
    assert "debt" in told.changes()[missed[0]] and "may not change" in told.changes()[missed[0]]


@pytest.mark.check
def test_several_classes_and_arrays():
    x, y = load_iris(return_X_y=True)
    model = RandomForestClassifier(10, random_state=0).fit(x, y)
    explainer = ct.Explainer(model, x, y)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "error", UserWarning
        )  # no complaint about names that the model does not know
        told = explainer.explain(x[::10], target=2)
        usual = explainer.explain(x[::10])
    assert told.answered.all() and (model.predict(told.frame.to_numpy()) == 2).all()
    assert set(told.status) <= {"converged", "already_there", "implausible"}
    assert (
        model.predict(usual.frame.to_numpy())[usual.answered] == usual.target[usual.answered]
    ).all()
    assert list(told.frame.columns) == ["x0", "x1", "x2", "x3"]


def test_columns_are_matched_by_name(forest, loans, denied):
    frame = loans[0]
    shuffled = ct.Explainer(forest, frame[frame.columns[::-1]], gate="none").explain(
        denied[denied.columns[::-1]]
    )
    plain = ct.Explainer(forest, frame, gate="none").explain(denied)
    pd.testing.assert_frame_equal(shuffled.frame, plain.frame)


def test_wide_rows_try_the_columns_that_matter():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 40)).round(2)).add_prefix("c")
    labels = (frame["c7"] + frame["c31"] > 0).astype(int)
    model = LogisticRegression().fit(frame, labels)
    told = ct.Explainer(model, frame, gate="none").explain(frame.head(8))
    assert told.answered.all() and (model.predict(told.frame) == told.target).all()
    assert (
        set(told.differences()["column"]) <= {"c7", "c31"}
        and (told.changed.sum(axis=1) <= 2).all()
    )


# ---- missing values ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def blanks():
    """Whether a value is there decides: an imputed value would be refused."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"a": rng.normal(size=400).round(2), "b": rng.integers(0, 50, 400).astype(float)}
    )
    frame["kind"] = pd.Categorical(rng.choice(["x", "y", "z"], 400))
    frame.loc[rng.random(400) < 0.3, "b"] = np.nan
    frame.loc[rng.random(400) < 0.1, "kind"] = np.nan
    labels = np.where(frame["b"].isna() | (frame["a"] > 0.5), "yes", "no")
    return frame, labels


def test_the_model_sees_missing_values_as_they_are(blanks):
    frame, labels = blanks
    model = HistGradientBoostingClassifier(max_iter=30, categorical_features="from_dtype").fit(
        frame, labels
    )
    explainer = ct.Explainer(model, frame, gate="none", missing="impute")
    rows = frame.head(60)
    assert rows["b"].isna().any() and rows["kind"].isna().any()
    np.testing.assert_array_equal(explainer.predict(rows), model.predict(rows))
    told = explainer.explain(rows)
    assert (told.decision == model.predict(rows)).all()
    assert (model.predict(told.frame) == told.prediction).all() and told.answered.mean() > 0.9
    there = rows.notna()
    assert (
        told.frame[there.all(axis=1)].notna().all().all()
    )  # nobody is told to leave a cell empty
    kept = ~told.changed.to_numpy()
    assert (told.frame.isna().to_numpy()[kept] == rows.isna().to_numpy()[kept]).all()


def test_missing_values_are_an_error_unless_stated(blanks):
    frame, labels = blanks
    model = HistGradientBoostingClassifier(max_iter=5, categorical_features="from_dtype").fit(
        frame, labels
    )
    with pytest.raises(InputError, match="missing='impute'"):
        ct.Explainer(model, frame)


# ---- torch modules -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network(loans):
    """A small network trained by hand on the rows of an encoder."""
    frame, labels = loans
    encoder = Encoder(scale="robust").fit(frame)
    x = torch.as_tensor(encoder.transform(frame), dtype=torch.float32)
    y = torch.as_tensor((labels == "granted").astype(np.int64))
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)
    )
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(60):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model, encoder


def test_a_torch_module_is_explained_by_its_gradients(network, loans, denied):
    model, encoder = network
    model.train()
    explainer = ct.Explainer(model, *loans, encoder=encoder, gate="none", **RULES)
    told = explainer.explain(denied, target="granted", n_options=2)
    assert model.training  # it is left as it was
    frame = told.frame.droplevel("option")
    logits = model(torch.as_tensor(encoder.transform(frame), dtype=torch.float32))
    assert ((logits.argmax(-1) == 1).numpy() == told.answered).all() and told.answered.all()
    assert (frame["age"] == told.original.droplevel("option")["age"]).all()
    assert (explainer.predict(frame) == "granted").all()


def test_a_torch_module_without_encoder_or_labels(network, loans, denied):
    model, encoder = network
    fitted = ct.Explainer(model, loans[0])  # the usual encoder is the one it was trained with
    assert fitted.classes_.tolist() == [0, 1]
    given = ct.Explainer(model, loans[0], encoder=encoder, classes=["denied", "granted"])
    told = fitted.explain(denied, target=1)
    pd.testing.assert_frame_equal(told.frame, given.explain(denied, target="granted").frame)
    assert told.answered.all() and (told.plausibility >= 0).all()


def test_rules_beside_an_encoder(network, loans):
    model, encoder = network
    with pytest.raises(ConstraintError, match="other columns, kinds or categories"):
        ct.Explainer(
            model, loans[0], encoder=encoder, schema={"owner": {"kind": "categorical"}}
        )
    with pytest.raises(InputError, match="not fitted"):
        ct.Explainer(model, loans[0], encoder=Encoder())
    with pytest.raises(InputError, match="2 outputs"):
        ct.Explainer(model, loans[0], encoder=encoder, classes=["a", "b", "c"])
    with pytest.raises(ModelError, match="other features"):
        ct.Explainer(model, loans[0][["age", "debt"]])


# ---- bad input -----------------------------------------------------------------------------------


def test_models_that_cannot_be_explained(loans):
    frame = loans[0]
    with pytest.raises(InputError, match="RidgeClassifier has no predict_proba"):
        ct.Explainer(RidgeClassifier(), frame)
    with pytest.raises(InputError, match="LogisticRegression has no predict_proba"):
        ct.Explainer(LogisticRegression, frame)
    with pytest.raises(InputError, match="not fitted yet"):
        ct.Explainer(RandomForestClassifier(), frame)
    with pytest.raises(ModelError, match="could not convert string"):
        ct.Explainer(
            RandomForestClassifier(5).fit(np.arange(10.0).reshape(2, 5), [0, 1]), frame
        )


def test_frames_and_labels_that_do_not_fit(forest, loans, denied):
    frame, labels = loans
    with pytest.raises(InputError, match="'debt' \\(is it 'debts'\\?\\)"):
        ct.Explainer(forest, frame.rename(columns={"debt": "debts"}))
    with pytest.raises(InputError, match="Unknown label in y: 'lost'"):
        ct.Explainer(forest, frame, np.where(labels == "denied", "lost", labels))
    with pytest.raises(InputError, match="frame has 240 rows but y has shape \\(3,\\)"):
        ct.Explainer(forest, frame, labels[:3])
    with pytest.raises(InputError, match="Unknown gate 'learned'"):
        ct.Explainer(forest, frame, gate="learned")
    with pytest.raises(InputError, match="encoder is for torch modules"):
        ct.Explainer(forest, frame, encoder=Encoder().fit(frame))
    explainer = ct.Explainer(forest, frame, gate="none")
    with pytest.raises(InputError, match="Missing columns: 'owner'"):
        explainer.explain(denied.drop(columns="owner"))
    with pytest.raises(InputError, match="unseen 'moon'"):
        explainer.explain(denied.assign(branch="moon"))
    with pytest.raises(InputError, match="leave them out"):
        explainer.explain(denied, generator="ecco")


def test_a_decision_that_is_not_the_most_probable_class_is_told(loans, forest):
    strict = FixedThresholdClassifier(forest, threshold=0.9, pos_label="granted").fit(*loans)
    with pytest.warns(UserWarning, match="is not its most probable class in \\d+ of 240 rows"):
        ct.Explainer(strict, loans[0], gate="none")


class Returning:
    """A model whose ``predict_proba`` returns what a function makes of good probabilities."""

    classes_ = np.array(["no", "yes"])

    def __init__(self, change):
        self.change = change

    def predict_proba(self, frame):
        yes = 1 / (1 + np.exp(-frame["a"].to_numpy()))
        return self.change(np.column_stack([1 - yes, yes]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: 3 * p, r"returned \[.*\] for a row, which sums to 3 instead of 1"),
        (lambda p: p - 0.5, r"returned -0\.\d+, which is no probability: negative"),
        (np.log, r"which is no probability: negative"),
        (lambda p: p * [1, 0], r"sums to 0\.\d+ instead of 1"),
    ],
)
def test_numbers_that_are_no_probabilities_are_refused(change, words):
    frame = pd.DataFrame({"a": np.linspace(-2, 2, 60)})
    with pytest.raises(ct.ModelError, match=words):
        ct.Explainer(Returning(change), frame).explain(frame.head(2), target="yes")


@pytest.mark.parametrize(
    "change", [lambda p: p, lambda p: p.astype(np.float32), lambda p: p.round(3)]
)
def test_probabilities_may_be_rounded(change):
    frame = pd.DataFrame({"a": np.linspace(-2, 2, 60)})
    told = ct.Explainer(Returning(change), frame).explain(frame.head(2), target="yes")
    assert told.converged.all()


@pytest.mark.parametrize("num_options", [1, 2])
def test_a_model_that_fails_somewhere_fails_only_whose_search_leads_there(num_options):
    """Of those asked together; who is asked alone is told the error."""

    def not_everywhere(frame):
        p = (frame["a"] + frame["b"]).to_numpy() / 200
        p[((frame["b"] == 90) & (frame["a"] > 20)).to_numpy()] = np.nan
        return np.column_stack([1 - p, p])

    class Holey:
        classes_ = np.array(["no", "yes"])

        def predict_proba(self, frame):
            return not_everywhere(frame)

    a = np.tile(np.arange(0.0, 101.0), 4)
    frame = pd.DataFrame({"a": a, "b": np.repeat([10.0, 20.0, 30.0, 90.0], 101)})
    frame = frame[(frame["b"] < 90) | (frame["a"] <= 20)]
    explainer = ct.Explainer(Holey(), frame, mutability={"b": "none"})
    people = pd.DataFrame({"a": [5.0, 5.0, 15.0, 30.0], "b": [10.0, 90.0, 20.0, 30.0]})
    told = explainer.explain(people, target="yes", n_options=num_options)
    rows = told.frame.index.get_level_values(0)
    assert set(rows[told.converged]) == {0, 2, 3}
    assert told.status[rows == 1].tolist() == ["exhausted"]
    note = (
        "Row 1 has no answer, because the model fails: predict_proba returned NaN or infinity."
    )
    assert note in told.notes
    alone = explainer.explain(people.iloc[[0]], target="yes", n_options=num_options)
    assert (alone.frame.to_numpy() == told.frame[rows == 0].to_numpy()).all()
    for failing in ([1], [1, 1]):
        with pytest.raises(ModelError, match="NaN"):
            explainer.explain(people.iloc[failing], target="yes", n_options=num_options)
