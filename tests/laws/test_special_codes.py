"""A special code is a state of its own: nobody is told to get one, and cells that hold one keep
it.
"""

import warnings

import numpy as np
import pandas as pd
import pytest

import counterfactual_training as ct
from covering import repeats

SPECIAL = {"score": [-9, -8], "months": [-99], "glucose": [0, 1]}
RULES = {"domain": {"score": (-20, 120), "glucose": (0, None)}, "num_std": 3.0}


def draw(seed: int, n: int = 400) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "score": rng.integers(-20, 95, n),
            "months": rng.gamma(2, 10, n).round(1),
            "glucose": rng.integers(0, 40, n),
            "debt": rng.normal(50, 15, n),
        }
    )
    good = (
        -frame["score"] / 10 - frame["months"] / 20 - frame["glucose"] / 10 - frame["debt"] / 20
        > -9
    )
    for name, share in (("score", 0.2), ("months", 0.2), ("glucose", 0.1)):
        rows = rng.random(n) < share
        frame.loc[rows, name] = rng.choice(SPECIAL[name], rows.sum())
    return frame, np.where(good, "yes", "no")


@pytest.fixture(scope="module", params=["conventional", "ct_published"])
def asked(request):
    frame, y = draw(0)
    params = {
        "epochs": 15,
        "learning_rate": 0.02,
        "random_state": 0,
        "method": request.param,
    }
    classifier = ct.CounterfactualClassifier(special=SPECIAL, **RULES, **params).fit(frame, y)
    rows = frame[classifier.predict(frame) == "no"].head(120)
    return classifier, rows


@pytest.mark.parametrize(
    "question",
    [
        {"vary": ["score", "glucose"], "step": {"glucose": 5}},
        *repeats({}, {"vary": ["glucose"]}),
    ],
)
def test_codes_stay_and_are_never_reached(asked, question):
    classifier, rows = asked
    told = classifier.explain(rows, target="yes", **question)
    assert told.changed.to_numpy().sum() > 20
    for name, codes in SPECIAL.items():
        before, after = told.original[name], told.frame[name]
        coded = before.isin(codes)
        assert coded.any() and (before[coded] == after[coded]).all()
        assert not after[~coded].isin(codes).any()
    np.testing.assert_array_equal(
        classifier.predict(told.frame.reset_index(drop=True)), told.prediction
    )


def test_the_sentence_says_that_there_is_no_record(asked):
    classifier, rows = asked
    coded = rows[(rows["score"] == -9) & (rows["glucose"] > 1)].head(5)
    told = classifier.explain(
        coded, target="yes", vary=["score", "glucose"], max_change={"glucose": 0.2}
    )
    assert (told.status == "infeasible").all()
    assert all("score with no record (-9)" in sentence for sentence in told.changes())


def test_saved_classifiers_know_their_codes(asked, tmp_path):
    classifier, rows = asked
    classifier.save(tmp_path / "model.safetensors")
    again = ct.CounterfactualClassifier.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(rows), classifier.predict_proba(rows))
    question = {"X": rows.head(10), "target": "yes"}
    pd.testing.assert_frame_equal(
        again.explain(**question).frame, classifier.explain(**question).frame
    )


def test_fit_points_out_codes_once():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": np.r_[rng.integers(30, 95, 188), np.full(12, -9)], "z": rng.normal(size=200)}
    )
    y = (frame["z"] > 0).to_numpy()
    with pytest.warns(
        UserWarning, match=r'"x" holds -9 in 12 rows.*state special={"x": \[-9\]}'
    ) as said:
        ct.CounterfactualClassifier(epochs=1, gate="none").fit(frame, y)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ct.CounterfactualClassifier(epochs=1, gate="none", special={"x": [-9]}).fit(frame, y)
