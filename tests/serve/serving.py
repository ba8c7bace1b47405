"""People to decide on, a classifier of them, and a way to ask the API."""

import warnings

import numpy as np
import pandas as pd

from counterfactual_training.estimator import CounterfactualClassifier

BASE = "http://127.0.0.1:8000"


def make_people(number: int = 600, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    """Applicants with numbers, integers, categories, an ordered one and a flag; who has more income and less debt is
    granted."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, number),
            "income": np.round(rng.gamma(4, 10, number), 1),
            "debt": np.round(rng.gamma(2, 12, number), 1),
            "job": rng.choice(["clerk", "nurse", "pilot"], number),
            "owner": rng.choice([True, False], number),
            "sex": rng.choice(["female", "male"], number),
        }
    )
    score = frame["income"] - frame["debt"] + 8 * (frame["job"] == "pilot") + 6 * frame["owner"]
    score += rng.normal(0, 4, number) - 10 * (frame["sex"] == "female")
    return frame, pd.Series(np.where(score > 15, "granted", "denied"), dtype=object)


def train(seed: int = 0, **settings) -> CounterfactualClassifier:
    frame, y = make_people()
    schema = {"income": {"unit": "thousand dollars"}, "debt": {"unit": "thousand dollars"}}
    rules = {"mutability": {"age": "none", "sex": "none", "debt": "decrease"}, "schema": schema}
    classifier = CounterfactualClassifier(epochs=15, random_state=seed, progress=False, **rules, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return classifier.fit(frame, y)


def ask(client, path, **body):
    """The answer to a POST, which must succeed."""
    response = client.post(f"/api/v1/{path}", json=body)
    assert response.status_code == 200, response.text
    return response.json()
