"""Gates behind the scikit-learn face: where advice ends, while decisions stay as they were."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

from counterfactual_training.errors import FileError, InputError, ModelError
from counterfactual_training.gates import Learned
from counterfactual_training.persistence import load_file, save_file
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from covering import repeats

KIND = "counterfactual classifier"
DEGREES = ["none", "BSc", "MSc"]
RULES = {"mutability": {"age": "none", "debt": "decrease"}, "domain": {"debt": (0, None)}}


def islands(n=300, seed=0):
    """Two classes far apart in ``a``, nothing in between; ``b`` does not matter."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    return pd.DataFrame(
        {"a": np.where(y, 3.0, -3.0) + 0.4 * rng.normal(size=n), "b": rng.normal(size=n)}
    ), y


def to_neighbours(classifier, frame, real, k=5):
    """Mean distance ``(n,)`` in model space to the k nearest rows of a frame."""
    points, others = (torch.as_tensor(classifier.encoder_.transform(f)) for f in (frame, real))
    return torch.cdist(points, others).topk(k, -1, largest=False).values.mean(-1).numpy()


@pytest.fixture(scope="module")
def apart(make_quick):
    frame, y = islands()
    return frame, y, make_quick(epochs=10).fit(frame, y)


@pytest.fixture(scope="module")
def ungated(loans, make_quick, schema):
    return make_quick(schema=schema, gate="none", **RULES).fit(*loans)


# ---- decisions -----------------------------------------------------------------------------------


def test_decisions_are_the_same_with_and_without(loans, fitted, ungated):
    frame, _ = loans
    assert fitted.gate_ is not None and ungated.gate_ is None
    np.testing.assert_array_equal(fitted.predict_proba(frame), ungated.predict_proba(frame))
    np.testing.assert_array_equal(fitted.predict(frame), ungated.predict(frame))
    np.testing.assert_array_equal(
        fitted.decision_function(frame), ungated.decision_function(frame)
    )


def test_a_gate_does_not_depend_on_the_method(loans, make_quick):
    for method in ("ct_published", "ct_as_printed"):
        classifier = make_quick(method, epochs=1, gate="none").fit(*loans)
        assert classifier.gate_ is None
        assert np.isnan(classifier.explain(loans[0].head(3)).plausibility).all()
    with pytest.raises(InputError, match="gate='density'"):
        classifier.plausibility(loans[0])
    assert make_quick("ct_published", epochs=1).fit(*loans).gate_ is not None


# ---- plausibility --------------------------------------------------------------------------------


def test_rows_unlike_anything_seen_are_flagged(apart):
    frame, _, classifier = apart
    fresh, labels = islands(seed=1)
    own = classifier.plausibility(fresh)[np.arange(len(labels)), labels]
    assert 0.8 < (own > 0.5).mean() < 0.98  # calibrated to 0.9
    strange = pd.DataFrame({"a": [0.0, 3.0, 1e6, -3.0], "b": [0.0, 40.0, 0.0, -1e9]})
    assert (classifier.plausibility(strange).max(1) < 0.01).all()
    assert (
        classifier.predict_proba(strange).max(1) > 0.5
    ).all()  # the classifier itself is none the wiser
    assert classifier.plausibility(frame).shape == (len(frame), 2)


def given_what_cannot_change(classifier, frame):
    """Plausibility of the second class, as the search sees it."""
    x = torch.as_tensor(classifier.encoder_.transform(frame), dtype=torch.float32)
    return classifier.gate_(x).exp()[:, 1].numpy()


def test_rows_odd_in_what_cannot_change_are_flagged(fitted, loans):
    strange = loans[0].head(3).assign(age=5000)  # age is immutable here
    assert (fitted.plausibility(strange) < 0.01).all()


def test_nothing_may_change(loans, make_quick):
    frame, y = loans
    classifier = make_quick(mutability=dict.fromkeys(frame.columns, "none"), epochs=2).fit(
        frame, y
    )
    explanation = classifier.explain(frame.head(3))
    assert (
        explanation.status == "infeasible"
    ).all() and "none of the columns may change" in explanation.changes()[0]


def test_the_explanation_says_what_the_gate_says(fitted, rejected):
    explanation = fitted.explain(rejected, target="granted")
    np.testing.assert_allclose(
        explanation.plausibility, given_what_cannot_change(fitted, explanation.frame), atol=1e-6
    )
    np.testing.assert_array_equal(explanation.summary["plausibility"], explanation.plausibility)


# ---- where advice ends ---------------------------------------------------------------------------


def test_advice_ends_among_real_rows(apart, make_quick):
    frame, y, classifier = apart
    plain = make_quick(epochs=10, gate="none").fit(frame, y)
    rows, targets = frame.head(60), 1 - classifier.predict(frame.head(60))
    gated, free = classifier.explain(rows, target=targets), plain.explain(rows, target=targets)
    assert gated.converged.all() and free.converged.all()
    assert (gated.plausibility > 0.5).all()
    for label in (0, 1):
        here, real = targets == label, frame[y == label]
        near, far = (to_neighbours(classifier, e.frame[here], real) for e in (gated, free))
        assert near.mean() < 0.4 * far.mean()


def test_advice_on_a_mixed_table_ends_closer_to_real_rows(loans, fitted, ungated, rejected):
    frame, y = loans
    gated, free = (
        c.explain(rejected, target="granted", confidence=0.5) for c in (fitted, ungated)
    )
    both = gated.converged & free.converged
    near, far = (
        to_neighbours(fitted, e.frame[both], frame[y == "granted"]) for e in (gated, free)
    )
    assert both.mean() > 0.9
    assert near.mean() < far.mean()


@pytest.mark.parametrize("threshold", [0.5, 0.9, *repeats(0.7)])
def test_what_converged_holds_after_decoding(fitted, rejected, threshold):
    explanation = fitted.explain(rejected, target="granted", confidence=threshold)
    plausibility = given_what_cannot_change(fitted, explanation.frame)
    reached = fitted.predict_proba(explanation.frame)[:, 1] * plausibility
    assert explanation.converged.mean() > 0.5
    assert (reached[explanation.converged] >= threshold - 1e-6).all()
    assert (reached[~explanation.converged] < threshold + 1e-6).all()
    assert ((explanation.status == "converged") == explanation.converged).all()


@pytest.mark.parametrize("gate", ["both", *repeats("density", "learned")])
def test_rules_hold_under_every_gate(loans, make_quick, quick_gates, schema, gate):
    frame, y = loans
    classifier = make_quick(schema=schema, gate=gate, **RULES).fit(frame, y)
    rows = frame[classifier.predict(frame) == "denied"].head(40)
    explanation = classifier.explain(rows, target="granted")
    after = explanation.frame
    assert (after["age"] == rows["age"]).all()
    assert ((after["debt"] <= rows["debt"]) & (after["debt"] >= 0)).all()
    np.testing.assert_allclose(after["debt"], after["debt"].round(1), atol=1e-9)
    assert (after["degree"].map(DEGREES.index) >= rows["degree"].map(DEGREES.index)).all()
    assert after["branch"].isin(["north", "south", "west"]).all()
    assert after.dtypes.equals(rows.dtypes)
    assert explanation.converged.mean() > 0.5
    assert (explanation.plausibility[explanation.converged] > 0.5).all()
    assert (classifier.plausibility(frame) >= 0).all() and (
        classifier.plausibility(frame) <= 1
    ).all()


def test_whole_numbers_stay_whole(make_quick):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"rooms": rng.integers(1, 6, 200), "floor": rng.integers(0, 4, 200)})
    classifier = make_quick().fit(frame, frame["rooms"] + frame["floor"] > 5)
    explanation = classifier.explain(frame, target=True)
    assert explanation.frame.dtypes.equals(frame.dtypes)
    assert explanation.converged.mean() > 0.95
    seen = set(zip(frame["rooms"], frame["floor"], strict=True))
    told = explanation.frame[explanation.converged]
    assert (
        np.mean([pair in seen for pair in zip(told["rooms"], told["floor"], strict=True)])
        > 0.95
    )


# ---- a gate that nobody passes -------------------------------------------------------------------


@pytest.fixture(scope="module")
def fenced(make_quick):
    """``a`` may not pass 1: the class changes at about 0, real rows of the other one begin at 2."""
    frame, y = islands()
    poor = frame[y == 0]
    schema = {"a": {"allowed": [*poor["a"], 0.5, 1.0]}}
    return poor, make_quick(epochs=10, schema=schema).fit(frame, y)


def test_plausibility_is_named_where_it_is_what_binds(fenced):
    poor, classifier = fenced
    explanation = classifier.explain(poor.head(8), target=1)
    assert set(explanation.status) == {"implausible"}
    assert not explanation.converged.any()
    for text in explanation.changes():
        assert "the decision would be 1 (confidence 0." in text
        assert "but few real cases look like this (plausibility " in text
    assert "implausible" in repr(explanation) and explanation.obstacles == [[]] * 8


@pytest.mark.check
def test_what_is_told_then_is_what_the_model_alone_asks_for(fenced):
    poor, classifier = fenced
    explanation = classifier.explain(poor.head(8), target=1)
    frame, y = islands()
    free = (
        clone(classifier).set_params(gate="none").fit(frame, y).explain(poor.head(8), target=1)
    )
    assert explanation.frame.equals(free.frame) and explanation.answered.all()


def test_without_the_gate_the_same_people_arrive(fenced):
    poor, classifier = fenced
    free = clone(classifier).set_params(gate="none")
    frame, y = islands()
    assert free.fit(frame, y).explain(poor.head(8), target=1).converged.all()


def test_another_gate_needs_another_fit(fenced):
    poor, classifier = fenced
    changed = copy.deepcopy(classifier).set_params(gate="none")
    with pytest.raises(InputError, match="gate changed after fit"):
        changed.explain(poor.head(2))


def test_a_rule_that_binds_is_still_named(make_quick):
    frame, y = islands()
    classifier = make_quick(epochs=10, mutability={"a": "none"}).fit(frame, y)
    explanation = classifier.explain(frame[y == 0].head(5), target=1)
    assert set(explanation.status) == {"infeasible"}
    assert all("a may not change" in text for text in explanation.changes())


# ---- odd data ------------------------------------------------------------------------------------


def test_a_class_with_five_rows_is_not_judged(make_quick):
    frame, y = islands()
    keep = (y == 0) | (np.arange(len(y)) < 10)
    with pytest.warns(
        UserWarning, match=r"Too few rows to judge .* the gate is open for 1 \(5 rows\)"
    ) as said:
        classifier = make_quick(epochs=30).fit(frame[keep], y[keep])
    assert sum("is open" in str(one.message) for one in said) == 1
    assert (classifier.plausibility(frame)[:, 1] == 1).all()
    assert (classifier.plausibility(pd.DataFrame({"a": [50.0], "b": [0.0]}))[:, 0] < 0.01).all()
    explanation = classifier.explain(frame[y == 0].head(10), target=1)
    assert explanation.converged.all() and (explanation.plausibility == 1).all()


def test_a_part_of_a_gate_that_does_not_judge_is_named(make_quick, quick_gates):
    frame, y = islands()
    keep = (y == 0) | (np.arange(len(y)) < 50)
    said = (
        r"the learned part of the gate is open for 1 \(25 rows\): "
        "at least 40 rows are needed"
    )
    with pytest.warns(UserWarning, match=said):
        classifier = make_quick(gate="both").fit(frame[keep], y[keep])
    assert classifier.gate_.judged.tolist() == [True, True]
    assert (
        classifier.plausibility(pd.DataFrame({"a": [50.0], "b": [0.0]})).max() < 0.01
    )  # by the density


def constant(frame):
    return frame.assign(c=7.0)


def duplicated(frame):
    return pd.concat([frame[["a"]].round(0)] * 3, axis=1, keys=range(3)).set_axis(
        ["a", "b", "c"], axis=1
    )


def categories_only(frame):
    return pd.DataFrame(
        {"sign": np.where(frame["a"] > 0, "plus", "minus"), "kind": np.arange(len(frame)) % 3}
    ).astype({"kind": str})


def ordinals(frame):
    rank = frame["b"].rank(pct=True)
    return pd.DataFrame(
        {"sign": np.where(frame["a"] > 0, 2, 1), "kind": np.ceil(3 * rank).astype(int)}
    )


def booleans(frame):
    return pd.DataFrame({"a": frame["a"] > 0, "b": frame["b"] > 0.5})


@pytest.mark.filterwarnings("ignore:.*constant in the training data")
@pytest.mark.parametrize("gate", ["both", *repeats("density", "learned")])
@pytest.mark.parametrize(
    "change", [categories_only, *repeats(constant, duplicated, ordinals, booleans)]
)
def test_constant_duplicated_and_categorical_columns(make_quick, quick_gates, change, gate):
    frame, y = islands()
    odd = change(frame)
    classifier = make_quick(gate=gate).fit(odd, y)
    plausible = classifier.plausibility(odd)
    assert np.isfinite(plausible).all()
    assert (plausible[np.arange(len(y)), y] >= 0.5).mean() > 0.86
    if gate != "learned":  # in a second it has learned little by itself
        assert (plausible[np.arange(len(y)), 1 - y] < 0.5).all()
    explanation = classifier.explain(odd.head(20))
    assert explanation.converged.mean() > 0.9
    assert np.isfinite(explanation.cost).all()


def test_rows_far_away_are_explained_in_finite_numbers(apart):
    _, _, classifier = apart
    explanation = classifier.explain(
        pd.DataFrame({"a": [-1e7, -5.0], "b": [0.0, 1e7]}), target=1
    )
    assert (
        np.isfinite(explanation.plausibility).all()
        and np.isfinite(explanation.confidence).all()
    )
    assert np.isfinite(explanation.frame.to_numpy()).all()


# ---- among scikit-learn's tools, and files -------------------------------------------------------


def test_unknown_gates_are_refused(loans, make_quick):
    with pytest.raises(InputError, match=r"Unknown gate 'densty'\. Did you mean 'density'"):
        make_quick(gate="densty").fit(*loans)


@pytest.mark.check
def test_clones_and_copies(loans, fitted, rejected):
    assert CounterfactualClassifier().get_params()["gate"] == "density"
    assert clone(CounterfactualClassifier(gate="both")).gate == "both"
    rows = rejected.head(10)
    for twin in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):  # noqa: S301 - our own bytes
        np.testing.assert_array_equal(twin.plausibility(rows), fitted.plausibility(rows))
        assert twin.explain(rows).summary.equals(fitted.explain(rows).summary)
    again = clone(fitted).fit(*loans)
    np.testing.assert_array_equal(again.plausibility(rows), fitted.plausibility(rows))


@pytest.mark.parametrize("gate", ["both", "none", *repeats("density", "learned")])
def test_what_is_saved_explains_identically(make_quick, quick_gates, tmp_path, gate):
    frame, y = islands(240)
    classifier = make_quick(epochs=3, gate=gate).fit(frame, y)
    classifier.save(tmp_path / "c")
    loaded = CounterfactualClassifier.load(tmp_path / "c")
    assert loaded.gate == gate and (loaded.gate_ is None) == (gate == "none")
    told, again = classifier.explain(frame.head(12)), loaded.explain(frame.head(12))
    assert (
        again.frame.equals(told.frame)
        and again.summary.equals(told.summary)
        and again.changes() == told.changes()
    )


@pytest.mark.parametrize(
    "change", ["shape", "kind", "dims", "weights", "classes", "spoiled", "absent"]
)
def test_altered_gates_are_refused(fitted, tmp_path, change):
    fitted.save(tmp_path / "c")
    tensors, content = load_file(tmp_path / "c", KIND)
    (spec,) = content["gate"]
    if change == "shape":
        spec["shape"] = [3, 10**12, 10**6]
    elif change == "kind":
        spec["kind"] = "__import__"
    elif change == "dims":
        spec["feature_dims"] = "all"
    elif change == "weights":  # of one column less
        spec["shape"][2] -= 1
        tensors["gate.centres"] = tensors["gate.centres"][..., 1:].clone()
        tensors["gate.immutable"] = tensors["gate.immutable"][1:].clone()
    elif change == "classes":  # of one class more
        spec["shape"][0] += 1
        for name in ("centres", "width", "slope", "origin", "whole_slope", "whole_origin"):
            tensors[f"gate.{name}"] = torch.cat(
                [tensors[f"gate.{name}"], tensors[f"gate.{name}"][-1:]]
            )
    elif change == "spoiled":
        tensors["gate.centres"][0, 0, 0] = torch.nan
    else:
        del tensors["gate.slope"]
    save_file(tmp_path / "c", KIND, tensors, content)
    with pytest.raises(FileError):
        CounterfactualClassifier.load(tmp_path / "c")


def far(frame, value):
    """Three rows, the second of which nobody has ever seen the like of."""
    rows = frame.iloc[:3].copy()
    rows.index = ["p", "q", "r"]
    rows.loc["q", "b"] = value
    return rows


@pytest.fixture(scope="module")
def of_islands():
    frame, y = islands()
    return frame, CounterfactualClassifier(epochs=20, random_state=0).fit(frame, y)


def test_a_row_far_outside_is_led_back_and_told_to_be_like_nothing_seen(of_islands):
    """Squares of 1e30 are no numbers any more; it gets the advice that 1e6 gets."""
    frame, classifier = of_islands
    near, found = (classifier.explain(far(frame, value)) for value in (1e6, 1e30))
    assert found.status.tolist() == near.status.tolist() == ["converged"] * 3
    np.testing.assert_allclose(found.frame["b"], near.frame["b"], rtol=0.01, atol=0.01)
    assert classifier.plausibility(far(frame, 1e30))[1].max() < 1e-6
    assert np.isfinite(classifier.plausibility(far(frame, 1e38))).all()


@pytest.mark.parametrize("method", ["explain", "predict", "plausibility"])
def test_a_number_that_no_model_computes_with_is_named(of_islands, method):
    frame, classifier = of_islands
    with pytest.raises(
        InputError, match=r"Row q: 'b' is 1e\+200, so far outside anything .* 1 of 3 row"
    ):
        getattr(classifier, method)(far(frame, 1e200))


def test_a_row_at_which_a_gate_overflows_is_named(of_islands):
    frame, classifier = of_islands
    broken = copy.deepcopy(classifier)
    broken.gate_ = Learned.empty([2, 4, 2]).requires_grad_(False)
    broken.gate_.network[0].weight.fill_(100.0)
    broken.gate_.network[-1].weight.fill_(-100.0)
    assert len(broken.explain(far(frame, 1.0)).status) == 3
    with pytest.raises(InputError, match=r"Row q: 'b' is 1e\+38"):
        broken.explain(far(frame, 1e38))
    broken.gate_.network[0].weight.fill_(torch.nan)  # nobody's row is to blame
    with pytest.raises(ModelError, match="weights are unusable"):
        broken.explain(far(frame, 1.0))


def test_warnings_name_the_line_that_called_fit():
    frame, y = islands(60)
    with pytest.warns(UserWarning) as said:
        CounterfactualClassifier(epochs=1).fit(
            frame[:45].assign(c=1.0), np.where(np.arange(45) < 5, 2, y[:45])
        )
    told = [
        one
        for one in said
        if "constant in" in str(one.message) or "Too few rows" in str(one.message)
    ]
    assert [one.filename for one in told] == [__file__] * 2


def test_who_has_what_no_real_row_of_the_wanted_class_has_is_told(make_quick):
    """Plausibility is judged given what cannot change, and may be high all the same."""
    rng = np.random.default_rng(0)
    n = 400
    frame = pd.DataFrame(
        {
            "state": rng.choice(["A", "B", "C"], n, p=[0.5, 0.1, 0.4]),
            "phone": rng.choice([0, 1], n, p=[0.1, 0.9]),
            "points": rng.normal(50, 10, n).round(),
            "kids": rng.poisson(3, n),
        }
    )
    wanted = (frame["state"] != "B") & (frame["phone"] == 1) & (frame["points"] > 50)
    fixed = {"state": "none", "phone": "none"}
    model = make_quick(epochs=20, mutability=fixed)
    model.fit(frame, np.where(wanted, "yes", "no"))
    denied = frame[model.predict(frame) == "no"]
    told = model.explain(denied, target="yes")
    of_yes = int(wanted.sum())
    for i, text in enumerate(told.changes()):
        missing = []
        if told.original["state"].iloc[i] == "B":
            missing.append("state 'B'")
        if told.original["phone"].iloc[i] == 0:
            missing.append("phone 0")
        if missing and told.answered[i]:
            said = f"Of {of_yes} real rows that reach this, none has {' or '.join(missing)}."
            assert text.endswith(said)
        else:
            assert "none has" not in text
    assert sum("none has" in text for text in told.changes()) > 5
    assert sum("none has" not in text for text in told.changes()) > 5
