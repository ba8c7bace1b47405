"""Explanations as the plain values that the API sends."""

import pickle

import numpy as np
import pandas as pd

from counterfactual_serve.answers import answers_of
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier


def test_a_change_that_only_follows_others_is_marked():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"debt": rng.integers(1, 40, 80) * 1.0, "income": rng.integers(10, 60, 80) * 1.0}
    )
    frame["ratio"] = frame["debt"] / frame["income"]
    settings = {
        "model": "linear",
        "gate": "none",
        "epochs": 5,
        "learning_rate": 0.1,
        "random_state": 0,
    }
    classifier = CounterfactualClassifier(
        **settings, relations=["ratio = debt / income"], mutability={}
    )
    classifier.fit(frame, np.where(frame["ratio"] < 0.6, "granted", "denied"))
    rows = frame[classifier.predict(frame) == "denied"].head(3).reset_index(drop=True)
    for answer in answers_of(classifier.explain(rows, target="granted"), len(rows)):
        plan = answer["plans"][0]
        follows = {change["column"]: change["follows"] for change in plan["changes"]}
        assert follows == {"debt": False, "ratio": True} and plan["changed"] == 1


def test_sentences_and_notes_do_without_the_number_of_the_row():
    """A row may be called anything, even what a sentence is made of."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"debt": rng.normal(40, 9, 80), "income": rng.normal(50, 9, 80)})
    classifier = CounterfactualClassifier(epochs=5, random_state=0, mutability={})
    classifier.fit(frame, np.where(frame["debt"] < frame["income"], "yes", "no"))
    rows = frame[classifier.predict(frame) == "no"].head(2)
    told = classifier.explain(
        rows.set_axis(["case: 7", "Row 1: x"]), target="yes", n_options=3, vary=["debt"]
    )
    for i, text in enumerate(told.changes()):
        whole = told.sentence(i)
        assert whole[0].isupper() and text.endswith(whole[1:])
        bare = told.sentence(i, plausibility=False)
        assert whole.removesuffix(".").startswith(bare.removesuffix("."))
    assert "plausibility" in told.sentence(0)
    assert "plausibility" not in told.sentence(0, plausibility=False)
    note = told.notes[0]
    assert note == "Row case: 7 " + note.text and note.row == "case: 7"
    assert pickle.loads(pickle.dumps(note)).text == note.text  # noqa: S301 - our own
    asked = classifier.explain(
        rows.reset_index(drop=True), target="yes", n_options=3, vary=["debt"]
    )
    notes = [answer["notes"][0] for answer in answers_of(asked, 2)]
    assert all(text.startswith("This row has 1 of 3 options") for text in notes)
