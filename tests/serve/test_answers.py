"""Explanations as the plain values that the API sends."""

import numpy as np
import pandas as pd

from counterfactual_training.serve.answers import answers_of
from counterfactual_training.tables.estimators import CounterfactualClassifier


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
