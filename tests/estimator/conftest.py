"""A small loan book, and a classifier trained on it once."""

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.estimator import CounterfactualClassifier

DEGREES = ["none", "BSc", "MSc"]
SCHEMA = {
    "debt": {"unit": "thousand dollars"},
    "degree": {"kind": "ordinal", "categories": DEGREES, "mutability": "increase"},
}


def draw_loans(n: int = 240, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Integer, decimal, ordinal, categorical and boolean columns; debt decides, the rest helps."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "debt": np.round(rng.gamma(2.0, 10.0, n), 1),
            "degree": rng.choice(DEGREES, n),
            "branch": rng.choice(["north", "south", "west"], n),
            "owner": rng.random(n) > 0.5,
        },
        index=np.arange(n) + 100,
    )
    score = 1.5 - 0.12 * frame["debt"] + 0.02 * (frame["age"] - 50) + 0.5 * frame["degree"].map(DEGREES.index)
    score += 0.8 * frame["owner"] + 0.5 * (frame["branch"] == "west")
    return frame, np.where(score > 0, "granted", "denied")


def quick(**params):
    """A classifier that trains in well under a second."""
    small = {"epochs": 15, "learning_rate": 0.02, "num_counterfactuals": 60, "random_state": 0}
    gate = {} if "preset" in params else {"gate": "density"}
    return CounterfactualClassifier(**{**small, **gate, **params})


@pytest.fixture(scope="session")
def loans():
    return draw_loans()


@pytest.fixture(scope="session")
def fitted(loans):
    rules = {"mutability": {"age": "none", "debt": "decrease"}, "domain": {"debt": (0, None)}}
    return quick(schema=SCHEMA, **rules).fit(*loans)


@pytest.fixture(scope="session")
def rejected(loans, fitted):
    frame, _ = loans
    return frame[fitted.predict(frame) == "denied"]


@pytest.fixture(scope="session")
def make_quick():
    return quick


@pytest.fixture(scope="session")
def schema():
    return SCHEMA
